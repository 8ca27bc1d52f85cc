"""Parts of a commit, read ahead: many at once, each in as few requests as there can be.

A step that a thousand nodes saved has a thousand parts. One after another, record and leaves each for itself, they cost
some thousand times the delay of the store; here some dozens are under way at any time, within a bound of bytes, while
those that have come are looked at. What was read ahead lies in front of the store (`Ahead`), and is checked by who asks
for it as if it came from there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from perdure.errors import PerdureError
from perdure.store import LeafRef, Part, PartRef, Run, Store
from perdure.store.api import as_bytes
from perdure.store.records import PART_LIMIT_BYTES, decode

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["Ahead", "read_ahead"]

_AT_ONCE: Final = 32  # requests
_AHEAD_BYTES: Final = 64 << 20
_SPAN_BYTES: Final = 16 << 20
_WHOLE_BYTES: Final = {True: 4 << 20, False: 64 << 10}  # by whether all leaves are wanted

Span = tuple[int, memoryview]
"""Where it begins in its blob, and bytes."""


class Ahead:
    """``store``, with parts of blobs that have been read already."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._there: dict[str, tuple[int | None, Sequence[Span]]] = {}

    def __str__(self) -> str:
        return str(self.store)

    def __contains__(self, name: str) -> bool:
        return name in self._there

    def keep(self, name: str, nbytes: int | None, spans: Sequence[Span]) -> None:
        """The blob ``name`` has ``nbytes`` (None if it is not there), ``spans`` among them."""
        self._there[name] = (nbytes, spans)

    def drop(self, name: str) -> None:
        """Forget the blob: from now on it is read from the store."""
        self._there.pop(name, None)

    def size(self, name: str) -> int | None:
        return self._there[name][0] if name in self._there else self.store.size(name)

    def read(self, name: str, *, start: int = 0, nbytes: int | None = None, into: Buffer | None = None) -> memoryview:
        if into is None and nbytes is not None:
            for at, data in self._there.get(name, (None, ()))[1]:
                if at <= start and start + nbytes <= at + len(data):
                    return data[start - at : start - at + nbytes]
        return self.store.read(name, start=start, nbytes=nbytes, into=into)

    def put(self, name: str, chunks: Iterable[Buffer]) -> None:
        self.store.put(name, chunks)

    def create(self, name: str, data: Buffer) -> bool:
        return self.store.create(name, data)

    def names(self, prefix: str) -> list[str]:
        return self.store.names(prefix)

    def delete(self, name: str) -> None:
        self.store.delete(name)


def read_ahead(
    run: Run,
    refs: Sequence[PartRef],
    *,
    needs: Callable[[LeafRef], bool] | None = None,
    known: Mapping[str, Buffer] | None = None,
) -> Iterator[tuple[Run, PartRef, Part]]:
    """Each of ``refs`` in turn: a view of the run to read its leaves by, and its record, checked.

    ``needs`` says which leaves will be asked for; all but those of bases by default. ``known`` are parts that somebody
    else has read: those that are not what was committed are read again. Leaves can be read by the view later too; they
    come from the store then.

    Raises what `Run.read_part` raises.
    """
    ahead = Ahead(run.store)
    view = replace(run, store=ahead)
    for ref in refs:
        if known is not None and ref.name in known:
            whole = as_bytes(known[ref.name])
            ahead.keep(ref.name, whole.nbytes, ((0, whole),))
            if not _sound(view, ref):
                ahead.drop(ref.name)
    missing = [ref for ref in refs if ref.name not in ahead]
    if len(missing) < 2:
        pool, waiting = None, iter(missing)
    else:
        pool, waiting = ThreadPoolExecutor(min(_AT_ONCE, len(missing)), "perdure-parts"), iter(missing)
    under_way: deque[tuple[PartRef, Future[tuple[int | None, Sequence[Span]]]]] = deque()
    nbytes = 0

    def send_for_more() -> None:
        nonlocal nbytes
        assert pool is not None
        while not under_way or (nbytes < _AHEAD_BYTES and len(under_way) < 2 * _AT_ONCE):
            ref = next(waiting, None)
            if ref is None:
                return
            under_way.append((ref, pool.submit(_fetch, run.store, ref, needs)))
            nbytes += ref.nbytes

    try:
        for ref in refs:
            if ref.name not in ahead:
                if pool is None:
                    ahead.keep(ref.name, *_fetch(run.store, ref, needs))
                else:
                    send_for_more()
                    sent, future = under_way.popleft()
                    assert sent is ref
                    ahead.keep(ref.name, *future.result())
                    nbytes -= ref.nbytes
            yield view, ref, view.read_part(ref)
            ahead.drop(ref.name)
    finally:
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)


def _sound(view: Run, ref: PartRef) -> bool:
    """Whether what somebody else has read of a part is what was committed; else it is read from the store."""
    try:
        for leaf in view.read_part(ref).leaves:
            view.read_leaf(ref, leaf)
    except PerdureError:
        return False
    return True


def _fetch(store: Store, ref: PartRef, needs: Callable[[LeafRef], bool] | None) -> tuple[int | None, Sequence[Span]]:
    """The size of a part, and what will be looked at of it. What is wrong with it is told by who looks."""
    found = store.size(ref.name)
    if found is None or found != ref.nbytes:
        return found, ()
    if found <= _WHOLE_BYTES[needs is None]:
        return found, ((0, store.read(ref.name, nbytes=found)),)
    top = store.read(ref.name, nbytes=min(ref.top_nbytes, found, PART_LIMIT_BYTES))
    spans = [(0, top)]
    try:
        leaves = decode(top, Part, file=ref.name).leaves
    except PerdureError:
        return found, spans
    start = end = 0
    for leaf in leaves:
        if leaf.kind != "bases" if needs is None else needs(leaf):
            if start < end and (leaf.start != end or leaf.start + leaf.nbytes - start > _SPAN_BYTES):
                spans.append((ref.top_nbytes + start, _span(store, ref, start, end)))
                start = end = leaf.start
            elif start == end:
                start = leaf.start
            end = leaf.start + leaf.nbytes
    if start < end:
        spans.append((ref.top_nbytes + start, _span(store, ref, start, end)))
    return found, spans


def _span(store: Store, ref: PartRef, start: int, end: int) -> memoryview:
    return store.read(ref.name, start=ref.top_nbytes + start, nbytes=min(end, ref.nbytes - ref.top_nbytes) - start)
