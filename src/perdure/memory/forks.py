"""A forked child gets rid of the SQLite connections of its parent before it opens any of its own.

Theory. SQLite notes in the process which locks it holds on a file, and a child inherits the notes but not the locks
(POSIX). A connection that the child opens beside an inherited one would believe itself protected, and lose what it
commits when the parent closes. So in the child every inherited connection is closed first, which is harmless while it
is idle and the parent has it open still: the child holds no lock of its own, and the locks of the parent make it leave
the files as they are. (Without them it would carry its log over once more, above what others have written since.) So
the parent waits for the child to have closed; a child that finds that it did not wait so long closes nothing. To be
idle, all connections are brought to rest for the moment of the fork: calls that have begun end, transactions end, no
other begins. What does not come to rest within a second (the thread that forks is in the middle of a change, or a long
read runs) makes the file one that the child may not open: it is told so.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import select
import sqlite3
import threading
import time
import weakref
from typing import Final, Protocol

__all__ = ["Call", "enrol", "is_barred"]

_REST_S: Final = 1.0
_CHILD_S: Final = 5.0


class Guarded(Protocol):
    """What is brought to rest: a connection with the count of the calls that it is in."""

    calls: int
    where: str
    abandoned: bool
    closing: bool

    @property
    def in_transaction(self) -> bool: ...

    def close(self) -> None: ...


_enrolled: weakref.WeakSet[Guarded] = weakref.WeakSet()
_open = threading.Event()
_open.set()
_barred: set[str] = set()
_forking = threading.Lock()
_pipe: tuple[int, int] | None = None


class Call:
    """Around a call of SQLite: waits while a fork is on its way, and is waited for by one, and by who closes."""

    __slots__ = ("_db",)

    def __init__(self, db: Guarded) -> None:
        self._db = db

    def __enter__(self) -> None:
        db = self._db
        db.calls += 1
        if db.closing:
            db.calls -= 1
            raise sqlite3.ProgrammingError("Cannot operate on a closed database.")
        if not _open.is_set() and db.calls == 1 and not db.in_transaction:
            db.calls -= 1
            _open.wait(2 * _REST_S)
            db.calls += 1

    def __exit__(self, *_: object) -> None:
        self._db.calls -= 1


def enrol(db: Guarded) -> None:
    """Bring ``db`` to rest when the process forks."""
    _enrolled.add(db)


def is_barred(path: str) -> bool:
    """Whether this process was forked while ``path`` was in use, and must not open it."""
    return path in _barred


def _before() -> None:
    global _pipe
    _forking.acquire()
    _open.clear()
    with contextlib.suppress(OSError):  # no descriptor is left: the child finds no pipe, and closes nothing
        _pipe = os.pipe() if len(_enrolled) else None
    until = time.monotonic() + _REST_S
    while any(map(_is_busy, list(_enrolled))) and time.monotonic() < until:
        time.sleep(1e-4)


def _in_parent() -> None:
    global _pipe
    if _pipe is not None:
        reader, writer = _pipe
        _pipe = None
        os.close(writer)
        waiting = select.poll()
        waiting.register(reader, 0)  # it hangs up when the child has closed its end
        waiting.poll(_CHILD_S * 1000)
        os.close(reader)
    _open.set()
    _forking.release()


def _in_child() -> None:
    global _open, _forking, _pipe
    _open, _forking = threading.Event(), threading.Lock()
    _open.set()
    waited = False
    if _pipe is not None:
        os.close(_pipe[0])
        with contextlib.suppress(OSError):
            waited = bool(os.write(_pipe[1], b"."))
    try:
        _leave(waited=waited)
    finally:
        if _pipe is not None:
            os.close(_pipe[1])
        _pipe = None


def _leave(*, waited: bool) -> None:
    """Close what was inherited, as far as it is idle and the parent waits."""
    inherited = list(_enrolled)
    _enrolled.clear()
    for each in gc.get_objects() if inherited else []:
        if isinstance(each, sqlite3.Cursor) and getattr(each.connection, "calls", 1) == 0:
            with contextlib.suppress(sqlite3.Error):  # of another thread of the parent: nobody reads on
                each.close()
    for db in inherited:
        if not waited or _is_busy(db):
            db.abandoned = True
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(db))  # never closed, not even at the end
        else:
            with contextlib.suppress(sqlite3.Error):
                db.close()
    left = _files_open() if inherited else set()
    _barred.update(db.where for db in inherited if db.where in left)


def _is_busy(db: Guarded) -> bool:
    try:
        return db.calls > 0 or db.in_transaction
    except sqlite3.ProgrammingError:  # it is closed
        return False


def _files_open() -> set[str]:
    found: set[str] = set()
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.add(os.readlink(f"/proc/self/fd/{fd}"))
    return found


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
