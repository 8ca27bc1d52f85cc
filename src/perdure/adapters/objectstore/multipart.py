"""A multipart upload: chunks of any size made into parts, handed to obstore, aborted if their source fails.

obstore takes an iterator and asks it from inside its own event loop, where nothing that uses obstore may run; and a
generator of chunks may well read from another object store. So the upload runs on a thread of its own and the chunks
are made on the caller's, part by part: at most one part waits between them.
"""

from __future__ import annotations

import queue
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import obstore
from obstore.store import ObjectStore as Client

from perdure.errors import Bug
from perdure.store.api import as_bytes

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["Parts", "upload"]

_IN_FLIGHT = 4  # parts of an upload at once
_LOOK_S = 0.2  # how soon a broken upload is noticed while a part waits for it


class Parts:
    """Chunks of any size as parts of one size, each in memory of its own: the caller may reuse its buffers."""

    def __init__(self, chunks: Iterable[Buffer], part_bytes: int) -> None:
        self._chunks = iter(chunks)
        self._part_bytes = part_bytes
        self._left = memoryview(b"")
        self.at_end = False

    def next_part(self) -> bytearray:
        """The next part, shorter or empty if it is the last one; ``at_end`` says whether it is."""
        if self.at_end:
            raise Bug("a part after the last one")
        part = bytearray()
        while True:
            room = self._part_bytes - len(part)
            part += self._left[:room]
            self._left = self._left[room:]
            if self._left.nbytes:
                return part
            chunk = next(self._chunks, None)
            if chunk is None:
                self.at_end = True
                return part
            self._left = as_bytes(chunk)


class _Feed:
    """What obstore iterates over: parts as they come, until the end or an abort."""

    def __init__(self) -> None:
        self._queue: queue.Queue[bytearray | BaseException | None] = queue.Queue(maxsize=1)

    def __iter__(self) -> _Feed:
        return self

    def __next__(self) -> bytearray:
        item = self._queue.get()
        if item is None:
            raise StopIteration
        if isinstance(item, BaseException):
            raise item
        return item

    def give(self, item: bytearray | BaseException | None, uploading: Future[object]) -> bool:
        """Hand ``item`` over; False if the upload has ended meanwhile, and nobody will take it."""
        while True:
            try:
                self._queue.put(item, timeout=_LOOK_S)
                return True
            except queue.Full:
                if uploading.done():
                    return False


class _Aborted(Exception):
    """Makes obstore abort the upload."""


def upload(
    client: Client, key: str, parts: Iterable[bytearray], *, part_bytes: int, attributes: dict[str, str]
) -> BaseException | None:
    """Upload ``parts`` as the object ``key``; what obstore raised, if anything.

    An error of ``parts`` itself passes unchanged, once the upload is aborted.
    """
    feed = _Feed()
    with ThreadPoolExecutor(1, thread_name_prefix="perdure-upload") as thread:
        uploading: Future[object] = thread.submit(
            obstore.put,
            client,
            key,
            feed,
            use_multipart=True,
            chunk_size=part_bytes,
            max_concurrency=_IN_FLIGHT,
            attributes=attributes,
        )
        try:
            for part in parts:
                if not feed.give(part, uploading):
                    break
            else:
                feed.give(None, uploading)
        except BaseException:
            feed.give(_Aborted(), uploading)
            uploading.exception()  # wait: nothing of it runs on after this
            raise
        return uploading.exception()
