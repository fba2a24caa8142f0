"""The command line: printed output, machine-readable output and errors."""

import csv
import io
import json
import subprocess
import sys
import warnings
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner, Result

import heal
from heal import HEAL, VLM
from heal.cli import app as application
from heal.errors import ConfigError
from heal.speed import Speed
from heal.speed_model import Shape

NEW = 3
PROMPT = "describe this image"
TYPES = {"causal-redundant", "info-redundant", "visual", "language", "synergy", "unknown"}


@pytest.fixture(scope="module")
def picture(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("pictures") / "it.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(path)
    return str(path)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> str:
    vlm, folder = VLM.random(), tmp_path_factory.mktemp("checkpoint")
    vlm.model.save_pretrained(folder)
    vlm.processor.save_pretrained(folder)
    return str(folder)


def strict_json(text: str) -> dict[str, Any]:
    """Parse strict JSON: one value, without NaN or Infinity."""

    def refuse(name: str) -> None:
        raise ValueError(f"{name} is not JSON")

    return json.loads(text, parse_constant=refuse)


def cli(*args: str) -> Result:
    result = CliRunner().invoke(application.app, list(args))
    assert result.exception is None
    assert result.exit_code == 0
    return result


def run(picture: str, *args: str) -> Result:
    return cli("run", picture, PROMPT, "--model", "random", "--max-new-tokens", str(NEW), *args)


# ── heal run ──────────────────────────────────────────────────────────────────────────────────────────


def test_run(picture: str) -> None:
    expected = VLM.random().generate(picture, PROMPT, method=HEAL(), max_new_tokens=NEW)
    result = run(picture)
    assert result.stdout == f"heal:  {expected.text}\n"
    assert "RANDOM weights" in result.stderr
    assert f"fired: {expected.fired.changes} changes in {NEW} of {NEW} steps" in result.stderr


def test_run_json(picture: str) -> None:
    method = HEAL(alpha=0.6, interval=2, masking="zero")
    expected = VLM.random().generate(picture, PROMPT, method=method, max_new_tokens=NEW)
    found = strict_json(run(picture, "--json", "--method", "heal:interval=2,masking=zero", "--alpha", "0.6").stdout)
    assert found["model"] == "random"
    assert found["method"] == "heal"
    assert found["options"] == method.options()
    assert "plain" not in found
    answer = found["answer"]
    assert answer["text"] == expected.text
    assert tuple(answer["token_ids"]) == expected.token_ids
    assert tuple(answer["logprobs"]) == pytest.approx(expected.logprobs)
    assert (answer["finish"], answer["prompt_tokens"]) == ("length", expected.prompt_tokens)
    assert answer["fired"].pop("sizes") == pytest.approx(dict(expected.fired.sizes))
    assert answer["fired"] == {k: v for k, v in vars(expected.fired).items() if k != "sizes"}
    assert 0 < answer["first_token_seconds"] <= answer["seconds"]


def test_infinite_options_are_valid_json(picture: str) -> None:
    found = strict_json(run(picture, "--json", "--method", "heal:mad=inf,factor_limit=none").stdout)
    assert found["options"]["factor_limit"] is None
    assert found["answer"]["fired"]["changes"] > 0


@pytest.mark.parametrize(("method", "same"), [("heal", False), ("heal:calibrate=false", True)])
def test_compare(picture: str, method: str, same: bool) -> None:
    plain = VLM.random().generate(picture, PROMPT, max_new_tokens=NEW)
    result = run(picture, "--compare", "--method", method)
    first, second = result.stdout.splitlines()
    assert first == f"plain: {plain.text}"
    assert (second == f"heal:  {plain.text}") == same
    assert f"the plain model: {'the same' if same else 'a different'} answer" in result.stderr
    found = strict_json(run(picture, "--compare", "--json", "--method", method).stdout)
    assert found["plain"]["token_ids"] == list(plain.token_ids)
    assert found["plain"]["fired"] is None


def test_trace_is_saved(picture: str, tmp_path: Path) -> None:
    path = tmp_path / "new" / "trace.safetensors"
    found = strict_json(run(picture, "--json", "--trace", str(path)).stdout)
    trace = heal.Trace.load(path)
    assert trace.token_ids.tolist() == found["answer"]["token_ids"]
    assert (trace.steps, trace.text) == (NEW, found["answer"]["text"])
    assert trace.config["method"] == "heal"


def test_trace_of_another_method_is_saved(picture: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.safetensors"
    found = strict_json(run(picture, "--json", "--method", "vcd", "--trace", str(path)).stdout)
    trace = heal.Trace.load(path)
    assert trace.token_ids.tolist() == found["answer"]["token_ids"]
    assert trace.logprobs.tolist() == pytest.approx(found["answer"]["logprobs"], rel=1e-6)
    assert trace.config["method"] == "vcd"


def test_beams(picture: str) -> None:
    expected = VLM.random().generate(picture, PROMPT, method=HEAL(), max_new_tokens=NEW, num_beams=3)
    found = strict_json(run(picture, "--json", "--num-beams", "3").stdout)
    assert tuple(found["answer"]["token_ids"]) == expected.token_ids


def test_checkpoint(picture: str, saved: str) -> None:
    found = strict_json(run(picture, "--json", "--model", saved, "--device", "cpu", "--dtype", "float32").stdout)
    assert found["model"] == saved
    assert found["answer"]["token_ids"] == strict_json(run(picture, "--json").stdout)["answer"]["token_ids"]


# ── heal analyze ──────────────────────────────────────────────────────────────────────────────────────


def analyze(picture: str, *args: str) -> Result:
    return cli("analyze", picture, PROMPT, "--model", "random", "--max-new-tokens", str(NEW), *args)


def test_analyze(picture: str) -> None:
    plain = VLM.random().generate(picture, PROMPT, max_new_tokens=NEW)
    lines = analyze(picture).stdout.splitlines()
    assert lines[0] == f"answer: {plain.text}"
    heads = [line.split()[2] for line in lines if line.startswith("  layer")]
    assert len(heads) == 6
    assert all(len(row) == 8 and set(row) <= set("ciVLS") for row in heads)
    assert any("S" in row for row in heads)
    assert [line.split()[-1] for line in lines[-NEW:]] == plain.text.split()


def test_analyze_json(picture: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.safetensors"
    found = strict_json(analyze(picture, "--json", "--trace", str(path)).stdout)
    trace = heal.Trace.load(path)
    assert found["types"] == trace.types[0].tolist()
    assert found["counts"].keys() == TYPES
    assert sum(found["counts"].values()) == 48
    assert found["counts"]["synergy"] == (trace.types[0] == heal.HeadType.SYNERGY).sum() > 0
    assert found["alpha_vis"] == pytest.approx(trace.mean_alpha().tolist())
    assert np.array(found["parts_of_total"]) == pytest.approx(trace.mean_parts())
    assert (found["text"], tuple(found["tokens"])) == (trace.text, trace.tokens)
    assert found["config"]["calibrate"] is False


def test_analyze_as_csv_and_markdown(picture: str) -> None:
    found = strict_json(analyze(picture, "--json").stdout)
    rows = list(csv.DictReader(io.StringIO(analyze(picture, "--format", "csv").stdout)))
    assert len(rows) == NEW * 48
    first = [row["type"] for row in rows if row["step"] == "0"]
    assert {kind: first.count(kind) for kind in TYPES} == found["counts"]
    assert [row["token"] for row in rows[::48]] == found["tokens"]
    text = analyze(picture, "--format", "md").stdout
    assert len([line for line in text.splitlines() if line.startswith("| ")]) == (2 + 6) + (2 + NEW)


def test_analyze_some_layers(picture: str) -> None:
    found = strict_json(analyze(picture, "--json", "--method", "heal:layers=2").stdout)
    assert found["counts"]["unknown"] == 40
    lines = analyze(picture, "--method", "heal:layers=2").stdout.splitlines()
    unknown = [line.split()[2] == "????????" for line in lines if line.startswith("  layer")]
    assert unknown == [True, True, False, True, True, True]


# ── heal speed ────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    shape = Shape(hidden=32, intermediate=32, heads=4, kv_heads=2, positions=24, visual=12)
    monkeypatch.setattr("heal.speed.PRESETS", {"tiny": shape})
    return ["speed", "--preset", "tiny", "--rounds", "2", "--method", "heal:preset=gaussian,interval=2"]


def test_speed_json(tiny: list[str]) -> None:
    found = strict_json(cli(*tiny, "--batch", "2", "--layers", "3", "--json").stdout)
    assert found.keys() == {f.name for f in fields(Speed)}
    assert [arm["name"] for arm in found["arms"]] == ["plain", "fast", "reference"]
    assert list(found["skipped"]) == ["fused"]
    named = "ms ratio ratio_low ratio_high prefill_ms prefill_ratio".split()
    assert all(isinstance(arm[name], (int, float)) for arm in found["arms"] for name in named)
    assert (found["preset"], found["layers"], found["batch"], found["rounds"]) == ("tiny", 3, 2, 2)
    assert all(min(arm["ms"], arm["ratio"]) > 0 for arm in found["arms"])


def test_speed_of_the_fused_path(tiny: list[str]) -> None:
    options = [*tiny[:-1], "heal:interval=2", "--no-reference"]
    table = cli(*options).stdout
    assert "HEAL, fused, " in table
    assert "left out" not in table
    rows = list(csv.DictReader(io.StringIO(cli(*options, "--format", "csv").stdout)))
    assert [row["name"] for row in rows] == ["plain", "fast", "fused"]
    assert all(float(row["ratio"]) > 0 for row in rows)


def test_speed_without_the_reference(tiny: list[str]) -> None:
    found = strict_json(cli(*tiny, "--no-reference", "--json").stdout)
    assert [arm["name"] for arm in found["arms"]] == ["plain", "fast"]
    table = cli(*tiny, "--no-reference").stdout
    assert "plain (sdpa)" in table
    assert "HEAL, reference" not in table
    assert "HEAL, fused was left out: gaussian masking with diagonal covariance" in table
    assert "state between steps: " in table
    assert "| plain (sdpa) |" in cli(*tiny, "--no-reference", "--format", "md").stdout
    plain, fast = csv.DictReader(io.StringIO(cli(*tiny, "--no-reference", "--format", "csv").stdout))
    assert (plain["name"], plain["preset"], plain["refresh_ms"]) == ("plain", "tiny", "")
    assert (fast["name"], fast["implementation"]) == ("fast", "fast")


# ── errors ────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Failed:
    code: int
    out: str
    err: str

    def complaint(self) -> str:
        """The error line."""
        assert "Traceback" not in self.err
        (line,) = (line for line in self.err.splitlines() if line.startswith("heal: error:"))
        return line


def fail(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *args: str) -> Failed:
    """Run `heal ARGS` in this process and return how it ended."""
    monkeypatch.setattr(sys, "argv", ["heal", *args])
    with warnings.catch_warnings(), pytest.raises(SystemExit) as ended:
        application.main()
    out, err = capsys.readouterr()
    return Failed(int(ended.value.code or 0), out, err)


SHORT = ["--max-new-tokens", "1"]
BAD_INPUT: dict[str, tuple[list[str], str]] = {
    "missing image": (["run", "/no/such.png", PROMPT], "there is no image at /no/such.png"),
    "missing image to analyze": (["analyze", "/no/such.png", PROMPT], "there is no image at /no/such.png"),
    "not an image": (["run", __file__, PROMPT], "cannot be read as an image"),
    "no prompt": (["run", "PICTURE"], "heal run IMAGE PROMPT"),
    "empty prompt": (["run", "PICTURE", " "], "prompt 0 is empty"),
    "alpha": (["run", "PICTURE", PROMPT, "--alpha", "1.5"], "strictly between 0 and 1, not 1.5"),
    "alpha of the demo": (["run", "--alpha", "0"], "strictly between 0 and 1"),
    "method": (["run", "PICTURE", PROMPT, "--method", "nonsense"], "unknown method 'nonsense': choose one of"),
    "option": (["run", "PICTURE", PROMPT, "--method", "heal:beta=1"], "'beta=1' is not an option of heal"),
    "layers": (["run", "PICTURE", PROMPT, "--method", "heal:layers=8"], "(0 to 7)"),
    "preset": (["speed", "--preset", "nonsense"], "unknown preset 'nonsense': choose one of"),
    "two measurements": (["speed", "--count", "--growth"], "are different measurements: give one of them"),
    "gpu": (["speed", "--predict", "z80"], "unknown GPU 'z80': choose one of a100, h100, or custom"),
    "own gpu": (["speed", "--predict", "custom"], "--predict custom needs --launch-us and --bandwidth-gbs"),
    "launch time": (["speed", "--launch-us", "3"], "describe a GPU for --predict: give --predict custom with them"),
    "device of speed": (["speed", "--device", "nonsense"], "there is no device 'nonsense' here"),
    "device of growth": (["speed", "--growth", "--device", "cpu:0"], "run on the CPU: leave --device out"),
    "dtype of speed": (["speed", "--dtype", "auto"], "dtype must be float32, bfloat16 or float16 here"),
    "dtype": (["run", "PICTURE", PROMPT, "--model", "SAVED", "--dtype", "int8"], "dtype cannot be 'int8'"),
    "dtype of the random model": (["run", "PICTURE", PROMPT, "--dtype", "int8", *SHORT], "dtype cannot be 'int8'"),
    "device": (["run", "PICTURE", PROMPT, "--model", "SAVED", "--device", "nonsense"], "nonsense"),
    "trace": (["run", "PICTURE", PROMPT, "--trace", "FOLDER", *SHORT], "FOLDER"),
}


@pytest.mark.parametrize("name", BAD_INPUT)
def test_invalid_input_gives_one_line_and_exit_code_2(
    monkeypatch, capsys, picture: str, saved: str, tmp_path: Path, name: str
) -> None:
    args, message = BAD_INPUT[name]
    places = {"PICTURE": picture, "SAVED": saved, "FOLDER": str(tmp_path)}
    failed = fail(monkeypatch, capsys, *(places.get(arg, arg) for arg in args))
    assert failed.code == 2
    assert places.get(message, message) in failed.complaint()
    assert failed.out == ""


def test_unloadable_model_gives_exit_code_3(monkeypatch, capsys, picture: str, tmp_path: Path) -> None:
    for folder, message in ((tmp_path / "missing", "there is no checkpoint at"), (tmp_path, "is not a checkpoint")):
        failed = fail(monkeypatch, capsys, "run", picture, PROMPT, "--model", str(folder))
        assert failed.code == 3
        assert message in failed.complaint()
        assert failed.out == ""


@pytest.mark.parametrize("args", [["nonsense"], ["run", "--nonsense"], ["list", "nonsense"], ["analyze"]])
def test_wrong_usage_gives_exit_code_2(monkeypatch, capsys, args: list[str]) -> None:
    failed = fail(monkeypatch, capsys, *args)
    assert failed.code == 2
    assert "Traceback" not in failed.err
    assert failed.out == ""


def test_interruption_gives_exit_code_130(monkeypatch, capsys, picture: str) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("heal.cli.common.load", interrupt)
    failed = fail(monkeypatch, capsys, "run", picture, PROMPT)
    assert failed.code == 130
    assert "Traceback" not in failed.err


def test_warning_is_one_line(monkeypatch, capsys, picture: str) -> None:
    ended = fail(monkeypatch, capsys, "run", picture, PROMPT, "--method", "heal:factor_limit=1", *SHORT)
    assert ended.code == 0
    (line,) = (line for line in ended.err.splitlines() if "warning" in line)
    assert line.startswith("heal: warning: nothing was changed: ")
    assert "unchanged because every " in ended.err


def test_help_lists_the_exit_codes() -> None:
    text = " ".join(cli("--help").stdout.split())
    assert "2 invalid input or options; 3 the model cannot be loaded or used" in text
    assert "4 finished, but some samples failed; 130 interrupted" in text
    for command in ("run", "analyze", "speed", "list"):
        assert command in text


# ── installed ─────────────────────────────────────────────────────────────────────────────────────────


def python(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *args], capture_output=True, text=True, timeout=120, check=False)


def test_successful_process(picture: str) -> None:
    ended = python("-m", "heal", "run", picture, PROMPT, "--model", "random", "--json", "--max-new-tokens", str(NEW))
    assert ended.returncode == 0
    assert "RANDOM weights" in ended.stderr
    assert (
        strict_json(ended.stdout)["answer"]["token_ids"]
        == strict_json(run(picture, "--json").stdout)["answer"]["token_ids"]
    )


def test_failing_process(picture: str) -> None:
    ended = python("-m", "heal", "run", picture, PROMPT, "--model", "/no/such")
    message = "heal: error: there is no checkpoint at /no/such\n"
    assert (ended.returncode, ended.stdout, ended.stderr) == (3, "", message)


def test_process_with_wrong_usage() -> None:
    ended = python("-m", "heal", "list", "nonsense")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "nonsense" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("module", ["heal", "heal.cli"])
def test_imports_are_lazy(module: str) -> None:
    heavy = "{'torch', 'transformers', 'pandas', 'scipy', 'PIL'} & set(sys.modules)"
    ended = python("-c", f"import sys, {module}; print({heavy}, heal.__version__)")
    assert ended.stdout == f"set() {heal.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["llava"], "there is no report on 'llava'"), (["--parts", "natural,all"], "a report has no part 'all'")],
)
def test_report_errors(arguments: list[str], message: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(application.app, ["report", *arguments, "--out", str(tmp_path / "o")])
    assert isinstance(result.exception, ConfigError)
    assert message in str(result.exception)
    assert not (tmp_path / "o").exists()
