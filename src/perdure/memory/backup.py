"""Copies of a space as one file, made while others write; and a space made from such a file.

A backup is what the ledger held at one moment. It is an SQLite file without a log, durable before it has its name, and
noted in the ledger, so that a purge reaches it.
"""

from __future__ import annotations

import datetime as dt
import os
import secrets
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from perdure.errors import CallError, DeadlineExceeded, StorageError
from perdure.memory.forks import Call
from perdure.memory.ledger import Ledger
from perdure.memory.schema import check
from perdure.memory.sqlite_files import connect, explained_sqlite
from perdure.memory.whole_files import publish, sync_file, temporary_beside
from perdure.store import open_store
from perdure.store.refusals import explained

__all__ = ["backup", "note_copy", "restore"]

_DEADLINE_S: Final = 600.0
_PAGES: Final = 2048
_PIECE_BYTES: Final = 4 << 20


def backup(ledger: Ledger, to: str | os.PathLike[str] | None = None, *, deadline_s: float = _DEADLINE_S) -> str:
    """Copy the ledger to a new file, and return where that is.

    ``to`` is the file, by default one named for the time in ``backups`` beside the ledger; or, with ``://`` in it, the
    URL of a store (`perdure.store.open_store`), in which the backup gets such a name.

    Raises `CallError` where the file exists, `DeadlineExceeded` after ``deadline_s``, `perdure.errors.StorageFull`.
    """
    until = time.monotonic() + deadline_s
    name = dt.datetime.fromtimestamp(ledger.wall(), dt.UTC).strftime("%Y%m%dT%H%M%S-") + f"{secrets.token_hex(3)}.db"
    if isinstance(to, str) and "://" in to:
        place = f"{to}#{name}"
        note_copy(ledger, place, "stored")
        with temporary_beside(ledger.path) as temporary:
            _copy(ledger, temporary, until)
            open_store(to).put(name, _pieces(temporary))
        return place
    path = Path(to if to is not None else ledger.path.parent / "backups" / name).absolute()
    if os.path.lexists(path):
        raise CallError(f"{path} exists already; give another name", file=str(path))
    note_copy(ledger, str(path), "backup")  # before there is one: a purge must not miss it
    with temporary_beside(path) as temporary:
        _copy(ledger, temporary, until)
        publish(temporary, path, replace=False)
    return str(path)


def restore(file: str | os.PathLike[str], folder: Path) -> None:
    """Make ``folder`` a space again from a backup; indexes and documents are made anew when it is opened.

    It becomes a space of its own (another ``id``), for both may go on. Raises `CallError` where a ledger is there
    already, `perdure.errors.FormatRefused` for a file that is no backup.
    """
    source, path = Path(file), folder / "ledger.db"
    if os.path.lexists(path) or os.path.lexists(f"{path}-wal"):
        raise CallError(f"{folder} holds a ledger already; restore to another space, or move that one away first")
    with explained(str(source), "read"):
        os.stat(source)
    db = connect(source, busy_s=5.0)
    try:
        check(db)
        with temporary_beside(path) as temporary:
            copy = connect(temporary, busy_s=0.0)
            try:
                with explained_sqlite(source):
                    db.backup(copy)
                bad = copy.execute("PRAGMA quick_check").fetchone()[0]
                if bad != "ok":
                    raise StorageError(f"{source} is damaged ({bad}); take another backup", file=str(source))
                copy.execute("INSERT OR REPLACE INTO space SELECT 'former:' || value, '' FROM space WHERE key = 'id'")
                copy.execute("UPDATE space SET value = ? WHERE key = 'id'", (secrets.token_hex(16),))
                copy.execute("UPDATE topic SET written = -1")
                copy.execute("DELETE FROM copy")
                copy.execute("DELETE FROM lease")
                copy.execute("PRAGMA journal_mode = WAL")
            finally:
                copy.close()
            sync_file(temporary)
            publish(temporary, path, replace=False)
    finally:
        db.close()


def note_copy(ledger: Ledger, place: str, kind: str) -> None:
    """Note that a copy of the space is at ``place`` from now on."""
    with ledger.change() as db:
        db.execute("INSERT OR REPLACE INTO copy VALUES (?, ?, ?)", (place, kind, ledger.wall()))


def _copy(ledger: Ledger, path: Path, until: float) -> None:
    """What the ledger holds at this moment, durable, at the new file ``path``."""

    def on_time(status: int, remaining: int, total: int) -> None:
        if time.monotonic() > until:
            raise DeadlineExceeded(
                f"the backup was not done in time, {remaining} of {total} pages were left; give it longer", missing=[]
            )

    source = ledger.connection()
    copy = connect(path, busy_s=0.0)
    try:
        source.execute("BEGIN")  # one moment for all of it, whoever writes meanwhile
        try:
            source.execute("SELECT 1 FROM space").fetchone()
            with explained_sqlite(path), Call(source):
                sqlite3.Connection.backup(source, copy, pages=_PAGES, progress=on_time, sleep=0.0)
        finally:
            source.execute("ROLLBACK")
        copy.execute("PRAGMA journal_mode = DELETE")
        copy.execute("DELETE FROM copy")
        copy.execute("DELETE FROM lease")
    finally:
        copy.close()
    with explained(str(path), "protect"):
        os.chmod(path, 0o600)
    sync_file(path)


def _pieces(path: Path) -> Iterator[bytes]:
    with explained(str(path), "read"), open(path, "rb") as file:
        while piece := file.read(_PIECE_BYTES):
            yield piece
