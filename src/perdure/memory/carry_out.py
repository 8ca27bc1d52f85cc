"""Carry a verified plan out, within one transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Final

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
from perdure.memory.steps import Journal, derive, link, move, new_topic, note, rename
from perdure.memory.topic_store import remember_routes, routes, weigh

__all__ = ["carry_out"]

_SUMMARY: Final = 600


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
