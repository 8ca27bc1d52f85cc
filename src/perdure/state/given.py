"""What another rank of the node has read, as one more copy of it: the first that a load looks into."""

from __future__ import annotations

from perdure.codec.digest import copy_and_digest
from perdure.errors import CallError
from perdure.state.relay import Relay
from perdure.store import PackIndex

__all__ = ["Given"]


class Given:
    """A unit of ``relay`` that another rank reads; byte 0 is its first. ``tier`` is where that rank has it from."""

    mapped = True
    raw = True

    def __init__(self, relay: Relay, unit: int, *, reader: int, tier: str) -> None:
        self.tier = tier
        self.file = f"what rank {reader} has read"
        self._relay, self._unit = relay, unit

    def index(self) -> PackIndex:
        """There is none: who reads here has planned by the header of another copy."""
        raise CallError(f"{self.file} has no header of its own")

    def fetch(self, start: int, nbytes: int, into: memoryview | None = None) -> memoryview:
        """A view of the bay itself, or a copy of it; waits until the other rank has filled it."""
        found = self._relay.given(self._unit)[start : start + nbytes]
        if into is None:
            return found
        into[:nbytes] = found
        return into[:nbytes]

    def read_digested(self, start: int, nbytes: int, into: memoryview, tile_bytes: int) -> bytes:
        """Copy to ``into`` and hash the copy, in one pass over memory."""
        return copy_and_digest(self.fetch(start, nbytes), into, tile_bytes)
