"""Topic documents on disk: derived from the ledger, and read back where a person has edited them.

All under one file lock for each space. What is about to be written is noted in the ledger first (``intent``), so that
after a crash a file is known for what it is: the old one, the new one, or an edit. A file that cannot be taken in is
left as it is, a copy of it is kept in ``kept/``, and `Documents.left_alone` says why. Deleting a document forgets
nothing: it is written again.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec

from perdure.clock import Deadline
from perdure.errors import FormatRefused
from perdure.memory.document_edits import Edits, Shown, edits, shown_next
from perdure.memory.document_files import (
    aside_of,
    asides,
    digest_of,
    flush,
    keep_copy,
    look_of,
    read_text,
    slug,
    stage,
    swap,
    sync,
    take,
)
from perdure.memory.document_text import Read, Ties, read, write, write_moved
from perdure.memory.editing import carry_in
from perdure.memory.ledger import Ledger
from perdure.memory.plan import folded, sane_title
from perdure.memory.records import Fact, State, Topic
from perdure.memory.topic_store import Journal, facts_of, fill_in, live, new_topic, remember_routes, topics_of
from perdure.process.lock import FileLock
from perdure.store.refusals import explained

__all__ = ["Documents"]

_ROUNDS: Final = 8
_AT_ONCE: Final = 64
_UNFINISHED_S: Final = 10.0
_TOPICS: Final = "topics"
_ARCHIVE: Final = "archive"


class _Intent(msgspec.Struct):
    file: str
    digest: str
    shown: Shown


@dataclass(frozen=True, slots=True)
class _Edited:
    """A file that a person touched: whose it is, what it says, and what that means."""

    topic: int
    file: str
    digest: str
    read: Read
    edits: Edits


class Documents:
    """The documents of one space. Safe from any thread and from many processes."""

    def __init__(self, ledger: Ledger, folder: Path) -> None:
        self.ledger = ledger
        self.folder = folder
        self.left_alone: dict[str, str] = {}
        self._keep_copies = True
        self._looks: dict[str, tuple[int, int, int]] = {}

    def catch_up(self, *, wait_s: float = 30.0) -> list[int]:
        """Take in what people did, write what is not written, and return the changes that their edits made.

        Raises `DeadlineExceeded` where another process is at it for longer than ``wait_s``, `StorageFull` or
        `StorageError` where the files cannot be written; the ledger is whole then, and documents follow later.
        """
        with explained(str(self.folder), "write topic documents in"):
            return self._catch_up(wait_s)

    def _catch_up(self, wait_s: float) -> list[int]:
        for each in (_TOPICS, _ARCHIVE):
            (self.folder / each).mkdir(mode=0o700, exist_ok=True)
        changes: list[int] = []
        with FileLock.acquire(
            self.folder / "documents.lock", deadline=Deadline.after(wait_s, "the documents of this space")
        ):
            with self.ledger.change() as db:
                fill_in(db)
            self._recover()
            for _ in range(_ROUNDS):
                self.left_alone = {}
                changes += self._take_asides()
                changes += self._take_files()
                if not self._write():
                    break
            changes += self._take_asides()
        return changes

    def make_again(self) -> None:
        """Write what a purge has changed, and delete the copies that were kept, which may hold what was purged."""
        self._keep_copies = False
        try:
            for each in (self.folder / "kept").glob("*.md"):
                each.unlink(missing_ok=True)
            self.catch_up()
        finally:
            self._keep_copies = True

    def text(self, topic: int) -> str:
        """Return the document of a topic as the ledger has it now."""
        db = self.ledger.connection()
        return self._text(db, topics_of(db, [topic])[0])[0]

    # What people did

    def _take_asides(self) -> list[int]:
        """Look at what lay aside while it was replaced: an edit that came in that moment is carried in now."""
        changes: list[int] = []
        for part in (_TOPICS, _ARCHIVE):
            for path, topic, expected in asides(self.folder / part):
                name = f"{part}/{path.name}"
                with contextlib.suppress(FormatRefused):
                    data = take(path)
                    if data is not None and not digest_of(data).startswith(expected):
                        try:
                            found = self._read(topic, name, data)
                            changes += self._carry_in([found]) if found is not None else []
                        except FormatRefused as error:
                            self._leave(name, data, str(error))
                            if self.ledger.wall() - os.stat(path).st_mtime < _UNFINISHED_S:
                                continue  # it may be that it is being saved this moment
                os.unlink(path)
        return changes

    def _take_files(self) -> list[int]:
        """Carry in the edits of all files that are not as they were written."""
        db = self.ledger.connection()
        known = {row[0]: (row[1], row[2]) for row in db.execute("SELECT file, id, digest FROM topic WHERE file <> ''")}
        found: list[_Edited] = []
        there: set[str] = set()
        changes: list[int] = []
        for entry in sorted(os.scandir(self.folder / _TOPICS), key=lambda each: each.name):
            name = f"{_TOPICS}/{entry.name}"
            if entry.name.startswith(".") or not entry.name.endswith(".md"):
                continue
            there.add(name)
            look = look_of(Path(entry.path))
            if look is not None and name in known and self._looks.get(name) == look:
                continue
            data: bytes | None = None
            try:
                data = take(Path(entry.path))
                if data is None:
                    continue
                if name in known and digest_of(data) == known[name][1]:
                    if look is not None:
                        self._looks[name] = look
                    continue
                each = self._read(known[name][0], name, data) if name in known else self._foreign(name, data, known)
                found += [each] if each is not None else []
            except FormatRefused as error:
                self._leave(name, data, str(error))
        changes += self._carry_in(found)
        self._missing([(number, file) for file, (number, _) in known.items() if file not in there])
        return changes

    def _read(self, topic: int, name: str, data: bytes) -> _Edited | None:
        """Return what was done to a document of a topic. Raises `FormatRefused` where it cannot be taken in."""
        found = read(read_text(data))
        if (found.topic is not None or found.revision is not None) and not found.whole:
            raise FormatRefused(
                "lacks its last line, as if it had been saved by half; put it back: <!-- end of t... -->"
            )
        db = self.ledger.connection()
        if found.topic is not None and found.topic != topic and live(db, found.topic) != live(db, topic):
            raise FormatRefused(f"is the document of t{topic}, but says that it is t{found.topic}; correct its id")
        if found.topic is None and not (found.bullets or found.heading):
            raise FormatRefused("holds neither front matter nor a bullet; write '- ' before each fact")
        row = db.execute("SELECT notes, extra, shown FROM document WHERE topic = ?", (topic,)).fetchone()
        if row is None:
            return None
        shown = msgspec.json.decode(row[2], type=Shown)
        mine = facts_of(db, live(db, topic) or topic)
        facts = self._facts([each.fact for each in found.bullets if each.fact is not None])
        standing = [fact.text for fact in mine if fact.state is not State.FORGOTTEN]
        done = edits(found, shown, facts, standing=standing, notes=row[0], extra=row[1])
        return _Edited(topic, name, digest_of(data), found, done)

    def _facts(self, ids: Iterable[int]) -> dict[int, Fact | None]:
        """The facts of these ids; None for those that were purged."""
        wanted = sorted(set(ids))
        found: dict[int, Fact | None] = dict(self.ledger.facts(wanted))
        db = self.ledger.connection()
        for each in wanted:
            if each not in found and db.execute("SELECT 1 FROM fact WHERE id = ?", (each,)).fetchone():
                found[each] = None
        return found

    def _foreign(self, name: str, data: bytes, known: dict[str, tuple[int, str]]) -> _Edited | None:
        """Return what a file means that is under no name of ours: renamed, archived meanwhile, or made by hand."""
        found = read(read_text(data))
        db = self.ledger.connection()
        topics = topics_of(db, [found.topic]) if found.topic is not None else []
        if topics:
            topic = topics[0]
            if not topic.file and digest_of(data) == self._digest(topic.id):
                os.unlink(self.folder / name)  # ours; what its name was had to be forgotten
                return None
            path = self.folder / topic.file
            if topic.file.startswith(_ARCHIVE):  # saved from a view of before it was merged or emptied
                return self._read(topic.id, name, data)
            if topic.file and path.exists() and path.name != Path(name).name:
                if digest_of(data) == known[topic.file][1]:
                    raise FormatRefused(f"is a copy of {path.name}; it may be deleted")
                raise FormatRefused(
                    f"says that it is {topic.name}, as {path.name} does; take the id out of one of them"
                )
            with self.ledger.change() as change:
                change.execute("UPDATE topic SET file = ? WHERE id = ?", (name, topic.id))
            return self._read(topic.id, name, data)
        if not (found.bullets or found.heading or found.title):
            raise FormatRefused("holds neither front matter nor a bullet; write '- ' before each fact")
        title = sane_title(found.title or found.heading or Path(name).stem) or "Topic"
        with self.ledger.change() as change:
            number = new_topic(change, title, Journal())
            change.execute("UPDATE topic SET file = ? WHERE id = ?", (name, number))
            remember_routes(change, {folded(title): number})
        return self._read(number, name, data)

    def _digest(self, topic: int) -> str:
        found = self.ledger.connection().execute("SELECT digest FROM topic WHERE id = ?", (topic,)).fetchone()
        return str(found[0]) if found is not None else ""

    def _carry_in(self, found: Sequence[_Edited]) -> list[int]:
        """Carry edits in; a fact that left one document for another was moved, not removed."""
        moved = {fact for each in found for fact in each.edits.moved}
        changes: list[int] = []
        for each in found:
            removed = tuple(fact for fact in each.edits.removed if fact not in moved)
            done = replace(each.edits, removed=removed)
            key = f"document:t{each.topic}:{each.digest[:24]}:{each.read.revision or 0}"
            change = carry_in(self.ledger, done, topic=each.topic, source=each.file, key=key)
            changes += [change] if change is not None else []
            with self.ledger.change() as db:
                file = db.execute("SELECT file FROM topic WHERE id = ?", (each.topic,)).fetchone()[0]
                if file == each.file:
                    stale = change is not None or each.read.topic is None
                    db.execute(
                        "UPDATE topic SET digest = ?, written = CASE WHEN ? THEN -1 ELSE written END WHERE id = ?",
                        (each.digest, stale, each.topic),
                    )
            if file.startswith(_ARCHIVE):
                self._drop(each.topic, each.file, each.digest, file)
        return changes

    def _missing(self, gone: Sequence[tuple[int, str]]) -> None:
        """Have deleted documents written again."""
        for topic, file in gone:
            if not file.startswith(_TOPICS) or (self.folder / file).exists():
                continue
            with self.ledger.change() as db:
                db.execute("UPDATE topic SET written = -1, digest = '' WHERE id = ? AND file = ?", (topic, file))
            self.left_alone[file] = "was deleted, and is written again; to have its facts forgotten, use forget"

    def _leave(self, name: str, data: bytes | None, why: str) -> None:
        """Leave a file alone, keep a copy of it, and say why."""
        self.left_alone[name] = why
        if data is not None and data.strip() and self._keep_copies:
            keep_copy(self.folder / "kept", Path(name).name, data)

    # What is written

    def _recover(self) -> None:
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
                self._drop(topic, file, digest, meant.file)
                self._finish([(topic, meant)])
            else:
                with self.ledger.change() as change:
                    change.execute("UPDATE document SET intent = NULL WHERE topic = ?", (topic,))

    def _write(self) -> bool:
        """Write the documents that do not show the latest revision; return whether there is more to look at."""
        db = self.ledger.connection()
        stale = [row[0] for row in db.execute("SELECT id FROM topic WHERE revision <> written ORDER BY id")]
        wrote = False
        for at in range(0, len(stale), _AT_ONCE):
            wrote |= self._write_some(stale[at : at + _AT_ONCE])
        return wrote and bool(self._aside_edits())

    def _write_some(self, numbers: Sequence[int]) -> bool:
        db = self.ledger.connection()
        db.execute("BEGIN")  # one view of all that these documents show
        try:
            todo = []
            for topic in topics_of(db, numbers):
                text, shown, archived = self._text(db, topic)
                if topic.file in self.left_alone and os.path.lexists(self.folder / topic.file):
                    continue
                digest = self._digest(topic.id)
                todo.append(
                    (topic, digest, text.encode(), _Intent(_file(topic, archived), digest_of(text.encode()), shown))
                )
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
                self.left_alone[intent.file] = str(error)
        for part in {Path(intent.file).parent for _, _, intent in done}:
            sync(self.folder / part)
        for topic, digest, intent in done:  # while the intent still tells whose the old name was
            self._drop(topic.id, topic.file, digest, intent.file)
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

    def _drop(self, topic: int, file: str, digest: str, new: str) -> None:
        """Take away the file that a topic had under another name; it is looked at once more from aside."""
        path = self.folder / file
        if file and file != new and look_of(path) is not None:
            aside_of(path, topic=topic, expected=digest)
            os.unlink(path)
            sync(path.parent)

    def _aside_edits(self) -> bool:
        """Whether anything lies aside that is not what was expected there."""
        for path, _, expected in asides(self.folder / _TOPICS):
            with contextlib.suppress(FormatRefused):
                data = take(path)
                if data is not None and not digest_of(data).startswith(expected):
                    return True
        return False

    def _text(self, db: sqlite3.Connection, topic: Topic) -> tuple[str, Shown, bool]:
        """Return the document of a topic, what it shows, and whether it is archived."""
        row = db.execute("SELECT notes, extra, shown FROM document WHERE topic = ?", (topic.id,)).fetchone()
        facts = [fact for fact in facts_of(db, topic.id) if fact.state is not State.FORGOTTEN]
        updated = dt.datetime.fromtimestamp(self.ledger.wall(), dt.UTC).isoformat(timespec="seconds")
        archived = topic.into is not None or not (facts or row[0])
        if archived:
            text = write_moved(topic, updated)
        else:
            text = write(topic, facts, _ties(db, topic.id), notes=row[0], extra=row[1], updated=updated)
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


def _file(topic: Topic, archived: bool) -> str:
    """The file of a topic: after its title, unless a person gave it a name."""
    name = Path(topic.file).name
    if not name or name.endswith(f"--{topic.name}.md"):
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
