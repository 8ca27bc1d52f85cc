"""Which steps can be restored, newest first: what agents hold in memory and what the store holds, in one line.

Pure. Every rank calls it with the same facts and gets the same answer. A generation counts as in memory if the agents
of all nodes together hold what every rank saved: what the own agent lacks is read from another node's. "Newer" follows
the branch that training is on: a generation that is not committed is newer than the head only if its epoch is not older
than the head's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from perdure.checkpoint.messages import Generation

__all__ = ["Candidate", "RankView", "SlotFacts", "holders_of", "line_up"]


class SlotFacts(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A commit on the current branch, where it stands (in the store that commits, in its copy far away), its parts."""

    slot: int
    step: int
    epoch: int
    session: str
    seq: int
    home: bool = True
    remote: bool = False
    parts: int = 0


class RankView(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one rank can see: the generations of its agent, on ``node``; rank 0 also reads the branch, newest first."""

    node: int = 0
    generations: list[Generation]
    chain: list[SlotFacts] | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A step that every rank can have; ``slot`` if it is committed, ``generation`` if it is in memory everywhere.

    ``parts`` are those of the commit.
    """

    step: int
    slot: int | None
    session: str | None
    seq: int | None
    parts: int = 0

    @property
    def name(self) -> tuple[str, int]:
        """Session and seq of what is in memory; nothing is called ``("", 0)``."""
        return self.session or "", self.seq or 0

    @property
    def in_memory(self) -> bool:
        """Whether the agents hold all of it."""
        return self.session is not None


def line_up(views: Sequence[RankView]) -> list[Candidate]:
    """All candidates, newest first. ``views`` in rank order."""
    chain = views[0].chain or []
    facts = {(each.session, each.seq): each for view in reversed(views) for each in view.generations}
    held = _held(views)
    everywhere = {name: each for name, each in facts.items() if len(held.get(name, ())) == each.world}
    committed = {(commit.session, commit.seq) for commit in chain}
    head = chain[0] if chain else None
    top = head.slot if head is not None else 0
    # Slots above the newest commit were lost with their store, which came back from an older copy: memory is newer.
    durable = {(each.session, each.seq) for view in views for each in view.generations if 0 < (each.slot or 0) <= top}
    found: list[Candidate] = []
    uncommitted = [
        (generation.epoch, generation.seq, generation.step, name)
        for name, generation in everywhere.items()
        if name not in durable
        and name not in committed
        and (head is None or (generation.epoch, generation.seq) > (head.epoch, head.seq))
    ]
    for _, _, step, (session, seq) in sorted(uncommitted, reverse=True):
        found.append(Candidate(step, None, session, seq))
    for commit in chain:
        # By the name of the save, never by the slot: a store that was lost and came back may use a slot once more.
        name = (commit.session, commit.seq)
        memory_session, memory_seq = name if name in everywhere else (None, None)
        found.append(Candidate(commit.step, commit.slot, memory_session, memory_seq, commit.parts))
    return found


def holders_of(views: Sequence[RankView], session: str, seq: int, *, own: bool = False) -> dict[int, list[int]]:
    """Which nodes' agents hold what each rank saved: rank of the save -> nodes, in order.

    With ``own`` without what they keep for others.
    """
    return _held(views, own).get((session, seq), {})


def _held(views: Sequence[RankView], own: bool = False) -> dict[tuple[str, int], dict[int, list[int]]]:
    """For each generation that any agent holds: rank of the save -> nodes. All ranks of a node must see it there."""
    of_node: dict[int, list[RankView]] = {}
    for view in views:
        of_node.setdefault(view.node, []).append(view)
    found: dict[tuple[str, int], dict[int, list[int]]] = {}
    for node, mine in sorted(of_node.items()):
        seen = Counter((each.session, each.seq) for view in mine for each in view.generations)
        for each in mine[0].generations:
            if seen[each.session, each.seq] == len(mine):
                of_rank = found.setdefault((each.session, each.seq), {})
                for rank in each.own if own else each.ranks:
                    of_rank.setdefault(rank, []).append(node)
    return found
