"""Find the facts that fit a question.

Theory. Passages are found by their words (`perdure.memory.lexical`) and, where the memory has an embedder, by their
sense (`perdure.memory.fusion`); of each the fact that fits best is shown, and where fewer passages fit than hits were
asked for, more of their facts. A fact that has been replaced is not shown: what replaces it stands in its place, as who
asks with the old words wants what holds now. With ``history`` both are shown, the old one with ``by``. A duplicate
shows the fact that it repeats. Forgotten ones are never shown.

A name in the question that is a speaker's says whose words to look in: theirs count for more, and the name itself for
less, as nearly every passage around them is by or about them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, Protocol

from perdure.memory.asked import time_named
from perdure.memory.ledger import FACTS, Ledger, fact_of
from perdure.memory.lexical import Filter, Found, LexicalIndex
from perdure.memory.powers import Reranker
from perdure.memory.records import Bond, Fact, Hit, State
from perdure.memory.words import content_terms, terms

__all__ = ["Searcher", "Sense"]

_NAME_WEIGHT: Final = 0.3
_SECTIONS_RERANKED: Final = 50
_FACTS_OF_PASSAGE: Final = 1000
_LEAST_READ: Final = 10
_MOST_READ: Final = 500
_MOST_STEPS: Final = 50


class Sense(Protocol):
    """Puts passages in order by words and sense together."""

    def fuse(self, question: str, found: Sequence[Found], *, limit: int, only: Filter | None) -> list[Found]:
        """Return passages, best first: those ``found`` by their words, and others."""
        ...


@dataclass(frozen=True, slots=True)
class _View:
    """What of the facts is to be seen."""

    history: bool
    as_of_s: float | None
    topic: int | None


class Searcher:
    """Finds facts in a space. ``sense`` and ``reranker`` are optional."""

    def __init__(
        self, ledger: Ledger, index: LexicalIndex, *, sense: Sense | None = None, reranker: Reranker | None = None
    ) -> None:
        self.ledger = ledger
        self.index = index
        self.sense = sense
        self.reranker = reranker

    def find(
        self,
        question: str,
        *,
        limit: int = 10,
        history: bool = False,
        as_of_s: float | None = None,
        only: Filter | None = None,
        topic: int | None = None,
        now_s: float | None = None,
    ) -> list[Hit]:
        """Return the facts that fit best, the best first.

        Those that hold now, or with ``as_of_s`` those that were known and held then, or with ``history`` all.
        "Last week" in a question counts from ``now_s``; from the newest observation if that is None. No question, or
        one without words, finds what was told last.
        """
        if limit < 1:
            return []
        view = _View(history, as_of_s, topic)
        if as_of_s is not None:
            until_s = min(as_of_s, (only.until_s if only and only.until_s is not None else math.inf))
            only = replace(only or Filter(), until_s=math.nextafter(until_s, math.inf))
        weights = dict.fromkeys(content_terms(question), 1.0)
        if not weights:
            return self._shown(self.index.newest(limit=4 * limit, only=only), {}, limit, view)
        named = self.index.named(list(weights))
        speakers = set().union(*named.values()) if named else set()
        speaker = next(iter(speakers)) if len(speakers) == 1 else None
        if len(named) < len(weights):
            weights |= dict.fromkeys(named, _NAME_WEIGHT)
        within = self._within(question, now_s)
        pool = limit if self.reranker is None else max(limit, _SECTIONS_RERANKED)
        for _ in range(4):
            found, idf = self.index.rank(weights, limit=3 * pool, only=only, speaker=speaker, within=within)
            if self.sense is not None:
                found = self.sense.fuse(question, found, limit=3 * pool, only=only)
            hits = self._shown(found, idf, pool, view)
            if len(hits) >= pool or len(found) < 3 * pool:
                break
            pool *= 4  # most of what fits has been replaced: look further
        if self.reranker is not None:
            hits = self._reranked(question, hits, self.reranker)
        return hits[:limit]

    def _within(self, question: str, now_s: float | None) -> tuple[float, float] | None:
        named = time_named(question, 0.0)
        if named is None:
            return None
        now_s = self.index.newest_s() if now_s is None else now_s
        return time_named(question, now_s) if now_s is not None else None

    def _shown(self, found: Sequence[Found], idf: Mapping[str, float], limit: int, view: _View) -> list[Hit]:
        """Of each passage its best fact, then, where that is too few, the others of passages that have words of it."""
        first: dict[int, Hit] = {}
        later: dict[int, Hit] = {}
        read: dict[int, list[Fact]] = {}
        for at, passage in enumerate(found):
            if len(first) >= limit:
                break
            if passage.passage not in read:
                read = self._of_passages(found[at : at + max(_LEAST_READ, limit - len(first))])
            facts = read[passage.passage]
            scores = {fact.id: _fits(fact.text, idf) for fact in facts}
            best = max(scores.values(), default=0.0)
            ordered = sorted(facts, key=lambda fact: (-scores[fact.id], fact.id))
            taken = False
            for fact in ordered:
                part = (1 + scores[fact.id] / best) / 2 if best > 0 else 1.0
                why = "words" if scores[fact.id] > 0 else "its passage" if best > 0 else "its neighbours"
                hit = Hit(fact, passage.score * part, why if idf else "the newest")
                shown = [each for each in self._standing(hit, view) if view.topic in (None, each.fact.topic)]
                if shown and not taken:
                    taken = True
                    for each in shown:
                        first.setdefault(each.fact.id, each)
                elif best > 0 or not idf:
                    for each in shown:
                        later.setdefault(each.fact.id, each)
        hits = list(first.values())
        if len(hits) < limit:
            more = [hit for number, hit in later.items() if number not in first]
            hits += sorted(more, key=lambda hit: (-hit.score, hit.fact.id))[: limit - len(hits)]
        return self._with_conflicts(hits)

    def _of_passages(self, found: Sequence[Found]) -> dict[int, list[Fact]]:
        """The facts of each passage: of the first ones, as many as one query reads."""
        facts: dict[int, list[Fact]] = {}
        ids: list[int] = []
        for each in found:
            there = range(each.passage, each.before or each.passage + _FACTS_OF_PASSAGE)
            if ids and len(ids) + len(there) > _MOST_READ:
                break
            facts[each.passage] = []
            ids += there
        for at in range(0, len(ids), _MOST_READ):
            some = ids[at : at + _MOST_READ]
            sql = f"{FACTS} WHERE f.id IN ({','.join('?' * len(some))}) AND f.text IS NOT NULL ORDER BY f.id"
            for row in self.ledger.connection().execute(sql, some).fetchall():
                if row[4] in facts:
                    facts[row[4]].append(fact_of(row))
        return facts

    def _standing(self, hit: Hit, view: _View) -> list[Hit]:
        """The hit as it is to be shown, or what is shown in its place: nothing where it is forgotten."""
        fact = hit.fact
        if fact.state is State.FORGOTTEN:
            return []
        if fact.state is State.CURRENT:
            return [hit]
        if fact.state is State.DUPLICATE and not view.history:
            return self._followed(hit, Bond.DUPLICATES, view)
        by = self._after(fact.id, view)
        if view.history or (not by and view.as_of_s is not None):
            return [replace(hit, by=tuple(by))]
        return self._followed(hit, Bond.SUPERSEDES, view)

    def _after(self, fact: int, view: _View) -> list[int]:
        """The facts that replace one, as far as they were known."""
        rows = self.ledger.connection().execute(
            "SELECT l.fact, e.observed_s FROM link l JOIN fact f ON f.id = l.fact JOIN evidence e ON e.id = f.evidence"
            " WHERE l.other = ? AND l.kind = ? AND l.undone IS NULL AND f.state <> 'forgotten' ORDER BY l.fact",
            (fact, Bond.SUPERSEDES.value),
        )
        return [row[0] for row in rows.fetchall() if view.as_of_s is None or row[1] <= view.as_of_s]

    def _followed(self, hit: Hit, bond: Bond, view: _View) -> list[Hit]:
        """What stands at the end of what replaces, or is repeated by, the fact of a hit."""
        seen, open_, ends = {hit.fact.id}, [hit.fact], []
        for _ in range(_MOST_STEPS):
            if not open_:
                break
            fact = open_.pop()
            if fact.state is State.DUPLICATE:
                sql = "SELECT other FROM link WHERE fact = ? AND kind = ? AND undone IS NULL"
                rows = self.ledger.connection().execute(sql, (fact.id, Bond.DUPLICATES.value)).fetchall()
                ids = [row[0] for row in rows]
            else:
                ids = self._after(fact.id, view) if fact.state is State.SUPERSEDED else []
            known = [each for each in self.ledger.facts(set(ids) - seen).values() if each.state is not State.FORGOTTEN]
            seen.update(ids)
            open_ += known
            if not ids:
                ends.append(fact)
        why = "what it replaces" if bond is Bond.SUPERSEDES else "what repeats it"
        ends = [fact for fact in ends if view.as_of_s is not None or fact.state is State.CURRENT]
        return [hit if fact.id == hit.fact.id else Hit(fact, hit.score, f"{why}: {hit.fact.name}") for fact in ends]

    def _with_conflicts(self, hits: list[Hit]) -> list[Hit]:
        if not hits:
            return hits
        ids = [hit.fact.id for hit in hits]
        marks = ",".join("?" * len(ids))
        others: dict[int, set[int]] = {}
        sql = (
            "SELECT fact, other FROM link WHERE kind = ? AND undone IS NULL"
            f" AND (fact IN ({marks}) OR other IN ({marks}))"
        )
        for one, other in self.ledger.connection().execute(sql, (Bond.CONFLICTS.value, *ids, *ids)).fetchall():
            others.setdefault(one, set()).add(other)
            others.setdefault(other, set()).add(one)
        return [replace(hit, conflicts=tuple(sorted(others.get(hit.fact.id, ())))) for hit in hits] if others else hits

    def _reranked(self, question: str, hits: list[Hit], reranker: Reranker) -> list[Hit]:
        """Order hits by the score of the whole passages that they stand in."""
        sections = [self._passage_text(hit.fact) for hit in hits]
        scores = reranker.score(question, sections) if hits else []
        scored = [
            replace(hit, score=float(score), why=f"{hit.why}, {reranker.name}")
            for hit, score in zip(hits, scores, strict=True)
        ]
        return sorted(scored, key=lambda hit: (-hit.score, hit.fact.id))

    def _passage_text(self, fact: Fact) -> str:
        facts = self._of_passages([Found(fact.passage, None, 0.0, 0)])[fact.passage]
        return " ".join(each.text for each in facts if each.state is not State.FORGOTTEN)


@lru_cache(maxsize=20_000)
def _terms_of(text: str) -> frozenset[str]:
    return frozenset(terms(text))


def _fits(text: str, idf: Mapping[str, float]) -> float:
    """How much of the question a fact has: the weights of the words that stand in it; a long one counts for less."""
    have = _terms_of(text)
    return sum(weight for term, weight in idf.items() if term in have) / (1 + 0.01 * len(have))
