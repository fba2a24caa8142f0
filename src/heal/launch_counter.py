"""Count the operations that torch launches, the bytes that they move, and the points where the host waits.

On a GPU, every operation that is not a view or an allocation is at least one kernel launch, and reading a value on
the host waits for all work that was launched before. Both can be counted on a CPU: torch dispatches the same
operations.
"""

from __future__ import annotations

import inspect
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache, wraps
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

PACKAGE = Path(__file__).parent
THEIRS = "transformers"
COUNTING = ("engine/tally.py", "engine/comparison.py")
"""Files whose callees count as theirs: proof of effect uses the same functions as the methods."""
ON_CPU = "methods/heal_native.py"
"""Runs on a CPU only, and its callees count as its own. What it reads is on the host already: it never waits."""

OUTSIDE_OF_TORCH = ("numba", "triton")
"""How calls of compiled functions are counted that torch does not dispatch."""

ALLOCATIONS = frozenset({"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"})
IN_PLACE_VIEWS = frozenset({"_unsafe_view", "squeeze_", "unsqueeze_", "transpose_", "t_", "detach_", "as_strided_"})
UNWRITTEN = ALLOCATIONS | IN_PLACE_VIEWS | {"set_", "resize_", "lift", "_local_scalar_dense", "prim_device"}
"""Operations without a kernel, besides views."""
MOST_JOINED = 128
"""Tensors that one kernel of torch.cat copies on a GPU."""

WAITING = frozenset({"_local_scalar_dense", "equal", "nonzero", "masked_select", "_unique2", "unique_dim"})
"""Operations whose result the host has to see before it can go on."""
READS = frozenset({"tolist", "numpy", "cpu", "__array__"})
"""Methods of a tensor that copy it to the host. On a CPU they dispatch nothing."""
GATHERS = frozenset({"embedding", "index_select", "index", "gather", "take_along_dim"})
"""Operations that read as many elements of their first operand as they write."""
OVERWRITES = frozenset({"copy_", "fill_", "zero_", "normal_", "uniform_", "index_put_", "index_copy_", "scatter_"})
"""Operations that do not read what they write to."""


@dataclass(frozen=True)
class Sync:
    """A point where the host waits for the device."""

    kind: str
    """read: the host needs a value of the device. upload: it makes a tensor from Python numbers, whose copy to the
    device waits too."""
    operation: str
    place: str
    """file:line of the innermost frame of heal or transformers."""


@dataclass
class Counts:
    """What was launched between two marks."""

    operations: Counter[str] = field(default_factory=Counter)
    files: Counter[str] = field(default_factory=Counter)
    """Launches by the innermost file of heal or transformers."""
    syncs: Counter[Sync] = field(default_factory=Counter)
    read: int = 0
    written: int = 0

    @property
    def launches(self) -> int:
        return self.operations.total()

    @classmethod
    def total(cls, parts: Iterable[Counts]) -> Counts:
        out = cls()
        for part in parts:
            out.operations += part.operations
            out.files += part.files
            out.syncs += part.syncs
            out.read += part.read
            out.written += part.written
        return out


class LaunchCounter(TorchDispatchMode):
    """Counts while its `with` block lasts. `mark` ends one step and begins the next."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[Counts] = []
        self.current = Counts()
        self.inside = False
        """Whether a call that waits is in progress."""
        self._undo: list[Callable[[], None]] = []

    def mark(self) -> None:
        self.steps.append(self.current)
        self.current = Counts()

    def kernel(self, name: str, operands: Iterable[Any] = ()) -> None:
        """Count a kernel that torch does not dispatch. Its operands are tensors or arrays."""
        self.current.operations[name] += 1
        self.current.files[_place(with_line=False)] += 1
        self.current.read += sum(map(stored_bytes, _arrays(operands)))

    def sync(self, kind: str, operation: str) -> None:
        place = _place()
        if not place.startswith(ON_CPU):
            self.current.syncs[Sync(kind, operation, place)] += 1

    def __enter__(self) -> LaunchCounter:
        self._undo = [_one_launch(self, *target) for target in _compiled_callables()]
        self._undo += [_watched(self, owner, name) for owner, name in WATCHED]
        super().__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        super().__exit__(*exc)
        while self._undo:
            self._undo.pop()()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        name = _name(func)
        if waits(func, args, kwargs):
            self.sync("read", name)
        if count := launches(func, args):
            read, written = moved_bytes(func, args, kwargs, out)
            now = self.current
            now.operations[name] += count
            now.files[_place(with_line=False)] += count
            now.read += read
            now.written += written
        return out


def _watched(counter: LaunchCounter, owner: Any, name: str) -> Callable[[], None]:
    """Report the calls of `owner.name` that wait on a GPU but dispatch nothing on a CPU. Returns what undoes it."""
    original = getattr(owner, name)

    @wraps(original)
    def watched(*args: Any, **kwargs: Any) -> Any:
        kind = _host_kind(name, args, kwargs)
        if kind is None or counter.inside:
            return original(*args, **kwargs)
        counter.sync(kind, name)
        counter.inside = True  # __array__ calls numpy
        try:
            return original(*args, **kwargs)
        finally:
            counter.inside = False

    return _replaced(owner, name, watched)


def _host_kind(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    if name in READS:
        return "read"
    if name == "to":
        return "read" if any(value == "cpu" for value in (*args[1:], kwargs.get("device"))) else None
    return "upload" if not isinstance((*args, None)[0], Tensor) or name == "new_tensor" else None


WATCHED = (
    *((torch.Tensor, name) for name in (*sorted(READS), "to", "new_tensor")),
    (torch, "tensor"),
    (torch, "as_tensor"),
)


# ── one operation ─────────────────────────────────────────────────────────────────────────────────────────


def launches(func: Any, args: Any = ()) -> int:
    """The number of kernels of one operation: 0 for views and allocations, 1 for anything unknown."""
    if not isinstance(func, torch._ops.OpOverload):
        return 1
    name = _name(func)
    if func.is_view or name in UNWRITTEN:
        return 0
    return -(-len(args[0]) // MOST_JOINED) if name in ("cat", "stack") else 1


def waits(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether the host waits for the result: its value, or its shape, depends on values of the device."""
    name = _name(func)
    if name in WAITING:
        return True
    if name == "repeat_interleave":
        return kwargs.get("output_size") is None
    if name == "index":
        return any(_is_mask(t) for t in args[1])
    # a single value is written by masked_fill
    return name.startswith("index_put") and args[2].numel() > 1 and any(_is_mask(t) for t in args[1])


def moved_bytes(func: Any, args: Any, kwargs: Any, out: Any) -> tuple[int, int]:
    """Bytes that an operation has to read and to write, if nothing stays in a cache."""
    name, given, made = _name(func), _tensors((args, kwargs)), _tensors(out)
    written = sum(map(stored_bytes, made))
    if name in GATHERS and given:
        return written + sum(map(stored_bytes, given[1:])), written
    if name in OVERWRITES and given:
        others = sum(map(stored_bytes, given[1:]))
        return others, min(written, others) if name.startswith(("index_", "scatter")) else written
    return sum(map(stored_bytes, given)), written


def stored_bytes(array: Tensor | NDArray[Any]) -> int:
    """Bytes of the elements that a tensor or array really has: expanded axes count once."""
    elements = 1
    strides = array.stride() if isinstance(array, Tensor) else array.strides
    for size, stride in zip(array.shape, strides, strict=True):
        elements *= size if stride or not size else 1
    return elements * array.itemsize


def _name(func: Any) -> str:
    packet = getattr(func, "overloadpacket", None)
    return packet.__name__ if packet is not None else str(getattr(func, "__name__", func))


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _arrays(tree: Any) -> list[Tensor | NDArray[Any]]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, (Tensor, np.ndarray))]


def _is_mask(index: Tensor | None) -> bool:
    return index is not None and index.dtype in (torch.bool, torch.uint8)


# ── places in the source ──────────────────────────────────────────────────────────────────────────────────


def _place(with_line: bool = True) -> str:
    """The innermost frame of heal or transformers, as file:line."""
    frame: FrameType | None = inspect.currentframe()
    for _ in range(2):  # the caller of the caller
        frame = frame and frame.f_back
    found = ""
    while frame is not None:
        file = frame.f_code.co_filename
        name = _short(file)
        if name is not None:
            text = f"{name}:{frame.f_lineno}" if with_line else name
            if name in COUNTING or name == ON_CPU:
                return text
            found = found or text
        frame = frame.f_back
    return found or "elsewhere"


@cache
def _short(file: str) -> str | None:
    """The path of a source file within its package; None outside of heal and transformers."""
    if file == __file__:
        return None
    if file.startswith(str(PACKAGE)):
        return Path(file).relative_to(PACKAGE).as_posix()
    parts = Path(file).parts
    return "/".join(parts[parts.index(THEIRS) :]) if THEIRS in parts else None


# ── kernels outside of the dispatcher ─────────────────────────────────────────────────────────────────────


def _compiled_callables() -> list[tuple[Any, str, str]]:
    """(owner, attribute, name) of calls that launch one kernel, or a few, without torch's dispatcher."""
    from heal.analysis import step

    found: list[tuple[Any, str, str]] = [(step, "compiled_step", "compiled_step")]
    for module in ("cpu", "cpu_attention", "cpu_projection"):
        if numba := sys.modules.get(f"heal.kernels.{module}"):
            found += [(numba, name, "numba") for name in numba.CALLED_FROM_PYTHON]
    if "triton" in sys.modules:
        interpreter, jit = import_module("triton.runtime.interpreter"), import_module("triton.runtime.jit")
        found += [(jit.JITFunction, "run", "triton"), (interpreter.GridExecutor, "__call__", "triton")]
    return found


def _one_launch(counter: LaunchCounter, owner: Any, attribute: str, name: str) -> Callable[[], None]:
    """Make every call of `owner.attribute` count as one launch. Returns what undoes it."""
    from torch.utils._python_dispatch import _disable_current_modes

    original = getattr(owner, attribute)

    def counted(*args: Any, **kwargs: Any) -> Any:
        counter.kernel(name, (args, kwargs))
        with _disable_current_modes():
            return original(*args, **kwargs)

    return _replaced(owner, attribute, counted)


def _replaced(owner: Any, name: str, function: Callable[..., Any]) -> Callable[[], None]:
    """Replace an attribute of a class or module. Returns what undoes it."""
    own = vars(owner).get(name)
    setattr(owner, name, function)
    return (lambda: delattr(owner, name)) if own is None else (lambda: setattr(owner, name, own))
