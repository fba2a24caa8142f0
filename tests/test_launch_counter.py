"""Counting of operations, bytes and host synchronisations, one operation at a time."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from heal import launch_counter
from heal.launch_counter import Counts, LaunchCounter, Sync, stored_bytes

X = torch.arange(12.0).view(3, 4)


def counted(call: Callable[[], object]) -> Counts:
    with LaunchCounter() as counter:
        call()
    return counter.current


@pytest.mark.parametrize(
    "call",
    [
        lambda: X.view(4, 3),
        lambda: X[0, :2],
        lambda: X.t().unsqueeze(0).expand(2, 4, 3),
        lambda: X.split(2),
        lambda: X.detach(),
        lambda: torch.empty_like(X),
        lambda: X.new_empty(2),
        lambda: X.contiguous().float(),
    ],
)
def test_views_and_allocations_are_free(call: Callable[[], object]) -> None:
    assert counted(call) == Counts()


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda: X + X, {"add": 1}),
        (lambda: X.clone().add_(1), {"clone": 1, "add_": 1}),
        (lambda: X.t().reshape(12), {"clone": 1}),
        (lambda: torch.zeros(3), {"zeros": 1}),
        (lambda: X.half(), {"_to_copy": 1}),
        (lambda: torch.cat([X] * 129), {"cat": 2}),
        (lambda: torch.nn.functional.linear(X, X), {"mm": 1}),
    ],
)
def test_everything_else_is_a_launch(call: Callable[[], object], expected: dict[str, int]) -> None:
    assert counted(call).operations == expected


@pytest.mark.parametrize(
    ("call", "kind", "operation"),
    [
        (lambda: X[0, 0].item(), "read", "_local_scalar_dense"),
        (lambda: bool((X > 0).all()), "read", "_local_scalar_dense"),
        (lambda: X.tolist(), "read", "tolist"),
        (lambda: X.numpy(), "read", "numpy"),
        (lambda: X.cpu(), "read", "cpu"),
        (lambda: X.to("cpu"), "read", "to"),
        (lambda: torch.equal(X, X), "read", "equal"),
        (lambda: X[X > 3], "read", "index"),
        (lambda: X.nonzero(), "read", "nonzero"),
        (lambda: X.repeat_interleave(torch.ones(3, dtype=torch.long), 0), "read", "repeat_interleave"),
        (lambda: torch.tensor([1, 2]), "upload", "tensor"),
        (lambda: torch.as_tensor([1, 2]), "upload", "as_tensor"),
    ],
)
def test_host_waits(call: Callable[[], object], kind: str, operation: str) -> None:
    assert counted(call).syncs == {Sync(kind, operation, "elsewhere"): 1}


@pytest.mark.parametrize(
    "call",
    [
        lambda: X[torch.zeros(2, dtype=torch.long)],
        lambda: X.clone().masked_fill_(X > 3, 0.0),
        lambda: X.clone().__setitem__(X > 3, 0.0),
        lambda: X.repeat_interleave(2, 0),
        lambda: torch.as_tensor(X),
        lambda: X.to(torch.float64),
    ],
)
def test_no_host_wait(call: Callable[[], object]) -> None:
    assert not counted(call).syncs


def test_bytes() -> None:
    def moved(call: Callable[[], object]) -> tuple[int, int]:
        found = counted(call)
        return found.read, found.written

    target = X.clone()
    assert moved(lambda: X + X) == (96, 48)
    assert moved(lambda: target.add_(1)) == (48, 48)
    assert moved(lambda: target.zero_()) == (0, 48)
    assert moved(lambda: X[0] + X[0, 0].expand(4)) == (16 + 4, 16)  # an expanded value counts once
    index = torch.zeros(1, dtype=torch.long)  # only the selected rows are read
    assert moved(lambda: X.index_select(0, index)) == (16 + 8, 16)
    assert moved(lambda: torch.nn.functional.embedding(index, X)) == (16 + 8, 16)


def test_stored_bytes() -> None:
    assert stored_bytes(X) == 48
    assert stored_bytes(X[:, :1]) == 12
    assert stored_bytes(X[:1].expand(3, 4)) == 16
    assert stored_bytes(torch.empty(0, 4)) == 0


def test_marks_divide_steps() -> None:
    with LaunchCounter() as counter:
        X.exp()
        counter.mark()
        X.exp()
        X.log()
        counter.mark()
    assert [step.launches for step in counter.steps] == [1, 2]
    total = Counts.total(counter.steps)
    assert total.operations == {"exp": 2, "log": 1}
    assert (total.read, total.written) == (3 * 48, 3 * 48)
    X.exp()
    assert counter.current == Counts()


def test_places_are_those_of_heal() -> None:
    from heal.engine.masks import as_bool
    from heal.engine.position_groups import groups_of

    found = counted(lambda: as_bool(X))
    assert set(found.files) == {"engine/masks.py"}
    assert set(counted(lambda: groups_of(X > 0)).files) == {"elsewhere", "engine/position_groups.py"}


def test_a_kernel_outside_of_the_dispatcher_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from heal.analysis import step

    def many(x: Tensor) -> Tensor:
        return x.exp().log().exp()

    monkeypatch.setattr(step, "compiled_step", many)
    found = counted(lambda: step.compiled_step(X))  # type: ignore[arg-type]
    assert found.operations == {"compiled_step": 1}
    assert found.read == 48
    assert vars(step)["compiled_step"] is many


def test_a_function_of_numba_counts_once_with_its_arrays() -> None:
    pytest.importorskip("numba")
    from heal.kernels import cpu_attention as cpu

    original = cpu.append
    moments = [np.zeros((1, 2, 1, 2, 4), np.float32) for _ in range(2)]
    count, key = np.zeros((1, 2), np.float32), np.ones((1, 1, 4), np.float32)
    found = counted(lambda: cpu.append(*moments, count, key[:, :, None], key[:, :, None], np.zeros((1, 1), np.uint8)))
    assert found.operations == {"numba": 1}
    assert found.read == 2 * 64 + 8 + 2 * 16 + 1
    assert count.tolist() == [[1, 0]]
    assert cpu.append is original


def test_every_entry_point_of_numba_exists() -> None:
    pytest.importorskip("numba")
    from heal.kernels import cpu, cpu_attention, cpu_projection

    for module in (cpu, cpu_attention, cpu_projection):
        assert all(callable(getattr(module, name)) for name in module.CALLED_FROM_PYTHON)


def test_what_runs_on_a_cpu_only_never_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    assert counted(lambda: X.numpy()).syncs
    monkeypatch.setattr(launch_counter, "_place", lambda: f"{launch_counter.ON_CPU}:9")
    assert not counted(lambda: X.numpy()).syncs


def test_an_unknown_operation_counts() -> None:
    assert launch_counter.launches(object()) == 1
