"""Whether memory holds what is written to it, and whether there is enough of it."""

from __future__ import annotations

import mmap
import shutil
import time
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from perdure.process.memory import available_nbytes
from perdure.supervisor.checks import Context, Result

__all__ = ["faults", "fill", "free_memory", "memory", "patterns"]

_STEP = 1 << 20
"""Words that are filled or compared at a time: 8 MiB."""

_LOW_BYTES = 1 << 30
_SHM = "/dev/shm"

Words = npt.NDArray[np.uint64]


def patterns() -> Iterator[tuple[str, int, int]]:
    """Name, first word and step of each pattern: word i holds ``first + i * step``, modulo 2**64.

    Fixed words find bits that stick, alternating ones find neighbours that leak into each other; words that are all
    different find lines of the address that stick. The last is the complement of the one before it.
    """
    yield "zeros", 0, 0
    yield "ones", (1 << 64) - 1, 0
    yield "01", 0x5555555555555555, 0
    yield "10", 0xAAAAAAAAAAAAAAAA, 0
    yield "addresses", 0, 0x9E3779B97F4A7C15
    yield "complements", (1 << 64) - 1, (1 << 64) - 0x9E3779B97F4A7C15


def fill(words: Words, first: int, step: int) -> None:
    """Write a pattern to all of ``words``."""
    for begin in range(0, len(words), _STEP):
        part = words[begin : begin + _STEP]
        part[:] = _expected(begin, len(part), first, step)


def faults(words: Words, first: int, step: int) -> list[tuple[int, int]]:
    """Where ``words`` differ from the pattern: index and the bits that differ, at most ten."""
    found: list[tuple[int, int]] = []
    for begin in range(0, len(words), _STEP):
        part = words[begin : begin + _STEP]
        wrong = part ^ _expected(begin, len(part), first, step)
        found += [(begin + int(i), int(wrong[i])) for i in np.flatnonzero(wrong)[:10]]
        if len(found) >= 10:
            break
    return found[:10]


def memory(context: Context) -> Result:
    """Fill memory with each pattern in turn, and compare."""
    nbytes = min(context.memory_bytes, available_nbytes() // 8) // 4096 * 4096
    if nbytes <= 0:
        return _too_little(available_nbytes(), context.need_memory_bytes or 1, "memory")
    began = time.monotonic()
    with mmap.mmap(-1, nbytes) as block:
        words = np.frombuffer(block, dtype=np.uint64)
        bad: dict[str, list[tuple[int, int]]] = {}
        for name, first, step in patterns():
            fill(words, first, step)
            if found := faults(words, first, step):
                bad[name] = found
        del words  # a block with a view on it cannot be closed
    return verdict(bad, nbytes=nbytes, took_s=time.monotonic() - began)


def verdict(bad: dict[str, list[tuple[int, int]]], *, nbytes: int, took_s: float) -> Result:
    """The result for words that came back wrong, by pattern."""
    n_patterns = sum(1 for _ in patterns())
    facts = {
        "nbytes": nbytes,
        "bytes_per_s": round(2 * n_patterns * nbytes / max(took_s, 1e-9)),
        "wrong": {name: [[index, f"{bits:016x}"] for index, bits in found] for name, found in bad.items()},
    }
    if bad:
        name, found = next(iter(bad.items()))
        return Result(
            check="memory",
            word="problem",
            says=f"memory does not hold what is written to it: pattern {name}, bits {found[0][1]:016x} of a word",
            do="take the node out and have its memory tested",
            facts=facts,
        )
    return Result(check="memory", word="ok", says=f"{nbytes >> 20} MiB hold {n_patterns} patterns", facts=facts)


def free_memory(context: Context) -> Result:
    """Free memory of this machine or its container, and room in /dev/shm."""
    free = available_nbytes()
    try:
        shm = shutil.disk_usage(_SHM)
    except OSError as error:
        return Result(
            check="free-memory",
            word="note",
            says=f"{_gb(free)} of memory are free; there is no {_SHM}: {error.strerror}",
            do=f"mount a tmpfs at {_SHM}: data loaders and NCCL of most jobs need it",
            facts={"free_bytes": free},
        )
    facts = {"free_bytes": free, "shm_free_bytes": shm.free, "shm_bytes": shm.total}
    if free < context.need_memory_bytes:
        return _too_little(free, context.need_memory_bytes, "free-memory", **facts)
    says = f"{_gb(free)} of memory and {_gb(shm.free)} of {_SHM} are free"
    if free < _LOW_BYTES:
        return Result(check="free-memory", word="note", says=says, do="end what else runs here", facts=facts)
    if shm.free < min(_LOW_BYTES, shm.total // 2) or shm.total < _LOW_BYTES:
        do = f"remove what is left in {_SHM}, or make it larger (in containers: --shm-size, --ipc=host)"
        return Result(check="free-memory", word="note", says=says, do=do, facts=facts)
    return Result(check="free-memory", word="ok", says=says, facts=facts)


def _too_little(free: int, need: int, check: str, **facts: int) -> Result:
    return Result(
        check=check,
        word="problem",
        says=f"{_gb(free)} of memory are free, and {_gb(need)} are needed",
        do="end what else runs here, or raise the limit of the container",
        facts=facts or {"free_bytes": free},
    )


def _expected(begin: int, count: int, first: int, step: int) -> Words:
    if not step:
        return np.full(count, first, dtype=np.uint64)
    with np.errstate(over="ignore"):
        return np.arange(begin, begin + count, dtype=np.uint64) * np.uint64(step) + np.uint64(first)


def _gb(nbytes: int) -> str:
    return f"{nbytes / 1e9:.1f} GB"
