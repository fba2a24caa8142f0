"""Distributed runs: the share of one process, and synchronisation with the others."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from heal.errors import RunError
from heal.extras import optional

T = TypeVar("T")
PATIENCE = timedelta(days=7)  # the slowest process may be hours behind the fastest


@dataclass(frozen=True)
class Shard:
    """Rank of this process. A single process has nothing to wait for."""

    index: int = 0
    count: int = 1
    state: Any = None
    """accelerate's state, if it launched this process."""

    @classmethod
    def current(cls) -> Shard:
        """The shard of this process, as started by `accelerate launch` or torchrun."""
        processes = int(os.environ.get("WORLD_SIZE", "1"))
        if processes <= 1:
            return cls()
        import torch

        with optional():
            from accelerate import PartialState

        state = PartialState(cpu=not torch.accelerator.is_available(), timeout=PATIENCE)
        if state.num_processes != processes:
            raise RunError(f"{processes} processes were launched, but accelerate reports {state.num_processes}")
        return cls(state.process_index, state.num_processes, state)

    @property
    def main(self) -> bool:
        return self.index == 0

    @property
    def device(self) -> str | None:
        """The device that accelerate assigned to this process, if any."""
        return None if self.state is None else str(self.state.device)

    def share(self, items: Sequence[T]) -> Sequence[T]:
        return items[self.index :: self.count]

    def wait(self) -> None:
        """Wait until every process has reached this point."""
        if self.state is not None:
            self.state.wait_for_everyone()

    def close(self) -> None:
        if self.state is not None:
            self.state.destroy_process_group()
