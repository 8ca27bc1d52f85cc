"""The store: six verbs over named, immutable bytes.

Whoever keeps a run (a folder, memory, an object store) has these six verbs; wrappers (faults, retry, limits) have
them too. `perdure.testing.store.StoreContract` is what every one of them must pass.

A blob appears whole or not at all, under a name that is never written twice. The one verb that decides anything is
`create`: of many callers exactly one is told True.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from perdure.errors import BlobCorrupt, BlobMissing, CallError

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = [
    "NAME_PATTERN",
    "DigestedReads",
    "Resident",
    "Store",
    "as_bytes",
    "check_name",
    "check_prefix",
    "check_span",
    "is_name",
    "missing",
    "taken",
]

_PART = r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}"
NAME_PATTERN = rf"\A(?=.{{1,512}}\Z){_PART}(?:/{_PART})*\Z"
_NAME = re.compile(NAME_PATTERN)
_PREFIX = re.compile(rf"\A(?=.{{0,512}}\Z)(?:{_PART}/)*(?:{_PART})?\Z")


class Store(Protocol):
    """Named, immutable bytes. Every verb may be called from any thread.

    Raises, in every verb: `CallError` for a name that is no name, `StorageError` when a person must act (permission,
    input/output error), `StorageFull` when there is no room, `TryAgain` when the outcome is not known.
    """

    def put(self, name: str, chunks: Iterable[Buffer]) -> None:
        """Write the concatenation of ``chunks`` as ``name``; whole, durable and visible on return.

        Each chunk is written before the next one is asked for, so that a generator may use its buffer again.
        After a failure the name does not exist, unless the error is a `TryAgain`.

        Raises `CallError` if the name exists already; blobs are never replaced.
        """
        ...

    def create(self, name: str, data: Buffer) -> bool:
        """Write ``data`` as ``name`` if nothing is there; whether it was written.

        The commit primitive: of many callers, in any process, exactly one gets True. Durable on return in both
        cases: after False, what is there already will stay. After a `TryAgain`, call again and compare.
        """
        ...

    def read(self, name: str, *, start: int = 0, nbytes: int | None = None, into: Buffer | None = None) -> memoryview:
        """Return ``nbytes`` bytes from ``start`` on, as a view of bytes that the caller must not write to.

        ``into`` (writable, contiguous) receives them without a copy in between, and the returned view is its front.
        Without ``nbytes``, ``into`` is filled; without either, the blob is read to its end.

        Raises `BlobMissing` if the name does not exist, `BlobCorrupt` if the blob ends before the wanted bytes.
        """
        ...

    def size(self, name: str) -> int | None:
        """The size of the blob in bytes; None if there is none."""
        ...

    def names(self, prefix: str) -> list[str]:
        """All names that begin with ``prefix`` (text, not a folder; may be empty), sorted."""
        ...

    def delete(self, name: str) -> None:
        """Remove the blob; nothing happens if it is not there. It may come back if the machine loses power."""
        ...


@runtime_checkable
class DigestedReads(Protocol):
    """What a store may offer beside its six verbs; `perdure.store.digested.read_digested` asks for it."""

    def read_digested(self, name: str, *, start: int, nbytes: int, into: Buffer, tile_bytes: int) -> bytes:
        """Read ``nbytes`` bytes from ``start`` on into the front of ``into`` and return their digests.

        The digests are the XXH3-128 of each ``tile_bytes`` of the span (the last may be shorter), 16 bytes a tile, as
        `perdure.codec.tile_digests` gives them: of what now lies in ``into``. Nothing is compared here.

        Raises what `Store.read` raises; ``into`` may then hold anything.
        """
        ...


@runtime_checkable
class Resident(Protocol):
    """What a store of this machine may offer beside its six verbs."""

    def resident(self, name: str, at: Sequence[int]) -> int:
        """At how many of the bytes ``at`` the blob lies in this machine's memory already; 0 where that is not known."""
        ...


def is_name(name: object) -> bool:
    """Whether ``name`` can be the name of a blob."""
    return isinstance(name, str) and _NAME.match(name) is not None


def check_name(name: str) -> str:
    """Return ``name`` if it is one.

    >>> check_name("slots/0000000001.json")
    'slots/0000000001.json'
    """
    if not is_name(name):
        raise CallError(
            f"{str(name)[:80]!r} is no name of a blob: use relative names of letters, digits, '.', '_', '-', "
            "parts separated by '/', none starting with a dot",
            name=str(name)[:80],
        )
    return name


def check_prefix(prefix: str) -> str:
    """Return ``prefix`` if it is the front of a name, or empty."""
    if not _PREFIX.match(prefix):
        raise CallError(f"{prefix[:80]!r} is not the beginning of a name of a blob", prefix=prefix[:80])
    return prefix


def as_bytes(data: Buffer) -> memoryview:
    """View ``data`` as plain bytes, without a copy; raise `CallError` if it is not contiguous."""
    view = memoryview(data)
    if not view.c_contiguous:
        raise CallError("a buffer must be contiguous; copy it first (numpy: ascontiguousarray)")
    # A view with a zero in its shape cannot be cast.
    return view.cast("B") if view.nbytes else memoryview(b"")


def check_span(
    name: str, blob_nbytes: int, *, start: int, nbytes: int | None, into: memoryview | None, file: str
) -> int:
    """Return how many bytes a `Store.read` returns; raise if the blob is too short or the call makes no sense."""
    if start < 0 or (nbytes is not None and nbytes < 0):
        raise CallError(f"cannot read {nbytes} bytes from {start} on: both must be 0 or more", name=name)
    if nbytes is None:
        nbytes = into.nbytes if into is not None else max(blob_nbytes - start, 0)
    if into is not None and nbytes and (into.readonly or into.nbytes < nbytes):
        raise CallError(f"the buffer for {name!r} must be writable and hold {nbytes} bytes", name=name)
    if start + nbytes > blob_nbytes:
        raise BlobCorrupt(
            f"{file} has {blob_nbytes} bytes where {start + nbytes} were saved; use another copy or an older step",
            file=file,
            wanted=start + nbytes,
            nbytes=blob_nbytes,
        )
    return nbytes


def missing(name: str, *, file: str) -> BlobMissing:
    """The error for a name that is not there."""
    return BlobMissing(f"{file} is not there; use another copy or an older step", file=file, name=name)


def taken(name: str, *, file: str) -> CallError:
    """The error for a put to a name that is there."""
    return CallError(f"{file} exists already and blobs are never replaced; choose another name", file=file, name=name)
