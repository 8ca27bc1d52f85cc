"""Topics in the ledger: what a plan is judged against, a plan carried out in one transaction, and its journal.

The *journal* of a change (``change.plan``) says what was before and what is after of everything that it touched, by
ids and never by words of facts; `perdure.memory.undo` reads it. Each connection of a ledger counts a topic's revision
up with whatever changes in what its document shows (`perdure.memory.counting`).
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
import xxhash

from perdure.errors import CallError
from perdure.memory.ledger import FACTS, fact_of
from perdure.memory.plan import (
    Alias,
    Assign,
    Conflict,
    Duplicate,
    Merge,
    Plan,
    Retitle,
    Split,
    Summarise,
    Supersede,
    folded,
    sane_title,
    sane_words,
)
from perdure.memory.records import Fact, State, Topic
from perdure.memory.verifying import Known

__all__ = [
    "Journal",
    "add_change",
    "before_of",
    "carry_out",
    "derive",
    "facts_of",
    "fill_in",
    "known_for",
    "link",
    "live",
    "move",
    "names_of",
    "new_topic",
    "note",
    "remember_routes",
    "rename",
    "routes",
    "staged",
    "topics_of",
    "weigh",
]

_SUMMARY: Final = 600
Place = int | None
Names = tuple[str, tuple[str, ...], str, int | None]
"""Title, aliases, summary, and the topic that it was merged into."""


class Journal(msgspec.Struct):
    """What a change did. ``moved``: (topic before, topic after, facts); ``states``: (fact, state and until before, and
    after); ``links`` made; ``relinked``: links that were taken back (or given again); ``topics``: names before (None
    where it is new) and after; ``notes``: of a document, before and after."""

    moved: list[tuple[Place, Place, list[int]]] = []
    states: list[tuple[int, tuple[str, str | None], tuple[str, str | None]]] = []
    links: list[int] = []
    relinked: list[int] = []
    topics: list[tuple[int, Names | None, Names]] = []
    notes: list[tuple[int, str, str]] = []
    reorganised: list[int] = []

    @property
    def empty(self) -> bool:
        """Whether nothing was done."""
        return not (self.moved or self.states or self.links or self.relinked or self.topics or self.notes)


def fill_in(db: sqlite3.Connection) -> None:
    """Make the rows that topics need which came from elsewhere, as by an import."""
    bare = [row[0] for row in db.execute("SELECT id FROM topic WHERE id NOT IN (SELECT topic FROM document)")]
    db.executemany("INSERT INTO document(topic) VALUES (?)", [(each,) for each in bare])
    weigh(db, bare)
    names = {
        folded(name): topic.id
        for topic in reversed(topics_of(db, bare))
        for name in (*topic.aliases, topic.title)
        if name
    }
    there = routes(db, names)
    remember_routes(db, {key: topic for key, topic in names.items() if key not in there})


def staged(db: sqlite3.Connection, *, upto: int, limit: int) -> list[Fact]:
    """Return the facts up to an id that no topic has yet, the oldest first."""
    where = "f.topic IS NULL AND f.text IS NOT NULL AND f.state <> 'forgotten' AND f.id <= ?"
    return [fact_of(row) for row in db.execute(f"{FACTS} WHERE {where} ORDER BY f.id LIMIT ?", (upto, limit))]


def before_of(db: sqlite3.Connection, facts: Sequence[Fact]) -> list[Fact]:
    """Return the fact just before the first of ``facts``, where it is of the same evidence."""
    if not facts:
        return []
    row = db.execute(
        f"{FACTS} WHERE f.id = ? AND f.evidence = ? AND f.text IS NOT NULL", (facts[0].id - 1, facts[0].evidence)
    ).fetchone()
    return [fact_of(row)] if row else []


def facts_of(db: sqlite3.Connection, topic: int, *, newest: int | None = None) -> list[Fact]:
    """Return the facts of a topic, the oldest first; of ``newest``, only so many of those that hold now."""
    if newest is None:
        rows = db.execute(f"{FACTS} WHERE f.topic = ? AND f.text IS NOT NULL ORDER BY f.id", (topic,))
        return [fact_of(row) for row in rows]
    where = "f.topic = ? AND f.text IS NOT NULL AND f.state = 'current'"
    rows = db.execute(f"{FACTS} WHERE {where} ORDER BY f.id DESC LIMIT ?", (topic, newest))
    return [fact_of(row) for row in rows][::-1]


def topics_of(db: sqlite3.Connection, ids: Iterable[int] | None = None) -> list[Topic]:
    """Return the topics of these ids, or all, whatever has become of them."""
    fields = "SELECT id, title, aliases, summary, revision, file, into_topic FROM topic"
    rows: Iterable[Any]
    if ids is None:
        rows = db.execute(f"{fields} ORDER BY id")
    else:
        rows = (row for some in _some(list(ids)) for row in db.execute(f"{fields} WHERE id IN ({_marks(some)})", some))
    return [Topic(row[0], row[1], tuple(json.loads(row[2])), row[3], row[4], row[5], row[6]) for row in rows]


def live(db: sqlite3.Connection, topic: int) -> int | None:
    """Return the topic that an id means now, after merges; None where there is none."""
    for _ in range(1000):
        row = db.execute("SELECT into_topic FROM topic WHERE id = ?", (topic,)).fetchone()
        if row is None or row[0] is None:
            return topic if row else None
        topic = row[0]
    return None


def routes(db: sqlite3.Connection, keys: Iterable[str]) -> dict[str, int]:
    """Return the topics that keys lead to."""
    by_hash = {_hash(key): key for key in keys}
    found: dict[str, int] = {}
    means: dict[int, int | None] = {}
    for some in _some(list(by_hash)):
        for number, topic in db.execute(f"SELECT key, topic FROM route WHERE key IN ({_marks(some)})", some):
            if topic not in means:
                means[topic] = live(db, topic)
            there = means[topic]
            if there is not None:
                found[by_hash[number]] = there
    return found


def remember_routes(db: sqlite3.Connection, keys: Mapping[str, int]) -> None:
    """Let keys lead to topics from now on."""
    db.executemany("INSERT OR REPLACE INTO route VALUES (?, ?)", [(_hash(key), topic) for key, topic in keys.items()])


def known_for(db: sqlite3.Connection, facts: Iterable[Fact], topics: Iterable[int], whole: Iterable[int] = ()) -> Known:
    """Return what a plan over these facts and topics is judged against; the staged of ``facts`` are its batch."""
    by_id = {fact.id: fact for fact in facts}
    slots: dict[int, set[str]] = {}
    hides: set[tuple[int, int]] = set()
    refused: set[tuple[int, int]] = set()
    for some in _some(list(by_id)):
        for key, fact in db.execute(f"SELECT key, fact FROM slot WHERE fact IN ({_marks(some)})", some):
            slots.setdefault(fact, set()).add(key)
        for column in ("fact", "other"):
            for kind, fact, other, undone in db.execute(
                f"SELECT kind, fact, other, undone FROM link WHERE {column} IN ({_marks(some)})", some
            ):
                if kind != "conflicts":
                    pair = (fact, other) if kind == "supersedes" else (other, fact)
                    (hides if undone is None else refused).add(pair)
    there = frozenset(
        row[0]
        for some in _some(sorted(set(topics)))
        for row in db.execute(f"SELECT id FROM topic WHERE into_topic IS NULL AND id IN ({_marks(some)})", some)
    )
    return Known(
        by_id,
        there,
        frozenset(number for number, fact in by_id.items() if fact.topic is None),
        {fact: frozenset(keys) for fact, keys in slots.items()},
        frozenset(hides),
        frozenset(refused),
        frozenset(whole),
    )


def add_change(
    db: sqlite3.Connection, *, kind: str, by: str, outcome: str, at_s: float, note: str = "", undoes: int | None = None
) -> int:
    """Begin a change and return its number."""
    cursor = db.execute(
        "INSERT INTO change(kind, by, outcome, at_s, note, undoes) VALUES (?, ?, ?, ?, ?, ?)",
        (kind, by[:200], outcome, at_s, note[:2000], undoes),
    )
    assert cursor.lastrowid is not None
    return cursor.lastrowid


def carry_out(
    db: sqlite3.Connection, plan: Plan, *, keys: Mapping[str, int | str], change: int, journal: Journal
) -> set[int]:
    """Do what a verified plan says, within the transaction of the caller; return the topics that it touched."""
    made: dict[str, int] = {}
    touched: set[int] = set()

    def where(title: str) -> int:
        name = sane_title(title)
        key = folded(name)
        if key not in made:
            there = routes(db, [key]).get(key)
            made[key] = there if there is not None else new_topic(db, name, journal)
            remember_routes(db, {key: made[key]})
        return made[key]

    for op in plan.ops:
        if isinstance(op, Assign):
            topic = where(op.title) if op.topic is None else op.topic
            touched |= move(db, op.facts, topic, journal)
        elif isinstance(op, Split):
            journal.reorganised.append(op.topic)
            for group in op.groups:
                touched |= move(db, group.facts, where(group.title), journal)
        elif isinstance(op, Supersede):
            link(db, "supersedes", op.new, op.old, op.reason, change, journal)
        elif isinstance(op, Duplicate):
            link(db, "duplicates", op.fact, op.of, "says the same", change, journal)
        elif isinstance(op, Conflict):
            link(db, "conflicts", op.fact, op.other, op.reason, change, journal)
        elif isinstance(op, Retitle):
            rename(db, op.topic, journal, title=sane_title(op.title))
            remember_routes(db, {folded(sane_title(op.title)): op.topic})
        elif isinstance(op, Summarise):
            rename(db, op.topic, journal, summary=sane_words(op.summary, longest=_SUMMARY))
        elif isinstance(op, Alias):
            rename(db, op.topic, journal, aliases=tuple(filter(None, map(sane_title, op.aliases))))
    for op in plan.ops:
        if isinstance(op, Merge):
            journal.reorganised += [op.into, *op.topics]
            for topic in op.topics:
                ids = [row[0] for row in db.execute("SELECT id FROM fact WHERE topic = ? ORDER BY id", (topic,))]
                touched |= move(db, ids, op.into, journal)
                rename(db, topic, journal, into=op.into)
                _join_notes(db, topic, op.into, journal)
    remember_routes(
        db, {key: where(topic) if isinstance(topic, str) else topic for key, topic in keys.items() if topic}
    )
    hidden = {op.old for op in plan.ops if isinstance(op, Supersede)}
    derive(db, hidden | {op.fact for op in plan.ops if isinstance(op, Duplicate)}, journal)
    touched |= {number for number, _, _ in journal.topics}
    weigh(db, touched)
    return touched


def _join_notes(db: sqlite3.Connection, topic: int, into: int, journal: Journal) -> None:
    """Put what a person noted in a topic into the one that it is merged into."""
    found = dict(db.execute("SELECT topic, notes FROM document WHERE topic IN (?, ?)", (topic, into)).fetchall())
    if found.get(topic):
        both = "\n\n".join(filter(None, (found.get(into, ""), found[topic])))
        note(db, into, both, journal)
        note(db, topic, "", journal)


def note(db: sqlite3.Connection, topic: int, notes: str, journal: Journal) -> None:
    """Let ``notes`` be what is under Notes in the document of a topic."""
    row = db.execute("SELECT notes FROM document WHERE topic = ?", (topic,)).fetchone()
    if row is not None and row[0] != notes:
        db.execute("UPDATE document SET notes = ? WHERE topic = ?", (notes, topic))
        journal.notes.append((topic, row[0], notes))


def new_topic(db: sqlite3.Connection, title: str, journal: Journal) -> int:
    """Make a topic and return its number."""
    cursor = db.execute("INSERT INTO topic(title, revision) VALUES (?, 1)", (title,))
    number = cursor.lastrowid
    assert number is not None
    db.execute("INSERT INTO document(topic) VALUES (?)", (number,))
    journal.topics.append((number, None, (title, (), "", None)))
    return number


def move(db: sqlite3.Connection, facts: Sequence[int], topic: int | None, journal: Journal) -> set[int]:
    """Move facts into a topic (None: back to where nothing is sorted yet); return the topics that it touched."""
    groups: dict[Place, list[int]] = {}
    for some in _some(list(facts)):
        for fact, before in db.execute(f"SELECT id, topic FROM fact WHERE id IN ({_marks(some)}) ORDER BY id", some):
            if before != topic:
                groups.setdefault(before, []).append(fact)
    for before, ids in groups.items():
        db.executemany("UPDATE fact SET topic = ? WHERE id = ?", [(topic, each) for each in ids])
        journal.moved.append((before, topic, ids))
    return {each for each in (*groups, topic) if each is not None}


def link(db: sqlite3.Connection, kind: str, fact: int, other: int, reason: str, change: int, journal: Journal) -> None:
    """Bind two facts, unless they are bound so already."""
    known = db.execute(
        "SELECT 1 FROM link WHERE kind = ? AND fact = ? AND other = ? AND undone IS NULL", (kind, fact, other)
    ).fetchone()
    if known is None:
        cursor = db.execute(
            "INSERT INTO link(kind, fact, other, reason, change) VALUES (?, ?, ?, ?, ?)",
            (kind, fact, other, sane_words(reason, longest=300), change),
        )
        assert cursor.lastrowid is not None
        journal.links.append(cursor.lastrowid)


def derive(
    db: sqlite3.Connection, facts: Iterable[int], journal: Journal, *, forgotten: Mapping[int, bool] | None = None
) -> None:
    """Let the states of facts follow from their links; ``forgotten`` says of which that is to be changed."""
    for fact in sorted(set(facts)):
        row = db.execute("SELECT state, until FROM fact WHERE id = ?", (fact,)).fetchone()
        if row is None:
            continue
        gone = (forgotten or {}).get(fact, row[0] == State.FORGOTTEN.value)
        state, until = State.CURRENT, row[1]
        by = db.execute(
            "SELECT n.since, e.observed FROM link l JOIN fact n ON n.id = l.fact JOIN evidence e ON e.id = n.evidence"
            " WHERE l.other = ? AND l.kind = 'supersedes' AND l.undone IS NULL ORDER BY e.observed_s LIMIT 1",
            (fact,),
        ).fetchone()
        if gone:
            state = State.FORGOTTEN
        elif db.execute(
            "SELECT 1 FROM link WHERE fact = ? AND kind = 'duplicates' AND undone IS NULL", (fact,)
        ).fetchone():
            state = State.DUPLICATE
        elif by is not None:
            state, until = State.SUPERSEDED, row[1] or by[0] or by[1]
        if (state.value, until) != tuple(row):
            db.execute("UPDATE fact SET state = ?, until = ? WHERE id = ?", (state.value, until, fact))
            journal.states.append((fact, (row[0], row[1]), (state.value, until)))


def names_of(db: sqlite3.Connection, topic: int) -> Names:
    """Return how a topic is called now. Raises `CallError` where there is none."""
    row = db.execute("SELECT title, aliases, summary, into_topic FROM topic WHERE id = ?", (topic,)).fetchone()
    if row is None:
        raise CallError(f"there is no topic t{topic}")
    return row[0], tuple(json.loads(row[1])), row[2], row[3]


def rename(
    db: sqlite3.Connection,
    topic: int,
    journal: Journal,
    *,
    title: str | None = None,
    aliases: tuple[str, ...] | None = None,
    summary: str | None = None,
    into: int | None = None,
) -> None:
    """Call a topic by other names; those not given stay."""
    old = names_of(db, topic)
    new = (title or old[0], old[1] if aliases is None else aliases, old[2] if summary is None else summary, into)
    if into is None:
        new = (*new[:3], old[3])
    if new != old:
        db.execute(
            "UPDATE topic SET title = ?, aliases = ?, summary = ?, into_topic = ? WHERE id = ?",
            (new[0], json.dumps(new[1]), new[2], new[3], topic),
        )
        journal.topics.append((topic, old, new))


def weigh(db: sqlite3.Connection, topics: Iterable[int]) -> None:
    """Count the bytes of topics again."""
    db.executemany(
        "UPDATE document SET bytes = (SELECT coalesce(sum(length(CAST(text AS BLOB))), 0) FROM fact WHERE topic = ?1)"
        " WHERE topic = ?1",
        [(topic,) for topic in sorted(topics)],
    )


def _some(values: Sequence[int]) -> Iterator[Sequence[int]]:
    for at in range(0, len(values), 500):
        yield values[at : at + 500]


def _marks(values: Sequence[int]) -> str:
    return ",".join("?" * len(values))


def _hash(key: str) -> int:
    return xxhash.xxh3_64_intdigest(key.encode("utf-8", "surrogatepass")) - (1 << 63)
