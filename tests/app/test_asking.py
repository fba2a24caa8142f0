"""What the page sends: good values become a question, others a clear error."""

from typing import Any

import pytest
from PIL import Image

pytest.importorskip("gradio")

from heal import HEAL, VLM
from heal.app.answering import Answerer
from heal.app.asking import MOST_BYTES, Asked, method_names, method_of, picture_of
from heal.app.examples import Examples
from heal.errors import HealError, ImageError

VALUES = {
    "picture": None,
    "question": "What is this?",
    "method": "heal",
    "alpha": 0.5,
    "interval": 10,
    "one_sided": True,
    "tokens": 16,
}


def asked(answerer: Answerer, picture: object, **changed: Any) -> Asked:
    values = VALUES | {"picture": picture} | changed
    return Asked.of(answerer.folder, tuple(values.values()), answerer.names)


def test_good_values(answerer: Answerer, scene: dict[str, object]) -> None:
    found = asked(answerer, scene, question=" What? ", alpha=0.65, interval=3.0)
    assert (found.question, found.tokens, found.image.size) == ("What?", 16, (96, 96))
    assert found.method == HEAL(alpha=0.65, interval=3, drift="language")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"question": "  "}, "question is empty"),
        ({"question": None}, "question is empty"),
        ({"question": "a" * 4001}, "4,001 characters"),
        ({"method": "beam"}, "no method 'beam'"),
        ({"method": ["heal"]}, "no method"),
        ({"alpha": "0.5"}, "α must be a number"),
        ({"alpha": 1.0}, "between 0 and 1"),
        ({"alpha": float("nan")}, "alpha cannot be 'nan'"),
        ({"interval": 0}, "interval must be a whole number from 1 to 64"),
        ({"interval": 2.5}, "interval must be a whole number"),
        ({"tokens": 100_000}, "length must be a whole number from 1 to 512"),
        ({"tokens": True}, "length must be a number"),
    ],
)
def test_bad_values(answerer: Answerer, scene: dict[str, object], changed: dict[str, Any], message: str) -> None:
    with pytest.raises(HealError, match=message):
        asked(answerer, scene, **changed)


def test_methods() -> None:
    assert method_of("plain", 0.5, 10, False) is None
    guarded = method_of("heal+guard", 0.4, 5, False)
    assert guarded is not None
    assert guarded.name == "heal+guard"


def test_only_methods_that_stream_are_offered(vlm: VLM) -> None:
    names = method_names(vlm, detector=True)
    assert names[:4] == ("plain", "heal", "guard", "heal+guard")
    assert {"vcd", "pai", "dola"} < set(names)
    assert not {"beam", "opera"} & set(names)
    assert not {"guard", "heal+guard"} & set(method_names(vlm, detector=False))


# ── pictures ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("given", [None, {}, {"path": None}, "path", {"url": "http://127.0.0.1/a.png"}])
def test_no_picture(answerer: Answerer, given: object) -> None:
    with pytest.raises(ImageError, match="upload one, or choose an example"):
        picture_of(given, answerer.folder)


def test_other_files_of_the_computer_are_refused(answerer: Answerer, tmp_path: Any) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "own.png")
    inside = answerer.folder / "link.png"
    inside.symlink_to(tmp_path / "own.png")
    for path in (tmp_path / "own.png", inside, answerer.folder / ".." / "x.png"):
        with pytest.raises(ImageError, match="not uploaded here"):
            picture_of({"path": str(path)}, answerer.folder)


def test_broken_missing_and_oversized_pictures(answerer: Answerer, monkeypatch: pytest.MonkeyPatch) -> None:
    path = answerer.folder / "broken.png"
    given = {"path": str(path), "orig_name": "holiday.png"}
    with pytest.raises(ImageError, match="no longer there"):
        picture_of(given, answerer.folder)
    path.write_bytes(b"\x89PNG\r\n\x1a\nno picture")
    with pytest.raises(ImageError, match=r"^holiday\.png cannot be read as an image"):
        picture_of(given, answerer.folder)
    with path.open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    with pytest.raises(ImageError, match=r"holiday\.png is larger than 20 MB"):
        picture_of(given, answerer.folder)
    Image.new("L", (40, 30)).save(path)
    monkeypatch.setenv("HEAL_MAX_PIXELS", "1000")
    with pytest.raises(ImageError, match=r"^holiday\.png has 40 × 30 pixels, more than the limit of 1,000"):
        picture_of(given, answerer.folder)


def test_examples_are_known_by_their_pixels(answerer: Answerer) -> None:
    examples = answerer.examples
    assert len(examples.all) == 8
    for one in examples.all:
        stored = Image.open(answerer.folder / "examples" / f"{one.label.replace(' ', '-')}.png")
        assert examples.objects(stored) == one.objects
        assert one.objects
    other = examples.all[0].image.copy()
    other.putpixel((3, 3), (1, 2, 3))
    assert examples.objects(other) is None
    assert Examples().objects(other) is None
