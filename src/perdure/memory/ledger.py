"""The ledger of one space: what was told, durable before it is acknowledged, and never rewritten.

SQLite in WAL mode with ``synchronous=FULL``: a commit is one append and one fsync, and readers never wait. Each thread
reads by a connection of its own, which closes when the thread ends; all of a process write by one, whoever of them
leads (`perdure.memory.group_commit`), and processes take turns (`perdure.memory.turns`). A forked child begins
with connections of its own (`perdure.memory.forks`).
"""

from __future__ import annotations

import json
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from perdure.errors import BlobCorrupt, BlobMissing, CallError, DeadlineExceeded
from perdure.memory.connections import Connections
from perdure.memory.counting import count_revisions
from perdure.memory.group_commit import GroupCommit
from perdure.memory.records import Evidence, Fact, Observed, Role, State
from perdure.memory.schema import check, create
from perdure.memory.sqlite_files import (
    File,
    check_plain,
    cut_log,
    explained_sqlite,
    holders_of,
    sync_folders,
)
from perdure.memory.told import Told, as_body, as_text
from perdure.memory.turns import Turns

__all__ = ["DEADLINE_S", "FACTS", "Ledger", "as_body", "as_text", "fact_of", "meta_of", "role_of"]

DEADLINE_S: Final = 30.0
"""How long a writer waits for others unless told otherwise."""

_PATIENCE_S: Final = 10.0
_ROLES: Final = frozenset(each.value for each in Role)
_STATES: Final = frozenset(each.value for each in State)
_LEAST_BYTES: Final = 4096

FACTS: Final = """SELECT f.id, f.evidence, f.start, f.stop, f.passage, f.text, e.speaker, e.role, e.source, e.observed,
 e.observed_s, f.state, f.since, f.until, f.topic FROM fact f JOIN evidence e ON e.id = f.evidence"""
"""The rows that `fact_of` reads."""

_EVIDENCE: Final = "SELECT id, body, source, speaker, role, observed, observed_s, identity, meta FROM evidence"


class Ledger:
    """The tables of a space. Safe to use from any thread and from many processes at once, forked ones included.

    A writer that waits for longer than ``deadline_s`` gives up with `DeadlineExceeded`. Raises, when it is opened,
    `FormatRefused` or `perdure.errors.BlobCorrupt` for a file that is no ledger, `StorageError` where it may not write.
    """

    def __init__(self, path: Path, *, wall: Callable[[], float] = time.time, deadline_s: float = DEADLINE_S) -> None:
        self.path = path
        self.wall = wall
        self.deadline_s = deadline_s
        self._closed = False
        self._connections = Connections(path, busy_s=deadline_s, prepare=_prepare, made=False)
        self._begin()
        try:
            self._open()
        except BaseException:
            self.close()
            raise
        _ledgers.add(self)

    def _begin(self) -> None:
        self._local = threading.local()
        self._writer: File | None = None
        self._turns = Turns(self.path.with_name("ledger.lock"))
        self._group: GroupCommit[Sequence[Told], list[Observed]] = GroupCommit(self._write)

    def _open(self) -> None:
        until = time.monotonic() + self.deadline_s
        with explained_sqlite(self.path):
            there = os.path.lexists(self.path)
        check_plain(self.path)
        if there and os.stat(self.path).st_size < _LEAST_BYTES:  # SQLite would begin a new one in it
            raise BlobCorrupt(
                f"{self.path} is empty or nearly, as no ledger ever is: it was cut off; put a backup in its place, or"
                " move it away to begin anew",
                file=str(self.path),
            )
        if not there:
            self._turns.take(until)
            try:
                if not os.path.lexists(self.path):
                    if Path(f"{self.path}-wal").exists():
                        raise BlobMissing(
                            f"{self.path} is gone but what was last written to it is there ({self.path.name}-wal);"
                            " put both back, or move that away as well to begin anew",
                            file=str(self.path),
                        )
                    create(self.path)
            finally:
                self._turns.give()
        self._inode = self._inode_now()
        db = self.connection()
        check(db)
        self._check_whole(db)
        self.id: str = db.execute("SELECT value FROM space WHERE key = 'id'").fetchone()[0]
        # Whoever made it may have died before its names were durable.
        with explained_sqlite(self.path):
            sync_folders(self.path.parent)

    def _check_whole(self, db: File) -> None:
        want = db.execute("PRAGMA page_count").fetchone()[0] * db.execute("PRAGMA page_size").fetchone()[0]
        have = os.stat(self.path).st_size
        try:
            newer = os.stat(f"{self.path}-wal").st_size > 0
        except FileNotFoundError:
            newer = False
        if have < want and not newer:  # what the WAL holds may not be in it yet
            raise BlobCorrupt(
                f"{self.path} was cut off: {have} of {want} bytes are there; put a backup in its place",
                file=str(self.path),
            )

    def connection(self) -> File:
        """This thread's connection: to read, or within `change` the one of that change."""
        writing: File | None = getattr(self._local, "writing", None)
        if writing is not None:
            return writing
        return self._connections.here()

    @contextmanager
    def change(self, *, deadline_s: float | None = None, synced: bool = True) -> Iterator[File]:
        """One transaction that writes: all of it or, after an error, nothing. A change within a change is part of it.

        One that is not ``synced`` may be lost, as a whole, to a power cut: for what is made again anyway.

        Raises `DeadlineExceeded` where others do not let go, `StorageFull` where the disk is full.
        """
        inner: File | None = getattr(self._local, "writing", None)
        if inner is not None:
            yield inner
            return
        until = time.monotonic() + (self.deadline_s if deadline_s is None else deadline_s)
        if not self._group.lead(until=until):
            raise DeadlineExceeded(
                f"another thread of this process has been writing to {self.path} all the time; do it again",
                missing=[str(self.path)],
            )
        try:
            with self._transaction(until, synced=synced) as db:
                self._local.writing = db
                try:
                    yield db
                finally:
                    self._local.writing = None
        finally:
            self._group.follow()

    @contextmanager
    def _alone(self, until: float) -> Iterator[File]:
        """The connection that writes, with nobody else writing."""
        if not self._group.lead(until=until):
            raise DeadlineExceeded(
                f"another thread of this process has been writing to {self.path} all the time; do it again",
                missing=[str(self.path)],
            )
        try:
            with self._turn(until) as db:
                yield db
        finally:
            self._group.follow()

    @contextmanager
    def _turn(self, until: float) -> Iterator[File]:
        """By who leads only."""
        if self._writer is None:
            self._writer = self._connections.another()
            count_revisions(self._writer)
        self._turns.take(until)
        try:
            self.check_there()
            yield self._writer
        finally:
            self._turns.give()

    @contextmanager
    def _transaction(self, until: float, *, synced: bool = True) -> Iterator[File]:
        """By who leads only."""
        with self._turn(until) as db:
            if not synced:
                db.execute("PRAGMA synchronous = NORMAL")
            try:
                self._start(db, until)
                try:
                    yield db
                    db.execute("COMMIT")
                except BaseException:
                    if not db.closing and db.in_transaction:
                        db.execute("ROLLBACK")
                    raise
            finally:
                if not synced and not db.closing:
                    db.execute("PRAGMA synchronous = FULL")

    def check_there(self) -> None:
        """Raise `BlobMissing` where the file was taken away or replaced: this memory reads what nobody else can."""
        if self._inode_now() != self._inode:
            raise BlobMissing(
                f"{self.path} was taken away or replaced while it was open; put it back, and open it again",
                file=str(self.path),
            )

    def _inode_now(self) -> int:
        try:
            return os.stat(self.path).st_ino
        except OSError:
            return -1

    def _start(self, db: File, until: float) -> None:
        try:
            db.execute("BEGIN IMMEDIATE")
        except DeadlineExceeded as error:
            raise DeadlineExceeded(
                f"gave up waiting to write to {self.path}: a program that takes no turns has it open"
                f" ({holders_of(self.path)}); end its transaction, or do it again",
                missing=[str(self.path)],
            ) from error

    def append(
        self,
        text: str,
        *,
        source: str,
        speaker: str,
        role: Role,
        observed: tuple[str, float],
        key: str | None,
        dated: bool,
        meta: Mapping[str, object] | None,
    ) -> Observed:
        """Keep what was told. When this returns, pulling the plug loses nothing of it.

        The same ``key`` again, or the same words of the same source, speaker and given time (``dated``), is the same
        observation; the same key with other words raises `CallError`.
        """
        told = Told.of(
            text, source=source, speaker=speaker, role=role, observed=observed, key=key, dated=dated, meta=meta
        )
        return self.keep([told])[0]

    def keep(self, told: Sequence[Told]) -> list[Observed]:
        """Keep all of ``told`` in one transaction, or nothing of it; durable when this returns."""
        inner: File | None = getattr(self._local, "writing", None)
        if inner is not None:
            return self._keep(inner, told)
        if not told:
            return []
        return self._group.submit(told, until=time.monotonic() + self.deadline_s)

    def _write(self, works: Sequence[Sequence[Told]], until: float) -> list[list[Observed] | BaseException]:
        """What several threads want kept, in one transaction; what fails by itself fails alone."""
        try:
            with self._transaction(until) as db:
                results: list[list[Observed] | BaseException] = [self._keep(db, told) for told in works]
            return results
        except Exception as error:
            if len(works) == 1:
                return [error]
            if not isinstance(error, CallError):
                return [error] * len(works)
        return [self._write([told], until)[0] for told in works]

    def _keep(self, db: File, told: Sequence[Told]) -> list[Observed]:
        now_s = self.wall()
        fact = db.execute("SELECT coalesce(max(id), 0) + 1 FROM fact").fetchone()[0]
        kept: list[Observed] = []
        for each in told:
            known = self._known(db, each)
            if known is None:
                evidence = db.execute(
                    "INSERT INTO evidence(body, source, speaker, role, observed, observed_s, told_s, identity, meta)"
                    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    (*each.row[:6], now_s, *each.row[6:]),
                ).lastrowid
                assert evidence is not None
                db.executemany(
                    "INSERT INTO fact(id, evidence, start, stop, passage, text) VALUES (?, ?, ?, ?, ?, ?)",
                    [
                        (fact + at, evidence, start, stop, fact + head, body)
                        for at, (start, stop, head, body) in enumerate(each.spans)
                    ],
                )
                known = Observed(evidence, tuple(range(fact, fact + len(each.spans))))
                fact += len(each.spans)
            kept.append(known)
        return kept

    def _known(self, db: File, told: Told) -> Observed | None:
        if told.identity is None:
            return None
        row = db.execute("SELECT id, body FROM evidence WHERE identity = ?", (told.identity,)).fetchone()
        if row is None:
            return None
        if told.key is not None and row[1] is not None and row[1] != told.row[0]:
            raise CallError(f"key {told.key!r} was given with other words before, e{row[0]}; give each text its own")
        ids = [fact for (fact,) in db.execute("SELECT id FROM fact WHERE evidence = ? ORDER BY id", (row[0],))]
        return Observed(row[0], tuple(ids), new=False)

    def facts(self, ids: Iterable[int]) -> dict[int, Fact]:
        """Return the facts that there are of ``ids``, without those that were purged."""
        wanted = list(ids)
        found: dict[int, Fact] = {}
        for at in range(0, len(wanted), 500):
            some = wanted[at : at + 500]
            marks = ",".join("?" * len(some))
            for row in self.connection().execute(f"{FACTS} WHERE f.id IN ({marks}) AND f.text IS NOT NULL", some):
                found[row[0]] = fact_of(row)
        return found

    def evidence(self, number: int) -> Evidence | None:
        """Return a piece of evidence, or None where there is none, or no longer."""
        row = self.connection().execute(f"{_EVIDENCE} WHERE id = ? AND body IS NOT NULL", (number,)).fetchone()
        return None if row is None else evidence_of(row)

    def compact(self, *, vacuum: bool, until: float) -> None:
        """Cut the write-ahead log to nothing, and with ``vacuum`` write the whole file anew, without what was deleted.

        Raises `DeadlineExceeded` where readers or writers do not let go by ``until`` (`time.monotonic`).
        """
        with self._alone(until) as db:
            if vacuum:
                db.execute("VACUUM")
            cut_log(db, until=until)

    def close(self) -> None:
        """Close all connections, of all threads. Twice is fine."""
        # A transaction of another thread ends first; one that does not end is rolled back.
        alone = getattr(self._local, "writing", None) is None and self._group.lead(until=time.monotonic() + _PATIENCE_S)
        self._closed = True
        self._connections.close()
        self._writer = None
        self._turns.close()
        if alone:
            self._group.follow()

    def _after_fork(self) -> None:
        self._turns.close()  # the parent's stays as it is: it is another descriptor of the same open file
        if not self._closed:
            self._begin()


def _prepare(db: File) -> None:
    db.execute("PRAGMA trusted_schema = OFF")
    db.execute("PRAGMA cell_size_check = ON")
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    db.execute("PRAGMA secure_delete = ON")
    db.execute("PRAGMA cache_size = -8192")


def fact_of(row: Sequence[Any]) -> Fact:
    """Return the fact in a row of `FACTS`."""
    return Fact(
        id=row[0],
        evidence=row[1],
        start=row[2],
        stop=row[3],
        passage=row[4],
        text=as_text(row[5]),
        speaker=row[6],
        role=role_of(row[7]),
        source=row[8],
        observed=row[9],
        observed_s=row[10],
        state=_state(row[11]),
        since=row[12],
        until=row[13],
        topic=row[14],
    )


def evidence_of(row: Sequence[Any]) -> Evidence:
    """Return the evidence in a row of its table."""
    key = row[7].removeprefix("k:") if row[7] and row[7].startswith("k:") else None
    return Evidence(row[0], as_text(row[1]), row[2], row[3], role_of(row[4]), row[5], row[6], key, meta_of(row[8]))


def meta_of(text: str | None) -> dict[str, Any]:
    """The meta of a row; none where it is damaged."""
    try:
        told = json.loads(text or "{}")
    except (ValueError, TypeError, RecursionError):
        return {}
    return told if isinstance(told, dict) else {}


def role_of(value: str) -> Role:
    """The role of a row; the one of least authority where it is damaged, until `perdure.memory.doctor` mends it."""
    return Role(value) if value in _ROLES else Role.TOOL


def _state(value: str) -> State:
    """The state of a row; forgotten where it is damaged, until `perdure.memory.doctor` derives it again."""
    return State(value) if value in _STATES else State.FORGOTTEN


_ledgers: weakref.WeakSet[Ledger] = weakref.WeakSet()


def _forked() -> None:
    for each in list(_ledgers):
        each._after_fork()


os.register_at_fork(after_in_child=_forked)
