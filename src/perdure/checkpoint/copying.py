"""What copies a save's bytes into a segment: the part that depends on where tensors lie.

`HostCopier` copies host memory; a framework with devices has a copier of its own (`Framework.copier`) that copies what
lies there too, and lets the device do the waiting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from perdure.shm import Segment, copy_many
from perdure.state.items import Memory

__all__ = ["Block", "Copier", "Copying", "HostCopier", "copy_host"]


@dataclass(frozen=True, slots=True)
class Block:
    """The bytes of ``memory``, of the tensor ``name``, go to byte ``start`` of ``segment``."""

    name: str
    memory: Memory
    segment: Segment
    start: int


class Copying(Protocol):
    """The copy of one save; what `Copier.begin` returns."""

    def fence(self, within_s: float) -> bool:
        """Called before each optimizer step, on its thread: whether the step may be queued, or run, from here on.

        True if the device itself holds the step back until all is copied. False if that cannot be so: the caller then
        waits until `finish` has returned. Raises `DeadlineExceeded` if that cannot be told within ``within_s``.
        """
        ...

    def finish(self) -> None:
        """Return when all is copied; on the copier's thread, once.

        Raises `CallError` if what is copied is not what was to be saved, since it was changed before the fence.
        """
        ...


class Copier(Protocol):
    """Copies blocks that do not overlap. One a checkpointer; keeps what it needs to know of the segments."""

    def adopt(self, segment: Segment) -> None:
        """Make ``segment`` ready to be copied into, ahead of time. Called from any thread."""
        ...

    def begin(self, now: Sequence[Block], later: Sequence[Block]) -> Copying:
        """Copy ``now``, which may change as soon as this returns, and begin with ``later``, which changes at the fence.

        Of what lies on a device, what changes it counts: what is queued later on the stream that is current there.
        Called on the thread that trains; of two saves, after `finish` of the first. Whatever it raises, nothing is
        written to the segments any more.
        """
        ...


class HostCopier:
    """Host memory alone: what may wait is copied on the copier's thread, and the optimizer's thread waits for that."""

    def adopt(self, segment: Segment) -> None:
        """Any segment will do."""

    def begin(self, now: Sequence[Block], later: Sequence[Block]) -> Copying:
        """Copy ``now``, and remember ``later``."""
        copy_host(now)
        return _HostCopying(later)


@dataclass(frozen=True, slots=True)
class _HostCopying:
    later: Sequence[Block]

    def fence(self, within_s: float) -> bool:
        return False

    def finish(self) -> None:
        copy_host(self.later)


def copy_host(blocks: Sequence[Block]) -> None:
    """Copy blocks of host memory; releases the interpreter's lock."""
    if blocks:
        copy_many(
            np.array([block.memory.address for block in blocks], np.uint64),
            np.array([block.segment.address + block.start for block in blocks], np.uint64),
            np.array([block.memory.nbytes for block in blocks], np.uint64),
        )
