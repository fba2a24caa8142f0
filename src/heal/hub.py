"""Locate a checkpoint: in a folder, in the local cache of the hub, or on the hub."""

from __future__ import annotations

import os
import threading
from difflib import SequenceMatcher, get_close_matches
from pathlib import Path
from typing import Any

from heal import strict_json
from heal.errors import CheckpointError, first_line, shortened

PATIENCE = 3.0
"""Timeout in seconds for each step of a request to the hub. The whole request may take twice as long."""
SIMILAR = 0.8
"""Minimum similarity of a name and a folder to report a probable typo."""
ENOUGH = 2000
"""Maximum number of folders to search for a hint."""
BUILT_IN = ("embedded", "random")


def located(name_or_path: str | Path, revision: str | None = None) -> tuple[str, bool]:
    """The name or path to load, and whether it is local. Raises immediately if it cannot exist."""
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
            f"there is no checkpoint at {shown}: did you mean {slip}? For a model of the hub, download it first "
            f"(hf download {shown})"
        )
    _reach(name)
    return name, False


def check_folder(path: Path) -> None:
    """Check that the folder has the files of a checkpoint."""
    if not path.is_dir() or not (path / "config.json").is_file():
        raise CheckpointError(f"{path} is not a checkpoint: it must be a folder with a config.json")
    if not any(path.glob("*.safetensors")):
        raise CheckpointError(
            f"{path} has no *.safetensors weights: convert older formats with transformers' save_pretrained"
        )


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # not a valid file name
        return False


def _is_path(name: str) -> bool:
    """Whether it is a path. A name on the hub has at most one slash, and does not start like a path."""
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
    """Whether an earlier download is complete: configuration, processor and all weights."""
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
    """Send one quick request before transformers sends many with long timeouts."""
    from huggingface_hub import constants

    shown = shortened(name, 120)
    if constants.is_offline_mode():
        raise CheckpointError(
            f"{shown} is neither a folder nor complete in the local cache, and HF_HUB_OFFLINE disables the hub"
        )
    answer: list[Any] = []
    asking = threading.Thread(target=_ask, args=(f"{constants.ENDPOINT}/api/models/{name}", answer), daemon=True)
    asking.start()
    asking.join(2 * PATIENCE)
    status = answer[0] if answer else "no answer"
    if not isinstance(status, int) or status >= 500:
        said = f"HTTP {status}" if isinstance(status, int) else status
        raise CheckpointError(
            f"{shown} is neither a folder nor complete in the local cache, and the hub at {constants.ENDPOINT} does "
            f"not answer ({said}). Check the name and the network, or download the model on a machine with access"
        )


def _ask(url: str, answer: list[Any]) -> None:
    """Append the status code. Any response is enough, because transformers checks the permissions."""
    from huggingface_hub.utils import get_session

    try:
        answer.append(get_session().head(url, timeout=PATIENCE).status_code)
    except Exception as error:  # depends on the HTTP library of the hub's client
        answer.append(first_line(error, 120))


# ── hints ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _hint(path: Path) -> str:
    near = _nearest(path)
    return f": did you mean {near}?" if near else ""


def _slip(name: str) -> str | None:
    """A checkpoint on disk, or a built-in model, with a very similar name."""
    if "/" not in name and (near := get_close_matches(name, BUILT_IN, 1, SIMILAR)):
        return near[0]
    found = _nearest(Path(name))
    good = found and (Path(found) / "config.json").is_file()
    return found if good and SequenceMatcher(None, name, str(found)).ratio() >= SIMILAR else None


def _nearest(path: Path) -> str | None:
    """The most similar folder, part by part."""
    parts = path.parts
    start, rest = (Path(parts[0]), parts[1:]) if path.is_absolute() else (Path(), parts)
    here = [start]
    for part in rest:
        if part == "..":
            here = [folder / part for folder in here]
            continue
        here = [folder / name for folder in here for name in _similar(folder, part)]
        if not here:
            return None
    best = max(here, key=lambda folder: SequenceMatcher(None, str(path), str(folder)).ratio())
    return shortened(best, 120)


def _similar(folder: Path, part: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry, _ in zip(entries, range(ENOUGH), strict=False) if entry.is_dir()]
    except OSError:
        return []
    return [part] if part in names else get_close_matches(part, names, 2, 0.6)
