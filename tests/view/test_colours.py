"""Contrast of the colours by WCAG 2.2 AA, computed from the variables of view.css, and their difference to eyes that
lack one kind of cone."""

import itertools
import re

import numpy as np
import pytest

from heal.view.page import source

THEMES = ("light", "dark")
TEXTS = [("text", "surface"), ("text", "raised"), ("faint", "surface"), ("faint", "raised"), ("wrong", "surface"),
         ("wrong", "raised"), ("correct", "surface"), ("accent", "surface"), ("surface", "text")]  # fmt: skip
SHADES = ("risk", "share", "surprise")
GRAPHICS = ["edge", "accent", "answer-0", "answer-1", "answer-2", "answer-3", "type-2", "type-3", "type-4", "type-0"]
KINDS = ("type-2", "type-3", "type-4", "type-1", "type-0")
# Machado, Oliveira and Fernandes (2009), severity 1
BLIND = {
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}


def colours(theme: str) -> dict[str, np.ndarray]:
    pairs = re.findall(r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\)", source("view.css"))
    column = 1 + THEMES.index(theme)
    return {pair[0]: np.array([int(pair[column][i : i + 2], 16) for i in (1, 3, 5)]) / 255 for pair in pairs}


def linear(colour: np.ndarray) -> np.ndarray:
    return np.where(colour <= 0.04045, colour / 12.92, ((colour + 0.055) / 1.055) ** 2.4)


def contrast(one: np.ndarray, other: np.ndarray) -> float:
    first, second = (float(linear(c) @ [0.2126, 0.7152, 0.0722]) for c in (one, other))
    return (max(first, second) + 0.05) / (min(first, second) + 0.05)


def lab(colour: np.ndarray) -> np.ndarray:
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ colour
    f = np.cbrt(xyz / [0.9505, 1, 1.089])
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize(("ink", "ground"), TEXTS)
def test_text_has_a_contrast_of_4_5(theme: str, ink: str, ground: str) -> None:
    found = colours(theme)
    assert contrast(found[ink], found[ground]) >= 4.5


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("shade", SHADES)
def test_words_can_be_read_on_every_shade(theme: str, shade: str) -> None:
    found = colours(theme)
    for part in np.linspace(0, 1, 11):
        ground = part * found[f"shade-{shade}"] + (1 - part) * found["surface"]
        assert contrast(found["text"], ground) >= 4.5
        assert contrast(found["wrong"], ground) >= 3  # the underline and the sign


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("name", GRAPHICS)
def test_lines_and_cells_have_a_contrast_of_3(theme: str, name: str) -> None:
    found = colours(theme)
    assert contrast(found[name], found["surface"]) >= 3


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("kind", ["normal", *BLIND])
def test_types_differ_for_every_eye(theme: str, kind: str) -> None:
    seen = {name: linear(colour) for name, colour in colours(theme).items()}
    matrix = np.array(BLIND.get(kind, np.eye(3)))
    labs = {name: lab(np.clip(matrix @ seen[name], 0, 1)) for name in KINDS}
    for one, other in itertools.combinations(KINDS, 2):
        assert np.linalg.norm(labs[one] - labs[other]) >= 15, (one, other)
