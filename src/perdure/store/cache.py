"""A store that keeps what was read lately, in memory or in a folder, up to a budget of bytes.

    store = Cache(open_store("s3://bucket/run7"), of="s3://bucket/run7", folder="/nvme/cache", budget_bytes=200 << 30)

A name is written once and for good, so what was read under it stays right. Kept are blocks of 1 MiB of blobs that are
there: never that something is not, which may change at any moment; and no listing. `delete` forgets a blob's blocks
here; deleted elsewhere, they stay readable until the budget pushes them out.

Each block lies with its digest and is compared when it is read, so a folder that a crash or a full disk left half
written costs a second fetch and nothing else. The folder may be shared by processes (each keeps to its budget of what
it wrote and found) and by stores: ``of`` says whose blocks these are, and is part of their names.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

import xxhash

from perdure.errors import CallError
from perdure.store.api import Store, as_bytes, check_name, check_span, missing
from perdure.store.refusals import explained

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["Cache"]

_BLOCK_BYTES = 1 << 20
_DIGEST_BYTES = 16
_BLOCK = re.compile(r"\A([0-9a-f]{32})-([0-9a-f]{1,16})\.block\Z")
_HALF = re.compile(r"\A\.half-[0-9a-f]{16}\Z")


class Cache:
    """``store``, with blocks of what was read from it in ``folder``, or in memory without one.

    The least recently used go first. ``of`` names the store (its URL, or the id of its run) among those that share a
    folder. Trouble with the folder costs speed, never a read.
    """

    def __init__(
        self, store: Store, *, of: str, budget_bytes: int, folder: str | os.PathLike[str] | None = None
    ) -> None:
        if budget_bytes < _BLOCK_BYTES:
            raise CallError(f"a cache needs at least {_BLOCK_BYTES} bytes, not {budget_bytes}")
        self.store = store
        self.hits = self.fetches = 0  # blocks, to see whether it helps
        self._of = of
        self._sizes: dict[str, int] = {}
        self._lock = threading.Lock()
        self._shelf: _Shelf = _Memory() if folder is None else _Folder(os.path.abspath(folder))
        self._budget_bytes = budget_bytes
        self._held: OrderedDict[str, int] = OrderedDict(self._shelf.found())  # the least recently used first
        self._held_bytes = sum(self._held.values())
        self._make_room()

    def __repr__(self) -> str:
        return f"Cache({self.store!r}, {self._held_bytes} of {self._budget_bytes} bytes)"

    def __str__(self) -> str:
        return str(self.store)

    def put(self, name: str, chunks: Iterable[Buffer]) -> None:
        self.store.put(name, chunks)

    def create(self, name: str, data: Buffer) -> bool:
        return self.store.create(name, data)

    def read(self, name: str, *, start: int = 0, nbytes: int | None = None, into: Buffer | None = None) -> memoryview:
        target = None if into is None else as_bytes(into)
        blob_nbytes = self._size_of(name)
        count = check_span(name, blob_nbytes, start=start, nbytes=nbytes, into=target, file=name)
        view = (memoryview(bytearray(count)) if target is None else target)[:count]
        absent: list[int] = []
        for number in range(start // _BLOCK_BYTES, -(-(start + count) // _BLOCK_BYTES) if count else 0):
            block = self._kept(name, number, min(_BLOCK_BYTES, blob_nbytes - number * _BLOCK_BYTES))
            if block is None:
                absent.append(number)
            else:
                _lay(block, number * _BLOCK_BYTES, view, start)
        for first, last in _runs(absent):
            lo, hi = first * _BLOCK_BYTES, min((last + 1) * _BLOCK_BYTES, blob_nbytes)
            fetched = self.store.read(name, start=lo, nbytes=hi - lo)
            _lay(fetched, lo, view, start)
            for number in range(first, last + 1):
                at = (number - first) * _BLOCK_BYTES
                self._keep(name, number, fetched[at : at + _BLOCK_BYTES])
        return view

    def size(self, name: str) -> int | None:
        return self.store.size(name)

    def names(self, prefix: str) -> list[str]:
        return self.store.names(prefix)

    def delete(self, name: str) -> None:
        self.store.delete(name)
        front = f"{self._front(name)}-"
        with self._lock:
            self._sizes.pop(name, None)
            for key in [key for key in self._held if key.startswith(front)]:
                self._drop(key)

    def _size_of(self, name: str) -> int:
        nbytes = self._sizes.get(check_name(name))
        if nbytes is None:
            nbytes = self.store.size(name)
            if nbytes is None:
                raise missing(name, file=name)
            self._sizes[name] = nbytes
        return nbytes

    def _front(self, name: str) -> str:
        return xxhash.xxh3_128_hexdigest(f"{self._of}\n{name}".encode())

    def _kept(self, name: str, number: int, nbytes: int) -> memoryview | None:
        key = f"{self._front(name)}-{number:x}"
        with self._lock:
            if key not in self._held:
                return None
            self._held.move_to_end(key)
        block = self._shelf.take(key)
        if block is None or block.nbytes != nbytes:
            with self._lock:
                self._drop(key)
            return None
        self.hits += 1
        return block

    def _keep(self, name: str, number: int, block: memoryview) -> None:
        self.fetches += 1
        key = f"{self._front(name)}-{number:x}"
        if self._shelf.lay(key, block):
            with self._lock:
                self._held_bytes += block.nbytes - self._held.pop(key, 0)
                self._held[key] = block.nbytes
                self._make_room()

    def _make_room(self) -> None:
        while self._held_bytes > self._budget_bytes:
            self._drop(next(iter(self._held)))

    def _drop(self, key: str) -> None:
        self._held_bytes -= self._held.pop(key, 0)
        self._shelf.drop(key)


class _Shelf(Protocol):
    """Where blocks lie. Losing one is no error."""

    def found(self) -> list[tuple[str, int]]:
        """Keys and sizes of what lies there already, the longest unused first."""
        ...

    def lay(self, key: str, block: memoryview) -> bool: ...
    def take(self, key: str) -> memoryview | None: ...
    def drop(self, key: str) -> None: ...


class _Memory:
    def __init__(self) -> None:
        self._blocks: dict[str, bytes] = {}

    def found(self) -> list[tuple[str, int]]:
        return []

    def lay(self, key: str, block: memoryview) -> bool:
        self._blocks[key] = bytes(block)
        return True

    def take(self, key: str) -> memoryview | None:
        block = self._blocks.get(key)
        return None if block is None else memoryview(block)

    def drop(self, key: str) -> None:
        self._blocks.pop(key, None)


class _Folder:
    """A file a block: its digest, then its bytes. Renamed into place, never synced: a loss is found by the digest."""

    def __init__(self, path: str) -> None:
        self._path = path
        with explained(path, "make"):
            os.makedirs(path, exist_ok=True)

    def found(self) -> list[tuple[str, int]]:
        lying: list[tuple[float, str, int]] = []
        with explained(self._path, "list"), os.scandir(self._path) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):  # another process made room
                    facts = entry.stat(follow_symlinks=False)
                    if _BLOCK.match(entry.name):
                        lying.append((facts.st_atime, entry.name, max(facts.st_size - _DIGEST_BYTES, 0)))
                    elif _HALF.match(entry.name):
                        os.unlink(entry.path)  # its writer died, or has to fetch once more
        return [(name.removesuffix(".block"), nbytes) for _, name, nbytes in sorted(lying)]

    def lay(self, key: str, block: memoryview) -> bool:
        half = f"{self._path}/.half-{secrets.token_hex(8)}"
        try:
            with open(half, "xb") as file:
                file.write(xxhash.xxh3_128_digest(block))
                file.write(block)
            os.rename(half, self._file(key))
            return True
        except OSError:  # full, read-only, gone: then there is no cache, and the read goes on
            with contextlib.suppress(OSError):
                os.unlink(half)
            return False

    def take(self, key: str) -> memoryview | None:
        try:
            fd = os.open(self._file(key), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            with open(fd, "rb") as file:
                whole = memoryview(file.read(_DIGEST_BYTES + _BLOCK_BYTES))
        except OSError:
            return None
        block = whole[_DIGEST_BYTES:]
        return block if xxhash.xxh3_128_digest(block) == whole[:_DIGEST_BYTES] else None

    def drop(self, key: str) -> None:
        with contextlib.suppress(OSError):  # another process has dropped it
            os.unlink(self._file(key))

    def _file(self, key: str) -> str:
        return f"{self._path}/{key}.block"


def _runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Rising numbers as runs of neighbours, first and last.

    >>> _runs([1, 2, 3, 7, 9, 10])
    [(1, 3), (7, 7), (9, 10)]
    """
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return runs


def _lay(piece: memoryview, at: int, view: memoryview, start: int) -> None:
    """Copy what ``piece`` (from ``at`` on) has of ``view`` (from ``start`` on)."""
    lo, hi = max(at, start), min(at + piece.nbytes, start + view.nbytes)
    if lo < hi:
        view[lo - start : hi - start] = piece[lo - at : hi - at]
