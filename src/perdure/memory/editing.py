"""Carry in what a person did: their words become evidence, and facts that stand above the ones they corrected.

All in one transaction; the key of an edit makes the same one again the same evidence.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Final

from perdure.memory.document_edits import Edits
from perdure.memory.document_text import same
from perdure.memory.ledger import Ledger
from perdure.memory.moments import moment_of
from perdure.memory.plan import folded, sane_title, sane_words
from perdure.memory.records import Fact, Role, State
from perdure.memory.steps import EDITED, Journal, add_change, derive, link, move, note, rename
from perdure.memory.topic_store import facts_of, live, remember_routes, weigh
from perdure.memory.undo import keep_journal

__all__ = ["BY_ID", "carry_in"]

BY_ID: Final = "edit"
"""The source of an edit of one fact, outside of any document."""

_SUMMARY: Final = 600


def carry_in(ledger: Ledger, edits: Edits, *, topic: int | None, source: str, key: str) -> int | None:
    """Carry in the edits of a document (or of one fact, of no topic), and return the change; None where they are none.

    ``key`` stands for this edit: the same again is the same.
    """
    if edits.none:
        return None
    with ledger.change() as db:
        olds = ledger.facts(each for each, _ in edits.changed)
        changed: list[tuple[int, tuple[int, ...]]] = []
        standing = facts_of(db, topic) if topic is not None else []
        for at, (old, text) in enumerate(edits.changed):
            twin = [each.id for each in standing if each.id != old and _stands(each) and same(each.text, text)]
            speaker = olds[old].speaker if old in olds else ""
            changed.append((old, tuple(twin[:1]) or _told(ledger, text, speaker, source, f"{key}:c{at}")))
        added = [_told(ledger, text, "", source, f"{key}:a{at}", role) for at, (text, role) in enumerate(edits.added)]
        change = add_change(db, kind="edit", by="human", outcome="ok", at_s=ledger.wall(), note=_said(edits, source))
        journal = Journal()
        topic = live(db, topic) if topic is not None else None
        derived = {*edits.removed, *edits.moved}
        for old, news in changed:
            derived |= _replace(db, old, news, topic, change, journal, on_top=source == BY_ID) | set(news)
        for news in added:
            _make(db, news, topic, journal)
        if topic is not None:
            move(db, edits.moved, topic, journal)
            _rename(db, topic, edits, journal)
        gone = {**dict.fromkeys(edits.moved, False), **dict.fromkeys(edits.removed, True)}
        derive(db, derived, journal, forgotten=gone)
        weigh(db, {each for before, after, _ in journal.moved for each in (before, after) if each is not None})
        keep_journal(db, change, journal)
    return change


def _stands(fact: Fact) -> bool:
    return fact.state is State.CURRENT and fact.role is Role.HUMAN


def _told(ledger: Ledger, text: str, speaker: str, source: str, key: str, role: Role = Role.HUMAN) -> tuple[int, ...]:
    told = ledger.append(
        text,
        source=source,
        speaker=speaker,
        role=role,
        observed=moment_of(None, now_s=ledger.wall()),
        key=key,
        dated=False,
        meta=None,
    )
    return told.facts


def _make(db: sqlite3.Connection, news: Sequence[int], topic: int | None, journal: Journal) -> None:
    """Let new facts be of a topic, and be forgotten when this change is taken back."""
    for new in news:
        journal.states.append((new, (State.FORGOTTEN.value, None), (State.CURRENT.value, None)))
    if topic is not None:
        move(db, news, topic, journal)


def _replace(
    db: sqlite3.Connection,
    old: int,
    news: Sequence[int],
    topic: int | None,
    change: int,
    journal: Journal,
    *,
    on_top: bool,
) -> set[int]:
    """Let new facts stand in the place of an old one, also below what has replaced that one already.

    ``on_top``: but above earlier edits of it. Returns what was replaced.
    """
    row = db.execute("SELECT topic FROM fact WHERE id = ?", (old,)).fetchone()
    _make(db, news, topic if topic is not None else row[0] if row else None, journal)
    below = {old}
    above: set[int] = set()
    edge = [old]
    while edge:
        sql = "SELECT fact, reason FROM link WHERE other = ? AND kind = 'supersedes' AND undone IS NULL"
        for each, reason in db.execute(sql, (edge.pop(),)).fetchall():
            if each in below or each in news:
                continue
            if on_top and reason == EDITED:
                below.add(each)
                edge.append(each)
            else:
                above.add(each)
    for new in news:
        for each in sorted(above - below):
            link(db, "supersedes", each, new, "it replaced what was edited", change, journal)
        for each in sorted(below):
            link(db, "supersedes", new, each, EDITED, change, journal)
    return below


def _rename(db: sqlite3.Connection, topic: int, edits: Edits, journal: Journal) -> None:
    title = sane_title(edits.title) if edits.title else None
    aliases = tuple(filter(None, map(sane_title, edits.aliases)))[:32] if edits.aliases is not None else None
    summary = sane_words(edits.summary, longest=_SUMMARY) if edits.summary is not None else None
    rename(db, topic, journal, title=title or None, aliases=aliases, summary=summary)
    names = [*([title] if title else []), *(aliases or ())]
    remember_routes(db, {folded(each): topic for each in names})
    if edits.notes is not None:
        note(db, topic, edits.notes, journal)
    if edits.extra is not None:
        db.execute("UPDATE document SET extra = ? WHERE topic = ?", (edits.extra[:20_000], topic))


def _said(edits: Edits, source: str) -> str:
    counts = [
        f"{len(some)} {what}"
        for what, some in (
            ("changed", edits.changed),
            ("added", edits.added),
            ("removed", edits.removed),
            ("moved", edits.moved),
        )
        if some
    ]
    names = [each for each in ("title", "aliases", "summary", "notes", "extra") if getattr(edits, each) is not None]
    return f"{source}: {', '.join([*counts, *names])}"
