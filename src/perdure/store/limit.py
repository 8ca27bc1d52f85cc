"""A store that takes no more than its share: so many bytes a second, so many requests at once.

    store = Limit(open_store("s3://bucket/run7"), bytes_per_s=200e6, requests=8)

Bytes are paid for after they moved: whoever comes next waits until the debt is worked off. So no call is refused for
its size, nobody waits for bytes that are not there, and the average holds over any time that is long against one chunk.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from perdure.clock import SYSTEM, Clock
from perdure.errors import CallError
from perdure.store.api import Store, as_bytes
from perdure.store.counted import Anew

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["Limit"]

_SLICE_S = 0.1  # a chunk is handed on in slices of so much of a second, so that others get their turn
_LEAST_BYTES = 64 << 10


class Limit:
    """``store`` at ``bytes_per_s`` (reads and writes together; may be set anew) and ``requests`` at once; None is no
    limit.

    A `put` is one request until its last chunk; chunks that are read from this very store need a second one.
    """

    def __init__(
        self, store: Store, *, bytes_per_s: float | None = None, requests: int | None = None, clock: Clock = SYSTEM
    ) -> None:
        if (bytes_per_s is not None and bytes_per_s <= 0) or (requests is not None and requests < 1):
            raise CallError("a limit must be more than 0: nothing would ever move")
        self.store = store
        self.bytes_per_s, self._requests, self._clock = bytes_per_s, requests, clock
        self._turns = None if requests is None else threading.BoundedSemaphore(requests)
        self._lock = threading.Lock()
        self._free_at = clock.monotonic()

    def __repr__(self) -> str:
        return f"Limit({self.store!r}, bytes_per_s={self.bytes_per_s}, requests={self._requests})"

    def __str__(self) -> str:
        return str(self.store)

    def put(self, name: str, chunks: Iterable[Buffer]) -> None:
        with self._turn():
            again = iter(chunks) is not chunks  # what can be read anew still can
            self.store.put(name, Anew(lambda: self._slices(chunks)) if again else self._slices(chunks))

    def create(self, name: str, data: Buffer) -> bool:
        with self._turn():
            self._wait()
            created = self.store.create(name, data)
            self._spend(as_bytes(data).nbytes)
            return created

    def read(self, name: str, *, start: int = 0, nbytes: int | None = None, into: Buffer | None = None) -> memoryview:
        with self._turn():
            self._wait()
            found = self.store.read(name, start=start, nbytes=nbytes, into=into)
            self._spend(found.nbytes)
            return found

    def size(self, name: str) -> int | None:
        with self._turn():
            return self.store.size(name)

    def names(self, prefix: str) -> list[str]:
        with self._turn():
            return self.store.names(prefix)

    def delete(self, name: str) -> None:
        with self._turn():
            self.store.delete(name)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        if self._turns is None:
            yield
        else:
            with self._turns:
                yield

    def _slices(self, chunks: Iterable[Buffer]) -> Iterator[memoryview]:
        for chunk in chunks:
            view = as_bytes(chunk)
            step = view.nbytes
            if self.bytes_per_s is not None:
                step = max(int(self.bytes_per_s * _SLICE_S), _LEAST_BYTES)
            for lo in range(0, view.nbytes, max(step, 1)):
                self._wait()
                piece = view[lo : lo + step]
                yield piece
                self._spend(piece.nbytes)

    def _wait(self) -> None:
        """Let the time pass until the bytes of those before us are paid for."""
        with self._lock:
            wait_s = self._free_at - self._clock.monotonic()
        if wait_s > 0:
            self._clock.sleep(wait_s)

    def _spend(self, nbytes: int) -> None:
        if self.bytes_per_s is not None:
            with self._lock:
                self._free_at = max(self._free_at, self._clock.monotonic()) + nbytes / self.bytes_per_s
