"""Which of several facts about one thing holds now: decided by code, not by a model that compares dates.

Facts that links bind, step by step, stand against each other. The winner is one that nothing supersedes, of the
greatest authority, and of those the newest; current ones of no less authority that links mark as its conflict are
shown beside it, and so are current ones that speak of the same slot, which may hold several values. (That code picks
the newest is the lesson of arXiv 2606.01435.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from perdure.memory.records import Bond, Fact, Hit, Link, State
from perdure.memory.shelf import Shelf

__all__ = ["Resolved", "chain", "resolved"]

_MOST: Final = 200
_SHOWN: Final = 10


@dataclass(frozen=True, slots=True)
class Resolved:
    """``winner`` holds now, for the reason ``why``; ``against`` say otherwise, ``also`` hold too, ``before`` held."""

    winner: Fact
    why: str
    against: tuple[Fact, ...] = ()
    also: tuple[Fact, ...] = ()
    before: tuple[Fact, ...] = ()


def resolved(shelf: Shelf, hits: Sequence[Hit]) -> Resolved | None:
    """Return what holds of what the best of ``hits`` speaks of; None where there are no hits."""
    if not hits:
        return None
    best = hits[0].fact
    links = chain(shelf, best.id)
    bound = shelf.facts({best.id} | {each for link in links for each in (link.fact, link.other)})
    rivals = {
        each: fact
        for each, fact in shelf.facts(shelf.bound([best.id]).rivals).items()
        if each not in bound and fact.state is State.CURRENT
    }
    current = [fact for fact in bound.values() if fact.state is State.CURRENT] or list(rivals.values())
    if not current:
        winner = max(bound.values(), key=_rank, default=best)
        return Resolved(winner, "the last of what was told of it", before=_ordered(bound.values(), [winner]))
    winner = max(current, key=_rank)
    disputed = {
        link.other if link.fact == winner.id else link.fact
        for link in links
        if link.kind is Bond.CONFLICTS and winner.id in (link.fact, link.other)
    }
    against = [each for each in current if each.id in disputed and each.role.authority >= winner.role.authority]
    why = "of what is known of it, the newest of the greatest authority" if len(bound) > 1 else "nothing replaces it"
    return Resolved(
        winner,
        why,
        _ordered(against, [winner]),
        _ordered(rivals.values(), [winner]),
        _ordered((each for each in bound.values() if each.state is State.SUPERSEDED), [winner]),
    )


def chain(shelf: Shelf, fact: int) -> list[Link]:
    """The links that lead from ``fact``, both ways and step by step, to at most some 200 facts."""
    seen, edge = {fact}, {fact}
    links: dict[Link, None] = {}
    while edge and len(seen) < _MOST:
        found = shelf.bound(edge).links
        links |= dict.fromkeys(found)
        edge = {each for link in found for each in (link.fact, link.other)} - seen
        seen |= edge
    return list(links)


def _ordered(facts: Iterable[Fact], without: Sequence[Fact]) -> tuple[Fact, ...]:
    left = {each.id for each in without}
    return tuple(sorted((each for each in facts if each.id not in left), key=_rank, reverse=True)[:_SHOWN])


def _rank(fact: Fact) -> tuple[int, float, int]:
    return fact.role.authority, fact.observed_s, fact.id
