"""Answer without a model: the facts that hold, ranked, with what they stand on; or that this memory does not say.

Rules can't read, so they write no sentence of their own about a fact. They leave out what does not fit the question,
put first what holds now of what is asked for (see `resolving`), and mark what is disputed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from perdure.memory.records import Answer, Bond, Fact, Hit, State
from perdure.memory.resolving import resolved
from perdure.memory.shelf import Shelf
from perdure.memory.slots import stem, words_in
from perdure.memory.words import content_terms, terms

__all__ = ["abstained", "answer_by_rules", "coverage"]

_NOTE: Final = "by rules, without a model: these are facts as they were told, not words about them"
_LEAST_COVERED: Final = 0.4
"""A fact that shares fewer of a question's words is about something else."""
_OF_THE_BEST: Final = 0.6
_BY_WORDS: Final = ("words", "its passage", "its neighbours")
"""Ways of finding something that do not tell by themselves that it fits."""


def answer_by_rules(shelf: Shelf, question: str, hits: Sequence[Hit], *, note: str = "") -> Answer:
    """Return the facts of ``hits`` that fit the question, the one that holds now first, as an answer.

    A fact fits if it has enough of the question's words and most of those that the best one has, or if it was found by
    more than words. ``note`` is put before what is said of how the answer came about.
    """
    said = f"{note}; {_NOTE}" if note else _NOTE
    if not content_terms(question):
        return abstained(question, by="rules", note=said)
    fitting = _fitting(question, hits)
    if not fitting:
        return abstained(question, by="rules", note=said)
    found = resolved(shelf, fitting)
    assert found is not None
    known = {hit.fact.id: hit for hit in fitting}
    first = known.get(found.winner.id, Hit(found.winner, fitting[0].score, "it holds now of what was found"))
    against = tuple(dict.fromkeys([*first.conflicts, *(fact.id for fact in found.against)]))
    ordered = [replace(first, conflicts=against)]
    ordered += [hit for hit in fitting if hit.fact.id != found.winner.id]
    ordered = _with_conflicts(shelf, ordered)
    shown = [hit for hit in ordered if hit.fact.state is State.CURRENT] or ordered
    others = shelf.facts({each for hit in shown for each in hit.conflicts})
    return Answer("\n".join(_line(hit, others) for hit in shown), tuple(shown), "rules", said)


def abstained(question: str, *, by: str, note: str) -> Answer:
    """The answer that there is none."""
    asked = " ".join(question.split())[:200]
    return Answer(f"Nothing in this memory says: {asked}", (), by, note)


def coverage(question: str, text: str) -> float:
    """The share of the question's words that ``text`` has, in whatever form of the word.

    >>> coverage("Where does Anna live?", "Anna lives in Lisbon."), coverage("Anna's blood?", "Anna has a cat.")
    (1.0, 0.5)
    """
    asked = set(content_terms(question))
    there = {*terms(text), *(stem(word) for word in words_in(text))}  # "lives" is of "life" and of "live"
    return sum(each in there or stem(each) in there for each in asked) / len(asked) if asked else 0.0


def _fitting(question: str, hits: Sequence[Hit]) -> list[Hit]:
    covered = [coverage(question, f"{hit.fact.speaker} {hit.fact.text}") for hit in hits]
    best = max(covered, default=0.0)
    enough = max(_LEAST_COVERED if best >= _LEAST_COVERED else 1.0, best * _OF_THE_BEST)
    ways = [hit.why.split(",")[0] for hit in hits]
    return [hit for hit, share, way in zip(hits, covered, ways, strict=True) if share >= enough or way not in _BY_WORDS]


def _with_conflicts(shelf: Shelf, hits: Sequence[Hit]) -> list[Hit]:
    """``hits`` with the conflicts that the ledger knows, whoever found them."""
    links = [each for each in shelf.bound([hit.fact.id for hit in hits]).links if each.kind is Bond.CONFLICTS]
    disputes: dict[int, list[int]] = {}
    for link in links:
        disputes.setdefault(link.fact, []).append(link.other)
        disputes.setdefault(link.other, []).append(link.fact)
    return [
        replace(hit, conflicts=tuple(dict.fromkeys([*hit.conflicts, *disputes.get(hit.fact.id, [])]))) for hit in hits
    ]


def _line(hit: Hit, others: dict[int, Fact]) -> str:
    fact = hit.fact
    who = fact.speaker or fact.role.value
    when = f"since {fact.since}" if fact.since else f"told {fact.observed[:10]}"
    holds = "" if fact.state is State.CURRENT else ", no longer holds"
    line = f"{fact.text} [{fact.name}, e{fact.evidence}, {when} by {who}{holds}]"
    against = [others[each] for each in hit.conflicts if each in others and others[each].state is State.CURRENT]
    for each in against[:3]:
        line += f"\n  disputed: {each.text} [{each.name}, e{each.evidence}, told {each.observed[:10]}]"
    return line
