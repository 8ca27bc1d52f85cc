"""A store whose verbs end: each raises `DeadlineExceeded` when nothing has moved for a while.

    store = Patience(Disk("/mnt/run7"), stall_s=60.0)

A hung disk leaves whoever calls it in a sleep that no signal ends (state D). So the verb runs on a helper thread, and
when the store makes no progress for ``stall_s`` the caller goes on without it. The thread stays until the disk comes
back, and what it holds must be its own until then:

* `read` fetches into memory of the thread and copies from there: a late answer must not land in a buffer that the
  caller uses for something else by now;
* `put` hands over copies of at most 16 MiB, made on the caller's thread. Asking for the next one is progress; time that
  the caller needs to make one does not count. After a stall the thread gets no more of them, so it cannot complete what
  it has begun; only if all was handed over can the blob still appear, as with every `TryAgain`;
* so many stuck threads are enough (16): from then on a verb is refused at once, until one of them comes back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from perdure.errors import CallError, DeadlineExceeded
from perdure.store.api import Store, as_bytes, check_span, missing

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["Patience"]

T = TypeVar("T")
_PIECE_BYTES = 16 << 20  # what moves between two signs of progress
_STUCK = 16


class Patience:
    """``store``, whose every verb gives up after ``stall_s`` without progress."""

    def __init__(self, store: Store, *, stall_s: float) -> None:
        if stall_s <= 0:
            raise CallError(f"stall_s must be more than 0, not {stall_s}")
        self.store = store
        self.stall_s = stall_s
        self._stuck: set[_Job[Any]] = set()
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"Patience({self.store!r}, stall_s={self.stall_s:g})"

    def __str__(self) -> str:
        return str(self.store)

    def put(self, name: str, chunks: Iterable[Buffer]) -> None:
        job = self._begin(lambda job: self.store.put(name, job.pieces()), "put", name)
        try:
            source = _pieces(chunks)
            while not self._moved(job, "put", name).done.is_set():
                job.give(next(source, None))
        except _Stalled as stalled:
            job.abandon()
            raise stalled.told from None
        except BaseException:  # of the chunks themselves: let the store take away what it has
            job.abandon()
            job.done.wait(self.stall_s)
            raise
        job.result()

    def create(self, name: str, data: Buffer) -> bool:
        copy = bytes(as_bytes(data))
        return self._run("create", name, lambda: self.store.create(name, copy))

    def read(self, name: str, *, start: int = 0, nbytes: int | None = None, into: Buffer | None = None) -> memoryview:
        target = None if into is None else as_bytes(into)
        count = target.nbytes if nbytes is None and target is not None else nbytes
        if count is None or start < 0 or not 0 <= count <= _PIECE_BYTES:
            # Only a blob that has so many bytes is worth the memory.
            blob_nbytes = self.size(name)
            if blob_nbytes is None:
                raise missing(name, file=name)
        else:
            blob_nbytes = start + count
        count = check_span(name, blob_nbytes, start=start, nbytes=nbytes, into=target, file=name)
        if target is None and count <= _PIECE_BYTES:
            return self._run("read", name, lambda: self.store.read(name, start=start, nbytes=count))
        view = (memoryview(bytearray(count)) if target is None else target)[:count]
        for lo in range(0, max(count, 1), _PIECE_BYTES):
            view[lo : lo + _PIECE_BYTES] = self._piece(name, start + lo, min(_PIECE_BYTES, count - lo))
        return view

    def size(self, name: str) -> int | None:
        return self._run("size", name, lambda: self.store.size(name))

    def names(self, prefix: str) -> list[str]:
        return self._run("names", prefix, lambda: self.store.names(prefix))

    def delete(self, name: str) -> None:
        self._run("delete", name, lambda: self.store.delete(name))

    def _piece(self, name: str, start: int, nbytes: int) -> memoryview:
        return self._run("read", name, lambda: self.store.read(name, start=start, nbytes=nbytes))

    def _run(self, verb: str, name: str, work: Callable[[], T]) -> T:
        job = self._begin(lambda job: work(), verb, name)
        try:
            self._moved(job, verb, name)
        except _Stalled as stalled:
            job.abandon()
            raise stalled.told from None
        return job.result()

    def _begin(self, work: Callable[[_Job[T]], T], verb: str, name: str) -> _Job[T]:
        with self._lock:
            self._stuck = {job for job in self._stuck if not job.done.is_set()}
            stuck = len(self._stuck)
        if stuck >= _STUCK:
            raise DeadlineExceeded(
                f"{self.store} hangs: {stuck} calls have not come back, so {verb} of {name!r} was not "
                "begun; see to the storage",
                verb=verb,
                file=name,
            )
        return _Job(work)

    def _moved(self, job: _Job[T], verb: str, name: str) -> _Job[T]:
        """``job``, once it has ended or asks for the next piece; raises `_Stalled` after ``stall_s`` of neither."""
        if not job.moved(self.stall_s):
            with self._lock:
                self._stuck.add(job)
            raise _Stalled(
                DeadlineExceeded(
                    f"{self.store} made no progress with {verb} of {name!r} for {self.stall_s:g} s; see whether its "
                    "disk or server hangs, then try again",
                    verb=verb,
                    file=name,
                    stall_s=self.stall_s,
                )
            )
        return job


class _Stalled(Exception):
    """Carries what the caller is told, apart from any `DeadlineExceeded` of its own chunks."""

    def __init__(self, told: DeadlineExceeded) -> None:
        super().__init__()
        self.told = told


class _Abandoned(Exception):
    """Ends a `put` whose caller has gone."""


class _Job(Generic[T]):
    """``work`` on a daemon thread of its own, which may outlive everybody's interest in it."""

    def __init__(self, work: Callable[[_Job[T]], T]) -> None:
        self._turn = threading.Condition()
        self._asks = self._abandoned = False
        self._given: list[bytes | None] = []
        self._value: T
        self._error: BaseException | None = None
        self.done = threading.Event()
        threading.Thread(target=self._work, args=(work,), name="perdure-patience", daemon=True).start()

    def _work(self, work: Callable[[_Job[T]], T]) -> None:
        try:
            self._value = work(self)
        except BaseException as error:
            self._error = error
        with self._turn:
            self.done.set()
            self._turn.notify_all()

    def pieces(self) -> Iterator[bytes]:
        """On the helper thread: what the caller gives, piece by piece."""
        while True:
            with self._turn:
                self._asks = True
                self._turn.notify_all()
                self._turn.wait_for(lambda: self._given or self._abandoned)
                if self._abandoned:
                    raise _Abandoned
                piece = self._given.pop()
            if piece is None:
                return
            yield piece

    def moved(self, stall_s: float) -> bool:
        """Wait until the work has ended or asks for a piece; False after ``stall_s`` of neither."""
        with self._turn:
            return self._turn.wait_for(lambda: self._asks or self.done.is_set(), stall_s)

    def give(self, piece: bytes | None) -> None:
        """Hand over the piece that was asked for; None is the end."""
        with self._turn:
            self._asks = False
            self._given.append(piece)
            self._turn.notify_all()

    def abandon(self) -> None:
        """Give no more pieces: what has begun must not be completed."""
        with self._turn:
            self._abandoned = True
            self._turn.notify_all()

    def result(self) -> T:
        """What the work returned; raises what it raised."""
        if self._error is not None:
            raise self._error
        return self._value


def _pieces(chunks: Iterable[Buffer]) -> Iterator[bytes]:
    for chunk in chunks:
        view = as_bytes(chunk)
        for lo in range(0, view.nbytes, _PIECE_BYTES):
            yield bytes(view[lo : lo + _PIECE_BYTES])
