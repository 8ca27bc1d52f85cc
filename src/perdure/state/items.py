"""A tensor as one rank holds it: its name, its place in the whole tensor, and the memory where the bytes lie.

Adapters describe the live objects of their library in these terms; nothing here knows torch.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import Any

from perdure.layout import Box
from perdure.state.scopes import Among, OnResize

__all__ = ["Capture", "Held", "Memory", "TensorItem", "ValueItem"]


@dataclass(frozen=True, slots=True)
class Memory:
    """``nbytes`` contiguous bytes at ``address``; ``owner`` keeps them alive.

    ``device`` names the device in whose memory they lie; ``""`` is the host. Only the framework's copier reads others.
    """

    address: int
    nbytes: int
    owner: Any = field(repr=False, compare=False)
    device: str = ""

    def part(self, start: int, stop: int) -> Memory:
        """Bytes ``start`` to ``stop`` of it."""
        return Memory(self.address + start, stop - start, self.owner, self.device)

    def view(self) -> memoryview:
        """The bytes as a writable memoryview; the caller keeps ``self`` alive while it is used. Host memory only."""
        assert not self.device, "only a copier reads the memory of a device"
        if self.nbytes == 0:
            return memoryview(bytearray())
        return memoryview((ctypes.c_ubyte * self.nbytes).from_address(self.address)).cast("B")


@dataclass(frozen=True, slots=True)
class Held:
    """The block ``box`` of a tensor, row-major in ``memory``."""

    box: Box
    memory: Memory


@dataclass(frozen=True, slots=True)
class TensorItem:
    """What this rank holds of the tensor ``name``.

    ``shape`` is that of the whole tensor; ``held`` may be empty (an empty shard). ``local`` tensors belong to this
    rank alone. ``owned`` says that only an optimizer step changes the bytes, so that a copy may run until then.
    ``aliases`` are other names of the same storage. ``alike`` says that replicas must be the same on all ranks; where
    they need not (buffers of a module, which data parallelism evens out at the next forward), the lowest rank's count.
    ``among`` says which ranks hold the tensor; None is all of them.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    held: tuple[Held, ...]
    aliases: tuple[str, ...] = ()
    local: bool = False
    owned: bool = False
    on_resize: OnResize = "modulo"
    alike: bool = True
    among: Among | None = None

    @property
    def nbytes(self) -> int:
        """Bytes that this rank holds."""
        return sum(held.memory.nbytes for held in self.held)


@dataclass(frozen=True, slots=True)
class ValueItem:
    """A value that is no tensor, already as tagged JSON (`perdure.state.values`); ``among`` as of a tensor."""

    key: str
    value: Any
    local: bool = False
    on_resize: OnResize = "modulo"
    among: Among | None = None


@dataclass(frozen=True, slots=True)
class Capture:
    """All that one rank saves in one step."""

    tensors: tuple[TensorItem, ...]
    values: tuple[ValueItem, ...]
