"""Write the chunks of one blob to its new file, as one aggregated stream of aligned blocks (arXiv 2512.24511).

Small blobs, and every blob where the C++ engines are missing, are written by plain calls. A large one goes through
`_native.WriteStream`: pieces that lie in memory as the file wants them (a whole checkpoint in shared memory does) are
written from where they are, many blocks at once, and what is small or lies askew is gathered first.

The caller syncs the file. Whatever failed, the file is to be abandoned: nothing here is tried twice.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING

from perdure.store.api import as_bytes
from perdure.store.io_choice import NATIVE, Io
from perdure.store.refusals import explained

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from perdure import _native
elif NATIVE:
    from perdure import _native

__all__ = ["SMALL_BYTES", "write_chunks"]

SMALL_BYTES = 2 << 20
"""A blob up to here is one plain write: an engine would take longer to start than it would save."""

_WRITE_BYTES = 64 << 20  # a write call at most; short enough that a signal is not kept waiting
_APPEND_BYTES = 256 << 20  # between two appends signals are seen


def write_chunks(fd: int, chunks: Iterable[Buffer], *, path: str, io: Callable[[], Io]) -> None:
    """Write ``chunks`` to the empty file ``fd``, each before the next one is asked for; ``path`` is for messages.

    ``io`` is asked how, if the blob is large. Errors of ``chunks`` pass unchanged, errors of the file are `explained`.
    On return every byte is handed to the kernel and the file has its size.
    """
    views = (as_bytes(chunk) for chunk in chunks)
    if not NATIVE:
        for view in views:
            with explained(path, "write"):
                _write_all(fd, view)
        return
    held = bytearray()
    for view in views:
        if len(held) + view.nbytes > SMALL_BYTES:
            return _stream(fd, chain([memoryview(held), view], views), path=path, io=io())
        held += view  # a copy: the generator may use its buffer again
    with explained(path, "write"):
        _write_all(fd, memoryview(held))


def _stream(fd: int, views: Iterator[memoryview], *, path: str, io: Io) -> None:
    with explained(path, "write"):
        stream = _open_stream(fd, io)
    try:
        for view in views:
            with explained(path, "write"):
                if view.nbytes > SMALL_BYTES:
                    stream.expect(view.nbytes)
                for start in range(0, view.nbytes, _APPEND_BYTES):
                    stream.append(view[start : start + _APPEND_BYTES])
                stream.settle()
        with explained(path, "write"):
            stream.finish()
    finally:
        stream.close()  # waits for writes in flight: the memory under them is the caller's


def _open_stream(fd: int, io: Io) -> _native.WriteStream:
    try:
        return _native.WriteStream(fd, io.engine, io.direct, io.block_bytes, io.depth)
    except OSError:
        # Short of descriptors, locked memory or threads for the moment, and nothing is written yet: a save is worth
        # more than its speed. That an engine is forbidden for good is seen before, by `usable`.
        return _native.WriteStream(fd, "plain", False, io.block_bytes, 1)


def _write_all(fd: int, view: memoryview) -> None:
    done = 0
    while done < view.nbytes:
        done += os.write(fd, view[done : done + _WRITE_BYTES])
