"""How the bytes of large blobs go to a disk and come back, as one value.

| part | says |
|---|---|
| engine | ``uring``: io_uring, many blocks at once from one thread; ``threads``: the same by a pool of threads in plain calls; ``plain``: one block after another |
| cache | ``direct``: past the page cache, in aligned blocks; ``buffered``: through it, written back early |
| block | the size of one write |
| depth | how many are in flight at once |

The right choice belongs to a file system and is found by `perdure.store.calibrate`; without that, `default_io` is what
is right for most.
"""  # noqa: E501  (a table)

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass
from typing import Final, Literal, get_args

from perdure.errors import CallError

try:
    from perdure import _native
except ImportError:  # not built for this platform: only `plain` is there, and `uring_refusal` says so
    _native = None  # type: ignore[assignment]

__all__ = ["NATIVE", "Engine", "Io", "default_io", "uring_refusal", "usable"]

NATIVE: Final[bool] = _native is not None
"""Whether the C++ engines are in use; `perdure doctor` shows it."""

Engine = Literal["uring", "threads", "plain"]

_PAGE_BYTES = 4096
_BLOCK_LIMIT_BYTES = 1 << 30
_DEPTH_LIMIT = 1024
_UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_TEXT = re.compile(r"\A(uring|threads|plain):(direct|buffered):([1-9][0-9]{0,9})(|KiB|MiB|GiB):([1-9][0-9]{0,3})\Z")
_DIRECT_SYSTEMS = frozenset({"ext2", "ext3", "ext4", "xfs", "f2fs", "lustre", "gpfs", "beegfs"})
"""File systems that write past the page cache and gain by it. Others are buffered until they are calibrated."""


@dataclass(frozen=True, slots=True)
class Io:
    """One way to write (and whether to read) past the page cache.

    >>> str(Io.parse("uring:direct:8MiB:16")), Io.parse("plain:buffered:8MiB:1").direct
    ('uring:direct:8MiB:16', False)
    """

    engine: Engine
    direct: bool
    block_bytes: int
    depth: int

    def __post_init__(self) -> None:
        if self.engine not in get_args(Engine):
            raise CallError(f"{self.engine!r} is no engine: choose one of {', '.join(get_args(Engine))}")
        if not _PAGE_BYTES <= self.block_bytes <= _BLOCK_LIMIT_BYTES or self.block_bytes % _PAGE_BYTES:
            raise CallError(f"blocks of {self.block_bytes} bytes: choose a multiple of 4096, at most 1 GiB")
        if not 1 <= self.depth <= _DEPTH_LIMIT:
            raise CallError(f"a depth of {self.depth}: choose 1 to {_DEPTH_LIMIT}")

    @classmethod
    def parse(cls, text: str) -> Io:
        """Read ``engine:direct|buffered:block:depth``; raise `CallError` if it is not that."""
        match = _TEXT.match(text)
        if match is None:
            raise CallError(f"{text[:80]!r} is no way to write: use engine:cache:block:depth, as uring:direct:8MiB:16")
        engine, cache, number, unit, depth = match.groups()
        return cls(engine, cache == "direct", int(number) * _UNITS[unit], int(depth))  # type: ignore[arg-type]

    def __str__(self) -> str:
        unit = next(unit for unit in ("GiB", "MiB", "KiB", "") if self.block_bytes % _UNITS[unit] == 0)
        cache = "direct" if self.direct else "buffered"
        return f"{self.engine}:{cache}:{self.block_bytes // _UNITS[unit]}{unit}:{self.depth}"


def uring_refusal() -> str | None:
    """Why this process may not use io_uring; None if it may."""
    if not NATIVE:
        return "perdure's native code is not built for this platform"
    code = _native.uring_refused()
    if code == 0:
        return None
    why = {
        errno.ENOSYS: "this kernel, or the container's seccomp filter, does not have it",
        errno.EPERM: "it is forbidden here (kernel.io_uring_disabled, or the container's seccomp filter)",
        errno.EACCES: "it is forbidden here (a security module or the container's seccomp filter)",
    }
    return why.get(code, f"the kernel refuses it: {os.strerror(code)}")


def usable(io: Io) -> Io:
    """``io``, or the nearest to it that this process may use."""
    if not NATIVE:
        return Io("plain", False, io.block_bytes, 1)
    if io.engine == "uring" and uring_refusal() is not None:
        return Io("threads", io.direct, io.block_bytes, min(io.depth, 8))
    return io


def default_io(file_system: str) -> Io:
    """What is right for most disks under a file system of this type (as /proc/mounts names it).

    >>> default_io("tmpfs")
    Io(engine='plain', direct=False, block_bytes=8388608, depth=1)
    """
    if file_system in _DIRECT_SYSTEMS:
        return usable(Io("uring", True, 4 << 20, 16))
    return Io("plain", False, 8 << 20, 1)
