"""What is known of one attempt: its nodes, which of their ranks have ended and how, what may still run where. No I/O.

A *member* is a node of the attempt. It is *lost* when its launcher is gone and has not come back in time, and *settled*
when nothing of the attempt can still run on it: its launcher has said so (`Over`), or it has been silent for longer
than the lease after which a launcher ends its ranks by itself (docs/decisions/0013). Messages may come late and twice.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from perdure.events import RankDied, RankLate
from perdure.supervisor.causes import Death
from perdure.supervisor.config import Waits
from perdure.supervisor.job import Ending, NodeFacts
from perdure.supervisor.verdict import LateRank
from perdure.supervisor.vocabulary import Late, Over, RankEnded

__all__ = ["Attempt", "Member", "excuse"]

_AT_EXIT: Final = frozenset({signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS})
_OURS: Final = frozenset({signal.SIGTERM, signal.SIGKILL})
_POLITE: Final = frozenset({128 + signal.SIGTERM, 128 + signal.SIGINT, 128 + signal.SIGHUP})  # asked, saved, gone


def excuse(ended: RankEnded) -> str | None:
    """Return why this end counts as success although it is not one; None if it does not."""
    if ended.finished and ended.signal in _AT_EXIT:
        return "it had finished before; this counts as success"
    return None


@dataclass(slots=True)
class Member:
    """A node of the attempt. ``left_s`` is when its launcher was last heard, once its link is gone; ``dead_s`` when it
    was known to be dead, and not only out of reach: what it ran is killed by its guard.
    """

    node: NodeFacts
    place: int
    base: int
    "Its first rank."
    ended: dict[int, RankEnded] = field(default_factory=dict)
    over: Over | None = None
    left_s: float | None = None
    relink_until_s: float = 0.0
    lost: bool = False
    dead_s: float | None = None

    @property
    def name(self) -> str:
        """The node's name."""
        return self.node.name

    @property
    def all_ended(self) -> bool:
        """Whether no rank of it is worth waiting for."""
        return self.over is not None or self.lost or len(self.ended) == self.node.nproc

    def has(self, rank: int) -> bool:
        """Whether the global ``rank`` is one of its."""
        return self.base <= rank < self.base + self.node.nproc

    def gone(self, heard_s: float, *, relink_until_s: float) -> None:
        """Its launcher cannot be heard any more."""
        if self.left_s is None:
            self.left_s, self.relink_until_s = heard_s, relink_until_s


class Attempt:
    """Attempt ``number`` on ``places``. ``resumed_s`` is when a controller that did not start it took it over."""

    def __init__(
        self,
        number: int = -1,
        places: Sequence[NodeFacts] = (),
        *,
        waits: Waits,
        name_nodes: bool,
        resumed_s: float | None = None,
        lost: Sequence[str] = (),
    ) -> None:
        self.number = number
        self._waits, self._name_nodes, self._resumed_s = waits, name_nodes, resumed_s
        self._members: dict[str, Member] = {}
        base = 0
        for place, node in enumerate(places):
            member = Member(node, place, base, lost=node.name in lost)
            if resumed_s is not None:
                member.gone(resumed_s, relink_until_s=resumed_s + waits.orphan_s)
            self._members[node.name] = member
            base += node.nproc
        self.world = base
        self.deaths: list[Death] = []
        "Ranks that failed by themselves, in the order in which that was noticed."
        self.failed_s: float | None = None
        "From when on the first of them is a failure of the attempt."
        self.out_of_memory: set[str] = set()
        self.first_step: int | None = None
        "What ranks had restored, as far as was seen."
        self.killed = False
        "Whether everything was told to end."
        self.left_early: list[Death] = []
        "Ranks that exited with code 0 before any failed, and had not said that they had finished."
        self._late: list[tuple[bool, LateRank]] = []
        self._late_s: float | None = None

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def __len__(self) -> int:
        return len(self._members)

    def member(self, name: str) -> Member | None:
        """The member ``name``, if there is such."""
        return self._members.get(name)

    # --- what is heard ------------------------------------------------------------------------------------------------

    def rank_ended(self, event: RankEnded, ending: Ending | None, *, now: float) -> RankDied | None:
        """A rank has ended; return what people are to be told, if it is new and no wish of ours."""
        member = self._members.get(event.node)
        if member is None or event.attempt != self.number or not 0 <= event.local_rank < member.node.nproc:
            return None
        if event.local_rank in member.ended:
            return None
        member.ended[event.local_rank] = event
        ours = ending is not None and (event.signal in _OURS or (ending.why != "failed" and event.code in _POLITE))
        rank, excused = member.base + event.local_rank, excuse(event)
        if event.code == 0 and not event.finished and not self.deaths:
            node = member.name if self._name_nodes else ""
            self.left_early.append(Death(rank, 0, node=node, step=event.step))
        if event.code == 0 or ours:
            return None
        if excused is None:
            node = member.name if self._name_nodes else ""
            death = Death(rank, event.code, event.signal, event.tail, node=node, step=event.step)
            self.deaths.append(replace(death, finished=event.finished))
            if event.out_of_memory:
                self.out_of_memory.add(node)
            settle_s = now + (0.0 if event.signal is not None else self._waits.settle_s)
            self.failed_s = settle_s if self.failed_s is None else min(self.failed_s, settle_s)
        return RankDied(
            rank=rank,
            attempt=event.attempt,
            code=event.code,
            signal=event.signal,
            step=event.step,
            excused=excused,
            node=member.name if self._name_nodes else None,
        )

    def over(self, event: Over) -> bool:
        """A launcher says that nothing is left; whether that is new."""
        member = self._members.get(event.node)
        if member is None or event.attempt != self.number or member.over is not None:
            return False
        member.over = event
        for i, death in enumerate(self.deaths):  # all of their stderr has been read now
            local = death.rank - member.base
            if 0 <= local < min(len(event.tails), member.node.nproc) and event.tails[local]:
                self.deaths[i] = replace(death, tail=event.tails[local])
        return True

    def ranks_late(self, event: Late, *, now: float) -> list[RankLate]:
        """Ranks do not get on; return what people are to be told of those that may be at fault."""
        member = self._members.get(event.node)
        if member is None or event.attempt != self.number:
            return []
        told = []
        for facts in event.ranks:
            rank = member.base + facts.local_rank
            if any(late.rank == rank for _, late in self._late):
                continue
            node = member.name if self._name_nodes else ""
            late = LateRank(rank, node, facts.phase, facts.seconds, facts.allowed_s, facts.step)
            self._late.append((facts.suspect, late))
            self._late_s = now if self._late_s is None else self._late_s
            if facts.suspect:
                told.append(
                    RankLate(
                        rank=rank,
                        node=member.name,
                        phase=facts.phase,
                        seconds=facts.seconds,
                        allowed_s=facts.allowed_s,
                        why=facts.why,
                    )
                )
        return told

    def newly_lost(self, now: float) -> list[Member]:
        """Members that count as lost from now on."""
        found = [
            member
            for member in self
            if member.left_s is not None and now >= member.relink_until_s and not member.lost and member.over is None
        ]
        for member in found:
            member.lost = True
        return found

    # --- what is asked ------------------------------------------------------------------------------------------------

    def all_well(self) -> bool:
        """Whether every rank has ended well."""
        return all(
            len(member.ended) == member.node.nproc
            and all(ended.code == 0 or excuse(ended) is not None for ended in member.ended.values())
            for member in self
        )

    def all_ended(self) -> bool:
        """Whether no rank is worth waiting for."""
        return all(member.all_ended for member in self)

    def has_failed(self, now: float) -> bool:
        """Whether a rank has failed, and those that fall with it have had a moment to say so themselves."""
        return self.failed_s is not None and (now >= self.failed_s or self.all_ended())

    def ended_by_launcher(self) -> tuple[str, ...]:
        """Nodes whose launchers have ended ranks that nobody had told them to: they had lost their controller."""
        if self.killed:
            return ()
        return tuple(member.name for member in self if member.over and len(member.ended) < member.node.nproc)

    def lost(self) -> tuple[str, ...]:
        """The names of members that are lost."""
        return tuple(member.name for member in self if member.lost)

    def late(self) -> tuple[LateRank, ...]:
        """Ranks that do not get on, suspects first."""
        return tuple(late for suspect in (True, False) for said, late in self._late if said is suspect)

    def is_late(self, now: float) -> bool:
        """Whether a rank does not get on, and other nodes have had a moment to say so of theirs."""
        return self._late_s is not None and (len(self) == 1 or now >= self._late_s + self._waits.late_s)

    def all_over(self, now: float) -> bool:
        """Whether nothing of it can still run anywhere."""
        return self.killed and all(self._settled(member, now) for member in self)

    def _settled(self, member: Member, now: float) -> bool:
        waits = self._waits
        if member.over is not None:
            return True
        if member.left_s is None:
            return False
        if member.dead_s is not None:
            return now >= member.dead_s + waits.fence_s
        if self._resumed_s is not None and member.left_s <= self._resumed_s:
            return now >= self._resumed_s + waits.orphan_s + waits.fence_s
        return now >= member.left_s + waits.lease_s + waits.fence_s

    def left_behind(self) -> list[int]:
        """Processes that cannot be killed."""
        return [pid for member in self if member.over for pid in member.over.left]

    def n_killed(self) -> int:
        """Processes that had to be killed."""
        return sum(member.over.killed for member in self if member.over)
