"""What of the statements that fill one slot holds now: a pure walk through them in the order of the time they speak of.

The order in which they came to be known plays no part, so a fact that arrives late with an older date replaces nothing
that is newer, and any order of arrival ends in the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from perdure.memory.records import Bond, State

__all__ = ["Member", "Tie", "arrange"]


@dataclass(frozen=True, slots=True)
class Member:
    """A fact in a slot. ``since`` is the time it speaks of, ``observed`` when it was told, both in seconds.

    It replaces only values that share one of its ``kinds`` and tell something else, unless it is ``loose``, and the one
    that it says it stands ``instead`` of.
    """

    fact: int
    value: str
    since: float
    observed: float
    authority: int
    single: bool
    how: str = "says"
    kinds: frozenset[str] = frozenset()
    loose: bool = True
    instead: str = ""

    @property
    def order(self) -> tuple[float, float, int]:
        """By the time it speaks of, then by when it was told, then as it was told."""
        return (self.since, self.observed, self.fact)


@dataclass(frozen=True, slots=True)
class Tie:
    """``fact`` supersedes, duplicates or conflicts with ``other``."""

    kind: Bond
    fact: int
    other: int
    reason: str


def arrange(members: Iterable[Member]) -> tuple[dict[int, State], list[Tie]]:
    """Return the state of each fact of a slot, and why.

    >>> walk = [Member(2, "porto", 5, 5, 2, True), Member(1, "lisbon", 1, 1, 2, True)]
    >>> arrange(walk)[0]
    {1: <State.SUPERSEDED: 'superseded'>, 2: <State.CURRENT: 'current'>}
    """
    states: dict[int, State] = {}
    ties: list[Tie] = []
    holders: list[Member] = []
    for each in sorted(members, key=lambda member: member.order):
        states[each.fact] = State.CURRENT
        if each.how == "was":
            holders = _ended(each, holders, states, ties, "it is told as how it was before")
            continue
        if each.how == "not":
            holders = _ended(each, holders, states, ties, "it is told to hold no longer")
            continue
        if each.instead:
            holders = _ended(replace(each, value=each.instead), holders, states, ties, "it says that it replaces it")
        same = next((at for at, holder in enumerate(holders) if holder.value == each.value), None)
        if same is not None:
            states[each.fact] = State.DUPLICATE
            ties.append(Tie(Bond.DUPLICATES, each.fact, holders[same].fact, "it says the same again"))
            holders[same] = replace(holders[same], authority=max(holders[same].authority, each.authority))
            if not each.single:
                continue
        if each.single:
            kept: list[Member] = []
            for holder in holders:
                if holder.value == each.value or not _comparable(each, holder):
                    kept.append(holder)
                elif holder.authority > each.authority:
                    ties.append(Tie(Bond.CONFLICTS, each.fact, holder.fact, "it says otherwise with less authority"))
                    kept.append(holder)
                else:
                    states[holder.fact] = State.SUPERSEDED
                    by = each.fact if same is None else holders[same].fact
                    ties.append(Tie(Bond.SUPERSEDES, by, holder.fact, "it says otherwise of the same, later"))
            holders = kept
        if same is None:
            holders.append(each)
    return states, ties


def _comparable(new: Member, old: Member) -> bool:
    """Whether two values exclude each other: they are of one kind, and none only tells the other more fully."""
    if new.loose:
        return True
    words, others = set(new.value.split()), set(old.value.split())
    return bool(new.kinds & old.kinds) and not (words <= others or others <= words)


def _ended(each: Member, holders: list[Member], states: dict[int, State], ties: list[Tie], reason: str) -> list[Member]:
    """The holders that are left when what one of them says has ended."""
    kept: list[Member] = []
    for holder in holders:
        if holder.value != each.value and (each.value or not each.kinds & holder.kinds):
            kept.append(holder)
        elif holder.authority > each.authority:
            ties.append(Tie(Bond.CONFLICTS, each.fact, holder.fact, reason + ", with less authority"))
            kept.append(holder)
        else:
            states[holder.fact] = State.SUPERSEDED
            ties.append(Tie(Bond.SUPERSEDES, each.fact, holder.fact, reason))
    return kept
