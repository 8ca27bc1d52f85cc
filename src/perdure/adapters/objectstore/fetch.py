"""Reading from an object store: one request tells the size and brings the first bytes; the rest comes in parallel."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager

import obstore
from obstore.store import ObjectStore as Client

from perdure.adapters.objectstore.refusals import REFUSALS, explain, starts_behind_end
from perdure.errors import BlobCorrupt, StorageError
from perdure.store.api import check_span, missing

__all__ = ["Fetch"]

_SPAN_BYTES = 8 << 20  # of one request; long enough that its latency does not count
_AT_ONCE = 8
_FURTHEST = 1 << 62  # beyond this no store has bytes, and numbers of requests end


class Fetch:
    """Spans of blobs through ``client``, from any thread."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()

    def size(self, key: str, file: str) -> int | None:
        """The size of the blob; None if there is none."""
        try:
            return int(obstore.head(self._client, key)["size"])
        except FileNotFoundError:
            return None
        except REFUSALS as error:
            raise explain(error, file, "look at") from None

    def read(
        self, name: str, key: str, file: str, *, start: int, nbytes: int | None, target: memoryview | None
    ) -> memoryview:
        """As `perdure.store.api.Store.read`."""
        wanted = target.nbytes if nbytes is None and target is not None else nbytes
        head = _SPAN_BYTES if wanted is None else min(wanted, _SPAN_BYTES)
        if start < 0 or head <= 0 or start > _FURTHEST:
            return self._refuse_or_empty(name, key, file, start=start, nbytes=nbytes, target=target)
        with _read(name, file):
            try:
                answer = obstore.get(self._client, key, options={"range": (start, start + head)})
                blob_nbytes = int(answer.meta["size"])
            except REFUSALS as error:
                if not starts_behind_end(error):
                    raise
                return self._refuse_or_empty(name, key, file, start=start, nbytes=nbytes, target=target)
        count = check_span(name, blob_nbytes, start=start, nbytes=nbytes, into=target, file=file)
        with _read(name, file):
            front = memoryview(answer.bytes())
        first = min(head, count)
        _check_whole(front, first, file)
        if target is None and first == count:
            return front
        view = (memoryview(bytearray(count)) if target is None else target)[:count]
        view[:first] = front
        spans = [(at, min(at + _SPAN_BYTES, count)) for at in range(first, count, _SPAN_BYTES)]

        def fill(span: tuple[int, int]) -> None:
            lo, hi = span
            with _read(name, file):
                found = memoryview(obstore.get_range(self._client, key, start=start + lo, end=start + hi))
            _check_whole(found, hi - lo, file)
            view[lo:hi] = found

        if len(spans) == 1:
            fill(spans[0])
        elif spans:
            # Every one is waited for, also after a failure: they write into the caller's buffer.
            futures = [self._threads().submit(fill, span) for span in spans]
            wait(futures)
            for future in futures:
                future.result()
        return view

    def _refuse_or_empty(
        self, name: str, key: str, file: str, *, start: int, nbytes: int | None, target: memoryview | None
    ) -> memoryview:
        blob_nbytes = self.size(key, file)
        if blob_nbytes is None:
            raise missing(name, file=file)
        count = check_span(name, blob_nbytes, start=start, nbytes=nbytes, into=target, file=file)
        if count:
            raise StorageError(f"{file} holds bytes that the store does not give; read it again", file=file)
        return memoryview(b"") if target is None else target[:0]

    def _threads(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="perdure-fetch")
            return self._pool


@contextmanager
def _read(name: str, file: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise missing(name, file=file) from None
    except REFUSALS as error:
        raise explain(error, file, "read") from None


def _check_whole(found: memoryview, nbytes: int, file: str) -> None:
    if found.nbytes != nbytes:
        raise BlobCorrupt(
            f"{file} gave {found.nbytes} bytes where {nbytes} were asked for; use another copy or an older step",
            file=file,
        )
