"""Of facts that say otherwise, the word of whom counts for more is shown first.

Pure. The lower authority never replaces the higher, so both stand as they were told, in conflict; whoever reads only
the first hit must not read the lower one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from perdure.memory.records import Fact, Hit, State

__all__ = ["by_authority"]


def by_authority(hits: Sequence[Hit], others: Mapping[int, Fact]) -> list[Hit]:
    """Return ``hits`` with none before one of higher authority that it is in conflict with; else their order stays.

    ``others`` are facts that hits are in conflict with and that may be shown though they were not found: each comes in
    before the first hit of lower authority that contradicts it.
    """
    found = {hit.fact.id: hit for hit in hits}
    placed: dict[int, Hit] = {}
    for hit in hits:
        for each in _higher(hit, found, others):
            placed.setdefault(each.fact.id, each)
        placed.setdefault(hit.fact.id, hit)
    best = -1.0
    ordered: list[Hit] = []
    for hit in reversed(placed.values()):  # scores still fall
        best = max(best, hit.score)
        ordered.append(replace(hit, score=best) if hit.score < best else hit)
    return ordered[::-1]


def _higher(hit: Hit, found: Mapping[int, Hit], others: Mapping[int, Fact]) -> list[Hit]:
    """What stands above a hit, and above that again, the highest first."""
    above: dict[int, Hit] = {}
    open_ = [hit]
    while open_:
        lower = open_.pop()
        for number in lower.conflicts:
            each = found.get(number) or _brought(number, lower, others)
            if (
                each is not None
                and number not in above
                and each.fact.state is State.CURRENT
                and each.fact.role.authority > lower.fact.role.authority
            ):
                above[number] = each
                open_.append(each)
    place = {number: at for at, number in enumerate(found)}
    last = len(place)
    return sorted(above.values(), key=lambda each: (-each.fact.role.authority, place.get(each.fact.id, last)))


def _brought(number: int, lower: Hit, others: Mapping[int, Fact]) -> Hit | None:
    fact = others.get(number)
    why = f"it contradicts {lower.fact.name}, with more authority"
    return None if fact is None else Hit(fact, lower.score, why, conflicts=(lower.fact.id,))
