"""Take in what people did to the files of topic documents: find it, understand it, carry it into the ledger.

A file that cannot be understood is left as it is, a copy of it is kept in ``kept/``, and ``left_alone`` says why.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec

from perdure.errors import FormatRefused
from perdure.memory.document_edits import Edits, Shown, edits
from perdure.memory.document_files import (
    asides,
    digest_of,
    drop,
    keep_copy,
    look_of,
    read_text,
    take,
)
from perdure.memory.document_text import Read, read
from perdure.memory.editing import carry_in
from perdure.memory.ledger import Ledger
from perdure.memory.plan import folded, sane_title
from perdure.memory.records import Fact, State
from perdure.memory.steps import Journal, new_topic
from perdure.memory.topic_store import digest_noted, facts_of, live, remember_routes, topics_of

__all__ = ["Intake"]

_UNFINISHED_S: Final = 10.0
_TOPICS: Final = "topics"
_ARCHIVE: Final = "archive"
_BRING_BACK: Final = (
    "restore a backup of that ledger or import its export, and move this file out of topics/; or make a document of"
    " your own of what holds, in plain bullets"
)


@dataclass(frozen=True, slots=True)
class _Edited:
    """A file that a person touched: whose it is, what it says, and what that means."""

    topic: int
    file: str
    digest: str
    read: Read
    edits: Edits


class Intake:
    """Reads the files of one space, under the lock of its documents."""

    def __init__(self, ledger: Ledger, folder: Path) -> None:
        self.ledger = ledger
        self.folder = folder
        self.left_alone: dict[str, str] = {}
        self.keeps_copies = True
        self._looks: dict[str, tuple[int, int, int]] = {}

    def take_asides(self) -> list[int]:
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

    def take_files(self) -> list[int]:
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
        self._check_ours(found)
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
        if found.topic is not None and (found.revision or 0) > topics_of(db, [found.topic])[0].revision:
            raise FormatRefused(
                f"is ahead of this ledger (revision {found.revision}), as one that was lost had it; {_BRING_BACK}"
            )
        shown = msgspec.json.decode(row[2], type=Shown)
        mine = facts_of(db, live(db, topic) or topic)
        facts = self._facts([each.fact for each in found.bullets if each.fact is not None])
        standing = [fact.text for fact in mine if fact.state is not State.FORGOTTEN]
        done = edits(found, shown, facts, standing=standing, notes=row[0], extra=row[1])
        return _Edited(topic, name, digest_of(data), found, done)

    def _check_ours(self, found: Read) -> None:
        """Raise `FormatRefused` for the document of another ledger: its ids mean other facts here, or none."""
        if found.ledger is None or found.ledger == self.ledger.id:
            return
        db = self.ledger.connection()
        if not db.execute("SELECT 1 FROM space WHERE key = ?", (f"former:{found.ledger}",)).fetchone():
            raise FormatRefused(f"belongs to another ledger ({found.ledger[:8]}); {_BRING_BACK}")

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
        self._check_ours(found)
        db = self.ledger.connection()
        topics = topics_of(db, [found.topic]) if found.topic is not None else []
        if found.topic is not None and not topics:
            raise FormatRefused(f"is of t{found.topic}, which this ledger does not have; {_BRING_BACK}")
        if topics:
            topic = topics[0]
            if not topic.file and digest_of(data) == digest_noted(self.ledger.connection(), topic.id):
                os.unlink(self.folder / name)  # ours; what its name was had to be forgotten
                return None
            if not topic.file and found.revision is not None and found.ledger is None:
                raise FormatRefused(f"does not say which ledger it is of; {_BRING_BACK}")
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
                drop(self.folder, each.topic, each.file, each.digest, file)
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
        if data is not None and data.strip() and self.keeps_copies:
            keep_copy(self.folder / "kept", Path(name).name, data)
