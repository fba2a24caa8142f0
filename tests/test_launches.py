"""Launches per method: what is counted, how it is divided, and what belongs to the plain model."""

import json
from collections import Counter
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from heal import launches
from heal.cli.app import app
from heal.errors import ConfigError
from heal.kernels import interpreted
from heal.launch_counter import Counts, Sync
from heal.launches import Launches, Subject, count, embedded_subject, random_inputs, steps_of, summary, variants
from heal.methods import HEAL, available
from heal.speed_model import Shape, random_model

TINY = Shape(hidden=32, intermediate=48, heads=4, kv_heads=2, positions=24, visual=12)
BASE = HEAL(interval=3)
COMPILED = f"heal:fused ({'Triton' if interpreted() else 'Numba'})"
MOST_FUSED, MOST_EXPECTED = 8, 90
"""Launches per token and layer of the embedded model, with a refresh every ten steps: of the fused path beyond plain,
and of the fast path with expected noise."""


@pytest.fixture(scope="module")
def subject() -> Subject:
    model = random_model(TINY, 2, torch.float32)
    return Subject("tiny", model, random_inputs(model, TINY, 2))


@pytest.fixture(scope="module")
def found(subject: Subject) -> Launches:
    return count(subject, BASE, heal_only=True)


def test_every_path_and_method_is_a_variant() -> None:
    methods, skipped = variants(BASE)
    forms = {"heal:fast", "heal:fast,gaussian", COMPILED, "heal:reference"}
    assert set(methods) == {"plain", *forms, *available()} - {"heal"}
    assert skipped == {}
    for name in forms - {COMPILED}:
        method = methods[name]
        assert isinstance(method, HEAL)
        drawn = method.noise == "gaussian"
        assert name == f"heal:{method.path}" + ",gaussian" * (drawn and method.path == "fast")
        assert drawn == (name != "heal:fast")
    method = methods[COMPILED]
    assert isinstance(method, HEAL)
    assert (method.path, method.noise, method.replaced_by) == ("fused", "expected", "expected")


def test_without_compiled_functions_the_fused_path_is_left_out() -> None:
    methods, skipped = variants(HEAL(masking="expected", covariance="full"), heal_only=True)
    assert COMPILED not in methods
    assert skipped == {"heal:fused": "expected masking with full covariance"}


def test_a_fused_path_that_did_not_run_is_left_out() -> None:
    model = random_model(TINY, 1, torch.bfloat16)
    found = count(Subject("tiny", model, random_inputs(model, TINY, 1)), HEAL(interval=1), heal_only=True)
    if interpreted():  # Triton covers bfloat16
        assert found.skipped == {}
    else:
        assert found.skipped == {COMPILED: "no layer of this model was computed by the compiled functions"}


def test_what_cannot_be_created_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Any:
        raise ConfigError("needs triton")

    monkeypatch.setattr(launches, "available", lambda: {"heal": HEAL, "other": missing})
    assert variants(BASE)[1]["other"] == "needs triton"


def test_heal_launches_more_than_plain(found: Launches) -> None:
    plain, fast = found.method("plain"), found.method("heal:fast")
    assert (found.model, found.layers, found.batch, found.interval) == ("tiny", 2, 2, 3)
    assert plain.mean == plain.between == plain.refresh
    assert 20 < plain.mean.launches < fast.between.launches < fast.mean.launches < fast.refresh.launches
    share = (2 * fast.between.launches + fast.refresh.launches) / 3
    assert fast.mean.launches == pytest.approx(share)
    assert plain.extra_waits == 0
    assert sum(fast.operations.values()) == pytest.approx(fast.mean.launches)
    assert sum(fast.files.values()) == pytest.approx(fast.mean.launches)
    assert json.loads(json.dumps(found.to_dict()))["interval"] == 3


def test_a_fused_layer_is_a_few_calls(found: Launches) -> None:
    plain, fast, fused = (found.method(name) for name in ("plain", "heal:fast", COMPILED))
    calls = fused.operations["triton" if interpreted() else "numba"]
    assert 1 <= calls <= 3  # Numba: the moments, the split and the rest; Triton: all of it, and a refresh
    assert plain.mean.launches < fused.mean.launches < fast.mean.launches
    assert fused.mean.read > plain.mean.read


def test_the_embedded_model_launches_as_few_as_documented(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launches, "ROUNDS", 1)
    found = count(embedded_subject(), heal_only=True)
    plain, fast, fused = (found.method(name) for name in ("plain", "heal:fast", COMPILED))
    assert fused.mean.launches <= plain.mean.launches + MOST_FUSED
    assert fast.mean.launches <= MOST_EXPECTED
    for method in (fast, fused):  # nothing but the check for NaN, at 32 steps at once
        assert {wait.place.partition(":")[0] for wait in method.waits if wait.extra > 0} <= {"engine/finite.py"}


def test_an_unknown_method_is_an_error(found: Launches) -> None:
    with pytest.raises(ConfigError, match="nothing was not counted: choose one of plain"):
        found.method("nothing")


def test_steps_leave_out_the_prompt(subject: Subject) -> None:
    steps = steps_of(subject, None, 5)
    assert len(steps) == 5
    assert len({step.launches for step in steps[1:]}) == 1


def test_summary_by_hand() -> None:
    def step(n: int, waits: int) -> Counts:
        sync = Sync("read", "item", "a.py:1")
        return Counts(Counter({"add": n}), Counter({"a.py": n}), Counter({sync: waits}), read=8 * n, written=4 * n)

    steps = [step(4, 1), step(10, 3), step(4, 1), step(10, 3)]
    plain = Counts(syncs=Counter({Sync("read", "item", "a.py:1"): 2}))
    row = summary("any", steps, 2, 2, plain, 4)
    assert (row.between.launches, row.refresh.launches, row.mean.launches) == (2, 5, 3.5)
    assert (row.mean.read, row.mean.written) == (56, 28)
    assert (row.between.waits, row.refresh.waits) == (1, 3)
    assert row.extra_waits == 0.5
    assert row.operations == {"add": 3.5}


@pytest.mark.parametrize("form", ["table", "json", "csv"])
def test_command(subject: Subject, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    monkeypatch.setattr(launches, "random_subject", lambda *_: subject)
    monkeypatch.setattr(launches, "available", lambda: {"heal": HEAL})
    options = ["speed", "--count", "--preset", "tiny", "--method", "heal:interval=2", "--format", form]
    out = CliRunner().invoke(app, options)
    assert out.exit_code == 0, out.output
    if form == "json":
        assert [m["name"] for m in json.loads(out.stdout)["methods"]][:2] == ["plain", "heal:fast"]
    else:
        assert "heal:fast" in out.stdout


def test_unknown_preset() -> None:
    with pytest.raises(ConfigError, match="unknown preset 'nonsense': choose one of llava"):
        launches.random_subject("nonsense", 1, 1, torch.float32)
