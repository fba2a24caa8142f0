"""Methods from files and installed packages, minimal methods, and `check_method` on broken ones."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from heal import Method
from heal.check_method import check_method
from heal.cli.app import app
from heal.engine.generation import Generation
from heal.engine.layout import Layout
from heal.engine.runtime import Runtime
from heal.errors import ConfigError, HealWarning, UnsupportedError
from heal.methods import available, base, loading, parse
from tests import zoo
from tests.known import known
from tests.laws.conftest import ROWS, WINDOW, generate, inputs_of, model_of

SOURCE = """
from dataclasses import dataclass
import heal
from heal.engine.runtime import Runtime

class Flipped(Runtime):
    def head_outputs(self, generation, layer, outputs):
        return outputs.flip(2)

@dataclass(frozen=True)
class Mine(heal.Method):
    strength: float = 1.0

    def runtime(self, layout, trace):
        return Flipped()
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(SOURCE)
    return path


# ── from text ────────────────────────────────────────────────────────────────────────────────────────────


def test_a_class_in_a_file(file: Path) -> None:
    method = parse(f"{file}:Mine:strength=2")
    assert (type(method).__name__, method.name, method.options()) == ("Mine", "mine", {"strength": 2.0})
    assert type(parse(f"{file}:Mine")) is type(method)  # a file is run once


def test_with_a_search(file: Path) -> None:
    assert parse(f"{file}:Mine:strength=2+beam:beams=3").name == "mine+beam"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nothere.py:Mine", "there is no file nothere.py"),
        ("{file}:Other", "has no method Other: it has Mine"),
        ("{file}:Mine:power=2", "'power=2' is not an option of Mine"),
        ("{file}:Mine:strength=loud", "Mine:strength cannot be 'loud'"),
        ("{file}:Mine!", "write path/to/file.py:Name:option=value"),
    ],
)
def test_errors(file: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(text.format(file=file))


def test_a_file_that_fails(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("import heal\n1 / 0\n")
    with pytest.raises(ConfigError, match="cannot be loaded: ZeroDivisionError"):
        parse(f"{path}:Mine")


def test_the_error_for_an_unknown_method_explains_files() -> None:
    with pytest.raises(ConfigError, match=r"path/to/file\.py:Name"):
        parse("mine")


def installed_package(folder: Path, **entries: str) -> None:
    """A package as pip leaves it: a module, and the metadata with its entry points."""
    (folder / "my_methods.py").write_text(SOURCE)
    metadata = folder / "my_methods-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: my-methods\nVersion: 1.0\n")
    lines = "".join(f"{name} = {value}\n" for name, value in entries.items())
    (metadata / "entry_points.txt").write_text(f"[{loading.GROUP}]\n{lines}")


def test_methods_of_an_installed_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed_package(tmp_path, mine="my_methods:Mine", gone="no_such_module:Method", odd="my_methods:Flipped")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(loading, "_looked_up", [])
    monkeypatch.setattr(base, "_registry", dict(base._registry))
    with pytest.warns(HealWarning) as warned:
        assert "mine" in available()
    said = sorted(str(w.message) for w in warned if w.category is HealWarning)
    assert [message.split(":")[0] for message in said] == [
        "the method 'gone' cannot be loaded",
        "the method 'odd' cannot be loaded",
    ]
    assert parse("mine:strength=2").options() == {"strength": 2.0}
    assert "mine" in CliRunner().invoke(app, ["list", "methods"]).output
    assert parse("mine+beam:beams=2").name == "mine+beam"


# ── the smallest methods ─────────────────────────────────────────────────────────────────────────────────


class OneHead(Runtime[Any]):
    def head_outputs(self, generation: Generation, layer: int, outputs: Tensor) -> Tensor:
        return outputs * torch.tensor([1.5] + [1.0] * (outputs.shape[2] - 1))[:, None]


class Attention(Runtime[Any]):
    def attention(self, generation: Generation, call: Any, plain: Any) -> Tensor:
        return plain() * 1.1


class Residual(Runtime[Any]):
    def residual(self, generation: Generation, layer: int, hidden: Tensor) -> Tensor | None:
        return hidden * 1.5 + 0.1 if layer == 1 else None


class MLP(Runtime[Any]):
    def mlp_output(self, generation: Generation, layer: int, hidden: Tensor, output: Tensor) -> Tensor:
        return output * 1.2


class FinalHidden(Runtime[Any]):
    def final_hidden(self, generation: Generation, hidden: Tensor) -> Tensor | None:
        return hidden * 1.1 + 0.1


class Logits(Runtime[Any]):
    def logits(self, generation: Generation, logits: Tensor, branches: Mapping[str, Tensor]) -> Tensor:
        return logits * 2


SMALLEST = [OneHead, Attention, Residual, MLP, FinalHidden, Logits]


@dataclass(frozen=True)
class Own(Method):
    own: type[Runtime] = Runtime

    def runtime(self, layout: Layout, trace: bool) -> Runtime[Any]:
        return self.own()


@pytest.mark.parametrize("name", [*zoo.NAMES, WINDOW])
@pytest.mark.parametrize(
    "own", [OneHead, Attention, Residual, MLP, FinalHidden, Logits], ids=lambda own: own.__name__
)
def test_one_overridden_callback_is_a_method(name: str, own: type[Runtime]) -> None:
    """It is called, it changes the output, and the engine counts it."""
    batch = inputs_of(name, ROWS)
    plain, out = (generate(model_of(name), batch, method, new=2) for method in (None, Own(own)))
    sees = torch.tensor([row.images > 0 for row in ROWS])
    assert ((out.logits[:, 0] - plain.logits[:, 0]).abs().amax(-1)[sees] > 1e-6).all()
    assert known(out.fired).steps == 2
    assert out.records == ()


@pytest.mark.parametrize("name", [*zoo.NAMES, WINDOW])
def test_a_method_from_a_file_works_on_every_architecture(file: Path, name: str) -> None:
    out, plain = (generate(model_of(name), inputs_of(name, ROWS), method) for method in (parse(f"{file}:Mine"), None))
    sees = torch.tensor([row.images > 0 for row in ROWS])
    assert ((out.logits[:, 0] - plain.logits[:, 0]).abs().amax(-1)[sees] > 1e-3).all()
    assert [bool(fired) for fired in out.rows][:3] == [True] * 3
    assert generate(model_of(name), inputs_of(name, ROWS), parse(f"{file}:Mine")).tokens.equal(out.tokens)


# ── the laws ─────────────────────────────────────────────────────────────────────────────────────────────


class Draws(Runtime[Any]):
    def logits(self, generation: Generation, logits: Tensor, branches: Mapping[str, Tensor]) -> Tensor:
        return logits + torch.randn_like(logits)


class OfTheBatch(Runtime[Any]):
    def logits(self, generation: Generation, logits: Tensor, branches: Mapping[str, Tensor]) -> Tensor:
        return logits * (1 + logits.shape[0])


class Fails(Runtime[Any]):
    def after_pass(self, generation: Generation) -> None:
        raise ValueError("not today")


def broken(own: type[Runtime]) -> set[str]:
    return {verdict.law for verdict in check_method(Own(own)) if verdict.holds is False}


def test_broken_methods_are_detected() -> None:
    assert "two runs are equal" in broken(Draws)
    assert "a row alone is the row in a batch" in broken(OfTheBatch)
    assert "it runs, with a trace" in broken(Fails)


@dataclass(frozen=True)
class Refuses(Method):
    error: type[Exception] = UnsupportedError

    def runtime(self, layout: Layout, trace: bool) -> Runtime[Any]:
        raise self.error("no model of this kind")


def test_a_method_that_refuses_the_model_is_not_checked() -> None:
    """Five failed checks would repeat the reason. An error that is no refusal fails the checks."""
    for method, neutral in ((Refuses(), None), (Own(Logits), Refuses())):
        with pytest.raises(UnsupportedError, match="no model of this kind"):
            check_method(method, neutral)
    verdicts = check_method(Refuses(error=ValueError))
    assert [v.holds for v in verdicts] == [False, None, False, False, False, False]
    assert verdicts[0].detail == "ValueError: no model of this kind"


def test_laws_of_a_neutral_strength() -> None:
    verdicts = {v.law: v.holds for v in check_method(Own(Logits), neutral=Own(Logits))}
    assert verdicts["neutral strength is the plain model"] is False
    assert verdicts["counters are honest"] is True
    assert {v.law: v.holds for v in check_method(Own(Logits))}["neutral strength is the plain model"] is None


def test_a_method_that_does_nothing_is_the_plain_model() -> None:
    with pytest.warns(HealWarning, match="nothing was changed"):
        run = generate_loudly(Own(Runtime))
    assert torch.equal(run[0], run[1])


def generate_loudly(method: Method) -> tuple[Tensor, Tensor]:
    model, batch = model_of("llava"), inputs_of("llava", ROWS)
    plain = model.generate(**batch, max_new_tokens=2)
    with method.attach(model):
        return model.generate(**batch, max_new_tokens=2), plain
