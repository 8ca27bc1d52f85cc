"""Which steps can be restored, newest first: what agents hold in memory and what the store holds, in one line.

Pure. Every rank calls it with the same facts and gets the same answer. Only a generation that each rank's agent holds
whole counts as in memory. "Newer" follows the branch that training is on: a generation that is not committed is newer
than the head only if its epoch is not older than the head's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from perdure.checkpoint.messages import Generation

__all__ = ["Candidate", "RankView", "SlotFacts", "line_up"]


class SlotFacts(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A commit on the current branch."""

    slot: int
    step: int
    epoch: int
    session: str
    seq: int


class RankView(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one rank can see: the generations of its node's agent; rank 0 also reads the branch, newest first."""

    generations: list[Generation]
    chain: list[SlotFacts] | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A step that every rank can have; ``slot`` if it is committed, ``generation`` if it is in memory everywhere."""

    step: int
    slot: int | None
    session: str | None
    seq: int | None

    @property
    def in_memory(self) -> bool:
        """Whether every rank's agent holds it."""
        return self.session is not None


def line_up(views: Sequence[RankView]) -> list[Candidate]:
    """All candidates, newest first. ``views`` in rank order."""
    chain = views[0].chain or []
    everywhere: dict[tuple[str, int], Generation] = {}
    for generation in views[0].generations:
        name = (generation.session, generation.seq)
        held = [_find(view, name) for view in views]
        if all(each is not None and each.ranks == list(range(each.world)) for each in held):
            everywhere[name] = generation
    committed = {(commit.session, commit.seq) for commit in chain}
    by_slot = {generation.slot: name for name, generation in everywhere.items() if generation.slot is not None}
    head = chain[0] if chain else None
    found: list[Candidate] = []
    uncommitted = [
        (generation.epoch, generation.seq, generation.step, name)
        for name, generation in everywhere.items()
        if generation.slot is None
        and name not in committed
        and (head is None or (generation.epoch, generation.seq) > (head.epoch, head.seq))
    ]
    for _, _, step, (session, seq) in sorted(uncommitted, reverse=True):
        found.append(Candidate(step, None, session, seq))
    for commit in chain:
        name = (commit.session, commit.seq)
        memory_session, memory_seq = by_slot.get(commit.slot, name if name in everywhere else (None, None))
        found.append(Candidate(commit.step, commit.slot, memory_session, memory_seq))
    return found


def _find(view: RankView, name: tuple[str, int]) -> Generation | None:
    return next((each for each in view.generations if (each.session, each.seq) == name), None)
