"""What others read of a ledger: in the order of time, along what replaced what, and as it stood at a moment.

Long readings go page by page, each a short transaction of its own, so that nobody who writes or purges waits for a
reader; what is told meanwhile may be in the later pages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from perdure.errors import CallError
from perdure.memory.ledger import FACTS, Ledger, evidence_of, fact_of
from perdure.memory.moments import bounds_of
from perdure.memory.records import Bond, Evidence, Fact, Link, State

__all__ = [
    "History",
    "Status",
    "Wanted",
    "as_of",
    "each_evidence",
    "each_fact",
    "history",
    "links_of",
    "status",
]

_PAGE: Final = 500
_LONGEST_CHAIN: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which facts or evidence: those to which all that is given applies. Times are seconds since 1970, of telling."""

    speaker: str | None = None
    source: str | None = None
    since_s: float | None = None
    """Told then or later."""
    before_s: float | None = None
    """Told earlier than then."""
    topic: int | None = None
    """Of facts only."""
    states: tuple[State, ...] = ()
    """Of facts only; all if empty."""

    def where(self, *, facts: bool) -> tuple[list[str], list[Any]]:
        """Conditions on ``e`` (evidence) and ``f`` (fact), and their values."""
        given: list[tuple[str, Any]] = [
            ("e.speaker = ?", self.speaker),
            ("e.source = ?", self.source),
            ("e.observed_s >= ?", self.since_s),
            ("e.observed_s < ?", self.before_s),
        ]
        if facts:
            given.append(("f.topic = ?", self.topic))
        elif self.topic is not None or self.states:
            raise CallError("evidence has no topic and no state; ask for facts")
        conditions = [sql for sql, value in given if value is not None]
        values = [value for _, value in given if value is not None]
        if self.states:
            conditions.append(f"f.state IN ({','.join('?' * len(self.states))})")
            values += [each.value for each in self.states]
        return conditions, values


@dataclass(frozen=True, slots=True)
class History:
    """What replaces, repeats or contradicts a fact, to the end of the chain: facts by time, and their links."""

    facts: tuple[Fact, ...]
    links: tuple[Link, ...]


@dataclass(frozen=True, slots=True)
class Status:
    """Counts of a space. ``unsettled`` facts are not yet compared with older ones, ``unassigned`` have no topic."""

    evidence: int
    facts: int
    by_state: dict[str, int]
    unsettled: int
    unassigned: int
    topics: int
    changes: int
    purged: int
    pending_purges: int
    ledger_bytes: int


def each_fact(ledger: Ledger, wanted: Wanted = Wanted(), *, newest_first: bool = False) -> Iterator[Fact]:
    """Facts in the order in which they were told, those of one moment in the order of their ids."""
    for row in _paged(ledger, FACTS, "f", wanted, facts=True, newest_first=newest_first, text="f.text"):
        yield fact_of(row)


def each_evidence(ledger: Ledger, wanted: Wanted = Wanted(), *, newest_first: bool = False) -> Iterator[Evidence]:
    """Evidence in the order in which it was told."""
    select = (
        "SELECT e.id, e.body, e.source, e.speaker, e.role, e.observed, e.observed_s, e.identity, e.meta FROM evidence e"
    )
    for row in _paged(ledger, select, "e", wanted, facts=False, newest_first=newest_first, text="e.body"):
        yield evidence_of(row)


def _paged(
    ledger: Ledger, select: str, letter: str, wanted: Wanted, *, facts: bool, newest_first: bool, text: str
) -> Iterator[Sequence[Any]]:
    conditions, values = wanted.where(facts=facts)
    conditions.append(f"{text} IS NOT NULL")
    compare, order = ("<", "DESC") if newest_first else (">", "ASC")
    at: list[Any] = []
    moment = 10 if facts else 6
    while True:
        after = [f"(e.observed_s, {letter}.id) {compare} (?, ?)"] if at else []
        rows = (
            ledger.connection()
            .execute(
                f"{select} WHERE {' AND '.join(conditions + after)}"
                f" ORDER BY e.observed_s {order}, {letter}.id {order} LIMIT {_PAGE}",
                values + at,
            )
            .fetchall()
        )
        yield from rows
        if len(rows) < _PAGE:
            return
        at = [rows[-1][moment], rows[-1][0]]


def links_of(ledger: Ledger, facts: Iterable[int], *, taken_back: bool = False) -> list[Link]:
    """The links from and to ``facts``, in the order in which they were made; also those undone if ``taken_back``."""
    wanted = sorted(set(facts))
    undone = "" if taken_back else " AND undone IS NULL"
    found: dict[int, Link] = {}
    for at in range(0, len(wanted), _PAGE):
        some = wanted[at : at + _PAGE]
        marks = ",".join("?" * len(some))
        for side in ("fact", "other"):
            for row in ledger.connection().execute(
                f"SELECT id, kind, fact, other, reason, change FROM link WHERE {side} IN ({marks}){undone}", some
            ):
                found[row[0]] = Link(Bond(row[1]), *row[2:])
    return [found[each] for each in sorted(found)]


def history(ledger: Ledger, fact: int) -> History:
    """Follow the links from ``fact`` both ways, as far as they lead (at most 10,000 facts), oldest fact first."""
    seen, edge = {fact}, {fact}
    links: dict[Link, None] = {}
    while edge and len(seen) < _LONGEST_CHAIN:
        found = links_of(ledger, edge)
        links |= dict.fromkeys(found)
        edge = {each for link in found for each in (link.fact, link.other)} - seen
        seen |= edge
    facts = [each for each in ledger.facts(seen).values() if each.state is not State.FORGOTTEN]
    return History(tuple(sorted(facts, key=lambda each: (begins_s(each), each.id))), tuple(links))


def begins_s(fact: Fact) -> float:
    """From when a fact holds, in seconds since 1970: what its words say, else when it was told."""
    known = bounds_of(fact.since)
    return fact.observed_s if known is None else known[0]


def ends_s(fact: Fact) -> float | None:
    """Until when a fact holds, as far as its words say; a day, month or year counts to its end."""
    known = bounds_of(fact.until)
    return None if known is None else known[1]


def as_of(ledger: Ledger, facts: Iterable[int], moment_s: float, *, known_s: float | None = None) -> dict[int, Fact]:
    """Return those of ``facts`` that held at ``moment_s``, as far as was known at ``known_s`` (now, if not given).

    A fact holds from when its words say, or else from when it was told; until they say, or until one that replaces it
    holds. What was forgotten never held. ``known_s`` leaves out what was told, and found out, later than that.
    """
    given = ledger.facts(facts)
    rows = _known_links(ledger, list(given), known_s)
    others = ledger.facts({fact for fact, _ in rows} | {other for _, other in rows})
    told = _told_s(ledger, [*given, *others]) if known_s is not None else {}

    def holds(fact: Fact) -> bool:
        until = ends_s(fact)
        return (
            fact.state is not State.FORGOTTEN
            and begins_s(fact) <= moment_s
            and (until is None or moment_s < until)
            and (known_s is None or told[fact.id] <= known_s)
        )

    replaced = {
        old
        for new, old in rows
        if new in others and begins_s(others[new]) <= moment_s and _counts(others[new], told, known_s)
    }
    return {each: fact for each, fact in given.items() if holds(fact) and each not in replaced}


def _counts(fact: Fact, told: dict[int, float], known_s: float | None) -> bool:
    return known_s is None or told[fact.id] <= known_s


def _known_links(ledger: Ledger, facts: list[int], known_s: float | None) -> list[tuple[int, int]]:
    """(what is shown, what is not because of it) of the links that count."""
    pairs: list[tuple[int, int]] = []
    for at in range(0, len(facts), _PAGE):
        some = facts[at : at + _PAGE]
        marks = ",".join("?" * len(some))
        for kind, hidden, shown in (("supersedes", "other", "fact"), ("duplicates", "fact", "other")):
            sql = f"SELECT l.{shown}, l.{hidden} FROM link l WHERE l.kind = ? AND l.{hidden} IN ({marks})"
            values: list[Any] = [kind, *some]
            if known_s is None:
                sql += " AND l.undone IS NULL"
            else:
                sql += (
                    " AND (SELECT at_s FROM change WHERE id = l.change) <= ?"
                    " AND coalesce((SELECT at_s FROM change WHERE id = l.undone), ?) > ?"
                )
                values += [known_s, known_s + 1, known_s]
            pairs += [(row[0], row[1]) for row in ledger.connection().execute(sql, values)]
    return pairs


def _told_s(ledger: Ledger, facts: list[int]) -> dict[int, float]:
    found: dict[int, float] = {}
    for at in range(0, len(facts), _PAGE):
        some = facts[at : at + _PAGE]
        found.update(
            ledger.connection().execute(
                "SELECT f.id, e.told_s FROM fact f JOIN evidence e ON e.id = f.evidence"
                f" WHERE f.id IN ({','.join('?' * len(some))})",
                some,
            )
        )
    return found


def status(ledger: Ledger) -> Status:
    """Count what there is."""
    db = ledger.connection()

    def one(sql: str) -> int:
        return int(db.execute(sql).fetchone()[0])

    by_state = dict(db.execute("SELECT state, count(*) FROM fact WHERE text IS NOT NULL GROUP BY state"))
    return Status(
        evidence=one("SELECT count(*) FROM evidence WHERE body IS NOT NULL"),
        facts=sum(by_state.values()),
        by_state=by_state,
        unsettled=one("SELECT count(*) FROM fact WHERE settled = 0"),
        unassigned=one("SELECT count(*) FROM fact WHERE topic IS NULL"),
        topics=one("SELECT count(*) FROM topic WHERE into_topic IS NULL"),
        changes=one("SELECT count(*) FROM change"),
        purged=one("SELECT count(*) FROM fact WHERE text IS NULL"),
        pending_purges=one("SELECT count(*) FROM space WHERE key GLOB 'purge:*'"),
        ledger_bytes=one("PRAGMA page_count") * one("PRAGMA page_size"),
    )
