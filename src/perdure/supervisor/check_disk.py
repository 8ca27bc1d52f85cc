"""Whether the folder that a job writes to keeps what is written: write, fsync, read, compare, remove."""

from __future__ import annotations

import mmap
import os
import secrets
import shutil
import time
from contextlib import suppress

from perdure.codec.digest import digest
from perdure.store.probe import probe
from perdure.store.refusals import explained
from perdure.supervisor.checks import Context, Result

__all__ = ["disk"]

_SLOW_BYTES_PER_S = 20e6
_BLOCK = 4 << 20


def disk(context: Context) -> Result:
    """Write ``disk_bytes`` to a new file of the folder, make them durable, drop them from the cache, and read them.

    The file has a name that stores sweep, should this process be killed before it has removed it. Raises
    `StorageError`, with a sentence, for what the system refuses.
    """
    folder = context.folder
    if folder is None:
        return Result(check="disk", word="note", says="no folder was named, so no disk was tried", do="name a folder")
    found = probe(folder)
    data = secrets.token_bytes(min(_BLOCK, context.disk_bytes))
    n_blocks = max(1, context.disk_bytes // max(1, len(data)))
    path = os.path.join(folder, f".tmp-{secrets.token_hex(16)}")
    with explained(folder, "write to"):
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        began = time.monotonic()
        with explained(folder, "write to"):
            for _ in range(n_blocks):
                _write_all(fd, data)
        with explained(folder, "sync"):
            os.fsync(fd)
        wrote_s = time.monotonic() - began
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        began = time.monotonic()
        with explained(folder, "read from"):
            wrong = _blocks_that_differ(fd, data, n_blocks)
        read_s = time.monotonic() - began
    finally:
        os.close(fd)
        with suppress(OSError):  # what went wrong before counts; stores sweep what stays
            os.unlink(path)
    nbytes = n_blocks * len(data)
    facts = {
        "folder": folder,
        "nbytes": nbytes,
        "write_bytes_per_s": round(nbytes / max(wrote_s, 1e-9)),
        "read_bytes_per_s": round(nbytes / max(read_s, 1e-9)),
        "free_bytes": shutil.disk_usage(folder).free,
        "wrong_blocks": wrong,
    }
    if wrong:
        return Result(
            check="disk",
            word="problem",
            says=f"{folder} gives back other bytes than were written, in {len(wrong)} of {n_blocks} blocks",
            do="do not keep runs there; have the disk and its controller tested",
            facts=facts,
        )
    if found.rename is not None and found.link is not None:
        return Result(
            check="disk",
            word="problem",
            says=f"no step can be committed in {folder}: {found.rename}",
            do="choose another file system (`perdure doctor DIR` says more)",
            facts=facts,
        )
    rate = nbytes / max(wrote_s, 1e-9)
    says = f"{nbytes >> 20} MiB written, synced and read back in {folder} ({rate / 1e6:.0f} MB/s to durable)"
    if rate < _SLOW_BYTES_PER_S:
        return Result(
            check="disk",
            word="note",
            says=says,
            do="saves will take long; look at what else uses the disk",
            facts=facts,
        )
    return Result(check="disk", word="ok", says=says, facts=facts)


def _write_all(fd: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]


def _blocks_that_differ(fd: int, data: bytes, n_blocks: int) -> list[int]:
    """Indexes of the blocks of the file that are not ``data``; past the page cache's copy where it could be dropped."""
    right, wrong = digest(data), []
    with mmap.mmap(-1, max(1, len(data))) as block:
        view = memoryview(block)
        for index in range(n_blocks):
            got, at = 0, index * len(data)
            while got < len(data):
                n = os.preadv(fd, [view[got : len(data)]], at + got)
                if n == 0:
                    break
                got += n
            if got < len(data) or digest(view[: len(data)]) != right:
                wrong.append(index)
        view.release()
    return wrong
