"""What the package needs, what is optional, and what users see when an optional package is missing."""

import ast
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import heal
from heal.errors import MissingPackageError
from heal.extras import EXTRAS, SEPARATE, optional, require

ROOT = Path(heal.__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
GUARDED = {"app": "app", "cli": "cli", "plots": "plots", "kernels": "gpu"}
"""Subpackages and their extra. Their __init__, or what imports them, checks for it before anything else."""
IMPORTED_AS = {"scikit-learn": "sklearn", "pillow": "PIL", "lmms-eval": "lmms_eval"}

WITHOUT = """
import sys
from importlib.machinery import PathFinder

class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in {refused!r} else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Without
"""

METHOD = """
import torch
from PIL import Image
import heal
from heal import HEAL, VLM

vlm = VLM.random()
image = Image.new("RGB", (32, 32), "red")
inputs = vlm.processor(images=image, text="<image> what is it", return_tensors="pt")
with HEAL(alpha=0.9).attach(vlm.model):
    ids = vlm.model.generate(**inputs, max_new_tokens=3, do_sample=False)
answer = vlm.generate(image, "what is it", method=HEAL(alpha=0.9), trace=True, max_new_tokens=3)
assert ids.shape[1] > inputs["input_ids"].shape[1] and answer.fired is not None and answer.trace is not None
print(sorted({name.partition(".")[0] for name in sys.modules} & set(REFUSED)))
"""

COMMANDS = """
import contextlib, io, json, os
from heal.cli import main

found = {}
for name, command in json.loads(sys.argv[1]).items():
    sys.argv, error = ["heal", *command], io.StringIO()
    with contextlib.redirect_stderr(error), contextlib.redirect_stdout(io.StringIO()):
        try:
            main()
        except SystemExit as end:
            found[name] = [end.code, error.getvalue()]
print(json.dumps(found))
"""


def python(code: str, *arguments: str, refused: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    """Run code in a process that cannot import some packages."""
    code = WITHOUT.format(refused=set(refused)) + f"REFUSED = {refused!r}\n" + code
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=120)


def name_of(requirement: str) -> str:
    name = re.split(r"[<>=!~\[;]", requirement)[0]
    return IMPORTED_AS.get(name, name)


# ── missing packages ──────────────────────────────────────────────────────────────────────────────────


def test_the_method_needs_no_optional_package() -> None:
    done = python(METHOD, refused=tuple(EXTRAS))
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("[]")


def test_commands_name_the_extra_that_is_missing(tmp_path: Path) -> None:
    captions = tmp_path / "captions.jsonl"
    captions.write_text('{"image_id": 1, "caption": "a dog"}\n', encoding="utf-8")
    objects = tmp_path / "objects.json"
    objects.write_text('{"1": ["dog"]}', encoding="utf-8")
    out = ["--out", str(tmp_path / "out")]
    commands = {
        "eval": ["eval", "mini-pope:count=1", "--model", "random", *out],
        "compare": ["compare", "--count", "1", *out],
        "report": ["report", *out, "--to", str(tmp_path / "results.md")],
        "run": ["run", *out],
        "score": ["score", "run", str(tmp_path)],
        "app": ["app", "--port", "0"],
        "chair": ["score", "chair", "--captions", str(captions), "--objects", str(objects), "--lemmatizer", "nltk"],
    }
    refused = tuple(package for package, extra in EXTRAS.items() if extra != "cli")
    done = python(COMMANDS, json.dumps(commands), refused=refused)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found.keys() == commands.keys()
    extras = {"app": "app", "eval": "eval", "compare": "plots", "report": "eval", "run": "eval"}
    extras |= {"score": "eval", "chair": "chair"}
    for name, (code, text) in found.items():
        assert code == 2, text
        assert f'pip install ".[{extras[name]}]"' in text, name
        assert "Traceback" not in text
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("package", ["typer", "rich"])
def test_the_console_script_without_its_extra(package: str) -> None:
    done = python("from heal.cli import main\nmain()", refused=(package,))
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert f"{package} is not installed" in done.stderr
    assert 'pip install ".[cli]"' in done.stderr


def test_only_missing_optional_packages_are_explained() -> None:
    require("json", "matplotlib")
    with pytest.raises(MissingPackageError, match=r'run `pip install "\.\[eval\]"`'), optional():
        raise ModuleNotFoundError("No module named 'pandas.core'", name="pandas.core")
    with pytest.raises(ModuleNotFoundError, match="nothing_like_it"):
        require("nothing_like_it")


# ── pyproject.toml ────────────────────────────────────────────────────────────────────────────────────


def test_every_extra_has_its_packages() -> None:
    declared = {
        name_of(requirement): extra
        for extra, requirements in PROJECT["optional-dependencies"].items()
        if extra not in ("all", "dev")
        for requirement in requirements
    }
    assert declared == EXTRAS
    everything = re.fullmatch(r"heal-mllm\[(.*)\]", *PROJECT["optional-dependencies"]["all"])
    assert everything is not None
    assert set(everything[1].split(",")) == set(EXTRAS.values()) - SEPARATE
    assert "heal-mllm[all]" in PROJECT["optional-dependencies"]["dev"]


def imports(path: Path) -> list[tuple[str, bool]]:
    """The packages that a file imports, and whether at its top, where nothing explains that one is missing."""
    found: list[tuple[str, bool]] = []

    def visit(node: ast.AST, top: bool) -> None:
        if isinstance(node, ast.Import):
            found.extend((alias.name.partition(".")[0], top) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.append(((node.module or "").partition(".")[0], top))
        for child in ast.iter_child_nodes(node):
            visit(child, top and isinstance(node, ast.Module))

    visit(ast.parse(path.read_text(encoding="utf-8")), True)
    return found


def test_every_import_is_declared_and_optional_ones_are_guarded() -> None:
    base = {name_of(requirement) for requirement in PROJECT["dependencies"]}
    assert not base & EXTRAS.keys()
    folder = Path(heal.__file__).parent
    for path in folder.rglob("*.py"):
        place = path.relative_to(folder)
        for package, top in imports(path):
            if package in sys.stdlib_module_names or package in {"heal", *base}:
                continue
            brought = {"loguru": "lmms_eval", "starlette": "gradio"}.get(package, package)
            assert brought in EXTRAS, f"{place} imports {package}, which pyproject.toml does not declare"
            guarded = GUARDED.get(place.parts[0]) == EXTRAS[brought]
            assert not top or guarded, f"{place} imports {package} at its top: use `with optional()`"


def test_every_base_dependency_is_imported() -> None:
    used = {package for path in Path(heal.__file__).parent.rglob("*.py") for package, _ in imports(path)}
    assert {name_of(requirement) for requirement in PROJECT["dependencies"]} <= used


def test_versions_agree() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    latest = re.search(r"^## (\S+) \((\d{4}-\d\d-\d\d)\)$", changes, re.MULTILINE)
    assert latest is not None
    version, date = latest.groups()
    assert version == PROJECT["version"] == heal.__version__
    assert f"\nversion: {version}\n" in citation
    assert f"\ndate-released: {date}\n" in citation


def test_workflow_and_hooks_call_targets_of_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    workflow = (ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8")
    called = set(re.findall(r"run: make ([a-z-]+)", workflow))
    for several in re.findall(r"target: \[(.*)\]", workflow):
        called |= set(several.split(", "))
    hooks = set(re.findall(r"entry: make (\S+)", (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")))
    assert called == {"check", "test", "demo", "test-all", "test-app", "test-lmms", "test-gpu", "fuzz"}
    assert hooks == {"check", "test"}
    assert called | hooks <= targets


def test_public_names_are_listed() -> None:
    assert set(heal.__all__) <= set(dir(heal))
