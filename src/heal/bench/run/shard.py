"""One process of several: its share of the batches, and waiting for the others."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from heal.errors import RunError

T = TypeVar("T")
PATIENCE = timedelta(days=7)  # the slowest process may be hours behind the fastest


@dataclass(frozen=True)
class Shard:
    """Which process this is. Alone, there is nothing to wait for."""

    index: int = 0
    count: int = 1
    state: Any = None
    """accelerate's, if it launched this process."""

    @classmethod
    def current(cls) -> Shard:
        """As `accelerate launch` (or torchrun) started this process."""
        processes = int(os.environ.get("WORLD_SIZE", "1"))
        if processes <= 1:
            return cls()
        import torch
        from accelerate import PartialState  # type: ignore[import-untyped]

        state = PartialState(cpu=not torch.accelerator.is_available(), timeout=PATIENCE)
        if state.num_processes != processes:
            raise RunError(f"{processes} processes were launched, but accelerate sees {state.num_processes}")
        return cls(state.process_index, state.num_processes, state)

    @property
    def main(self) -> bool:
        return self.index == 0

    @property
    def device(self) -> str | None:
        """Where accelerate wants the model of this process; None if it does not care."""
        return None if self.state is None else str(self.state.device)

    def share(self, items: Sequence[T]) -> Sequence[T]:
        return items[self.index :: self.count]

    def wait(self) -> None:
        """Until every process is here."""
        if self.state is not None:
            self.state.wait_for_everyone()

    def close(self) -> None:
        if self.state is not None:
            self.state.destroy_process_group()
