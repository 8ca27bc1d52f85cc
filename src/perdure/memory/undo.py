"""Take a change back, also one that took a change back: nothing is removed, another change is added.

What has been changed again since then stays as it is now, and the note says how much that was. Facts that come back
unsorted are staged again; a topic whose cut or merge was taken back is left alone by the rules from then on.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any

import msgspec

from perdure.errors import CallError
from perdure.memory.records import Change, State
from perdure.memory.steps import Journal, add_change, derive, move, names_of, rename
from perdure.memory.topic_store import live, weigh

__all__ = ["change_of", "changes", "forgotten", "journal_of", "keep_journal", "undo"]

_FIELDS = "id, kind, by, outcome, at_s, note"


def changes(db: sqlite3.Connection, *, limit: int, before: int | None = None) -> list[Change]:
    """Return the latest changes, the newest first; with ``before``, those older than that one."""
    where, values = ("WHERE id < ?", (before, limit)) if before is not None else ("", (limit,))
    return [
        Change(*row) for row in db.execute(f"SELECT {_FIELDS} FROM change {where} ORDER BY id DESC LIMIT ?", values)
    ]


def change_of(db: sqlite3.Connection, number: int) -> Change:
    """Return a change. Raises `CallError` where there is none."""
    row = db.execute(f"SELECT {_FIELDS} FROM change WHERE id = ?", (number,)).fetchone()
    if row is None:
        raise CallError(f"there is no change c{number}; Memory.changes, or perdure memory undo, lists them")
    return Change(*row)


def keep_journal(db: sqlite3.Connection, change: int, journal: Journal) -> None:
    """Write down what a change did."""
    plan = msgspec.json.encode({"journal": journal}).decode()
    db.execute("UPDATE change SET plan = ? WHERE id = ?", (plan, change))


def journal_of(db: sqlite3.Connection, number: int) -> Journal:
    """Return what a change did; of one that kept no journal, what its links and the facts that it names tell.

    Raises `CallError` for a purge, of which nothing is left that could come back.
    """
    told = _plan(db.execute("SELECT plan FROM change WHERE id = ?", (number,)).fetchone()[0])
    if "journal" in told:
        return msgspec.convert(told["journal"], Journal)
    if told.get("mode") == "purge" or told.get("purged"):
        raise CallError(f"c{number} purged words, or names that were; they are nowhere, and cannot come back")
    gone = State.FORGOTTEN.value
    return Journal(
        states=[(int(fact), (str(state), None), (gone, None)) for fact, state in dict(told.get("before", {})).items()],
        links=[each[0] for each in db.execute("SELECT id FROM link WHERE change = ?", (number,))],
        relinked=[each[0] for each in db.execute("SELECT id FROM link WHERE undone = ?", (number,))],
    )


def forgotten(db: sqlite3.Connection) -> set[int]:
    """Return the facts that are forgotten by all changes in their order, for who derives states again."""
    gone: set[int] = set()
    for kind, plan in db.execute("SELECT kind, plan FROM change WHERE plan IS NOT NULL ORDER BY id"):
        told = _plan(plan)
        if kind == "forget":
            gone.update(told.get("facts", ()))
        for fact, _, after in msgspec.convert(told.get("journal", {}), Journal).states:
            (gone.add if after[0] == State.FORGOTTEN.value else gone.discard)(fact)
    return gone


def _plan(text: str | None) -> dict[str, Any]:
    try:
        told: Any = msgspec.json.decode(text or "{}")
    except msgspec.DecodeError:
        return {}
    return told if isinstance(told, dict) else {}


def undo(db: sqlite3.Connection, number: int, *, by: str, wall: Callable[[], float]) -> int:
    """Take back a change, within the transaction of the caller, and return the number of the change that does.

    Raises `CallError` where there is no such change, where it has been taken back already, or has nothing to take back.
    """
    was = change_of(db, number)
    done = journal_of(db, number)
    again = db.execute(
        "SELECT id FROM change c WHERE undoes = ? AND NOT EXISTS (SELECT 1 FROM change d WHERE d.undoes = c.id)"
        " ORDER BY id DESC LIMIT 1",
        (number,),
    ).fetchone()
    if again is not None:
        raise CallError(f"c{number} was taken back by c{again[0]}; undo c{again[0]} to have it again")
    if done.empty:
        raise CallError(f"c{number} ({was.kind}) changed nothing that could be taken back")
    change = add_change(db, kind="undo", by=by, outcome="ok", at_s=wall(), undoes=number)
    journal = Journal(reorganised=done.reorganised)
    left = _back(db, done, change, journal)
    touched = _states(db, done, journal)
    held = _depth(db, number) % 2 == 0
    for topic in done.reorganised:
        db.execute("UPDATE document SET held = ? WHERE topic = ?", (int(held), topic))
    weigh(db, touched | {each for before, after, _ in journal.moved for each in (before, after) if each is not None})
    note = f"takes back c{number}" + (f"; {left} things have been changed since and stay" if left else "")
    db.execute("UPDATE change SET note = ? WHERE id = ?", (note, change))
    keep_journal(db, change, journal)
    return change


def _depth(db: sqlite3.Connection, number: int) -> int:
    """How many changes stand between a change and what it takes back in the end."""
    depth = 0
    while (row := db.execute("SELECT undoes FROM change WHERE id = ?", (number,)).fetchone()) and row[0] is not None:
        number, depth = row[0], depth + 1
    return depth


def _back(db: sqlite3.Connection, done: Journal, change: int, journal: Journal) -> int:
    """Take back moves, names, notes and links; return how much has changed since."""
    left = 0
    for topic, before, after in reversed(done.topics):
        if before is None:
            continue
        now = names_of(db, topic)
        mixed = [old if now[at] == after[at] else now[at] for at, old in enumerate(before)]
        left += sum(now[at] not in (before[at], after[at]) for at in range(4))
        if mixed[3] is None and now[3] is not None:
            db.execute("UPDATE topic SET into_topic = NULL WHERE id = ?", (topic,))
            journal.topics.append((topic, now, (*now[:3], None)))
        title, aliases, summary = str(mixed[0]), tuple(mixed[1] or ()), str(mixed[2])  # type: ignore[arg-type]
        rename(db, topic, journal, title=title, aliases=aliases, summary=summary, into=mixed[3])  # type: ignore[arg-type]
    for start, stop, ids in reversed(done.moved):
        there = []
        for fact in ids:
            row = db.execute("SELECT topic FROM fact WHERE id = ?", (fact,)).fetchone()
            if row is not None and row[0] == stop:
                there.append(fact)
        left += len(ids) - len(there)
        move(db, there, live(db, start) if start is not None else None, journal)
    for topic, note, said in reversed(done.notes):
        cursor = db.execute("UPDATE document SET notes = ? WHERE topic = ? AND notes = ?", (note, topic, said))
        if cursor.rowcount:
            journal.notes.append((topic, said, note))
        else:
            left += 1
    for each in (*done.links, *done.relinked):
        db.execute(
            "UPDATE link SET undone = CASE WHEN undone IS NULL THEN ? ELSE NULL END WHERE id = ?", (change, each)
        )
        journal.relinked.append(each)
    return left


def _states(db: sqlite3.Connection, done: Journal, journal: Journal) -> set[int]:
    """Let the states of all facts concerned follow from their links again."""
    gone = State.FORGOTTEN.value
    facts: set[int] = set()
    forgotten: dict[int, bool] = {}
    for fact, before, after in done.states:
        facts.add(fact)
        if (before[0] == gone) != (after[0] == gone):
            forgotten[fact] = before[0] == gone
        row = db.execute("SELECT state, until FROM fact WHERE id = ?", (fact,)).fetchone()
        if row is not None and row[1] == after[1] and row[1] != before[1]:
            db.execute("UPDATE fact SET until = ? WHERE id = ?", (before[1], fact))
            journal.states.append((fact, (row[0], row[1]), (row[0], before[1])))
    for each in (*done.links, *done.relinked):
        for fact, other in db.execute("SELECT fact, other FROM link WHERE id = ?", (each,)):
            facts |= {fact, other}
    derive(db, facts, journal, forgotten=forgotten)
    marks = [db.execute("SELECT topic FROM fact WHERE id = ?", (fact,)).fetchone() for fact in facts]
    return {row[0] for row in marks if row and row[0] is not None}
