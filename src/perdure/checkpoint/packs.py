"""Packs as sources of a load, and the two steps that make a pack of a filled segment: hash it, store it."""

from __future__ import annotations

from perdure.codec.digest import tile_digests
from perdure.state.index import RankIndex
from perdure.state.save import pack_of
from perdure.store import PackIndex, PackRef, Run, parse_header

__all__ = ["DiskPack", "MemoryPack", "seal_pack", "store_pack"]


class MemoryPack:
    """A sealed pack in a segment of the node's agent, mapped read-only."""

    tier = "memory"

    def __init__(self, view: memoryview, *, file: str) -> None:
        self.file = file
        self._view = view
        self._index: PackIndex | None = None

    def index(self) -> PackIndex:
        """The header, read and checked once."""
        if self._index is None:
            view = self._view
            self._index = parse_header(lambda start, n: view[start : start + n], view.nbytes, file=self.file)
        return self._index

    def fetch(self, start: int, nbytes: int, into: memoryview | None = None) -> memoryview:
        """A view of the segment itself, or a copy of it in ``into``."""
        found = self._view[start : start + nbytes]
        if into is None:
            return found
        into[:nbytes] = found
        return into[:nbytes]


class DiskPack:
    """A pack in the store of the run."""

    tier = "disk"

    def __init__(self, run: Run, ref: PackRef) -> None:
        self.file = ref.name
        self._run = run
        self._ref = ref
        self._index: PackIndex | None = None

    def index(self) -> PackIndex:
        """The header, read and checked once."""
        if self._index is None:
            self._index = self._run.open_pack(self._ref)
        return self._index

    def fetch(self, start: int, nbytes: int, into: memoryview | None = None) -> memoryview:
        """Read from the store."""
        return self._run.store.read(self._ref.name, start=start, nbytes=nbytes, into=into)


def seal_pack(index: RankIndex, view: memoryview) -> int:
    """Hash the tiles of the tensors that ``index`` places in ``view`` and write the pack's header before them.

    Returns the size of the pack in bytes; ``view`` is a valid pack afterwards. Releases the interpreter's lock.
    """
    plan = pack_of(index)
    digests = b"".join(tile_digests(view[e.start : e.start + e.nbytes], plan.tile_bytes) for e in plan.entries)
    view[: plan.header_nbytes] = plan.render_header(digests)
    for pad in plan.pads:
        view[pad.start : pad.start + pad.nbytes] = bytes(pad.nbytes)
    return plan.total_nbytes


def store_pack(run: Run, pack: memoryview, *, epoch: int, step: int, seq: int, writer: str, number: int) -> PackRef:
    """Write a sealed pack; durable on return."""
    return run.write_pack([pack], epoch=epoch, step=step, seq=seq, writer=writer, number=number)
