"""The steps that a change is made of, each of which writes down in the journal what it did.

The *journal* of a change (``change.plan``) says what was before and what is after of everything that it touched, by
ids and never by words of facts; `perdure.memory.undo` reads it. Each connection of a ledger counts a topic's revision
up with whatever changes in what its document shows (`perdure.memory.counting`).
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from perdure.errors import CallError
from perdure.memory.plan import (
    sane_words,
)
from perdure.memory.records import State
from perdure.memory.topic_store import in_batches, marks

__all__ = ["EDITED", "Journal", "add_change", "derive", "link", "move", "names_of", "new_topic", "note", "rename"]

EDITED: Final = "edited by a person"
"""The reason of the links by which an edit replaces what it corrects."""

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
    for some in in_batches(list(facts)):
        for fact, before in db.execute(f"SELECT id, topic FROM fact WHERE id IN ({marks(some)}) ORDER BY id", some):
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


def note(db: sqlite3.Connection, topic: int, notes: str, journal: Journal) -> None:
    """Let ``notes`` be what is under Notes in the document of a topic."""
    row = db.execute("SELECT notes FROM document WHERE topic = ?", (topic,)).fetchone()
    if row is not None and row[0] != notes:
        db.execute("UPDATE document SET notes = ? WHERE topic = ?", (notes, topic))
        journal.notes.append((topic, row[0], notes))


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
