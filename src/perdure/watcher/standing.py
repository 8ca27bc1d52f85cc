"""Where a rank stands, read from the stack of its main thread.

The innermost frames decide: a debugger or an import before all, else a collective, else a data loader, else a read,
write or save, else the program's own work. A frame may be written ``file:line function`` or ``function (file:line)``.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable

__all__ = ["Standing", "standing"]

_INNERMOST = 12


class Standing(enum.StrEnum):
    """Where a main thread is."""

    DEBUGGER = "in-debugger"
    IMPORT = "in-import"
    COLLECTIVE = "in-collective"
    LOADING = "in-loading"
    IO = "in-io"
    WORK = "in-work"


def _any(*words: str) -> re.Pattern[str]:
    return re.compile("|".join(words), re.IGNORECASE)


_PLACES: tuple[tuple[Standing, re.Pattern[str]], ...] = (
    (Standing.DEBUGGER, _any(r"\bpdb\.py", r"\bbdb\.py", r"\bpudb\b", r"\bdebugpy\b", r"\bpydevd", r"\bipdb\b")),
    (Standing.IMPORT, _any(r"importlib[./]_bootstrap", r"_find_and_load", r"<frozen importlib")),
    (
        Standing.COLLECTIVE,
        _any(
            r"distributed_c10d",
            r"\b(all_reduce|allreduce|all_gather|allgather|reduce_scatter|all_to_all|alltoall|barrier)\w*\b",
            r"\b(broadcast|_?batch_isend_irecv|recv_forward|recv_backward|send_forward|send_backward)\w*\b",
            r"ProcessGroup",
            r"\bnccl",
            r"\bgloo\b",
        ),
    ),
    (
        Standing.LOADING,
        _any(
            r"data/dataloader\.py",
            r"_try_get_data",
            r"_next_data",
            r"dataloader",
            r"data_loader",
            r"__getitem__",
            r"fetch\.py",
            r"multiprocessing/queues\.py",
            r"\b(dataset|datasets)\w*\.py",
            r"\bget_batch\b",
            r"\bload_batch\b",
            r"\bnext_batch\b",
        ),
    ),
    (
        Standing.IO,
        _any(
            r"\bfsync\b",
            r"\bfdatasync\b",
            r"/_?pyio\.py",
            r"\bsocket\.py",
            r"\bssl\.py",
            r"\bhttp/client\.py",
            r"urllib3?/",
            r"shutil\.py",
            r"\b(save|load)_(checkpoint|state)\w*",
            r"serialization\.py",
            r"\b(read|write|pread|pwrite|open|readinto|flush)$",
            r"^(read|write|pread|pwrite|open|readinto|flush) \(",
        ),
    ),
)


def standing(frames: Iterable[str]) -> Standing:
    """Say where a thread with these frames is, the innermost first.

    >>> standing(["torch/distributed/distributed_c10d.py:2501 all_reduce", "train.py:40 step"])
    <Standing.COLLECTIVE: 'in-collective'>
    >>> standing(["model.py:12 forward", "train.py:40 step"])
    <Standing.WORK: 'in-work'>
    """
    inner = list(frames)[:_INNERMOST]
    for place, pattern in _PLACES[:2]:
        if any(pattern.search(frame) for frame in inner):
            return place
    for frame in inner:  # from the inside outwards: who calls a loader in a collective still waits in the collective
        for place, pattern in _PLACES[2:]:
            if pattern.search(frame):
                return place
    return Standing.WORK
