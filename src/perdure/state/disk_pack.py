"""A pack in the store of a run, as a source of a load."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.store import PackIndex, PackRef, Run, read_digested
from perdure.store.api import Resident

__all__ = ["DiskPack"]


class DiskPack:
    """A pack in the store of the run."""

    tier = "disk"
    mapped = False
    raw = False

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

    def read_digested(self, start: int, nbytes: int, into: memoryview, tile_bytes: int) -> bytes:
        """Read into ``into`` and hash what has come."""
        store, name = self._run.store, self._ref.name
        return read_digested(store, name, start=start, nbytes=nbytes, into=into, tile_bytes=tile_bytes)

    def resident(self, at: Sequence[int]) -> int:
        """At how many of the bytes ``at`` the pack lies in this machine's memory already."""
        store = self._run.store
        return store.resident(self._ref.name, at) if isinstance(store, Resident) else 0
