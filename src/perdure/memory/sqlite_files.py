"""Connections to the SQLite files of a space, whose errors are those of perdure.

A file that lies on a disk may be full, taken away, cut off, or not what it says it is. SQLite tells that in words for
programmers, at any statement and at any row; here each becomes an error that says what to do. What is only a mistake
of ours (a statement that does not parse, a constraint) passes unchanged.

No code of this process may open and close such a file by itself: closing *any* descriptor of a file drops the locks
that SQLite holds on it for the whole process (POSIX). So what a file is, is asked of SQLite or of ``stat``, and its
bytes are read by another process (`perdure.memory.traces`).
"""

from __future__ import annotations

import errno
import os
import sqlite3
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from perdure.errors import (
    BlobCorrupt,
    BlobMissing,
    CallError,
    DeadlineExceeded,
    FormatRefused,
    PerdureError,
    StorageError,
)
from perdure.memory.forks import Call, enrol, is_barred
from perdure.store.refusals import explain as explain_errno

__all__ = ["File", "Held", "check_plain", "connect", "cut_log", "explained_sqlite", "holders_of", "sync_folders"]

_LONGEST_BYTES: Final = 1_000_000_000
_SHOWN: Final = 4
_PATIENCE_S: Final = 10.0
_GARBLED: Final = ("Could not decode to UTF-8", "no such table", "no such column", "malformed", "no such index")
"""What SQLite says, by another code, of damage: every table and column that we name is there when a file is opened."""


class _Rows(sqlite3.Cursor):
    """A cursor whose errors are explained, also those of a row far down."""

    connection: File

    def execute(self, sql: str, parameters: Any = (), /) -> _Rows:
        db = self.connection
        try:
            with Call(db):
                super().execute(sql, parameters)
        except (sqlite3.Error, OverflowError, UnicodeError) as error:
            raise db.explain(error) from error
        return self

    def executemany(self, sql: str, parameters: Iterable[Any], /) -> _Rows:
        db = self.connection
        try:
            with Call(db):
                super().executemany(sql, parameters)
        except (sqlite3.Error, OverflowError, UnicodeError) as error:
            raise db.explain(error) from error
        return self

    def __next__(self) -> Any:
        db = self.connection
        try:
            with Call(db):
                return super().__next__()
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise db.explain(error) from error

    def fetchone(self) -> Any:
        return next(self, None)

    def fetchall(self) -> list[Any]:
        db = self.connection
        try:
            with Call(db):
                return super().fetchall()
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise db.explain(error) from error


class File(sqlite3.Connection):
    """A connection to ``path`` that explains its errors. ``abandoned`` is one of the parent of a fork, not at rest."""

    path: Path
    where: str
    calls: int
    abandoned: bool
    closing: bool

    def execute(self, sql: str, parameters: Any = (), /) -> Any:
        return self._rows().execute(sql, parameters)

    def executemany(self, sql: str, parameters: Iterable[Any], /) -> Any:
        return self._rows().executemany(sql, parameters)

    def _rows(self) -> _Rows:
        try:
            return super().cursor(_Rows)
        except sqlite3.Error as error:
            raise self.explain(error) from error

    def explain(self, error: BaseException) -> BaseException:
        """Return the error of perdure for one of SQLite, or itself where it is a mistake of ours."""
        return _explain(error, self.path) or error

    def close(self) -> None:
        """Close it; twice is fine. A call that another thread is in ends first: SQLite would crash under it."""
        self.closing = True
        until = time.monotonic() + _PATIENCE_S
        while self.calls and not self.abandoned:
            if time.monotonic() > until:
                return  # it closes when that thread lets go of it
            time.sleep(1e-4)
        if not self.abandoned:
            super().close()


class Held:
    """Closes ``db`` as soon as nobody holds this: a connection is part of a cycle, and would wait for the collector."""

    __slots__ = ("db",)

    def __init__(self, db: File) -> None:
        self.db = db

    def __del__(self) -> None:
        self.db.close()


def connect(path: Path, *, busy_s: float) -> File:
    """Open a file of a space; make it where there is none.

    Raises `FormatRefused` where something else lies there, `StorageError` where it may not be opened.
    """
    check_plain(path)
    where = str(path.absolute())
    if is_barred(where):
        raise CallError(
            f"this process was forked while {path} was in use by another thread or a change, and must not open it;"
            " start processes with the method 'spawn', or fork while the memory is at rest",
            file=str(path),
        )
    with explained_sqlite(path):
        db = sqlite3.connect(path, timeout=busy_s, isolation_level=None, check_same_thread=False, factory=File)
    db.path, db.where, db.calls, db.abandoned, db.closing = path, where, 0, False, False
    enrol(db)
    return db


@contextmanager
def explained_sqlite(path: Path, doing: str = "use") -> Iterator[None]:
    """Let an error of SQLite or of the operating system leave the block as one that says what to do.

    This is for the files of a space: one that is not there was taken away.
    """
    try:
        yield
    except sqlite3.Error as error:
        told = _explain(error, path)
        if told is None:
            raise
        raise told from error
    except FileNotFoundError as error:
        gone = error.filename if isinstance(error.filename, str) else str(path)
        raise BlobMissing(
            f"cannot {doing} {path}: {gone} was taken away; put the space or a backup of it back, and open it again",
            file=str(path),
        ) from error
    except OSError as error:
        raise explain_errno(error, str(path), doing) from error


def cut_log(db: File, *, until: float) -> None:
    """Carry the write-ahead log of ``db`` over and cut it to nothing.

    Raises `DeadlineExceeded` where a reader still needs it at the moment ``until`` of `time.monotonic`.
    """
    while db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
        if time.monotonic() >= until:
            raise DeadlineExceeded(
                f"what was taken out is still in {db.path}-wal, which {holders_of(db.path)} or a reader of this process"
                " needs; let it finish and open the memory again, which does the rest",
                missing=[f"{db.path}-wal"],
            )
        time.sleep(0.01)


def holders_of(path: Path) -> str:
    """Who has ``path`` open, as far as this user may see: ``process 12 (python), process 40 (sqlite3)``."""
    found: list[str] = []
    for each in Path("/proc").glob("[0-9]*"):
        if each.name == str(os.getpid()):
            continue
        try:
            if any(os.readlink(fd) == str(path.absolute()) for fd in (each / "fd").iterdir()):
                found.append(f"process {each.name} ({(each / 'comm').read_text().strip()})")
        except OSError:  # it has ended, or is another user's
            continue
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return ", ".join(found[:_SHOWN]) + more if found else "no other process of this user"


def sync_folders(folder: Path) -> None:
    """Make the names of ``folder`` and of the folders above it durable, up to the mount point."""
    device = os.stat(folder).st_dev
    at = folder.absolute()
    while os.stat(at).st_dev == device:
        try:
            fd = os.open(at, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except PermissionError:  # who made what lies in there may read it, and has synced it
            pass
        else:
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        if at == at.parent:
            return
        at = at.parent


def check_plain(path: Path) -> None:
    """Raise `FormatRefused` where something lies at ``path`` that is no plain file."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise explain_errno(error, str(path), "look at") from error
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "a symbolic link" if stat.S_ISLNK(mode) else "no plain file"
        raise FormatRefused(f"{path} is {kind}; move it away, or put the file of a backup there", file=str(path))


def _explain(error: BaseException, path: Path) -> PerdureError | None:
    file = str(path)
    code = getattr(error, "sqlite_errorcode", 0) or 0
    said = str(error)
    if isinstance(error, UnicodeDecodeError) or said.startswith(_GARBLED):
        return BlobCorrupt(
            f"{file} is damaged (a text in it is no UTF-8); put a backup in its place, and export what can still be"
            " read",
            file=file,
        )
    match code & 0xFF:
        case sqlite3.SQLITE_FULL:
            return explain_errno(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), file, "write")
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return DeadlineExceeded(
                f"gave up waiting for {file}: it is in use by {holders_of(path)}; do it again, or end who holds it",
                missing=[file],
            )
        case sqlite3.SQLITE_NOTADB | sqlite3.SQLITE_FORMAT:
            return FormatRefused(
                f"{file} is no SQLite file, or its first bytes are damaged; put a backup in its place, or move it away",
                file=file,
            )
        case sqlite3.SQLITE_CORRUPT:
            return BlobCorrupt(
                f"{file} is damaged ({said}); put a backup in its place, and export what can still be read", file=file
            )
        case sqlite3.SQLITE_READONLY:
            moved = code == sqlite3.SQLITE_READONLY_DBMOVED
            what = (
                "was moved or replaced while it was open; open it again"
                if moved
                else ("may not be written, it or its folder; give this user the permission, or remount it for writing")
            )
            return StorageError(f"{file} {what}", file=file, errno=errno.EROFS)
        case sqlite3.SQLITE_IOERR:
            if _is_full(path):
                return explain_errno(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), file, "write")
            return explain_errno(OSError(errno.EIO, os.strerror(errno.EIO)), file, "use")
        case sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM | sqlite3.SQLITE_AUTH:
            if not _is_full(path):
                return StorageError(
                    f"cannot open {file}: see that its folder is there, that this user may write it, and that "
                    "`ulimit -n` leaves room for open files",
                    file=file,
                    errno=errno.EACCES,
                )
            return explain_errno(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), file, "open")
        case sqlite3.SQLITE_TOOBIG:
            return _too_big(file)
    if isinstance(error, OverflowError) or (isinstance(error, sqlite3.DataError) and "too big" in said):
        return _too_big(file)
    if isinstance(error, sqlite3.ProgrammingError) and "closed" in said:
        return CallError(f"{file} is closed; open the memory again")
    return None


def _too_big(file: str) -> CallError:
    return CallError(f"{file} takes no text of more than {_LONGEST_BYTES} bytes; tell it in parts", file=file)


def _is_full(path: Path) -> bool:
    try:
        found = os.statvfs(path.parent)
    except OSError:
        return False
    return found.f_bavail == 0 or (found.f_files > 0 and found.f_favail == 0)
