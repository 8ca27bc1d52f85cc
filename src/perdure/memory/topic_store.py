"""Topics in the ledger: what lies in them, which keys lead to them, and what a plan is judged against."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import xxhash

from perdure.memory.ledger import FACTS, fact_of
from perdure.memory.plan import (
    folded,
)
from perdure.memory.records import Fact, Topic
from perdure.memory.verifying import Known

__all__ = [
    "before_of",
    "digest_noted",
    "facts_of",
    "fill_in",
    "in_batches",
    "known_for",
    "live",
    "marks",
    "remember_routes",
    "routes",
    "staged",
    "topics_of",
    "weigh",
]


def fill_in(db: sqlite3.Connection) -> None:
    """Make the rows that topics need which came from elsewhere, as by an import."""
    rows = db.execute("SELECT id FROM topic WHERE id NOT IN (SELECT topic FROM document WHERE bytes >= 0)")
    bare = [row[0] for row in rows.fetchall()]
    db.executemany("INSERT OR IGNORE INTO document(topic) VALUES (?)", [(each,) for each in bare])
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
        rows = (
            row for some in in_batches(list(ids)) for row in db.execute(f"{fields} WHERE id IN ({marks(some)})", some)
        )
    return [Topic(row[0], row[1], _aliases(row[2]), row[3], row[4], row[5], row[6]) for row in rows]


def _aliases(text: str) -> tuple[str, ...]:
    """The aliases in a row; none where it is damaged."""
    try:
        return msgspec.json.decode(text, type=tuple[str, ...])
    except (msgspec.MsgspecError, UnicodeError):
        return ()


def live(db: sqlite3.Connection, topic: int) -> int | None:
    """Return the topic that an id means now, after merges; None where there is none."""
    for _ in range(1000):
        row = db.execute("SELECT into_topic FROM topic WHERE id = ?", (topic,)).fetchone()
        if row is None or row[0] is None:
            return topic if row else None
        topic = row[0]
    return None


def digest_noted(db: sqlite3.Connection, topic: int) -> str:
    """Return the digest of the document of a topic as it was last written or read."""
    found = db.execute("SELECT digest FROM topic WHERE id = ?", (topic,)).fetchone()
    return str(found[0]) if found is not None else ""


def routes(db: sqlite3.Connection, keys: Iterable[str]) -> dict[str, int]:
    """Return the topics that keys lead to."""
    by_hash = {_hash(key): key for key in keys}
    found: dict[str, int] = {}
    means: dict[int, int | None] = {}
    for some in in_batches(list(by_hash)):
        for number, topic in db.execute(f"SELECT key, topic FROM route WHERE key IN ({marks(some)})", some):
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
    for some in in_batches(list(by_id)):
        for key, fact in db.execute(f"SELECT key, fact FROM slot WHERE fact IN ({marks(some)})", some):
            slots.setdefault(fact, set()).add(key)
        for column in ("fact", "other"):
            for kind, fact, other, undone in db.execute(
                f"SELECT kind, fact, other, undone FROM link WHERE {column} IN ({marks(some)})", some
            ):
                if kind != "conflicts":
                    pair = (fact, other) if kind == "supersedes" else (other, fact)
                    (hides if undone is None else refused).add(pair)
    there = frozenset(
        row[0]
        for some in in_batches(sorted(set(topics)))
        for row in db.execute(f"SELECT id FROM topic WHERE into_topic IS NULL AND id IN ({marks(some)})", some)
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


def weigh(db: sqlite3.Connection, topics: Iterable[int]) -> None:
    """Count the bytes of topics again."""
    db.executemany(
        "UPDATE document SET bytes = (SELECT coalesce(sum(length(CAST(text AS BLOB))), 0) FROM fact WHERE topic = ?1)"
        " WHERE topic = ?1",
        [(topic,) for topic in sorted(topics)],
    )


def in_batches(values: Sequence[int]) -> Iterator[Sequence[int]]:
    """Cut values into as many as one statement takes."""
    for at in range(0, len(values), 500):
        yield values[at : at + 500]


def marks(values: Sequence[int]) -> str:
    """The question marks for values."""
    return ",".join("?" * len(values))


def _hash(key: str) -> int:
    return xxhash.xxh3_64_intdigest(key.encode("utf-8", "surrogatepass")) - (1 << 63)
