"""What to do when the operating system refuses: errno in, an error of the tree with a sentence out."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from perdure.errors import StorageError, StorageFull

__all__ = ["explain", "explained"]

_FULL = {errno.ENOSPC: "no space is left on the device", errno.EDQUOT: "the quota is used up"}

_REMEDY = {
    errno.EACCES: "give this user the permission, or choose another place",
    errno.EPERM: "give this user the permission, or choose another place",
    errno.EROFS: "the file system is mounted read-only; remount it, or choose another place",
    errno.EIO: "the device reports an input/output error; look into the kernel log, replace it, use another copy",
    errno.ESTALE: "the network file system lost this handle; remount it and start again",
    errno.ETIMEDOUT: "the file server does not answer; bring it back and start again",
    errno.EMFILE: "this process has too many open files; raise `ulimit -n`",
    errno.ENFILE: "this machine has too many open files; raise fs.file-max",
    errno.ENOTDIR: "something in this path is not a folder; move it away, or choose another place",
    errno.ELOOP: "a symbolic link stands in this path; the store follows none below its root, so remove it",
    errno.EFBIG: "the file system or `ulimit -f` does not allow a file of this size",
    errno.ENODEV: "the file system is gone; mount it again",
}


def explain(error: OSError, path: str, doing: str) -> StorageError:
    """Turn ``error``, met while ``doing`` something with ``path``, into the error that says what to do."""
    code = error.errno or 0
    reason = os.strerror(code) if code else str(error)
    if code in _FULL:
        return StorageFull(
            f"{_FULL[code]}: cannot {doing} {path}; make room, prune old steps, or choose another place",
            file=path,
            errno=code,
        )
    remedy = _REMEDY.get(code, "see to the storage, then start again")
    return StorageError(f"cannot {doing} {path}: {reason}; {remedy}", file=path, errno=code)


@contextmanager
def explained(path: str, doing: str) -> Iterator[None]:
    """Let an `OSError` of the block leave as `explain` tells it."""
    try:
        yield
    except OSError as error:
        raise explain(error, path, doing) from error
