"""What an agent keeps in its memory for other nodes: of each the newest copy that is whole, verified before it counts.

While a newer copy of a node arrives the older one stays, so each node takes up twice the memory of its packs here.
Memory that is not there is refused to the giver, who tells its ranks; nobody is killed for want of it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from perdure.checkpoint.arrival import receive_pack
from perdure.checkpoint.messages import Generation, Packed
from perdure.checkpoint.peer_messages import Bytes, Deposit, Kept, SaveName
from perdure.clock import Deadline
from perdure.errors import PerdureError, ProtocolError, from_wire, to_wire
from perdure.shm import Segment
from perdure.wire import NodeLink

__all__ = ["Ward", "Wards", "give"]

_PACK_S = 600.0


@dataclass(frozen=True, slots=True)
class Ward:
    """A copy of what another node's agent held of a save; ``id`` is below 0 and no other ward ever has it here."""

    id: int
    facts: Generation
    packs: tuple[tuple[Packed, Segment], ...]

    @property
    def save(self) -> SaveName:
        """Session and seq."""
        return self.facts.session, self.facts.seq

    def views(self) -> list[tuple[Packed, memoryview]]:
        """The sealed packs."""
        return [(packed, segment.view[: packed.nbytes]) for packed, segment in self.packs]


class Wards:
    """``make`` gives a new segment of so many bytes or more, or raises why there is none. Used from any thread."""

    def __init__(self, make: Callable[[int], Segment]) -> None:
        self._make = make
        self._kept: dict[str, Ward] = {}  # the giver: run and the ranks that it holds
        self._spare: dict[str, list[Segment]] = {}
        self._ids = 0
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[Ward]:
        with self._lock:
            return iter(list(self._kept.values()))

    def of(self, save: SaveName) -> list[Ward]:
        """All that is kept of a save."""
        return [ward for ward in self if ward.save == save]

    def take(self, link: NodeLink, deposit: Deposit) -> None:
        """Receive a copy, verify it, keep it in place of the one before it, and answer."""
        giver = f"{deposit.facts.run} {deposit.facts.ranks}"
        with self._lock:
            spare = self._spare.pop(giver, [])
        taken: list[tuple[Packed, Segment]] = []
        error: PerdureError | None = None
        for packed in deposit.packs:
            fitting = next((each for each in spare if each.nbytes >= packed.nbytes), None)
            try:
                if fitting is not None:
                    spare.remove(fitting)
                taken.append((packed, self._make(packed.nbytes) if fitting is None else fitting))
            except PerdureError as why:
                error = why
                break
        del spare
        deadline = Deadline.after(_PACK_S, "a pack of another node")
        if error is not None:
            link.send(Kept(error=to_wire(error)), deadline=deadline)
            return
        link.send(Kept(), deadline=deadline)  # there is room: send
        wrong: PerdureError | None = None
        for packed, segment in taken:
            deadline = Deadline.after(_PACK_S, "a pack of another node")
            message, nbytes = link.recv(deadline)
            if not isinstance(message, Bytes) or message.number != packed.number or nbytes != packed.nbytes:
                raise ProtocolError("a deposit sends the packs that it announced, in order")
            file = f"a copy of step {deposit.facts.step}"
            found = receive_pack(link, packed, segment.view[:nbytes], file=file, deadline=deadline)
            wrong = wrong or found
        deadline = Deadline.after(_PACK_S, "another node")
        if wrong is not None:
            link.send(Kept(error=to_wire(wrong)), deadline=deadline)
            return
        with self._lock:
            self._ids -= 1
            ward = Ward(self._ids, deposit.facts, tuple(taken))
            before = self._kept.pop(giver, None)
            self._kept[giver] = ward
            if before is not None:
                self._spare[giver] = [segment for _, segment in before.packs]
            epochs = sorted({each.facts.epoch for each in self._kept.values()})[-2:]  # of attempts before that: no use
            for old in [name for name, each in self._kept.items() if each.facts.epoch not in epochs]:
                del self._kept[old]
                self._spare.pop(old, None)
        link.send(Kept(), deadline=deadline)
        if before is None:
            self._prepare(giver, ward)

    def _prepare(self, giver: str, ward: Ward) -> None:
        """Make the memory for the next copy of a new giver, and its pages: only the first one waits for the kernel."""
        spare: list[Segment] = []
        with suppress(PerdureError):  # made when it is needed, or refused then
            for packed, _ in ward.packs:
                spare.append(self._make(packed.nbytes))
                spare[-1].populate()
            with self._lock:
                if self._kept.get(giver) is ward:
                    self._spare[giver] = spare


def give(link: NodeLink, deposit: Deposit, views: Callable[[int], memoryview]) -> None:
    """Send a deposit; ``views`` gives the sealed pack of a number. Raises why it is not kept."""
    link.send(deposit, deadline=Deadline.after(_PACK_S, "the partner node"))
    _heed(link)
    for packed in deposit.packs:
        deadline = Deadline.after(_PACK_S, "the partner node to take a pack")
        link.send(Bytes(number=packed.number), views(packed.number), deadline=deadline)
    _heed(link)


def _heed(link: NodeLink) -> None:
    answer, _ = link.recv(Deadline.after(_PACK_S, "the partner node to answer"))
    if not isinstance(answer, Kept):
        raise ProtocolError(f"a partner node answered with a {type(answer).__name__}")
    if answer.error is not None:
        raise from_wire(answer.error)
