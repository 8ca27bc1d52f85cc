"""The ledger of one space: what was told, durable before it is acknowledged, and never rewritten.

SQLite in WAL mode with ``synchronous=FULL``: a commit is one append and one fsync, and readers never wait. Each thread
has a connection of its own.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from perdure.errors import CallError, DeadlineExceeded, FormatRefused
from perdure.memory.counting import count_revisions
from perdure.memory.records import Evidence, Fact, Observed, Role, State
from perdure.memory.schema import FORMAT, TABLES
from perdure.memory.statements import statements

__all__ = ["FACTS", "Ledger", "fact_of"]

_BUSY_S: Final = 30.0

FACTS: Final = """SELECT f.id, f.evidence, f.start, f.stop, f.passage, f.text, e.speaker, e.role, e.source, e.observed,
 e.observed_s, f.state, f.since, f.until, f.topic FROM fact f JOIN evidence e ON e.id = f.evidence"""
"""The rows that `fact_of` reads."""


class Ledger:
    """The tables of a space. Safe to use from any thread and from many processes at once."""

    def __init__(self, path: Path, *, wall: Callable[[], float] = time.time) -> None:
        self.path = path
        self.wall = wall
        self._local = threading.local()
        self._all: list[sqlite3.Connection] = []
        self._lock = threading.Lock()
        with self.change() as db:
            if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'space'").fetchone():
                for statement in TABLES.split(";"):
                    db.execute(statement)
                db.execute("INSERT INTO space VALUES ('format', ?)", (str(FORMAT),))
        count_revisions(self.connection())
        found = self.connection().execute("SELECT value FROM space WHERE key = 'format'").fetchone()
        if found is None or found[0] != str(FORMAT):
            raise FormatRefused(
                f"{path} has format {found and found[0]}; this release reads format {FORMAT}", file=str(path)
            )

    def connection(self) -> sqlite3.Connection:
        """This thread's connection."""
        db: sqlite3.Connection | None = getattr(self._local, "db", None)
        if db is None:
            db = sqlite3.connect(self.path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = FULL")
            db.execute("PRAGMA secure_delete = ON")
            if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'document'").fetchone():
                count_revisions(db)
            self._local.db = db
            with self._lock:
                self._all.append(db)
        return db

    @contextmanager
    def change(self) -> Iterator[sqlite3.Connection]:
        """One transaction that writes: all of it or, after an error, nothing. A change within a change is part of it.

        Raises `DeadlineExceeded` where another writer does not let go.
        """
        db = self.connection()
        if db.in_transaction:
            yield db
            return
        try:
            db.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error):
                raise
            raise DeadlineExceeded(
                f"another process has held {self.path} for {_BUSY_S:.0f} s; see who does with fuser",
                missing=[str(self.path)],
            ) from error
        try:
            yield db
        except BaseException:
            db.execute("ROLLBACK")
            raise
        db.execute("COMMIT")

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
        identity = _identity(text, source, speaker, role, observed[0], key, dated)
        with self.change() as db:
            if identity is not None:
                known = db.execute("SELECT id, body FROM evidence WHERE identity = ?", (identity,)).fetchone()
                if known is not None:
                    if key is not None and known[1] is not None and _text(known[1]) != text:
                        raise CallError(
                            f"key {key!r} was given with other words before, e{known[0]}; give each text its own"
                        )
                    ids = [
                        row[0] for row in db.execute("SELECT id FROM fact WHERE evidence = ? ORDER BY id", (known[0],))
                    ]
                    return Observed(known[0], tuple(ids), new=False)
            cursor = db.execute(
                "INSERT INTO evidence(body, source, speaker, role, observed, observed_s, told_s, identity, meta)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    _body(text),
                    source,
                    speaker,
                    role.value,
                    *observed,
                    self.wall(),
                    identity,
                    json.dumps(dict(meta)) if meta else None,
                ),
            )
            evidence = cursor.lastrowid
            assert evidence is not None
            first = db.execute("SELECT coalesce(max(id), 0) + 1 FROM fact").fetchone()[0]
            spans = statements(text)
            db.executemany(
                "INSERT INTO fact(id, evidence, start, stop, passage, text) VALUES (?, ?, ?, ?, ?, ?)",
                [
                    (first + at, evidence, start, stop, first + head, _body(text[start:stop]))
                    for at, (start, stop, head) in enumerate(spans)
                ],
            )
        return Observed(evidence, tuple(range(first, first + len(spans))))

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
        row = (
            self.connection()
            .execute(
                "SELECT id, body, source, speaker, role, observed, observed_s, identity, meta FROM evidence"
                " WHERE id = ? AND body IS NOT NULL",
                (number,),
            )
            .fetchone()
        )
        if row is None:
            return None
        key = row[7].removeprefix("k:") if row[7] and row[7].startswith("k:") else None
        return Evidence(
            row[0], _text(row[1]), row[2], row[3], Role(row[4]), row[5], row[6], key, json.loads(row[8] or "{}")
        )

    def close(self) -> None:
        """Close all connections, of all threads."""
        with self._lock:
            for db in self._all:
                db.close()
            self._all.clear()
        self._local = threading.local()


def fact_of(row: Sequence[Any]) -> Fact:
    """Return the fact in a row of `FACTS`."""
    return Fact(
        id=row[0],
        evidence=row[1],
        start=row[2],
        stop=row[3],
        passage=row[4],
        text=_text(row[5]),
        speaker=row[6],
        role=Role(row[7]),
        source=row[8],
        observed=row[9],
        observed_s=row[10],
        state=State(row[11]),
        since=row[12],
        until=row[13],
        topic=row[14],
    )


def _identity(
    text: str, source: str, speaker: str, role: Role, observed: str, key: str | None, dated: bool
) -> str | None:
    if key is not None:
        return f"k:{key}"
    if not dated:
        return None
    parts = json.dumps([text, source, speaker, role.value, observed])
    return "d:" + hashlib.sha256(parts.encode()).hexdigest()[:32]


def _body(text: str) -> str | bytes:
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")
    return text


def _text(body: str | bytes) -> str:
    return body if isinstance(body, str) else body.decode("utf-8", "surrogatepass")
