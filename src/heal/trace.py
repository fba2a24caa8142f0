"""The measurements of one generation, as a value that can be compared, saved, loaded and tabulated."""

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
from heal.analysis.alternatives import ALTERNATIVES, NONE
from heal.analysis.depths import DEPTHS, SUMMARIES
from heal.analysis.visual_share import mean_share, visual_share
from heal.atomic_write import atomic_write
from heal.errors import TraceError, shortened
from heal.extras import optional
from heal.json_values import json_values
from heal.trace_parts import Patches, TracedImage, VisualSpan, check_spans, check_texts

if TYPE_CHECKING:
    import pandas as pd

FORMAT = 4
"""Version of the file format. Newer formats are rejected.

Format 1 had no prompt, images or log-probabilities. Format 2 had no visual attention, entropy, margin, similarity or
agreement. Format 3 had no alternatives.
"""

_SCORES = ("visual", "language", "synergy", "total", "contribution", "beta", "gamma", "visual_attention")
_DTYPES = dict.fromkeys(_SCORES, "float32") | {"types": "uint8", "refreshed": "bool", "token_ids": "int64"}
_LATER = {"logprobs": 2} | dict.fromkeys(("visual_attention", "entropy", "margin", "similarity", "agreement"), 3)
_LATER |= dict.fromkeys(("alternatives", "alternative_logprobs"), 4)
"""The format in which arrays were added. Values are unknown in older files."""
_DTYPES |= dict.fromkeys(_LATER, "float32") | {"alternatives": "int64"}
_UNKNOWN: dict[str, float] = {"float32": np.nan, "int64": NONE}
_PER_STEP = ("refreshed", "token_ids", "logprobs", "entropy", "margin")
_COMPARED = ("similarity", "agreement")
_OTHER = ("alternatives", "alternative_logprobs")
_RECORD_1 = ("tokens", "text", "config", "seed", "versions")
_RECORD_2 = (*_RECORD_1, "prompt", "messages", "prompt_tokens", "visual_positions")
_RECORD = (*_RECORD_2, "alternative_tokens")
_IMAGE = ("sha256", "width", "height")
_THUMBNAIL = "thumbnail_{}"
_PATCHES = {"patch_levels": "levels", "patch_unit": "unit"}
"""Arrays that a file has if patches were recorded, with their names in `Patches`."""


@dataclass(frozen=True, eq=False, repr=False)
class Trace:
    """Scores, factors and types of every head at every generated token, and the prompt.

    Every method has tokens and log-probabilities. Values that a method does not measure are NaN, and types
    `HeadType.UNKNOWN`. Images are stored as hashes with thumbnails of at most 256 pixels and 32 KiB
    (`heal.trace_parts`), so that the file size depends on the number of images, not on their size.
    """

    visual: Float32[np.ndarray, "step layer head"]
    language: Float32[np.ndarray, "step layer head"]
    synergy: Float32[np.ndarray, "step layer head"]
    total: Float32[np.ndarray, "step layer head"]
    contribution: Float32[np.ndarray, "step layer head"]
    """Causal contribution: how much the output of the layer changes if noise replaces the output of the head."""
    beta: Float32[np.ndarray, "step layer head"]
    gamma: Float32[np.ndarray, "step layer head"]
    types: UInt8[np.ndarray, "step layer head"]
    """Values of `heal.HeadType` in effect at that step."""
    refreshed: Bool[np.ndarray, " step"]
    """Steps at which the head types were refreshed."""
    token_ids: Int64[np.ndarray, " step"]
    tokens: tuple[str, ...]
    """The piece of text of each token."""
    text: str
    config: dict[str, Any]
    """The method and the options of the generation, as plain JSON."""
    seed: int
    versions: dict[str, str]
    """Package versions."""
    logprobs: Float32[np.ndarray, " step"] = None  # type: ignore[assignment]
    """Log-probability of each token, as in `Answer.logprobs`. NaN if not given, and in files of format 1."""
    visual_attention: Float32[np.ndarray, "step layer head"] = None  # type: ignore[assignment]
    """The share of the attention of each head on visual positions."""
    entropy: Float32[np.ndarray, " step"] = None  # type: ignore[assignment]
    """Entropy of the distribution of each token in nats, before temperature."""
    margin: Float32[np.ndarray, " step"] = None  # type: ignore[assignment]
    """The probability of the likeliest token minus that of the second."""
    similarity: Float32[np.ndarray, "step depth summary"] = None  # type: ignore[assignment]
    """Cosine of the hidden state from which a token is predicted and those of the visual tokens.

    Depths and summaries are those of `heal.analysis.depths`.
    """
    agreement: Float32[np.ndarray, "step depth summary"] = None  # type: ignore[assignment]
    """The same for the embedding of the token: the input embedding at the first depth, else the output embedding."""
    alternatives: Int64[np.ndarray, "step other"] = None  # type: ignore[assignment]
    """The likeliest tokens of each step besides the chosen one, in order. −1 if there are no more, or unknown."""
    alternative_logprobs: Float32[np.ndarray, "step other"] = None  # type: ignore[assignment]
    """Their log-probabilities, as in `logprobs`."""
    alternative_tokens: tuple[tuple[str, ...], ...] = ()
    """The piece of text of each of them; empty if unknown."""
    prompt: str = ""
    """The text that the model read, rendered by the chat template, with one placeholder per image."""
    messages: tuple[dict[str, Any], ...] = ()
    """The chat messages that the prompt was rendered from, without the images themselves."""
    images: tuple[TracedImage, ...] = ()
    """The images of the prompt, in order."""
    visual_positions: tuple[VisualSpan, ...] = ()
    """The spans of visual tokens in the prompt, in order."""
    prompt_tokens: int | None = None
    """Length of the prompt without padding. None in files of format 1."""
    patches: Patches | None = None
    """Where each head looks in the image, if that was recorded (`trace="patches"`)."""

    # Invalid fields raise the errors below instead of those of a runtime type checker.
    __no_type_check__ = True

    def __post_init__(self) -> None:
        shape = np.shape(self.visual)
        if len(shape) != 3:
            raise TraceError(f"visual must have the shape [step, layer, head], got {list(shape)}")
        for name, dtype in _DTYPES.items():
            expected, given = (shape[0], *_rest(name, shape)), getattr(self, name)
            if given is None and name in _LATER:
                given = np.full(expected, _UNKNOWN[dtype], dtype)
            object.__setattr__(self, name, _checked(name, given, dtype, expected))
        if not isinstance(self.tokens, (list, tuple)) or not all(isinstance(token, str) for token in self.tokens):
            raise TraceError("tokens must be a tuple of strings, one for each step")
        if len(self.tokens) != shape[0]:
            raise TraceError(f"tokens must be one string per step: {shape[0]} steps, {len(self.tokens)} tokens")
        object.__setattr__(self, "tokens", tuple(self.tokens))
        for name in ("config", "versions"):
            object.__setattr__(self, name, _plain(name, getattr(self, name)))
        if not isinstance(self.text, str) or not isinstance(self.seed, int) or isinstance(self.seed, bool):
            raise TraceError(f"text must be a string and seed an integer, got {self.text!r}, {self.seed!r}")
        if not all(isinstance(version, str) for version in self.versions.values()):
            raise TraceError(f"versions must be strings by package name, got {self.versions}")
        object.__setattr__(self, "alternative_tokens", check_texts(self.alternative_tokens, shape[0]))
        if self.patches is not None and (
            not isinstance(self.patches, Patches) or self.patches.levels.shape[:3] != tuple(shape)
        ):
            raise TraceError(f"patches must be Patches for {list(shape)} steps, layers and heads, or None")
        self._check_prompt()

    def _check_prompt(self) -> None:
        if not isinstance(self.prompt, str):
            raise TraceError(f"prompt must be a string, got {type(self.prompt).__name__}")
        tokens = self.prompt_tokens
        if tokens is not None and (not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 0):
            raise TraceError(f"prompt_tokens must be a number of tokens or None, got {tokens!r}")
        if not isinstance(self.messages, (list, tuple)):
            raise TraceError(f"messages must be a tuple of chat messages, got {type(self.messages).__name__}")
        object.__setattr__(self, "messages", tuple(_plain("a message", message) for message in self.messages))
        if not isinstance(self.images, (list, tuple)) or not all(isinstance(i, TracedImage) for i in self.images):
            raise TraceError("images must be a tuple of TracedImage")
        object.__setattr__(self, "images", tuple(self.images))
        spans = check_spans(self.visual_positions, len(self.images), tokens)
        object.__setattr__(self, "visual_positions", spans)

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
        """The visual share of mixed heads. NaN if one of the scores is not positive or was not measured."""
        return visual_share(self.visual, self.language)

    def mean_alpha(self, types: int | Iterable[int] | None = None) -> Float32[np.ndarray, " step"]:
        """Mean α_vis per step over the heads of these types (default: synergy). NaN if there are none."""
        if types is None:
            from heal.analysis.taxonomy import HeadType

            types = HeadType.SYNERGY
        wanted = list(types) if isinstance(types, Iterable) else [types]
        return mean_share(self.alpha_vis, self.types, wanted)

    def mean_parts(self) -> Float32[np.ndarray, "step 2"]:
        """I_vis / I_total and I_lang / I_total over the synergy heads of each step; the rest of 1 is I_syn / I_total.

        Sums over the heads are divided, because I_total of single heads can be near 0. NaN if there are none.
        """
        from heal.analysis.taxonomy import HeadType

        counted = (self.types == int(HeadType.SYNERGY)) & (self.visual > 0) & (self.language > 0)
        sums = [np.where(counted, part, 0).sum((1, 2)) for part in (self.visual, self.language, self.total)]
        whole = sums[2][:, None]
        unknown = np.full((self.steps, 2), np.nan, np.float32)
        return np.divide(np.stack(sums[:2], 1), whole, out=unknown, where=whole > 0)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one safetensors file atomically. Missing folders are created."""
        arrays = {name: getattr(self, name) for name in _DTYPES}
        for index, image in enumerate(self.images):
            arrays[_THUMBNAIL.format(index)] = np.frombuffer(image.thumbnail, np.uint8)
        record: dict[str, Any] = {name: getattr(self, name) for name in _RECORD}
        record["images"] = [{name: getattr(image, name) for name in _IMAGE} for image in self.images]
        if self.patches is not None:
            arrays |= {name: getattr(self.patches, own) for name, own in _PATCHES.items()}
            record["patches"] = {"grid": self.patches.grid, "box": self.patches.box}
        data = to_bytes(arrays, metadata={"heal_trace": str(FORMAT), "record": json.dumps(record)})
        atomic_write(path, data)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Trace:
        path = Path(path)
        if not os.path.isfile(path):
            raise TraceError(f"no trace at {shortened(str(path), 200)}: there is no such file")
        try:
            with safe_open(path, framework="numpy") as file:
                metadata = file.metadata() or {}
                version = _format_of(path, metadata)
                expected = [name for name in _DTYPES if version >= _LATER.get(name, 1)]
                arrays = {name: file.get_tensor(name) for name in expected}
                stored = {own: file.get_tensor(n) for n, own in _PATCHES.items() if n in file.keys()}  # noqa: SIM118
                small = {n: file.get_tensor(n) for n in file.keys() if n.startswith(_THUMBNAIL[:-2])}  # noqa: SIM118
        except TraceError:
            raise
        # safetensors raises several kinds of errors: unknown types, truncated headers, no permission
        except (SafetensorError, OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise TraceError(f"{path} is not a trace, or is damaged: {error}") from error
        try:
            record = strict_json.parse(metadata["record"], surrogates=True)  # a token may be part of an emoji
            if version == 1:
                return cls(**arrays, **{name: record[name] for name in _RECORD_1})
            images = tuple(_image(index, told, small) for index, told in enumerate(record["images"]))
            names = _RECORD if version >= 4 else _RECORD_2
            patches = Patches(**stored, **record["patches"]) if stored else None
            return cls(**arrays, **{name: record[name] for name in names}, images=images, patches=patches)
        except (KeyError, TypeError, ValueError) as error:
            raise TraceError(f"{path} is a damaged trace: {error}") from error

    def to_dataframe(self) -> pd.DataFrame:
        """Long format: one row per step, layer and head, with the names of the types."""
        with optional():
            import pandas as pd

        from heal.analysis.taxonomy import HeadType

        names = {int(kind): kind.label for kind in HeadType}
        strange = set(np.unique(self.types).tolist()) - set(names)
        if strange:
            raise TraceError(f"types contain values that are not in HeadType: {sorted(strange)}")
        step, layer, head = (index.ravel() for index in np.indices(self.types.shape))
        columns: dict[str, Any] = {
            "step": step,
            "token": np.array(self.tokens, dtype=object)[step],
            "logprob": self.logprobs[step],
            "entropy": self.entropy[step],
            "margin": self.margin[step],
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
        same = all(
            np.array_equal(getattr(self, name), getattr(other, name), equal_nan=dtype == "float32")
            for name, dtype in _DTYPES.items()
        ) and all(_canonical(getattr(self, name)) == _canonical(getattr(other, name)) for name in _RECORD)
        return same and self.images == other.images and self.patches == other.patches

    __hash__ = None  # type: ignore[assignment]

    def _repr_html_(self) -> str:
        from heal.view.notebook import cell

        return cell(self)

    def __repr__(self) -> str:
        return f"Trace({self.steps} steps, {self.layers} layers, {self.heads} heads, text={self.text!r})"


def _rest(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of an array after its steps."""
    if name in _PER_STEP:
        return ()
    if name in _COMPARED:
        return (len(DEPTHS), len(SUMMARIES))
    return (ALTERNATIVES,) if name in _OTHER else shape[1:]


def _checked(name: str, array: object, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    if not isinstance(array, np.ndarray) or array.dtype != dtype or array.shape != shape:
        found = f"{array.dtype} {list(array.shape)}" if isinstance(array, np.ndarray) else type(array).__name__
        raise TraceError(f"{name} must be a numpy array of {dtype} {list(shape)}, got {found}")
    # A read-only copy, so that a trace does not change with the original buffer.
    copy = np.array(array, order="C")
    copy.setflags(write=False)
    return copy


def _plain(name: str, value: object) -> dict[str, Any]:
    """The value after a JSON round trip, so that a loaded trace equals the saved one (tuples become lists)."""
    try:
        found = json.loads(json.dumps(json_values(value)))
    except (TypeError, ValueError, RecursionError) as error:
        raise TraceError(f"{name} must be JSON-serialisable: {error}") from error
    if not isinstance(found, dict):
        raise TraceError(f"{name} must be a dict, got {type(value).__name__}")
    return found


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True)


def _image(index: int, told: dict[str, Any], thumbnails: dict[str, np.ndarray]) -> TracedImage:
    pixels = thumbnails[_THUMBNAIL.format(index)]
    if pixels.dtype != np.uint8 or pixels.ndim != 1:
        raise TraceError(f"the thumbnail of image {index} must be uint8 [bytes], got {pixels.dtype} {pixels.shape}")
    return TracedImage(**{name: told[name] for name in _IMAGE}, thumbnail=pixels.tobytes())


def _format_of(path: Path, metadata: dict[str, str]) -> int:
    version = metadata.get("heal_trace", "")
    if not (version.isdecimal() and len(version) < 10):
        raise TraceError(f"{path} is a safetensors file, but not a trace")
    if int(version) > FORMAT:
        raise TraceError(f"{path} has trace format {version}, newer than {FORMAT}: update heal to read it")
    return int(version)
