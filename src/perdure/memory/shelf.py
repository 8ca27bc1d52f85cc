"""What the reading tools need of a memory, and how they get it from a ledger.

All that comes off a shelf may be shown: forgotten facts are not on it, and evidence has their characters blanked.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Protocol

from perdure.memory.ledger import FACTS, Ledger, evidence_of, fact_of
from perdure.memory.records import Bond, Evidence, Fact, Hit, Link, State, Topic

__all__ = ["Bound", "LedgerShelf", "Page", "Search", "Shelf"]

_BLANK: Final = "\u2592"
_MANY: Final = 500
_MOST_RIVALS: Final = 200


@dataclass(frozen=True, slots=True)
class Page:
    """A piece of evidence as it may be shown: ``text`` has as many characters as `Evidence.text`.

    ``load`` reads its facts, for `facts`: most of what a search for a pattern goes through needs none.
    """

    evidence: Evidence
    text: str
    load: Callable[[], tuple[Fact, ...]]

    @property
    def facts(self) -> tuple[Fact, ...]:
        """Its facts, without those that are forgotten, in the order of their places."""
        return self.load()


@dataclass(frozen=True, slots=True)
class Bound:
    """What is bound to some facts: ``links`` from and to them; ``rivals``, the facts that speak of the same slot."""

    links: tuple[Link, ...]
    rivals: tuple[int, ...]


class Search(Protocol):
    """As `Memory.search`."""

    def __call__(self, question: str, *, limit: int = 10, history: bool = False) -> Sequence[Hit]: ...


class Shelf(Protocol):
    """What the tools read from. Nothing on it can be changed."""

    def search(self, question: str, *, limit: int, history: bool) -> Sequence[Hit]:
        """The facts that fit, best first; those that hold now, or with ``history`` all."""
        ...

    def facts(self, ids: Iterable[int]) -> dict[int, Fact]:
        """Those of ``ids`` that there are and that are not forgotten."""
        ...

    def facts_between(
        self, since_s: float, before_s: float, *, topic: int | None, after: int, limit: int
    ) -> list[Fact]:
        """Facts told in a time (of a topic), by when they were told; ``after`` leaves out all up to that fact."""
        ...

    def pages_from(self, number: int, *, limit: int) -> list[Page]:
        """Evidence from number ``number`` on, in the order of the numbers."""
        ...

    def bound(self, ids: Iterable[int]) -> Bound:
        """What is bound to facts."""
        ...

    def topics(self, *, ids: Sequence[int] = (), after: int = 0, limit: int) -> tuple[list[Topic], int]:
        """Topics and how many there are: those of ``ids``, also merged ones, or else the live ones after ``after``."""
        ...


class LedgerShelf:
    """The shelf of a ledger. ``settle`` is called before anything is read that says how facts stand."""

    def __init__(self, ledger: Ledger, search: Search, settle: Callable[[], object] = lambda: None) -> None:
        self._ledger = ledger
        self._search = search
        self._settle = settle

    def search(self, question: str, *, limit: int, history: bool) -> Sequence[Hit]:
        """As `Shelf.search`."""
        found = self._search(question, limit=limit, history=history)
        return [hit for hit in found if hit.fact.state is not State.FORGOTTEN]

    def facts(self, ids: Iterable[int]) -> dict[int, Fact]:
        """As `Shelf.facts`."""
        self._settle()
        return {each: fact for each, fact in self._ledger.facts(ids).items() if fact.state is not State.FORGOTTEN}

    def facts_between(
        self, since_s: float, before_s: float, *, topic: int | None, after: int, limit: int
    ) -> list[Fact]:
        """As `Shelf.facts_between`."""
        self._settle()
        conditions = ["f.text IS NOT NULL", "f.state != 'forgotten'", "e.observed_s >= ?", "e.observed_s < ?"]
        values: list[Any] = [since_s, before_s]
        if topic is not None:
            conditions.append("f.topic = ?")
            values.append(topic)
        last = self._ledger.facts([after]).get(after) if after else None
        if last is not None:
            conditions.append("(e.observed_s, f.id) > (?, ?)")
            values += [last.observed_s, last.id]
        rows = self._ledger.connection().execute(
            f"{FACTS} WHERE {' AND '.join(conditions)} ORDER BY e.observed_s, f.id LIMIT ?", [*values, limit]
        )
        return [fact_of(row) for row in rows]

    def pages_from(self, number: int, *, limit: int) -> list[Page]:
        """As `Shelf.pages_from`."""
        db = self._ledger.connection()
        found = [
            evidence_of(row)
            for row in db.execute(
                "SELECT id, body, source, speaker, role, observed, observed_s, identity, meta FROM evidence"
                " WHERE id >= ? AND body IS NOT NULL ORDER BY id LIMIT ?",
                (number, limit),
            )
        ]
        if not found:
            return []
        gone: dict[int, list[tuple[int, int]]] = {}
        for each, start, stop in db.execute(
            "SELECT evidence, start, stop FROM fact WHERE evidence BETWEEN ? AND ? AND state = 'forgotten'"
            " ORDER BY start",
            (found[0].id, found[-1].id),
        ):
            gone.setdefault(each, []).append((start, stop))
        return [Page(each, _without(each.text, gone.get(each.id, ())), self._loader(each.id)) for each in found]

    def _loader(self, evidence: int) -> Callable[[], tuple[Fact, ...]]:
        @cache
        def load() -> tuple[Fact, ...]:
            rows = self._ledger.connection().execute(
                f"{FACTS} WHERE f.evidence = ? AND f.text IS NOT NULL AND f.state != 'forgotten'"
                " ORDER BY f.start, f.id",
                (evidence,),
            )
            return tuple(fact_of(row) for row in rows)

        return load

    def bound(self, ids: Iterable[int]) -> Bound:
        """As `Shelf.bound`."""
        wanted = sorted(set(ids))[:_MANY]
        marks = ",".join("?" * len(wanted))
        db = self._ledger.connection()
        rows = db.execute(
            "SELECT kind, fact, other, reason, change FROM link WHERE undone IS NULL"
            f" AND (fact IN ({marks}) OR other IN ({marks})) ORDER BY id LIMIT {_MANY}",
            [*wanted, *wanted],
        )
        links = tuple(Link(Bond(row[0]), *row[1:]) for row in rows)
        rivals = db.execute(
            "SELECT DISTINCT b.fact FROM slot a JOIN slot b ON b.key = a.key"
            f" WHERE a.fact IN ({marks}) ORDER BY b.fact DESC LIMIT {_MOST_RIVALS}",
            wanted,
        )
        return Bound(links, tuple(row[0] for row in rivals))

    def topics(self, *, ids: Sequence[int] = (), after: int = 0, limit: int) -> tuple[list[Topic], int]:
        """As `Shelf.topics`."""
        db = self._ledger.connection()
        columns = "SELECT id, title, aliases, summary, revision, file, into_topic FROM topic"
        if ids:
            some = list(ids)[:_MANY]
            rows = db.execute(f"{columns} WHERE id IN ({','.join('?' * len(some))}) ORDER BY id", some)
        else:
            rows = db.execute(f"{columns} WHERE into_topic IS NULL AND id > ? ORDER BY id LIMIT ?", (after, limit))
        found = [Topic(row[0], row[1], tuple(json.loads(row[2])), row[3], row[4], row[5], row[6]) for row in rows]
        return found, db.execute("SELECT count(*) FROM topic WHERE into_topic IS NULL").fetchone()[0]


def _without(text: str, gone: Sequence[tuple[int, int]]) -> str:
    """``text`` with the spans ``gone``, which are in order, blanked."""
    pieces: list[str] = []
    at = 0
    for start, stop in gone:
        if stop > at:
            begin = max(at, start)
            pieces += [text[at:begin], _BLANK * (stop - begin)]
            at = stop
    return "".join([*pieces, text[at:]])
