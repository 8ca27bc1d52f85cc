"""A file that appears whole, once, and for good, or not at all.

Theory. The bytes go to a temporary name in the folder of the target and are synced. Then the target appears in one
step that fails if it exists: ``renameat2(RENAME_NOREPLACE)`` where the file system has it, else ``link`` (which never
replaces) and ``unlink`` of the temporary. Then the folder is synced: only now is the *name* durable. A crash before the
last step leaves nothing but a temporary, which no reader sees; `Disk.sweep_temporaries` takes it away a day later.

Two things that look harmless and are not: plain ``rename`` replaces silently, and a second ``fsync`` after a failed
one may report success for pages that the kernel has dropped. The first is never used; a file whose sync failed is
abandoned, not synced again.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from perdure.errors import StorageError
from perdure.store.io_choice import Io
from perdure.store.refusals import explained
from perdure.store.stream import write_chunks

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["TEMPORARY", "is_there", "sync_folder", "write_new"]

TEMPORARY = re.compile(r"\A\.tmp-[0-9a-f]{32}\Z")
_RENAME_NOREPLACE = 1
_NOT_SUPPORTED = frozenset({errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP})


def _load_renameat2() -> Callable[..., int] | None:
    try:
        function = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):  # an old C library; links serve as well
        return None
    function.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
    function.restype = ctypes.c_int
    return function


_renameat2 = _load_renameat2()


def write_new(folder: int, last: str, chunks: Iterable[Buffer], *, path: str, io: Callable[[], Io]) -> bool:
    """Write ``chunks`` to the new file ``last`` of the open ``folder``; False if it exists, and is durable.

    ``path`` is for messages; ``io`` tells how, and is asked only for a large blob. Errors of ``chunks`` itself pass
    unchanged. After any failure the temporary is gone; the target can only be there if syncing the folder failed.
    """
    if is_there(folder, last, path=path):
        sync_folder(folder, path=path)  # whoever made it may not have come as far as this yet
        return False
    temporary = f".tmp-{secrets.token_hex(16)}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with explained(path, "write"):
        fd = os.open(temporary, flags, 0o666, dir_fd=folder)
    try:
        try:
            write_chunks(fd, chunks, path=path, io=io)
            with explained(path, "sync"):
                os.fsync(fd)
        finally:
            with explained(path, "close"):
                os.close(fd)
        with explained(path, "publish"):
            published = _publish(folder, temporary, last, path)
    except BaseException:
        with suppress(OSError):  # the first error counts; a temporary that stays is swept later
            os.unlink(temporary, dir_fd=folder)
        raise
    sync_folder(folder, path=path)
    return published


def is_there(folder: int, last: str, *, path: str) -> bool:
    """Whether anything is called ``last`` in ``folder``, a dangling symbolic link included."""
    with explained(path, "look at"):
        try:
            os.stat(last, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return False
    return True


def sync_folder(folder: int, *, path: str) -> None:
    """Make the names in the open ``folder`` durable."""
    with explained(path, "sync the folder of"):
        os.fsync(folder)


def _publish(folder: int, temporary: str, last: str, path: str) -> bool:
    """Give the temporary its name; False if the name was taken meanwhile. The temporary is gone afterwards."""
    try:
        _rename_new(folder, temporary, last)
        return True
    except FileExistsError:
        os.unlink(temporary, dir_fd=folder)
        return False
    except OSError as error:
        if error.errno not in _NOT_SUPPORTED:
            raise
    try:
        os.link(temporary, last, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
        published = True
    except FileExistsError:
        # A file server that repeats a request reports its own success as "exists": ask whose file it is.
        published = _same_file(folder, temporary, last)
    except OSError as error:
        if error.errno not in _NOT_SUPPORTED | {errno.EPERM, errno.EMLINK}:
            raise
        raise StorageError(
            f"cannot publish {path}: its file system can neither rename without replacing nor make hard links; "
            "keep the run on another one",
            file=path,
            errno=error.errno,
        ) from error
    os.unlink(temporary, dir_fd=folder)
    return published


def _rename_new(folder: int, temporary: str, last: str) -> None:
    if _renameat2 is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    if _renameat2(folder, os.fsencode(temporary), folder, os.fsencode(last), _RENAME_NOREPLACE) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))  # Python picks FileExistsError and its like by the number


def _same_file(folder: int, one: str, other: str) -> bool:
    a = os.stat(one, dir_fd=folder, follow_symlinks=False)
    b = os.stat(other, dir_fd=folder, follow_symlinks=False)
    return stat.S_ISREG(b.st_mode) and (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino)
