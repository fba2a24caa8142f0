"""What was measured during one generation: a value that can be compared, saved, loaded and tabulated."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float32, Int64, UInt8
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as to_bytes

from heal import strict_json
from heal.errors import TraceError, shortened
from heal.files import write_whole
from heal.plain import plain

if TYPE_CHECKING:
    import pandas as pd

FORMAT = 1
"""Version of the file format; a reader refuses what is newer than itself."""

_SCORES = ("visual", "language", "synergy", "total", "contribution", "beta", "gamma")
_DTYPES = dict.fromkeys(_SCORES, "float32") | {"types": "uint8", "refreshed": "bool", "token_ids": "int64"}
_PER_STEP = ("refreshed", "token_ids")
_RECORD = ("tokens", "text", "config", "seed", "versions")


@dataclass(frozen=True, eq=False, repr=False)
class Trace:
    """Scores, factors and types of every head at every generated token; NaN where nothing was computed."""

    visual: Float32[np.ndarray, "step layer head"]
    language: Float32[np.ndarray, "step layer head"]
    synergy: Float32[np.ndarray, "step layer head"]
    total: Float32[np.ndarray, "step layer head"]
    contribution: Float32[np.ndarray, "step layer head"]
    """Causal contribution: how much the layer's output changes when noise replaces the head's."""
    beta: Float32[np.ndarray, "step layer head"]
    gamma: Float32[np.ndarray, "step layer head"]
    types: UInt8[np.ndarray, "step layer head"]
    """Values of `heal.HeadType`, as they acted at that step."""
    refreshed: Bool[np.ndarray, " step"]
    """Steps whose scores made new types."""
    token_ids: Int64[np.ndarray, " step"]
    tokens: tuple[str, ...]
    """The piece of text of each token."""
    text: str
    config: dict[str, Any]
    """The method and the options of the generation, as plain JSON."""
    seed: int
    versions: dict[str, str]
    """Versions of the packages that took part."""

    # Wrong fields get the messages below, not those of a runtime type checker.
    __no_type_check__ = True

    def __post_init__(self) -> None:
        shape = np.shape(self.visual)
        if len(shape) != 3:
            raise TraceError(f"visual must have the shape [step, layer, head], got {list(shape)}")
        for name, dtype in _DTYPES.items():
            expected = shape[:1] if name in _PER_STEP else shape
            object.__setattr__(self, name, _checked(name, getattr(self, name), dtype, expected))
        if not isinstance(self.tokens, (list, tuple)) or not all(isinstance(token, str) for token in self.tokens):
            raise TraceError("tokens must be a tuple of strings, one for each step")
        if len(self.tokens) != shape[0]:
            raise TraceError(f"tokens must be one string a step: {shape[0]} steps, {len(self.tokens)} tokens")
        object.__setattr__(self, "tokens", tuple(self.tokens))
        for name in ("config", "versions"):
            object.__setattr__(self, name, _plain(name, getattr(self, name)))
        if not isinstance(self.text, str) or not isinstance(self.seed, int) or isinstance(self.seed, bool):
            raise TraceError(f"text must be a string and seed an integer, got {self.text!r}, {self.seed!r}")
        if not all(isinstance(version, str) for version in self.versions.values()):
            raise TraceError(f"versions must be strings by package name, got {self.versions}")

    @property
    def steps(self) -> int:
        return self.visual.shape[0]

    @property
    def layers(self) -> int:
        return self.visual.shape[1]

    @property
    def heads(self) -> int:
        return self.visual.shape[2]

    @property
    def alpha_vis(self) -> Float32[np.ndarray, "step layer head"]:
        """The visual share of the mix; NaN where one of the two is not positive or was not computed."""
        mixed = (self.visual > 0) & (self.language > 0)
        share = np.full_like(self.visual, np.nan)
        return np.divide(self.visual, self.visual + self.language, out=share, where=mixed)

    def mean_alpha(self, types: int | Iterable[int] | None = None) -> Float32[np.ndarray, " step"]:
        """Mean α_vis per step over the heads of these types (default: synergy); NaN where there is none."""
        if types is None:
            from heal.analysis.taxonomy import HeadType

            types = HeadType.SYNERGY
        wanted = list(types) if isinstance(types, Iterable) else [types]
        share = self.alpha_vis
        counted = np.isin(self.types, wanted) & ~np.isnan(share)
        total = np.where(counted, share, 0).sum((1, 2))
        number = counted.sum((1, 2))
        return np.divide(total, number, out=np.full(self.steps, np.nan, np.float32), where=number > 0)

    def save(self, path: str | os.PathLike[str]) -> None:
        """One safetensors file. It appears whole or not at all; missing folders are made."""
        arrays = {name: getattr(self, name) for name in _DTYPES}
        record = {name: getattr(self, name) for name in _RECORD}
        data = to_bytes(arrays, metadata={"heal_trace": str(FORMAT), "record": json.dumps(record)})
        write_whole(path, data)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Trace:
        path = Path(path)
        if not os.path.isfile(path):
            raise TraceError(f"no trace at {shortened(str(path), 200)}: there is no such file")
        try:
            with safe_open(path, framework="numpy") as file:
                metadata = file.metadata() or {}
                _check_format(path, metadata)
                arrays = {name: file.get_tensor(name) for name in _DTYPES}
        except TraceError:
            raise
        # safetensors refuses in several ways: a type that numpy lacks, a header cut off, no permission
        except (SafetensorError, OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise TraceError(f"{path} is not a trace, or is damaged: {error}") from error
        try:
            record = strict_json.parse(metadata["record"], surrogates=True)  # a token may be a part of an emoji
            return cls(**arrays, **{name: record[name] for name in _RECORD})
        except (KeyError, TypeError, ValueError) as error:
            raise TraceError(f"{path} is a damaged trace: {error}") from error

    def to_dataframe(self) -> pd.DataFrame:
        """Long form, one row a step, layer and head; types by their names."""
        import pandas as pd

        from heal.analysis.taxonomy import HeadType

        names = {int(kind): kind.label for kind in HeadType}
        strange = set(np.unique(self.types).tolist()) - set(names)
        if strange:
            raise TraceError(f"types hold values that are no HeadType: {sorted(strange)}")
        step, layer, head = (index.ravel() for index in np.indices(self.types.shape))
        columns: dict[str, Any] = {
            "step": step,
            "token": np.array(self.tokens, dtype=object)[step],
            "layer": layer,
            "head": head,
        }
        columns |= {name: getattr(self, name).ravel() for name in (*_SCORES, "alpha_vis")}
        columns["type"] = np.array([names.get(value, "") for value in range(256)], dtype=object)[self.types.ravel()]
        columns["refreshed"] = self.refreshed[step]
        return pd.DataFrame(columns)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Trace):
            return NotImplemented
        return all(
            np.array_equal(getattr(self, name), getattr(other, name), equal_nan=dtype == "float32")
            for name, dtype in _DTYPES.items()
        ) and all(_canonical(getattr(self, name)) == _canonical(getattr(other, name)) for name in _RECORD)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Trace({self.steps} steps, {self.layers} layers, {self.heads} heads, text={self.text!r})"


def _checked(name: str, array: object, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    if not isinstance(array, np.ndarray) or array.dtype != dtype or array.shape != shape:
        found = f"{array.dtype} {list(array.shape)}" if isinstance(array, np.ndarray) else type(array).__name__
        raise TraceError(f"{name} must be a numpy array of {dtype} {list(shape)}, got {found}")
    # A copy, read-only: a trace does not change with the buffers it was made from.
    copy = np.array(array, order="C")
    copy.setflags(write=False)
    return copy


def _plain(name: str, value: object) -> dict[str, Any]:
    """What JSON would give back, so that a loaded trace equals the saved one (tuples become lists)."""
    try:
        found = json.loads(json.dumps(plain(value)))
    except (TypeError, ValueError, RecursionError) as error:
        raise TraceError(f"{name} must be made of what JSON can hold: {error}") from error
    if not isinstance(found, dict):
        raise TraceError(f"{name} must be a dict, got {type(value).__name__}")
    return found


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True)


def _check_format(path: Path, metadata: dict[str, str]) -> None:
    version = metadata.get("heal_trace", "")
    if not (version.isdecimal() and len(version) < 10):
        raise TraceError(f"{path} is a safetensors file, but not a trace")
    if int(version) > FORMAT:
        raise TraceError(f"{path} has trace format {version}, newer than {FORMAT}: update heal to read it")
