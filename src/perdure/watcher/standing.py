"""Where a rank stands, read from the stack of its main thread.

The innermost frames decide: a debugger or an import before all, else a collective, else a data loader, else a read,
write or save, else the program's own work. What a frame is says the table in `frames`.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

from perdure.watcher.frames import Kind, kind_of, parts_of

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


_OF_KIND = {
    Kind.DEBUGGER: Standing.DEBUGGER,
    Kind.IMPORT: Standing.IMPORT,
    Kind.COLLECTIVE: Standing.COLLECTIVE,
    Kind.DATA: Standing.LOADING,
    Kind.IO: Standing.IO,
}


def standing(frames: Iterable[str]) -> Standing:
    """Say where a thread with these frames is, the innermost first.

    >>> standing(["torch/distributed/distributed_c10d.py:2501 all_reduce", "train.py:40 step"])
    <Standing.COLLECTIVE: 'in-collective'>
    >>> standing(["model.py:12 forward", "train.py:40 step"])
    <Standing.WORK: 'in-work'>
    """
    kinds = [kind for frame in list(frames)[:_INNERMOST] if (kind := kind_of(*parts_of(frame))[0]) is not None]
    for first in (Kind.DEBUGGER, Kind.IMPORT):
        if first in kinds:
            return _OF_KIND[first]
    # from the inside outwards: who calls a loader in a collective still waits in the collective
    return _OF_KIND[kinds[0]] if kinds else Standing.WORK
