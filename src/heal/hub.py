"""Where a checkpoint is: in a folder, in the local cache of the hub, or on the hub, which must answer quickly."""

from __future__ import annotations

import os
import threading
from difflib import SequenceMatcher, get_close_matches
from pathlib import Path
from typing import Any

from heal import strict_json
from heal.errors import CheckpointError, first_line, shortened

PATIENCE = 3.0
"""Seconds that the hub has for each step of an answer; twice that for all of it."""
ALIKE = 0.8
"""How alike a name and a folder must be for the name to be a slip."""
ENOUGH = 2000
"""Folders that are looked at for a hint."""
BUILT_IN = ("embedded", "random")


def located(name_or_path: str | Path, revision: str | None = None) -> tuple[str, bool]:
    """What to load, and whether no network is needed for it. Raises at once for what cannot be there."""
    name = str(name_or_path)
    path = Path(name).expanduser() if name.startswith("~") else Path(name)
    if name.strip() and _exists(path):
        check_folder(path)
        return str(path) if name.startswith("~") else name, True
    shown = shortened(name, 120)
    if _is_path(name):
        raise CheckpointError(f"there is no checkpoint at {shown}{_hint(path)}")
    if not _legal(name):
        raise CheckpointError(f"{shown!r} is neither a folder nor a name on the hub (organisation/model)")
    if cached(name, revision):
        return name, True
    if slip := _slip(name):
        raise CheckpointError(
            f"there is no checkpoint at {shown}: did you mean {slip}? If you mean a model of the hub, download it "
            f"first (hf download {shown})"
        )
    _reach(name)
    return name, False


def check_folder(path: Path) -> None:
    """That it has the files of a checkpoint."""
    if not path.is_dir() or not (path / "config.json").is_file():
        raise CheckpointError(f"{path} is not a checkpoint: it needs to be a folder with a config.json")
    if not any(path.glob("*.safetensors")):
        raise CheckpointError(
            f"{path} has no *.safetensors weights: convert older formats with transformers' save_pretrained"
        )


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name that no file can have
        return False


def _is_path(name: str) -> bool:
    """A name on the hub has one slash at most, and neither begins nor ends with a sign of a path."""
    return (
        name.startswith((".", "~", "/"))
        or name.endswith("/")
        or name.count("/") > 1
        or "\\" in name
        or Path(name).is_absolute()
    )


def _legal(name: str) -> bool:
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return True


# ── the local cache ───────────────────────────────────────────────────────────────────────────────────────────


def cached(name: str, revision: str | None = None) -> bool:
    """Whether an earlier download is whole: configuration, processor and every file of weights."""
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(name, "config.json", revision=revision)
    if not isinstance(config, str):
        return False
    folder = Path(config).parent
    if not any((folder / file).is_file() for file in ("processor_config.json", "preprocessor_config.json")):
        return False
    try:
        index = strict_json.parse((folder / "model.safetensors.index.json").read_text(encoding="utf-8"))
        return all((folder / file).is_file() for file in set(index["weight_map"].values()))
    except FileNotFoundError:
        return (folder / "model.safetensors").is_file()
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


# ── the hub ───────────────────────────────────────────────────────────────────────────────────────────────────


def _reach(name: str) -> None:
    """One quick question, before transformers asks many and waits minutes for each."""
    from huggingface_hub import constants

    shown = shortened(name, 120)
    if constants.is_offline_mode():
        raise CheckpointError(
            f"{shown} is neither a folder nor whole in the local cache, and HF_HUB_OFFLINE forbids to ask the hub"
        )
    answer: list[Any] = []
    asking = threading.Thread(target=_ask, args=(f"{constants.ENDPOINT}/api/models/{name}", answer), daemon=True)
    asking.start()
    asking.join(2 * PATIENCE)
    status = answer[0] if answer else "no answer"
    if not isinstance(status, int) or status >= 500:
        said = f"HTTP {status}" if isinstance(status, int) else status
        raise CheckpointError(
            f"{shown} is neither a folder nor whole in the local cache, and the hub at {constants.ENDPOINT} does not "
            f"answer ({said}). Check the name and the network, or download the model where there is one"
        )


def _ask(url: str, answer: list[Any]) -> None:
    """Any answer will do: what may be read is for transformers to find out."""
    from huggingface_hub.utils import get_session

    try:
        answer.append(get_session().head(url, timeout=PATIENCE).status_code)
    except Exception as error:  # of whichever library the hub's client is made with
        answer.append(first_line(error, 120))


# ── hints ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _hint(path: Path) -> str:
    near = _nearest(path)
    return f": did you mean {near}?" if near else ""


def _slip(name: str) -> str | None:
    """A checkpoint on disk, or a built-in model, whose name is all but this one."""
    if "/" not in name and (near := get_close_matches(name, BUILT_IN, 1, ALIKE)):
        return near[0]
    found = _nearest(Path(name))
    good = found and (Path(found) / "config.json").is_file()
    return found if good and SequenceMatcher(None, name, str(found)).ratio() >= ALIKE else None


def _nearest(path: Path) -> str | None:
    """The folder that is most like it, part by part."""
    parts = path.parts
    start, rest = (Path(parts[0]), parts[1:]) if path.is_absolute() else (Path(), parts)
    here = [start]
    for part in rest:
        if part == "..":
            here = [folder / part for folder in here]
            continue
        here = [folder / name for folder in here for name in _alike(folder, part)]
        if not here:
            return None
    best = max(here, key=lambda folder: SequenceMatcher(None, str(path), str(folder)).ratio())
    return shortened(best, 120)


def _alike(folder: Path, part: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry, _ in zip(entries, range(ENOUGH), strict=False) if entry.is_dir()]
    except OSError:
        return []
    return [part] if part in names else get_close_matches(part, names, 2, 0.6)
