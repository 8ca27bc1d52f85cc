"""The records of a run, as values and as bytes: marker, epoch, part, commit, pruned (docs/spec/format-v1.md).

Every record is ``{"perdure":kind,"format":1,"digest":...,"body":{...}}``. This envelope is the same in every format, so
that a reader can tell a corrupt file from one that a later release wrote. The body has one spelling: a reader renders
what it understood and compares, which refuses duplicate keys and whatever two readers might understand differently.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np
import xxhash

from perdure.errors import BlobCorrupt, CallError, FormatRefused, NotSerializable
from perdure.store.api import NAME_PATTERN, Store, missing
from perdure.store.places import WRITER_PATTERN

__all__ = [
    "FORMAT",
    "LEAF_LIMIT_BYTES",
    "PART_LIMIT_BYTES",
    "Commit",
    "Epoch",
    "LeafRef",
    "Marker",
    "PackRef",
    "Part",
    "PartRef",
    "Pruned",
    "decode",
    "digest_of",
    "encode",
    "read_record",
]

FORMAT = 1
LEAF_LIMIT_BYTES = 64 << 20
PART_LIMIT_BYTES = 64 << 20  # of the record of a part, without its leaves
_DEPTH = 64
_NOT_MARKS = bytes(set(range(256)) - set(b'[]{}"'))
_STEPS = np.array([(chr(mark) in "[{") - (chr(mark) in "]}") for mark in range(256)])

Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Number = Annotated[int, msgspec.Meta(ge=1, le=9_999_999_999)]  # of a slot or an epoch
Hex = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{32}\Z")]
Name = Annotated[str, msgspec.Meta(pattern=NAME_PATTERN)]
Writer = Annotated[str, msgspec.Meta(pattern=WRITER_PATTERN)]
Text = Annotated[str, msgspec.Meta(max_length=1000)]


class _Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class Marker(_Record, frozen=True, kw_only=True):
    """This store holds a run, and which. ``created`` is wall seconds, for people."""

    run: Hex
    created_by: Text
    created: float


class Epoch(_Record, frozen=True, kw_only=True):
    """One claim of the right to commit; the newest one is the only valid one."""

    run: Hex
    epoch: Number
    owner: Text
    created: float
    token: Hex


class PackRef(_Record, frozen=True, kw_only=True):
    """A pack, by name and content: the header's digest, and in the header the digest of every tile."""

    name: Name
    nbytes: Count
    header_nbytes: Count
    header_digest: Hex


class LeafRef(_Record, frozen=True, kw_only=True, array_like=True):
    """A leaf of a part: a sorted run of its index, in the part's own file, ``start`` bytes after its record.

    ``first`` and ``last`` are the names of its first and last entries, so that a reader fetches what it needs alone.
    """

    kind: Annotated[str, msgspec.Meta(pattern=r"\A[a-z]{1,20}\Z")]
    first: str
    last: str
    count: Count
    start: Count
    nbytes: Annotated[int, msgspec.Meta(ge=1, le=LEAF_LIMIT_BYTES)]
    digest: Hex


class Part(_Record, frozen=True, kw_only=True):
    """What one writer saved of one step. ``index`` and the leaves are JSON of `perdure.state`, opaque to the store.

    ``packs`` may name packs of earlier commits, for tensors that have not changed since; ``base`` is then the slot of a
    commit whose parts name all of them.
    """

    run: Hex
    writer: Writer
    epoch: Number
    step: Count
    seq: Count
    base: Number | None
    packs: tuple[PackRef, ...]
    index: msgspec.Raw
    leaves: tuple[LeafRef, ...]

    @property
    def leaves_nbytes(self) -> int:
        """Bytes of all leaves, which follow the record in its file."""
        return sum(leaf.nbytes for leaf in self.leaves)


class PartRef(_Record, frozen=True, kw_only=True):
    """A part, by name and content: ``digest`` of its first ``top_nbytes``, the record, which has that of each leaf."""

    name: Name
    nbytes: Count
    top_nbytes: Count
    digest: Hex


class Commit(_Record, frozen=True, kw_only=True):
    """A step of the run that is whole and durable. ``parent`` is the slot from which training went on.

    ``claim`` is the token of its epoch, if that was claimed: two copies of a run that went on apart have epochs of one
    number, not of one token. ``session`` and ``seq`` name the save that it is, so that what memory holds can be told
    from it.
    """

    run: Hex
    slot: Number
    epoch: Number
    claim: Hex | None
    parent: Number | None
    step: Count
    session: Text
    seq: Count
    parts: tuple[PartRef, ...]
    meta: dict[str, Any]
    metric: float | None
    pinned: bool
    created: float
    token: Hex

    def __post_init__(self) -> None:
        if self.parent is not None and self.parent >= self.slot:
            raise ValueError(f"slot {self.slot} names the later slot {self.parent} as its parent")


class Pruned(_Record, frozen=True, kw_only=True):
    """The commit of ``slot`` is given up: its packs and parts may be gone. Made before anything of it is deleted.

    ``step`` is for people; None if the commit could not be read.
    """

    run: Hex
    slot: Number
    step: Count | None
    created: float


Record = Marker | Epoch | Part | Commit | Pruned
R = TypeVar("R", Marker, Epoch, Part, Commit, Pruned)
_KINDS: dict[type, tuple[str, int]] = {  # kind, most bytes of a record
    Marker: ("marker", 64 << 10),
    Epoch: ("epoch", 64 << 10),
    Part: ("part", PART_LIMIT_BYTES),
    Commit: ("commit", 16 << 20),
    Pruned: ("pruned", 64 << 10),
}


class _Envelope(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    perdure: str
    format: Count
    digest: Hex
    body: msgspec.Raw


def encode(record: Record) -> bytes:
    """The bytes of a record file.

    Raises `NotSerializable` for what JSON would not give back (not finite, not a text key, ...), `CallError` for a
    record that a reader would refuse.
    """
    kind, limit = _KINDS[type(record)]
    if isinstance(record, Commit):
        _check_plain(record)
    try:
        body = msgspec.json.encode(record)
        msgspec.json.decode(body, type=type(record))  # what a reader would refuse must not be written
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise CallError(f"this is no {kind}: {error}") from error
    head = f'{{"perdure":"{kind}","format":{FORMAT},"digest":"{_digest(kind, FORMAT, body)}","body":'
    data = head.encode() + body + b"}\n"
    if len(data) > limit or _depth(data) > _DEPTH:
        raise CallError(
            f"this {kind} has {len(data)} bytes, {_depth(data)} levels deep; at most {limit} and {_DEPTH} can be read"
        )
    return data


def decode(data: bytes | memoryview, kind_of: type[R], *, file: str) -> R:
    """The record in the bytes of ``file``.

    Raises `BlobCorrupt` for bytes that are not what was written, `FormatRefused` for a later format (facts ``found``,
    ``reads``), another kind of record, and for what breaks the rules of the format.
    """
    kind, limit = _KINDS[kind_of]
    data = bytes(data)
    if len(data) > limit:
        raise _refused(file, f"{len(data)} bytes are too long for a {kind}")
    if _depth(data) > _DEPTH:
        raise _refused(file, f"it is nested deeper than {_DEPTH} levels")
    try:
        envelope = msgspec.json.decode(data, type=_Envelope)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _corrupt(file, f"it cannot be read ({error})") from error
    if _digest(envelope.perdure, envelope.format, bytes(envelope.body)) != envelope.digest:
        raise _corrupt(file, "it does not hash to its digest")
    if envelope.format != FORMAT:
        raise FormatRefused(
            f"{file} was written by format {envelope.format}; this release reads {FORMAT}: upgrade perdure",
            file=file,
            found=envelope.format,
            reads=FORMAT,
        )
    if envelope.perdure != kind:
        raise _refused(file, f"it is a {envelope.perdure[:20]!r} where a {kind} should be")
    try:
        record = msgspec.json.decode(envelope.body, type=kind_of)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _refused(file, str(error)) from error
    if not data.endswith(b"\n"):
        raise _corrupt(file, "its last byte is missing")
    if encode(record) != data:
        raise _refused(file, "duplicate keys, or a spelling that is not that of the format")
    return record


def read_record(store: Store, name: str, kind_of: type[R]) -> R:
    """Read and check the record ``name``; raises as `decode`, and `BlobMissing`."""
    return decode(read_bounded(store, name, kind_of), kind_of, file=name)


def read_bounded(store: Store, name: str, kind_of: type[R]) -> memoryview:
    """The bytes of the file of a record, if they are not too many."""
    kind, limit = _KINDS[kind_of]
    nbytes = store.size(name)
    if nbytes is None:
        raise missing(name, file=name)
    if nbytes > limit:
        raise _refused(name, f"{nbytes} bytes are too long for a {kind}")
    return store.read(name, nbytes=nbytes)


def digest_of(data: bytes | memoryview) -> str:
    """XXH3-128 as 32 hex digits."""
    return xxhash.xxh3_128_hexdigest(data)


def _digest(kind: str, version: int, body: bytes) -> str:
    hasher = xxhash.xxh3_128(f"{kind}\n{version}\n".encode())
    hasher.update(body)
    return hasher.hexdigest()


def _depth(data: bytes) -> int:
    """How deep brackets nest, those in strings left out. Linear in the bytes, whatever they are."""
    openings = data.count(b"[") + data.count(b"{")
    if openings <= _DEPTH:  # it cannot be deeper; the common case
        return openings
    # Escapes go first: then a quote opens or closes a string. Up to where it stops being JSON, this is exact.
    marks = data.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _NOT_MARKS)
    depth = deepest = quotes = 0
    for i in range(0, len(marks), 1 << 18):
        piece = np.frombuffer(marks, np.uint8, min(1 << 18, len(marks) - i), i)
        inside = (quotes + np.cumsum(piece == ord('"'))) & 1
        steps = _STEPS[piece] * (1 - inside)
        depths = depth + np.cumsum(steps)
        depth, deepest, quotes = int(depths[-1]), max(deepest, int(depths.max())), int(inside[-1])
    return deepest


def _check_plain(commit: Commit) -> None:
    """Raise `NotSerializable` unless JSON gives back what ``commit`` holds (it would turn NaN into null)."""
    if commit.metric is not None and not math.isfinite(commit.metric):
        raise NotSerializable(f"the metric {commit.metric} is not finite; leave it out", key="metric", type="float")
    try:
        reread = msgspec.json.decode(msgspec.json.encode(commit.meta))
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise NotSerializable(f"meta cannot be written as JSON: {error}", key="meta") from error
    if reread != commit.meta:
        raise NotSerializable(
            "meta would not come back as it is: use text keys, lists, finite numbers, text, booleans and None",
            key="meta",
        )


def _corrupt(file: str, why: str) -> BlobCorrupt:
    return BlobCorrupt(f"{file} is corrupt: {why}; use another copy or an older step", file=file, why=why)


def _refused(file: str, why: str) -> FormatRefused:
    return FormatRefused(f"{file} is refused: {why}; use another copy or an older step", file=file, why=why)
