"""Write topic documents: what is about to be written is noted first, so that after a crash a file is known for what it
is: the old one, the new one, or an edit."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from perdure.errors import FormatRefused
from perdure.memory.document_edits import Shown, shown_next
from perdure.memory.document_files import (
    asides,
    digest_of,
    drop,
    flush,
    read_text,
    slug,
    stage,
    swap,
    sync,
    take,
)
from perdure.memory.document_text import Ties, read, write, write_moved
from perdure.memory.emptying import neutral_title
from perdure.memory.ledger import Ledger
from perdure.memory.records import State, Topic
from perdure.memory.topic_store import digest_noted, facts_of, topics_of

__all__ = ["Writer"]

_AT_ONCE: Final = 64
_TOPICS: Final = "topics"
_ARCHIVE: Final = "archive"


class _Intent(msgspec.Struct):
    file: str
    digest: str
    shown: Shown


class Writer:
    """Writes the files of one space, under the lock of its documents."""

    def __init__(self, ledger: Ledger, folder: Path) -> None:
        self.ledger = ledger
        self.folder = folder

    def distrust(self) -> None:
        """Forget file names that are none of ours, as a ledger from elsewhere may hold: none leads out of here."""
        db = self.ledger.connection()
        odd = [
            (number,) for number, file in db.execute("SELECT id, file FROM topic WHERE file <> ''") if not _ours(file)
        ]
        odd_intents = [
            (number,)
            for number, intent in db.execute("SELECT topic, intent FROM document WHERE intent IS NOT NULL")
            if not _ours(msgspec.json.decode(intent, type=_Intent).file)
        ]
        if odd or odd_intents:
            with self.ledger.change() as change:
                change.executemany("UPDATE topic SET file = '', digest = '', written = -1 WHERE id = ?", odd)
                change.executemany("UPDATE document SET intent = NULL WHERE topic = ?", odd_intents)

    def recover(self) -> None:
        """Make good what a killed writer had begun."""
        db = self.ledger.connection()
        for topic, intent, file, digest in db.execute(
            "SELECT d.topic, d.intent, t.file, t.digest FROM document d JOIN topic t ON t.id = d.topic"
            " WHERE d.intent IS NOT NULL"
        ).fetchall():
            meant = msgspec.json.decode(intent, type=_Intent)
            there = None
            with contextlib.suppress(FormatRefused):
                there = take(self.folder / meant.file)
            done = there is not None and digest_of(there) == meant.digest
            if not done and there is not None and digest_of(there) != digest:
                with contextlib.suppress(FormatRefused):
                    done = read(read_text(there)).revision == meant.shown.revision
            if done:
                drop(self.folder, topic, file, digest, meant.file)
                self._finish([(topic, meant)])
            else:
                with self.ledger.change() as change:
                    change.execute("UPDATE document SET intent = NULL WHERE topic = ?", (topic,))

    def write(self, left_alone: dict[str, str]) -> bool:
        """Write the documents that do not show the latest revision; return whether there is more to look at."""
        db = self.ledger.connection()
        stale = [row[0] for row in db.execute("SELECT id FROM topic WHERE revision <> written ORDER BY id")]
        wrote = False
        for at in range(0, len(stale), _AT_ONCE):
            wrote |= self._write_some(stale[at : at + _AT_ONCE], left_alone)
        return wrote and bool(self._aside_edits())

    def _write_some(self, numbers: Sequence[int], left_alone: dict[str, str]) -> bool:
        db = self.ledger.connection()
        db.execute("BEGIN")  # one view of all that these documents show
        try:
            todo = []
            for topic in topics_of(db, numbers):
                text, shown, archived = self.text(db, topic)
                if topic.file in left_alone and os.path.lexists(self.folder / topic.file):
                    continue
                digest = digest_noted(db, topic.id)
                file = _file(topic, archived)
                if file in left_alone and os.path.lexists(self.folder / file):  # it is no document of this topic
                    file = file.replace(f"--{topic.name}.md", f"-{self.ledger.id[:8]}--{topic.name}.md")
                todo.append((topic, digest, text.encode(), _Intent(file, digest_of(text.encode()), shown)))
        finally:
            db.execute("COMMIT")
        if not todo:
            return False
        with self.ledger.change() as change:
            change.executemany(
                "UPDATE document SET intent = ? WHERE topic = ?",
                [(msgspec.json.encode(intent).decode(), topic.id) for topic, _, _, intent in todo],
            )
        staged = [stage(self.folder / intent.file, data) for _, _, data, intent in todo]
        for fresh in staged:  # the first one makes most of the others durable, too
            flush(fresh)
        done = []
        for fresh, (topic, digest, _, intent) in zip(staged, todo, strict=True):
            try:
                expected = digest if intent.file == topic.file else ""
                swap(self.folder / intent.file, fresh, topic=topic.id, expected=expected)
                done.append((topic, digest, intent))
            except FormatRefused as error:
                left_alone[intent.file] = str(error)
        for part in {Path(intent.file).parent for _, _, intent in done}:
            sync(self.folder / part)
        for topic, digest, intent in done:  # while the intent still tells whose the old name was
            drop(self.folder, topic.id, topic.file, digest, intent.file)
        self._finish([(topic.id, intent) for topic, _, intent in done])
        return bool(done)

    def _finish(self, done: Sequence[tuple[int, _Intent]]) -> None:
        """Note that files are what was meant to be written."""
        with self.ledger.change() as db:
            for topic, intent in done:
                db.execute(
                    "UPDATE topic SET written = ?, digest = ?, file = ? WHERE id = ?",
                    (intent.shown.revision, intent.digest, intent.file, topic),
                )
                db.execute(
                    "UPDATE document SET intent = NULL, shown = ? WHERE topic = ?",
                    (msgspec.json.encode(intent.shown).decode(), topic),
                )

    def _aside_edits(self) -> bool:
        """Whether anything lies aside that is not what was expected there."""
        for path, _, expected in asides(self.folder / _TOPICS):
            with contextlib.suppress(FormatRefused):
                data = take(path)
                if data is not None and not digest_of(data).startswith(expected):
                    return True
        return False

    def text(self, db: sqlite3.Connection, topic: Topic) -> tuple[str, Shown, bool]:
        """Return the document of a topic, what it shows, and whether it is archived."""
        row = db.execute("SELECT notes, extra, shown FROM document WHERE topic = ?", (topic.id,)).fetchone()
        facts = [fact for fact in facts_of(db, topic.id) if fact.state is not State.FORGOTTEN]
        updated = dt.datetime.fromtimestamp(self.ledger.wall(), dt.UTC).isoformat(timespec="seconds")
        archived = topic.into is not None or not (facts or row[0])
        if archived:
            text = write_moved(topic, updated, self.ledger.id)
        else:
            text = write(
                topic,
                facts,
                _ties(db, topic.id),
                notes=row[0],
                extra=row[1],
                updated=updated,
                ledger=self.ledger.id,
            )
        shown = shown_next(
            msgspec.json.decode(row[2], type=Shown),
            revision=topic.revision,
            ids=[fact.id for fact in facts],
            title=topic.title,
            aliases=topic.aliases,
            summary=topic.summary,
            notes=row[0],
        )
        return text, shown, archived


def _ours(file: str) -> bool:
    part, _, name = file.partition("/")
    return part in (_TOPICS, _ARCHIVE) and "/" not in name and "\0" not in name and name.endswith(".md")


def _file(topic: Topic, archived: bool) -> str:
    """The file of a topic: after its title, unless a person gave it a name that need not be forgotten."""
    name = Path(topic.file).name
    forgotten = archived and topic.title == neutral_title(topic.id)
    if not name or forgotten or name.endswith(f"--{topic.name}.md"):
        name = f"{slug(topic.title)}--{topic.name}.md"
    return f"{_ARCHIVE if archived else _TOPICS}/{name}"


def _ties(db: sqlite3.Connection, topic: int) -> dict[int, Ties]:
    by: dict[int, list[int]] = {}
    of: dict[int, list[int]] = {}
    against: dict[int, list[int]] = {}
    for kind, fact, other, mine, both in db.execute(
        "SELECT l.kind, l.fact, l.other, f.id, a.state = 'current' AND b.state = 'current' FROM fact f"
        " JOIN link l ON (l.fact = f.id OR l.other = f.id) JOIN fact a ON a.id = l.fact JOIN fact b ON b.id = l.other"
        " WHERE f.topic = ? AND l.undone IS NULL ORDER BY l.id",
        (topic,),
    ):
        if kind == "conflicts":
            if both:
                against.setdefault(mine, []).append(other if mine == fact else fact)
        elif kind == "supersedes" and mine == other:
            by.setdefault(mine, []).append(fact)
        elif kind == "duplicates" and mine == fact:
            of.setdefault(mine, []).append(other)
    return {
        each: Ties(tuple(by.get(each, ())), tuple(of.get(each, ())), tuple(against.get(each, ())))
        for each in {*by, *of, *against}
    }
