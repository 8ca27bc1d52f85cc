"""A connection for each thread to one SQLite file; gone when the thread ends, and new in a forked child."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from pathlib import Path

from perdure.errors import BlobMissing, CallError
from perdure.memory.sqlite_files import File, Held, connect

__all__ = ["Connections"]


class Connections:
    """Connections to ``path``, each made ready by ``prepare``. Safe to use from any thread, and after a fork.

    With ``made`` False the file must be there already: `BlobMissing` is raised where it was taken away.
    """

    _local: threading.local
    _lock: threading.Lock
    _open: weakref.WeakSet[File]

    def __init__(self, path: Path, *, busy_s: float, prepare: Callable[[File], None], made: bool) -> None:
        self.path = path
        self._busy_s = busy_s
        self._prepare = prepare
        self._made = made
        self._closed = False
        self._begin()
        _all.add(self)

    def here(self) -> File:
        """This thread's connection."""
        held: Held | None = getattr(self._local, "held", None)
        if held is None:
            held = self._local.held = Held(self.another())
        return held.db

    def another(self) -> File:
        """A connection that is no thread's; it is closed with the others."""
        with self._lock:
            if self._closed:
                raise CallError(f"{self.path} is closed; open the memory again")
            if not self._made and not os.path.lexists(self.path):
                raise BlobMissing(f"{self.path} was taken away; put it back, or a backup of it", file=str(self.path))
            db = connect(self.path, busy_s=self._busy_s)
            self._open.add(db)
        self._prepare(db)
        return db

    def close(self) -> None:
        """Close all, of all threads; calls that they are in end first. Twice is fine."""
        with self._lock:
            self._closed = True
            for db in list(self._open):
                db.close()
        self._local = threading.local()

    def _begin(self) -> None:
        self._local = threading.local()
        self._open = weakref.WeakSet()
        self._lock = threading.Lock()


_all: weakref.WeakSet[Connections] = weakref.WeakSet()


def _forked() -> None:
    for each in list(_all):
        each._begin()  # those of the parent have been dealt with by `perdure.memory.forks`


os.register_at_fork(after_in_child=_forked)
