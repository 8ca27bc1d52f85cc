"""Where facts belong, by rules alone: to the topic of their subject, and of the term that sets them apart there.

Deterministic and localized: a batch is sorted by looking up the keys of its own facts, never by reading what lies in
the topics, so that the work grows with what was told and not with what is known already. A subject that is seen twice
(or is large) gets a topic; the rest is gathered by shared terms, and at last by where it comes from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from perdure.memory.plan import Assign, Plan, folded, sane_title
from perdure.memory.records import Fact
from perdure.memory.subjects import bytes_of, subjects, surface, terms_of

__all__ = ["LARGE_BYTES", "SMALL_BYTES", "SMALL_TOPICS", "Routes", "Sorting", "sort", "sort_plainly"]

SMALL_BYTES: Final = 4_000
"""A topic of less than about 1,000 tokens is small."""
LARGE_BYTES: Final = 20_000
"""A topic of more than about 5,000 tokens is split."""
SMALL_TOPICS: Final = 64
"""So many small topics may there be before subjects have to share one."""

Routes = Callable[[Sequence[str]], Mapping[str, int]]
"""Keys to the topics that they lead to, where they lead to any."""


@dataclass(frozen=True, slots=True)
class Sorting:
    """A plan, and the keys by which later facts will find the same topics (or titles of new ones)."""

    plan: Plan
    keys: Mapping[str, int | str] = field(default_factory=dict)


def sort(facts: Sequence[Fact], *, before: Sequence[Fact], routes: Routes, room: int) -> Sorting:
    """Return a plan that assigns every fact, each once.

    ``before`` are the facts of the same evidence just before them; ``room`` is how many small topics may still be made.
    """
    about = subjects(facts, before)
    terms = {fact.id: terms_of(fact.text) for fact in facts}
    wanted = {key for fact in facts for key in _keys(about[fact.id], terms[fact.id], fact)}
    known = routes(sorted(wanted))
    home: dict[int | str, list[int]] = {}
    keys: dict[str, int | str] = {}
    pending: dict[str, list[Fact]] = {}
    for fact in facts:
        for key in _keys(about[fact.id], terms[fact.id], fact):
            if key in known and (about[fact.id] or not key.startswith("from ")):
                home.setdefault(known[key], []).append(fact.id)
                break
        else:
            pending.setdefault(folded(about[fact.id]), []).append(fact)
    loose: list[Fact] = pending.pop("", [])
    for subject, group in pending.items():
        large = sum(bytes_of(fact.text) for fact in group) >= SMALL_BYTES
        if large or (room > 0 and (len(group) > 1 or room > SMALL_TOPICS // 2)):
            room -= not large
            title = about[group[0].id]
            home.setdefault(title, []).extend(fact.id for fact in group)
            keys[subject] = title
        else:
            loose += group
    _gather(loose, terms, known, home, keys)
    ops = tuple(
        Assign(tuple(ids), topic=where) if isinstance(where, int) else Assign(tuple(ids), title=where)
        for where, ids in home.items()
    )
    return Sorting(Plan(ops), keys)


def sort_plainly(facts: Sequence[Fact]) -> Plan:
    """Return the plan of last resort: everything into one topic."""
    return Plan((Assign(tuple(fact.id for fact in facts), title="Other things"),)) if facts else Plan()


def _keys(subject: str, terms: Sequence[str], fact: Fact) -> list[str]:
    """The keys that a fact may be filed under, the closest first."""
    if not subject:
        return [*(f": {term}" for term in terms), _rest(fact)]
    root = folded(subject)
    return [*(f"{root}: {term}" for term in terms), root, *(f": {term}" for term in terms)]


def _rest(fact: Fact) -> str:
    return f"from {folded(_source(fact))}"


def _source(fact: Fact) -> str:
    return sane_title(fact.source) if fact.source.count("/") < 3 else ""


def _gather(
    loose: Sequence[Fact],
    terms: Mapping[int, Sequence[str]],
    known: Mapping[str, int],
    home: dict[int | str, list[int]],
    keys: dict[str, int | str],
) -> None:
    """File facts without a topic of their own by shared terms, and what is left by its source."""
    by_term: dict[str, list[Fact]] = {}
    for fact in loose:
        for term in terms[fact.id]:
            by_term.setdefault(term, []).append(fact)
    left = {fact.id: fact for fact in loose}
    weight = {fact.id: bytes_of(fact.text) for fact in loose}
    for term, group in sorted(by_term.items(), key=lambda each: (-len(each[1]), each[0])):
        mine = [fact for fact in group if fact.id in left]
        if sum(weight[fact.id] for fact in mine) >= SMALL_BYTES:
            title = sane_title(surface(term, mine[0].text).capitalize()) or "Other things"
            home.setdefault(title, []).extend(fact.id for fact in mine)
            keys[f": {term}"] = title
            for fact in mine:
                del left[fact.id]
    for fact in left.values():
        key, source = _rest(fact), _source(fact)
        where = known.get(key, f"From {source}" if source else "Other things")
        home.setdefault(where, []).append(fact.id)
        keys.setdefault(key, where)
