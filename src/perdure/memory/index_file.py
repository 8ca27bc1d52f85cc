"""``index.db``: the file that the lexical index lies in. It is made from the ledger, and thrown away at will.

A file that is gone, damaged, of another release, or of another ledger is replaced by an empty one, which follows the
ledger from its beginning. Whoever has the old one open notices that another file bears the name, and opens that.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from perdure.errors import BlobCorrupt, CallError, FormatRefused
from perdure.memory.sqlite_files import File, Held, connect, explained_sqlite
from perdure.memory.words import TOKENS

__all__ = ["DAMAGED", "IndexFile"]

_BUSY_S: Final = 30.0
_FORMAT: Final = f"2.{TOKENS}"
DAMAGED: Final = (BlobCorrupt, FormatRefused, sqlite3.DatabaseError)
"""What SQLite or we say of an index that is to be made again."""

_TABLES: Final = """
CREATE TABLE meta(key TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE name(
  code INTEGER PRIMARY KEY,
  kind TEXT NOT NULL, -- speaker, source
  text BLOB NOT NULL,
  near REAL NOT NULL DEFAULT 0,
  far REAL NOT NULL DEFAULT 0,
  last INTEGER NOT NULL DEFAULT -1, -- of a source: its newest unit, when that was observed, its section and how full
  last_s REAL NOT NULL DEFAULT 0,
  section INTEGER NOT NULL DEFAULT -1,
  filled INTEGER NOT NULL DEFAULT 0,
  changed INTEGER NOT NULL DEFAULT 0, -- the generation that changed it
  UNIQUE(kind, text)
);
CREATE INDEX name_changed ON name(changed);
CREATE TABLE tail(unit INTEGER PRIMARY KEY, columns BLOB NOT NULL, terms TEXT NOT NULL);
CREATE TABLE block(first INTEGER PRIMARY KEY, columns BLOB NOT NULL);
CREATE TABLE segment(
  first INTEGER PRIMARY KEY,
  size INTEGER NOT NULL,
  terms TEXT NOT NULL DEFAULT '' -- a line each, between line ends
);
CREATE TABLE posting(segment INTEGER NOT NULL, term TEXT NOT NULL, data BLOB NOT NULL, PRIMARY KEY(segment, term))
  WITHOUT ROWID;
"""
_BEGINNING: Final = {"follow": 0, "units": 0, "sealed": 0, "sections": 0, "generation": 1, "shape": 1}


class IndexFile:
    """Connections to ``path``, one a thread, which is made (again) for the ledger with the id ``owner`` as needed."""

    def __init__(self, path: Path, owner: str) -> None:
        self.path = path
        self.owner = owner
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
        """This thread's connection to the file that bears the name now. Raises one of `DAMAGED` where it is no index."""
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
            db.execute("PRAGMA mmap_size = 268435456")
            made = dict(db.execute("SELECT key, value FROM meta WHERE key IN ('format', 'owner')"))
            if made != {"format": _FORMAT, "owner": self.owner}:
                raise FormatRefused(f"{self.path} is the index of another release or ledger", file=str(self.path))
            self._local.held, self._local.inode = Held(db), self._inode()
            self._connections.add(db)
        return db

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
            for statement in _TABLES.split(";\n"):
                db.execute(statement)
            known = {"format": _FORMAT, "owner": self.owner, **_BEGINNING}
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
            fd = os.open(self.path.with_name("index.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)


_files: weakref.WeakSet[IndexFile] = weakref.WeakSet()


def _in_child() -> None:
    """A forked child has connections of its own, and nobody in it searches."""
    for each in list(_files):
        each._local = threading.local()
        each._users, each._rest, each.lock = 0, threading.Condition(), threading.Lock()


os.register_at_fork(after_in_child=_in_child)
