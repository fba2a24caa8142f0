"""The configuration of a method: validation, equality, registry, parsing and documentation."""

import json
from dataclasses import FrozenInstanceError, fields, replace
from math import inf, nan
from typing import Any

import pytest

from heal.analysis.contribution import REPLACEMENTS
from heal.analysis.counterfactual import COVARIANCES, MASKINGS
from heal.analysis.information import MEASURES
from heal.engine.layout import Layout
from heal.errors import ConfigError
from heal.methods import HEAL, Method, available, base, create, parse
from heal.methods.heal import PRESETS, preset
from heal.methods.options import options_of
from tests import zoo
from tests.laws.conftest import ROWS, generate, inputs_of

CHOICES = {
    "drift": ("both", "language"),
    "masking": MASKINGS,
    "covariance": COVARIANCES,
    "replacement": REPLACEMENTS,
    "measure": MEASURES,
    "sinks": ("language", "neutral"),
    "path": ("fast", "reference"),
}

WRONG: list[tuple[str, Any, str]] = [
    *(("alpha", value, "strictly between 0 and 1") for value in (0, 1, -0.1, 1.5, nan, inf)),
    *((name, value, "whole number") for name in ("interval", "draws") for value in (0, -1, 1.5)),
    *((name, value, "0 or more") for name in ("mad", "sigma_causal", "sigma_info") for value in (-1.0, -inf, nan)),
    *(("factor_limit", value, "1 or more") for value in (0.5, 0.0, -2.0, inf, nan)),
    *(("layers", value, "at least one decoder layer") for value in ((), (-1,), (0, -2))),
    *(("seed", value, "whole number") for value in (-1, 0.5)),
    *((name, "nonsense", "choose one of") for name in CHOICES),
    *((name, "", "choose one of") for name in CHOICES),
]


pytestmark = pytest.mark.usefixtures("without_type_checker")


def option(name: str, value: Any) -> dict[str, Any]:
    return {name: value}


@pytest.mark.parametrize(("name", "value", "advice"), WRONG)
def test_wrong_value_is_refused(name: str, value: Any, advice: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{name} .*{advice}.*"):
        HEAL(**option(name, value))


@pytest.mark.parametrize(("name", "value", "advice"), WRONG)
def test_wrong_value_is_refused_in_a_copy(name: str, value: Any, advice: str) -> None:
    with pytest.raises(ConfigError, match=advice):
        replace(HEAL(), **{name: value})


@pytest.mark.parametrize("name", CHOICES)
def test_refusal_names_the_choices(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        HEAL(**option(name, "nonsense"))
    assert all(choice in str(caught.value) for choice in CHOICES[name])


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in CHOICES.items() for value in values])
def test_every_choice_is_accepted(name: str, value: str) -> None:
    assert getattr(HEAL(**option(name, value)), name) == value


def test_full_covariance_is_for_gaussian_masking() -> None:
    with pytest.raises(ConfigError, match="covariance full requires expected or gaussian masking, not zero"):
        HEAL(masking="zero", covariance="full")


@pytest.mark.parametrize("name", ["mad", "sigma_causal", "sigma_info"])
@pytest.mark.parametrize("value", [0.0, inf])
def test_bounds_of_thresholds_are_accepted(name: str, value: float) -> None:
    assert getattr(HEAL(**option(name, value)), name) == value


@pytest.mark.parametrize("layers", [(3,), (0, 5), (99,)])
def test_layers_beyond_the_model_are_refused(layers: tuple[int, ...]) -> None:
    layout = Layout.of(zoo.build("llava"))
    last = max(layers)
    with pytest.raises(ConfigError, match=rf"layers names layer {last}, but the model has 3 layers \(0 to 2\)"):
        HEAL(layers=layers).runtime(layout, trace=False)
    run = generate(zoo.build("llava"), inputs_of("llava", ROWS), HEAL(layers=(2,)), new=2)
    measured = run.stacked("visual")[0].isfinite().any(-1).any(0)
    assert measured.tolist() == [False, False, True]


# ── values ────────────────────────────────────────────────────────────────────────────────────────────


def test_configuration_does_not_change() -> None:
    with pytest.raises(FrozenInstanceError):
        HEAL().alpha = 0.4  # type: ignore[misc]


def test_equal_by_value() -> None:
    assert HEAL(alpha=0.5, layers=(1, 2)) == HEAL(alpha=0.5, layers=(1, 2))
    assert HEAL(alpha=0.5) != HEAL(alpha=0.4)
    assert hash(HEAL(layers=(1,))) == hash(HEAL(layers=(1,)))
    assert HEAL() == replace(HEAL(seed=3), seed=0)


def test_options_are_plain_and_recreate_the_method() -> None:
    method = HEAL(alpha=0.3, layers=(0, 2), masking="zero", factor_limit=None)
    options = method.options()
    assert list(options) == [f.name for f in fields(HEAL)]
    assert (options["layers"], options["alpha"], options["factor_limit"]) == ([0, 2], 0.3, None)
    again = json.loads(json.dumps(options))
    assert create("heal", **(again | {"layers": tuple(again["layers"])})) == method


# ── registry ──────────────────────────────────────────────────────────────────────────────────────────


def test_available() -> None:
    found = available()
    assert found["heal"] is HEAL
    assert list(found) == sorted(found)
    found.clear()
    assert available()["heal"] is HEAL
    assert all(method.name == name and method.summary and method.paper for name, method in available().items())


def test_create() -> None:
    assert create("heal") == HEAL()
    assert create("heal", alpha=0.7, preset="gaussian", draws=2) == HEAL(alpha=0.7, preset="gaussian", draws=2)


@pytest.mark.parametrize("make", [create, parse])
@pytest.mark.parametrize("name", ["nonsense", "", "HEAL"])
def test_unknown_method(make: Any, name: str) -> None:
    with pytest.raises(ConfigError, match=f"unknown method '{name}': choose one of .*heal"):
        make(name)


def test_unknown_option() -> None:
    with pytest.raises(ConfigError, match="heal has no option beta, gamma: it has alpha, "):
        create("heal", gamma=1, beta=2, alpha=0.5)


def test_method_without_a_runtime_says_so() -> None:
    with pytest.raises(NotImplementedError, match=r"Method must define runtime\(\)"):
        Method().runtime(Layout.of(zoo.build("llava")), trace=False)


def test_registering(monkeypatch: pytest.MonkeyPatch) -> None:
    class Own(Method):
        name = "own"

    monkeypatch.setattr(base, "_registry", dict(base._registry))
    assert base.register(Own) is Own
    assert parse("own") == Own()
    assert {"heal", "own"} <= set(available())


# ── text ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("heal", HEAL()),
        ("heal:", HEAL()),
        (" heal : alpha=0.6 , interval=5,", HEAL(alpha=0.6, interval=5)),
        (
            "heal:alpha=0.6,interval=5,layers=0+2-3,factor_limit=none,yeo_johnson=true,masking=zero",
            HEAL(alpha=0.6, interval=5, layers=(0, 2, 3), factor_limit=None, yeo_johnson=True, masking="zero"),
        ),
        ("heal:alpha=none,layers=none", HEAL()),
        ("heal:alpha=None", HEAL()),
        ("heal:calibrate=False", HEAL(calibrate=False)),
        ("heal:calibrate=NO,yeo_johnson=On", HEAL(calibrate=False, yeo_johnson=True)),
        ("heal:calibrate=0,yeo_johnson=1", HEAL(calibrate=False, yeo_johnson=True)),
        ("heal:mad=inf,sigma_info=1e1", HEAL(mad=inf, sigma_info=10.0)),
        ("heal:factor_limit=3", HEAL(factor_limit=3.0)),
        ("heal:layers=8-11", HEAL(layers=(8, 9, 10, 11))),
        ("heal:layers=4", HEAL(layers=(4,))),
        ("heal:measure=cosine+l2,replacement=cauchy", HEAL(measure="cosine+l2", replacement="cauchy")),
        ("heal:preset=gaussian,draws=3,seed=7", HEAL(preset="gaussian", draws=3, seed=7)),
        ("heal:sinks=neutral,path=reference", HEAL(sinks="neutral", path="reference")),
    ],
)
def test_parse(text: str, expected: HEAL) -> None:
    found = parse(text)
    assert found == expected
    assert {k: type(v) for k, v in found.options().items()} == {k: type(v) for k, v in expected.options().items()}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "heal:alpha",
            "'alpha' is not an option of heal: write heal:option=value,… with alpha, delta, profile, interval",
        ),
        ("heal:beta=1", "'beta=1' is not an option of heal"),
        ("heal:alpha =0.5", "'alpha =0.5' is not an option of heal"),
        ("heal:alpha=half", "heal:alpha cannot be 'half'"),
        ("heal:alpha=", "heal:alpha cannot be ''"),
        ("heal:interval=2.5", "heal:interval cannot be '2.5'"),
        ("heal:interval=none", "heal:interval cannot be 'none'"),
        ("heal:masking=nonsense", "heal:masking cannot be 'nonsense'"),
        ("heal:yeo_johnson=maybe", "heal:yeo_johnson cannot be 'maybe': write true or false"),
        ("heal:yeo_johnson=", "heal:yeo_johnson cannot be '': write true or false"),
        ("heal:alpha=0.3,alpha=0.9", "heal:alpha is given twice: '0.3' and '0.9'"),
        ("heal:alpha=0.3,interval=2+beam:beams=2,beams=3", "beam:beams is given twice"),
        ("heal:masking=odd", "cannot be 'odd': write expected or gaussian or zero or uniform or swap"),
        (f"heal:seed={'9' * 5000}", "the number is too large"),
        (f"heal:delta={'9' * 5000}", "the number is too large"),
        ("heal:delta=1e999", "the number is too large"),
        ("heal:sigma_causal=1e308", "the number is too large"),
        ("heal:draws=99999999", "draws must be a whole number from 1 to 1000"),
        ("heal:draws=4", "draws=4 has no effect with expected masking, which draws no noise"),
        ("heal:preset=gaussian,masking=zero,draws=4", "draws=4 has no effect with zero masking"),
        ("beam:beams=99999999", "beams must be a whole number from 1 to 256"),
        ("heal+beam:beams=2+beam:beams=3", "beam is named twice"),
        ("heal:interval=1_0", "heal:interval cannot be '1_0'"),
        ("heal:interval=\u0663", "write a whole number"),
        ("heal:layers=0-99999999", "names layer 99999999: no model has more than 10000 layers"),
        ("heal:layers=0-1000000000000", "no model has more than"),
        (f"dola:layers={'9' * 5000}", "no model has more than"),
        ("heal:layers=0-4+2", "names layer 2 twice"),
        ("heal:layers=\u0663", "write numbers and ranges"),
        ("heal:profile=,alpha=auto", "heal:profile cannot be ''"),
        ("heal:layers=a", "heal:layers cannot be 'a'"),
        ("heal:layers=0+", "heal:layers cannot be '0\\+'"),
        ("heal:layers=2-", "heal:layers cannot be '2-'"),
        ("heal:layers=-1", "heal:layers cannot be '-1'"),
        ("heal:layers=3-1", "the range 3-1 ends before it starts"),
        ("heal:name=other", "name"),
        ("heal:alpha=1", "alpha must lie strictly between 0 and 1"),
        ("heal:alpha=nan", "heal:alpha cannot be 'nan'"),
        ("heal:factor_limit=inf", "1 or more"),
    ],
)
def test_parse_refuses(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(text)


# ── presets and documentation ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", zoo.NAMES)
def test_preset_of_every_family(name: str) -> None:
    layout = Layout.of(zoo.build(name))
    expected = 0.4 if name.startswith("qwen") else 0.5
    assert HEAL().targets(layout) == expected
    assert HEAL().runtime(layout, trace=False).facts()["equilibrium"] == expected
    assert HEAL(alpha=0.7).runtime(layout, trace=False).facts()["equilibrium"] == 0.7


def test_presets_name_families_that_exist() -> None:
    assert set(PRESETS) <= {zoo.build(name).config.model_type for name in zoo.CORE}
    assert preset("a family of tomorrow") == 0.5


@pytest.mark.parametrize("method", available().values(), ids=available())
def test_every_option_is_documented(method: type[Method]) -> None:
    found = options_of(method)
    assert [option.name for option in found] == [f.name for f in fields(method)]
    for option, field in zip(found, fields(method), strict=True):
        assert len(option.doc) > 15
        assert option.default == repr(field.default)
        assert option.type == str(field.type)


@pytest.mark.parametrize("name", CHOICES)
def test_documentation_names_every_choice(name: str) -> None:
    (doc,) = (option.doc for option in options_of(HEAL) if option.name == name)
    assert all(choice in doc for choice in CHOICES[name])
