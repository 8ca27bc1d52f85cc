"""Read safetensors files that others wrote: suspicious of every header, before anything is allocated for it.

The format: 8 bytes with the length of a header, the header as JSON, then the data of all tensors, one after the other
and without holes. Here the header is at most 100 MB; it holds no key twice; every tensor has exactly the bytes of its
dtype and shape; and the tensors cover the data once, from its first byte to the last of the file. Packs, which are
safetensors files of perdure's own with digests, have a reader of their own that allows far less (`perdure.store.pack`).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, NoReturn

import msgspec

from perdure.errors import CallError, FormatRefused
from perdure.store.api import as_bytes
from perdure.store.pack_header import CODES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from typing_extensions import Buffer

__all__ = ["HEADER_LIMIT_BYTES", "Entry", "Header", "StoredAs", "code_of", "read_header", "write_header"]

HEADER_LIMIT_BYTES = 100_000_000  # what every reader of safetensors accepts
ALIGN_BYTES = 64  # of the data in the files that we write
AS_BYTES = "perdure.as_bytes"  # in the metadata of files that we write: true dtype and shape of what is stored as U8
_LIMIT = 1 << 62
_MAX_DIMS = 64
_PACKED = ("float4_e2m1fn_x2", "F4")  # two to a byte: safetensors counts the numbers, torch the bytes
_DTYPES: Mapping[str, tuple[str, int]] = MappingProxyType({code: (name, size) for name, (code, size) in CODES.items()})
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor in the file: torch's dtype name, shape, and where its bytes are, from the start of the file."""

    key: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Header:
    """What the header of a file says: its tensors in the order of the data, and the words of its writer."""

    entries: tuple[Entry, ...]
    metadata: Mapping[str, str]
    header_nbytes: int
    file: str = field(compare=False)


@dataclass(frozen=True, slots=True)
class StoredAs:
    """A tensor to be written; without ``code`` of its own its bytes go in as ``U8`` and the metadata tells the rest."""

    key: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int


_Size = Annotated[int, msgspec.Meta(ge=0, lt=_LIMIT)]


class _Tensor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    dtype: Annotated[str, msgspec.Meta(max_length=32)]
    shape: Annotated[tuple[_Size, ...], msgspec.Meta(max_length=_MAX_DIMS)]
    data_offsets: tuple[_Size, _Size]


class _TrueForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    dtype: Annotated[str, msgspec.Meta(max_length=32)]
    shape: Annotated[tuple[_Size, ...], msgspec.Meta(max_length=_MAX_DIMS)]


def code_of(dtype: str) -> str | None:
    """The name of ``dtype`` in safetensors, None if it has none.

    >>> code_of("bfloat16"), code_of("complex128")
    ('BF16', None)
    """
    if dtype == _PACKED[0]:
        return _PACKED[1]
    found = CODES.get(dtype)
    return None if found is None else found[0]


def read_header(read: Callable[[int, int], Buffer], total_nbytes: int, *, file: str) -> Header:
    """Read the header of a file of ``total_nbytes`` bytes; ``read(start, nbytes)`` gives bytes of it.

    Not one byte of the data is looked at. Raises `FormatRefused`, saying why, for whatever is no safetensors file that
    all readers would understand alike.
    """
    if total_nbytes < 10:
        _refuse(file, f"{total_nbytes} bytes are no safetensors file")
    text_nbytes = int.from_bytes(as_bytes(read(0, 8)), "little")
    if not 2 <= text_nbytes <= HEADER_LIMIT_BYTES:
        _refuse(file, f"its first 8 bytes ask for a header of {text_nbytes} bytes; it is no safetensors file")
    if text_nbytes > total_nbytes - 8:
        _refuse(file, f"a header of {text_nbytes} bytes does not fit into {total_nbytes} bytes; the file was cut")
    text = bytes(as_bytes(read(8, text_nbytes)))
    metadata, tensors = _decode(text, file)
    entries = tuple(sorted((_entry(key, each, file) for key, each in tensors.items()), key=_by_place))
    start = 8 + text_nbytes
    cursor = 0
    for entry in entries:
        if entry.start != cursor:
            _refuse(file, f"{'a gap' if entry.start > cursor else 'an overlap'} before {entry.key[:80]!r}")
        cursor += entry.nbytes
    if cursor != total_nbytes - start:
        _refuse(file, f"its tensors have {cursor} bytes, the file has {total_nbytes - start} for them")
    moved = (Entry(e.key, e.dtype, e.shape, e.start + start, e.nbytes) for e in entries)
    return Header(tuple(_as_were(moved, metadata, file)), MappingProxyType(metadata), start, file)


def write_header(tensors: Sequence[StoredAs], metadata: Mapping[str, str]) -> tuple[bytes, list[StoredAs]]:
    """The first bytes of a file of ``tensors``, up to the data, and the tensors in the order that the data must have.

    Wide elements come first, so that each tensor is aligned to its own width.
    """
    ordered = sorted(tensors, key=lambda each: (-_width(each), each.key))
    plain = {each.key: {"dtype": each.dtype, "shape": each.shape} for each in ordered if code_of(each.dtype) is None}
    words = dict(metadata) | ({AS_BYTES: json.dumps(plain)} if plain else {})
    header: dict[str, object] = {"__metadata__": words} if words else {}
    cursor = 0
    for each in ordered:
        if each.key in header:
            raise CallError(f"two tensors would both be called {each.key!r}", tensor=each.key)
        code, shape = code_of(each.dtype), each.shape
        if code is None:
            code, shape = "U8", (each.nbytes,)
        elif code == _PACKED[1]:
            shape = (*shape[:-1], 2 * shape[-1]) if shape else (2,)
        header[each.key] = {"dtype": code, "shape": shape, "data_offsets": (cursor, cursor + each.nbytes)}
        cursor += each.nbytes
    text = msgspec.json.encode(header)
    text = text.ljust(-(-(8 + len(text)) // ALIGN_BYTES) * ALIGN_BYTES - 8, b" ")
    if len(text) > HEADER_LIMIT_BYTES:
        raise CallError("so many names do not fit into the header of one file; write smaller shards")
    return len(text).to_bytes(8, "little") + text, ordered


def _width(tensor: StoredAs) -> int:
    known = CODES.get(tensor.dtype)
    return 1 if known is None else known[1]


def _by_place(entry: Entry) -> tuple[int, int, str]:
    return entry.start, entry.nbytes, entry.key  # an empty one before what begins at the same byte


def _decode(text: bytes, file: str) -> tuple[dict[str, str], dict[str, _Tensor]]:
    if text[:1] != b"{":
        _refuse(file, "its header does not begin with {")
    try:
        text.decode()
        raws = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        declared = raws.pop("__metadata__", None)
        metadata = {} if declared is None else msgspec.json.decode(declared, type=dict[str, str])
        tensors = {key: msgspec.json.decode(raw, type=_Tensor) for key, raw in raws.items()}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        _refuse(file, f"its header cannot be read: {error}")
    # What a dict cannot show: a key that is there twice. Outside of strings there is one colon for each member.
    members = len(tensors) * 4 + len(metadata) + (declared is not None)
    if _STRING.sub(b"", text).count(b":") != members:
        _refuse(file, "a key is there twice")
    return metadata, tensors


def _entry(key: str, tensor: _Tensor, file: str) -> Entry:
    shape = tensor.shape
    if tensor.dtype == _PACKED[1]:
        if not shape or shape[-1] % 2:
            _refuse(file, f"{key[:80]!r} packs two numbers to a byte, but its last dim is not even")
        dtype, width, shape = _PACKED[0], 1, (*shape[:-1], shape[-1] // 2)
    elif tensor.dtype in _DTYPES:
        dtype, width = _DTYPES[tensor.dtype]
    else:
        _refuse(file, f"{key[:80]!r} has the dtype {tensor.dtype!r}, which this release does not know")
    lo, hi = tensor.data_offsets
    if hi < lo or hi - lo != math.prod(shape) * width:
        _refuse(file, f"{key[:80]!r} has {hi - lo} bytes, which its dtype and shape do not fill")
    return Entry(key, dtype, shape, lo, hi - lo)


def _as_were(entries: Iterable[Entry], metadata: Mapping[str, str], file: str) -> Iterable[Entry]:
    """Give what was stored as bytes its true dtype and shape; whether those fit the bytes is for the caller."""
    try:
        true = msgspec.json.decode(metadata.get(AS_BYTES, "{}"), type=dict[str, _TrueForm])
    except (msgspec.MsgspecError, RecursionError) as error:
        _refuse(file, f"its metadata {AS_BYTES} cannot be read: {error}")
    for entry in entries:
        form = true.get(entry.key)
        if form is None:
            yield entry
        elif entry.dtype == "uint8" and len(entry.shape) == 1:
            yield Entry(entry.key, form.dtype, form.shape, entry.start, entry.nbytes)
        else:
            _refuse(file, f"{entry.key[:80]!r} is said to be stored as bytes, and is not")


def _refuse(file: str, why: str) -> NoReturn:
    raise FormatRefused(f"{file} is refused: {why}", file=file, why=why)
