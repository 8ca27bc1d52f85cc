"""The parts of a step that very many nodes saved, read once for all ranks.

Every rank needs what all parts say. Of a thousand parts each of a thousand ranks would read all; so each reads a few of
them, and all tell one another what stands there. What comes from other ranks is checked against the commit by whoever
uses it, as what comes from the store; a part that a rank could not read is read by each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

from perdure.checkpoint.stalls import unless_stalled
from perdure.clock import Deadline
from perdure.errors import PerdureError, ProtocolError
from perdure.fabric import Fabric
from perdure.store import PartRef, Store

__all__ = ["MANY_PARTS", "read_parts_together"]

MANY_PARTS: Final = 64
"""From so many parts on it is worth a round of messages."""

_AT_ONCE = 16
_ROUND_BYTES = 64 << 20  # that each rank holds of what all tell in a round
_SIZE = 8


def read_parts_together(
    store: Store, refs: Sequence[PartRef], *, fabric: Fabric, agree_s: float, stall_s: float, budget_bytes: int
) -> dict[str, memoryview]:
    """What parts have, by name; those that nobody could read are left out. Every rank calls it with the same ``refs``.

    Empty where they are few, or would take more than ``budget_bytes``: then each rank reads them as it goes.

    Raises `DeadlineExceeded` or `LinkLost` if a rank does not answer, `ProtocolError` if one answers nonsense.
    """
    world, rank = fabric.world, fabric.rank
    longest = max((ref.nbytes for ref in refs), default=0) + _SIZE
    total = sum(ref.nbytes for ref in refs)
    if world == 1 or len(refs) < MANY_PARTS or max(total, world * longest) > budget_bytes:
        return {}
    each = max(_ROUND_BYTES // (world * longest), 1)  # parts of a rank in a round
    rounds = [refs[start : start + each * world] for start in range(0, len(refs), each * world)]
    mine = [ref for step in rounds for ref in step[rank::world]]
    read = unless_stalled(lambda moved: _read(store, mine, moved), stall_s=stall_s, what="parts of the step")
    found: dict[str, memoryview] = {}
    for step in rounds:
        told = b"".join(_spelled(read.get(ref.name)) for ref in step[rank::world])
        deadline = Deadline.after(agree_s, "all ranks to tell what parts of the step say")
        for other, data in enumerate(fabric.all_gather(told, deadline=deadline)):
            view, at = memoryview(data), 0
            for ref in step[other::world]:
                nbytes = int.from_bytes(view[at : at + _SIZE], "little") - 1
                at += _SIZE
                if nbytes >= 0:
                    found[ref.name] = view[at : at + nbytes]
                    at += nbytes
            if at != len(view):
                raise ProtocolError(f"rank {other} told something else than what its parts say", rank=other)
    return found


def _spelled(data: memoryview | None) -> bytes:
    return bytes(_SIZE) if data is None else (len(data) + 1).to_bytes(_SIZE, "little") + data


def _read(store: Store, refs: Sequence[PartRef], moved: Callable[[int], None]) -> dict[str, memoryview]:
    """The parts that can be read and have the size that they should have."""
    found: dict[str, memoryview] = {}

    def read(ref: PartRef) -> None:
        with suppress(PerdureError):  # whoever needs it meets the same, or has more luck
            if store.size(ref.name) == ref.nbytes:
                found[ref.name] = store.read(ref.name, nbytes=ref.nbytes)
        moved(1)

    if refs:
        with ThreadPoolExecutor(min(_AT_ONCE, len(refs)), "perdure-parts") as pool:
            list(pool.map(read, refs))
    return found
