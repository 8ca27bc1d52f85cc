"""What an agent keeps in its memory for other nodes: of each the newest two copies, verified before they count.

Of two, because a node's newest save may not be whole on all nodes yet; the older one goes when the next copy comes. So
each node takes up twice the memory of its packs here.
Memory that is not there is refused to the giver, who tells its ranks; nobody is killed for want of it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from perdure.checkpoint.arrival import receive_pack
from perdure.checkpoint.messages import Generation, Packed, Terms
from perdure.checkpoint.peer_messages import Bytes, Deposit, Kept, SaveName
from perdure.clock import Deadline
from perdure.errors import BlobMissing, PerdureError, ProtocolError, Superseded, from_wire, to_wire
from perdure.shm import Segment
from perdure.wire import NodeLink

__all__ = ["Ward", "Wards", "give"]

_PACK_S = 600.0
_COPIES = 2  # of each giver


@dataclass(frozen=True, slots=True)
class Given:
    """A rank's pack of a ward, and what its agent would need to make it durable."""

    packed: Packed
    segment: Segment
    terms: Terms
    said: dict[str, str]
    raw_nbytes: int

    @property
    def view(self) -> memoryview:
        """The sealed pack."""
        return self.segment.view[: self.packed.nbytes]


@dataclass(frozen=True, slots=True)
class Ward:
    """A copy of what another node's agent held of a save; ``id`` is below 0 and no other ward ever has it here."""

    id: int
    facts: Generation
    terms: Terms
    given: tuple[Given, ...]

    @property
    def save(self) -> SaveName:
        """Session and seq."""
        return self.facts.session, self.facts.seq

    @property
    def packs(self) -> list[tuple[Packed, Segment]]:
        """The sealed packs, each with the memory that it is the front of."""
        return [(each.packed, each.segment) for each in self.given]

    def views(self) -> list[tuple[Packed, memoryview]]:
        """The sealed packs."""
        return [(each.packed, each.view) for each in self.given]


class Wards:
    """``make`` gives a new segment of so many bytes or more, or raises why there is none. Used from any thread."""

    def __init__(self, make: Callable[[int], Segment]) -> None:
        self._make = make
        self._kept: dict[str, list[Ward]] = {}  # the giver (run and the ranks that it holds): oldest first
        self._spare: dict[str, list[Segment]] = {}  # for the second copy of a giver
        self._adopted: dict[SaveName, list[Given]] = {}  # to be made durable: never overwritten
        self._ids = 0
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[Ward]:
        with self._lock:
            return iter([ward for wards in self._kept.values() for ward in wards])

    def of(self, save: SaveName) -> list[Ward]:
        """All that is kept of a save."""
        return [ward for ward in self if ward.save == save]

    def adopt(self, save: SaveName, ranks: Sequence[int]) -> list[Given]:
        """What is kept of a save for ``ranks``, in their order, which is kept until `let_go`, whatever comes.

        Raises `BlobMissing` if it is not all here.
        """
        with self._lock:
            known = self._adopted.get(save) or [
                each for wards in self._kept.values() for ward in wards if ward.save == save for each in ward.given
            ]
            of_rank = {each.packed.index.rank: each for each in known}
            missing = [rank for rank in ranks if rank not in of_rank]
            if missing:
                raise BlobMissing(f"the copy of what rank {missing[0]} saved is not in memory any more")
            found = [of_rank[rank] for rank in sorted(ranks)]
            if found:
                self._adopted = {save: found}  # of one before it no session goes on any more
            return found

    def let_go(self, save: SaveName) -> None:
        """A save is durable: what is kept of it may be replaced."""
        with self._lock:
            self._adopted.pop(save, None)

    def take(self, link: NodeLink, deposit: Deposit) -> None:
        """Receive a copy, verify it, keep it in place of the one before it, and answer."""
        giver = f"{deposit.facts.run} {deposit.facts.ranks}"
        with self._lock:
            spare = self._spare.pop(giver, [])
            wards = self._kept.get(giver, [])
            late = _late(deposit.facts, wards)
            if late is None and len(wards) == _COPIES:
                oldest = wards.pop(0)
                if oldest.save not in self._adopted:
                    spare += [segment for _, segment in oldest.packs]
        taken: list[tuple[Packed, Segment]] = []
        error: PerdureError | None = late
        for packed in deposit.packs if late is None else ():
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
        given = zip(taken, deposit.said, deposit.raw_nbytes, strict=True)
        with self._lock:
            self._ids -= 1
            ward = Ward(
                self._ids,
                deposit.facts,
                deposit.terms,
                tuple(Given(packed, segment, deposit.terms, said, n) for (packed, segment), said, n in given),
            )
            wards = self._kept.setdefault(giver, [])
            error = _late(deposit.facts, wards)  # another may have come meanwhile
            if error is None:
                wards.append(ward)
            epochs = sorted({each[-1].facts.epoch for each in self._kept.values() if each})[-2:]
            for old in [name for name, each in self._kept.items() if not each or each[-1].facts.epoch not in epochs]:
                del self._kept[old]  # of attempts before that: no use
                self._spare.pop(old, None)
        link.send(Kept() if error is None else Kept(error=to_wire(error)), deadline=deadline)
        if error is None and wards == [ward]:
            self._prepare(giver, ward)

    def _prepare(self, giver: str, ward: Ward) -> None:
        """Make the memory for the next copy of a new giver, and its pages: only the first one waits for the kernel."""
        spare: list[Segment] = []
        with suppress(PerdureError):  # made when it is needed, or refused then
            for packed, _ in ward.packs:
                spare.append(self._make(packed.nbytes))
                spare[-1].populate()
            with self._lock:
                if self._kept.get(giver) == [ward]:
                    self._spare[giver] = spare


def _late(facts: Generation, wards: Sequence[Ward]) -> PerdureError | None:
    """Why a copy may not take the place of those that are kept: they are of a later attempt, or of a later save."""
    newest = wards[-1].facts if wards else None
    if newest is None or (facts.epoch, facts.seq) >= (newest.epoch, newest.seq):
        return None
    return Superseded(
        f"a copy of step {facts.step} comes after one of step {newest.step} of a later attempt: this writer must stop",
        epoch=facts.epoch,
        newer=newest.epoch,
    )


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
