"""A file of SQLite that is made from the ledger, and thrown away at will: ``index.db``, ``vectors.db``.

A file that is gone, damaged, of another release, or of another ledger is replaced by an empty one, which follows the
ledger from its beginning. Whoever has the old one open notices that another file bears the name, and opens that.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
import struct
import threading
import weakref
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

from perdure.errors import BlobCorrupt, CallError, FormatRefused, PerdureError
from perdure.memory.sqlite_files import File, Held, connect, explained_sqlite
from perdure.memory.words import TOKENS

__all__ = ["DAMAGED", "GARBLED", "DerivedFile"]

_BUSY_S: Final = 30.0
_FORMAT: Final = f"2.{TOKENS}"
_TRIES: Final = 3
_T = TypeVar("_T")
DAMAGED: Final = (BlobCorrupt, FormatRefused, sqlite3.DatabaseError)
"""What SQLite or we say of an index that is to be made again."""
GARBLED: Final = (ValueError, TypeError, LookupError, ArithmeticError, MemoryError, struct.error, zlib.error)
"""What comes of rows whose bytes are not those that were written, unless it is a `PerdureError`."""


class DerivedFile:
    """Connections to ``path``, one a thread; the file is made (again) for ``owner`` as needed.

    ``owner`` stands for what it is made from. ``tables`` are statements, each ended by a semicolon and a line end; the
    table ``meta`` begins with ``beginning``.
    """

    def __init__(self, path: Path, owner: str, tables: str, beginning: Mapping[str, int]) -> None:
        self.path = path
        self.owner = owner
        self._tables = tables
        self._beginning = beginning
        self._local = threading.local()
        self._connections: weakref.WeakSet[File] = weakref.WeakSet()
        self._closed = False
        self._users = 0
        self._rest = threading.Condition()
        self.lock = threading.Lock()
        _files.add(self)

    @contextmanager
    def use(self) -> Iterator[None]:
        """Around all use of a connection: nobody closes it meanwhile."""
        with self._rest:
            self._users += 1
        try:
            yield
        finally:
            with self._rest:
                self._users -= 1
                self._rest.notify_all()

    def connection(self) -> File:
        """This thread's connection to the file that bears the name now. Raises one of `DAMAGED` where it is no good."""
        if self._closed:
            raise CallError(f"{self.path} is closed; open the memory again")
        inode = self._inode()
        held: Held | None = getattr(self._local, "held", None)
        if held is not None and inode is not None and self._local.inode == inode:
            return held.db
        with self._alone():
            if not os.path.lexists(self.path):
                self._make()
            db = connect(self.path, busy_s=_BUSY_S)
            for pragma in ("trusted_schema = OFF", "synchronous = OFF", "secure_delete = ON", "cache_size = -8192"):
                db.execute(f"PRAGMA {pragma}")
            db.execute("PRAGMA mmap_size = 0")  # reading a mapped file that was cut off kills the process (SIGBUS)
            made = dict(db.execute("SELECT key, value FROM meta WHERE key IN ('format', 'owner')"))
            if made != {"format": _FORMAT, "owner": self.owner}:
                raise FormatRefused(f"{self.path} is the index of another release or ledger", file=str(self.path))
            self._local.held, self._local.inode = Held(db), self._inode()
            self._connections.add(db)
        return db

    def robust(self, work: Callable[[File], _T]) -> _T:
        """Do it with this thread's connection; where the file turns out to be no good, make it again first."""
        with self.use():
            for _ in range(_TRIES - 1):
                try:
                    return work(self.connection())
                except DAMAGED as error:
                    if getattr(error, "file", str(self.path)) != str(self.path):
                        raise  # it is the ledger that is damaged
                    self.replace()
                except PerdureError:
                    raise
                except GARBLED:
                    self.replace()
            return work(self.connection())

    def replace(self) -> None:
        """Put an empty index in the place of the file, unless somebody else just has."""
        with self._alone():
            mine = getattr(self._local, "inode", None)
            self._local.held = None
            if mine is None or mine == self._inode():
                for each in ("", "-wal", "-shm"):
                    with explained_sqlite(self.path), contextlib.suppress(FileNotFoundError):
                        os.unlink(f"{self.path}{each}")
                self._make()
            self._local.inode = None

    def discard(self) -> None:
        """Put an empty index in the place of the file, whatever it is."""
        with self.use():
            self._local.inode = None
            self.replace()

    @property
    def inode(self) -> tuple[int, int] | None:
        """Which file this thread has open."""
        found: tuple[int, int] | None = getattr(self._local, "inode", None)
        return found

    def close(self) -> None:
        """Close the connections of all threads, as soon as those who search now are done."""
        self._closed = True
        with self._rest:
            if self._rest.wait_for(lambda: self._users == 0, timeout=_BUSY_S):
                for db in list(self._connections):
                    db.close()

    def _make(self) -> None:
        db = connect(self.path, busy_s=_BUSY_S)
        try:
            os.chmod(self.path, 0o600)
            db.execute("PRAGMA page_size = 8192")
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = OFF")
            db.execute("BEGIN IMMEDIATE")
            db.execute("CREATE TABLE meta(key TEXT PRIMARY KEY, value) WITHOUT ROWID")
            for statement in self._tables.split(";\n"):
                db.execute(statement)
            known = {"format": _FORMAT, "owner": self.owner, **self._beginning}
            db.executemany("INSERT INTO meta VALUES (?, ?)", list(known.items()))
            db.execute("COMMIT")
        finally:
            db.close()

    def _inode(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self.path)
        except OSError:
            return None
        return found.st_dev, found.st_ino

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """No other thread or process makes or replaces the file meanwhile."""
        with explained_sqlite(self.path):
            fd = os.open(self.path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)


_files: weakref.WeakSet[DerivedFile] = weakref.WeakSet()


def _in_child() -> None:
    """A forked child has connections of its own, and nobody in it searches."""
    for each in list(_files):
        each._local = threading.local()
        each._users, each._rest, each.lock = 0, threading.Condition(), threading.Lock()


os.register_at_fork(after_in_child=_in_child)
