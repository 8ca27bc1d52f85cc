"""Unix sockets with a name: listen, accept, connect; only this user, whatever the path's length.

A socket's name may have 107 bytes, less than many run folders have. So the folder is opened first and the socket is
bound or connected as ``/proc/self/fd/<folder>/<name>``, which is always short; the folder that was checked is then also
the one used.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from perdure.clock import Deadline
from perdure.errors import CallError, DeadlineExceeded, StorageError
from perdure.wire.frames import MAX_BODY_BYTES
from perdure.wire.link import Link

__all__ = ["accept", "clear_stale", "connect", "listen"]

_RETRY_S = 0.01
_BACKLOG = 256
_NOT_THERE = (errno.ENOENT, errno.ECONNREFUSED, errno.EAGAIN, errno.ENOTDIR)


def listen(path: str | os.PathLike[str]) -> socket.socket:
    """Return a non-blocking listening socket at ``path``, mode 0600.

    The folder must be this user's and closed to others (0700). Raises `StorageError` if it is not, or if the name is
    taken: whoever holds the lock that guards the name calls `clear_stale` first.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _folder(path, private=True) as short:
            os.fchmod(sock.fileno(), 0o600)  # Linux gives the name the mode of the socket: no moment with a wider one
            sock.bind(short)
            sock.listen(_BACKLOG)
            sock.setblocking(False)
        return sock
    except OSError as error:
        sock.close()
        taken = "another process listens there" if error.errno == errno.EADDRINUSE else error.strerror
        raise StorageError(f"cannot listen at {path}: {taken}", file=str(path), errno=error.errno) from error
    except BaseException:
        sock.close()
        raise


def clear_stale(path: str | os.PathLike[str]) -> None:
    """Remove a socket's name that a dead process left at ``path``. Only for the holder of the lock that guards the
    name.

    Raises `StorageError` if the name is no socket, or if somebody answers there.
    """
    with _folder(path, private=True) as short:
        try:
            mode = os.lstat(short).st_mode
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(mode):
            raise StorageError(f"{path} is not a socket; remove it by hand", file=str(path))
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)
            try:
                probe.connect(short)
            except ConnectionRefusedError:
                os.unlink(short)
                return
            except BlockingIOError:
                pass  # a full backlog: somebody is there
        raise StorageError(f"another process listens at {path}", file=str(path))


def accept(listener: socket.socket, *, type: Any = dict[str, Any], max_body_bytes: int = MAX_BODY_BYTES) -> Link | None:
    """Return the next waiting connection, or None if there is none; raise `ProtocolError` if it comes from another
    user.
    """
    try:
        sock, _ = listener.accept()
    except (BlockingIOError, ConnectionAbortedError):
        return None
    return Link(sock, type=type, max_body_bytes=max_body_bytes)


def connect(
    path: str | os.PathLike[str],
    *,
    deadline: Deadline,
    type: Any = dict[str, Any],
    max_body_bytes: int = MAX_BODY_BYTES,
) -> Link:
    """Return a link to whoever listens at ``path``, which may still have to appear; a passed deadline means one try.

    Raises `DeadlineExceeded` if nobody listens in time, `ProtocolError` if the listener runs as another user.
    """
    while True:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with _folder(path, private=False) as short:
                sock.setblocking(False)
                sock.connect(short)
        except OSError as error:
            sock.close()
            if error.errno not in _NOT_THERE:
                raise StorageError(
                    f"cannot connect to {path}: {error.strerror}", file=str(path), errno=error.errno
                ) from error
            if deadline.passed():
                raise DeadlineExceeded(
                    f"gave up waiting for {deadline.what}: nobody listens at {path}",
                    what=deadline.what,
                    missing=str(path),
                ) from error
            deadline.clock.sleep(min(_RETRY_S, deadline.left()))
        else:
            return Link(sock, type=type, max_body_bytes=max_body_bytes)


@contextmanager
def _folder(path: str | os.PathLike[str], *, private: bool) -> Iterator[str]:
    """Open the folder of ``path`` and yield a short name for ``path`` through it."""
    place = Path(path)
    if len(os.fsencode(place.name)) > 80 or not place.name:
        raise CallError(f"the name of a socket must have 1 to 80 bytes: {place.name!r}")
    folder = os.open(place.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        facts = os.fstat(folder)
        if private and (facts.st_uid != os.geteuid() or facts.st_mode & 0o077):
            raise StorageError(f"{place.parent} must be yours and closed to others (mode 0700)", file=str(place.parent))
        yield f"/proc/self/fd/{folder}/{place.name}"
    finally:
        os.close(folder)
