"""Find out how a folder's file system is written fastest, durably.

A short race: each way writes a file of random bytes and syncs it, one after another, round by round, so that a
disturbance hits them all. Never started unasked; `perdure doctor --calibrate` does.
"""

from __future__ import annotations

import mmap
import os
import secrets
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import numpy as np

from perdure.store.file_system import FileSystem, file_system_of
from perdure.store.io_choice import Io, usable
from perdure.store.refusals import explained
from perdure.store.remembered import remember
from perdure.store.stream import write_chunks

__all__ = ["BUDGET_BYTES", "BUDGET_S", "CANDIDATES", "Calibration", "Trial", "calibrate", "choose"]

CANDIDATES = tuple(
    Io.parse(text)
    for text in (
        "uring:direct:4MiB:16",
        "plain:buffered:8MiB:1",
        "threads:direct:4MiB:8",
        "threads:buffered:8MiB:4",
        "uring:direct:1MiB:32",
        "uring:direct:8MiB:16",
    )
)
"""The likeliest first: a slow disk may not come further within the budget."""

BUDGET_S = 2.0
BUDGET_BYTES = 256 << 20
"""Room on the disk, and in memory, that a race may take at any moment."""

_ROUNDS = 5
_NEAR = 0.95  # within this of the fastest, the likelier one is taken: the rest is noise
_CACHE_MUST_GAIN = 1.25  # the page cache takes memory, and a processor, that the training needs


@dataclass(frozen=True, slots=True)
class Trial:
    """``io`` wrote and synced ``nbytes`` in each of ``seconds``."""

    io: Io
    nbytes: int
    seconds: tuple[float, ...]

    @property
    def bytes_per_s(self) -> float:
        return self.nbytes / statistics.median(self.seconds)


@dataclass(frozen=True, slots=True)
class Calibration:
    """What a race found. ``file`` is where the ``best`` is kept from now on."""

    file_system: FileSystem
    trials: tuple[Trial, ...]
    best: Io
    file: str


def choose(trials: Sequence[Trial]) -> Io:
    """The first of ``trials`` that is about as fast as the fastest; through the page cache only for a clear gain.

    >>> slow, fast = (Trial(io, 100, (seconds,)) for io, seconds in zip(CANDIDATES, (2.0, 1.0)))
    >>> str(choose([slow, fast]))
    'plain:buffered:8MiB:1'
    """
    worth = [trial.bytes_per_s / (1.0 if trial.io.direct else _CACHE_MUST_GAIN) for trial in trials]
    return next(trial.io for trial, value in zip(trials, worth, strict=True) if value >= _NEAR * max(worth))


def calibrate(
    folder: str,
    *,
    nbytes: int = 128 << 20,
    budget_s: float = BUDGET_S,
    now: Callable[[], float] = time.perf_counter,
) -> Calibration:
    """Race the ways to write below the existing ``folder`` and remember the best for its file system and this user.

    Writes files of ``nbytes`` (at most `BUDGET_BYTES`), one at a time, and removes them; starts no file after
    ``budget_s`` seconds. Raises `StorageError` if the folder cannot be written.
    """
    nbytes = min(nbytes, BUDGET_BYTES)
    ways = tuple(dict.fromkeys(usable(io) for io in CANDIDATES))
    seconds: dict[Io, list[float]] = {}
    end = now() + budget_s
    with _noise(nbytes) as data:
        for turn in range(_ROUNDS * len(ways)):
            if seconds and now() >= end:
                break
            io = ways[turn % len(ways)]
            seconds.setdefault(io, []).append(_written(folder, data, io, now))
    trials = tuple(Trial(io, nbytes, tuple(taken)) for io, taken in seconds.items())
    best = choose(trials)
    system = file_system_of(folder)
    return Calibration(system, trials, best, remember(system.key, best))


@contextmanager
def _noise(nbytes: int) -> Iterator[memoryview]:
    """Aligned memory of bytes that no disk can compress."""
    with mmap.mmap(-1, nbytes) as memory:
        whole = np.frombuffer(memory, np.uint8)
        block = np.random.default_rng().integers(0, 256, min(nbytes, 16 << 20), dtype=np.uint8)
        for start in range(0, nbytes, block.size):
            whole[start : start + block.size] = block[: nbytes - start]
        del whole
        with memoryview(memory) as view:
            yield view


def _written(folder: str, data: memoryview, io: Io, now: Callable[[], float]) -> float:
    """The seconds in which ``io`` wrote ``data`` to a new file of ``folder``, durably."""
    path = f"{folder}/.tmp-{secrets.token_hex(16)}"  # a name that the store sweeps, should we be killed
    start = now()
    with explained(folder, "write to"):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        write_chunks(fd, [data], path=path, io=lambda: io)
        with explained(path, "sync"):
            os.fsync(fd)
        return now() - start
    finally:
        os.close(fd)
        with suppress(OSError):  # swept later; what failed before counts
            os.unlink(path)
