"""A lock that a process holds by an open file and loses by dying, however it dies (flock)."""

from __future__ import annotations

import contextlib
import fcntl
import os
from types import TracebackType
from typing import Self

from perdure.clock import Deadline
from perdure.errors import DeadlineExceeded

__all__ = ["FileLock"]

_RETRY_S = 0.01


class FileLock:
    """A held lock on the file ``path``, which names the holder's pid; the file may be removed by who holds it alone.

    The descriptor is close-on-exec; a forked child shares the lock until it execs or closes ``fd``.
    """

    def __init__(self, path: str | os.PathLike[str], fd: int) -> None:
        self.path = os.fspath(path)
        self.fd = fd

    @classmethod
    def try_acquire(cls, path: str | os.PathLike[str]) -> FileLock | None:
        """Return the lock, or None if another process holds it."""
        while True:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not _is_at(path, fd):  # its last holder has removed the file since it was opened
                    os.close(fd)
                    continue
            except BlockingIOError:
                os.close(fd)
                return None
            except BaseException:
                os.close(fd)
                raise
            try:
                os.ftruncate(fd, 0)
                os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
            except BaseException:  # as on a full disk: nobody holds what was not given
                os.close(fd)
                raise
            return cls(path, fd)

    @classmethod
    def acquire(cls, path: str | os.PathLike[str], *, deadline: Deadline) -> FileLock:
        """Return the lock; raise `DeadlineExceeded`, naming the holder, if it is not free in time."""
        while (lock := cls.try_acquire(path)) is None:
            if deadline.passed():
                pid = cls.holder(path)
                raise DeadlineExceeded(
                    f"gave up waiting for {deadline.what}: process {pid} holds {path}",
                    what=deadline.what,
                    missing=str(pid),
                )
            deadline.clock.sleep(min(_RETRY_S, deadline.left()))
        return lock

    @staticmethod
    def holder(path: str | os.PathLike[str]) -> int | None:
        """Return the pid that the last holder wrote; it may be dead."""
        try:
            with open(path, "rb") as file:
                return int(file.read(32))
        except (OSError, ValueError):
            return None  # no file yet, or a holder between truncating and writing

    def remove(self) -> None:
        """Give the lock up and remove its file; whoever waits for it makes another."""
        if self.fd >= 0:
            with contextlib.suppress(OSError):  # a person was faster, or may not
                os.unlink(self.path)
        self.release()

    def release(self) -> None:
        """Give the lock up; twice is fine."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def _is_at(path: str | os.PathLike[str], fd: int) -> bool:
    """Whether ``path`` still names the open file."""
    try:
        return os.path.samestat(os.lstat(path), os.fstat(fd))
    except FileNotFoundError:
        return False
