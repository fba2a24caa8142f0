"""Noise that does not depend on the batch.

Every draw depends on (seed, address) only, not on earlier draws, and long draws consist of fixed blocks. A row gets
the same noise alone, in any batch and with any padding. The global generator is not used, and two runs with the same
seed give the same tokens.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import torch
from torch import Tensor

BLOCK = 128


@dataclass
class Noise:
    """Addressed standard draws on one device. `at` extends the address. All rows share the tensors."""

    seed: int
    device: torch.device
    address: tuple[int, ...] = ()
    _generator: torch.Generator | None = field(default=None, repr=False)

    def at(self, *address: int) -> Noise:
        return Noise(self.seed, self.device, self.address + address, self._own_generator())

    def normal(self, leading: tuple[int, ...], length: int, *address: int) -> Tensor:
        """Standard normals [*leading, length]. A shorter draw at the same address is a prefix of a longer one."""
        return self._blocks("normal", leading, length, address)

    def uniform(self, leading: tuple[int, ...], length: int, *address: int) -> Tensor:
        """Uniform on [−√3, √3): mean 0, variance 1."""
        return (self._blocks("uniform", leading, length, address) * 2 - 1) * 3**0.5

    def cauchy(self, leading: tuple[int, ...], length: int, *address: int) -> Tensor:
        """Standard Cauchy."""
        return torch.tan(torch.pi * (self._blocks("uniform", leading, length, address) - 0.5))

    def _blocks(self, kind: str, leading: tuple[int, ...], length: int, address: tuple[int, ...]) -> Tensor:
        blocks = [self._block(kind, leading, address, index) for index in range(max(1, -(-length // BLOCK)))]
        return (blocks[0] if len(blocks) == 1 else torch.cat(blocks, dim=-1))[..., :length]

    def _block(self, kind: str, leading: tuple[int, ...], address: tuple[int, ...], index: int) -> Tensor:
        generator = self._own_generator()
        generator.manual_seed(_hash(self.seed, *self.address, *address, index))
        out = torch.empty(*leading, BLOCK, device=self.device)
        return out.normal_(generator=generator) if kind == "normal" else out.uniform_(generator=generator)

    def _own_generator(self) -> torch.Generator:
        if self._generator is None:
            self._generator = torch.Generator(device=self.device)
        return self._generator


def _hash(*numbers: int) -> int:
    text = ",".join(map(str, numbers)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1
