"""The directory of a zip file that ``torch.save`` wrote: which record lies where.

Such a file is an archive of uncompressed records. Nothing is unpacked here; a record is a range of the file. Refused
are compressed and encrypted records (a small file must not become a large one), names that lead out of the archive or
are there twice, ranges outside of the file or inside one another, and more entries than a checkpoint has.
"""

from __future__ import annotations

import itertools
import struct
from dataclasses import dataclass
from typing import NoReturn

from perdure.errors import FormatRefused

__all__ = ["Record", "is_zip", "read_directory"]

_END, _END64, _LOCATOR64 = b"PK\x05\x06", b"PK\x06\x06", b"PK\x06\x07"
_ENTRY, _LOCAL = b"PK\x01\x02", b"PK\x03\x04"
_MAX_ENTRIES = 1_000_000
_MAX_DIRECTORY_BYTES = 256 << 20
_ENCRYPTED = 0x1 | 0x40


@dataclass(frozen=True, slots=True)
class Record:
    """A record of the archive: its bytes in the file, and their CRC-32 (0: the writer computed none)."""

    name: str
    start: int
    nbytes: int
    crc: int


def is_zip(data: memoryview) -> bool:
    """Whether ``data`` begins as a zip file does."""
    return bytes(data[:4]) == _LOCAL


def read_directory(data: memoryview, *, file: str) -> dict[str, Record]:
    """The records of the archive ``data``, by name without the archive's own folder.

    Raises `FormatRefused` for whatever ``torch.save`` would not write.
    """
    try:
        start, nbytes, count = _find(data, file)
        records = _entries(data, start, nbytes, count, file)
    except struct.error:
        _refuse(file, "its zip directory was cut")
    folders = {record.name.partition("/")[0] for record in records}
    if len(folders) != 1:
        _refuse(file, "its records are not in one folder, as those of torch.save are")
    folder = folders.pop()
    return {record.name[len(folder) + 1 :]: record for record in records}


def _find(data: memoryview, file: str) -> tuple[int, int, int]:
    """Start and bytes of the directory, and how many entries it has. torch writes no comment, so the end is the end."""
    end = len(data) - 22
    if end < 0 or bytes(data[end : end + 4]) != _END:
        _refuse(file, "it does not end as a zip file of torch.save does; it was cut, or something follows it")
    disk, first, here, count, nbytes, start, comment = struct.unpack("<HHHHIIH", data[end + 4 : end + 22])
    if bytes(data[end - 20 : end - 16]) == _LOCATOR64 and end >= 20:
        where = struct.unpack("<Q", data[end - 12 : end - 4])[0]
        if where > end - 76 or bytes(data[where : where + 4]) != _END64:
            _refuse(file, "its zip64 directory is not where it is said to be")
        disk, first, here, count, nbytes, start = struct.unpack("<IIQQQQ", data[where + 16 : where + 56])
        end = where
    if disk or first or comment or here != count:
        _refuse(file, "its zip directory spans several files or has a comment")
    if count > _MAX_ENTRIES or nbytes > _MAX_DIRECTORY_BYTES:
        _refuse(file, f"it has {count} records in a directory of {nbytes} bytes, more than a checkpoint has")
    if start + nbytes > end:
        _refuse(file, "its zip directory lies outside of it")
    return start, nbytes, count


def _entries(data: memoryview, start: int, nbytes: int, count: int, file: str) -> list[Record]:
    records: dict[str, Record] = {}
    spans: list[tuple[int, int]] = []
    cursor, end = start, start + nbytes
    for _ in range(count):
        if bytes(data[cursor : cursor + 4]) != _ENTRY or cursor + 46 > end:
            _refuse(file, "its zip directory was cut")
        flags, method = struct.unpack("<HH", data[cursor + 8 : cursor + 12])
        crc, packed, size, n_name, n_extra, n_comment = struct.unpack("<IIIHHH", data[cursor + 16 : cursor + 34])
        local = struct.unpack("<I", data[cursor + 42 : cursor + 46])[0]
        raw = bytes(data[cursor + 46 : cursor + 46 + n_name])
        extra = data[cursor + 46 + n_name : cursor + 46 + n_name + n_extra]
        cursor += 46 + n_name + n_extra + n_comment
        if cursor > end:
            _refuse(file, "its zip directory was cut")
        size, packed, local = _wide(extra, size, packed, local)
        name = _name(raw, file)
        if flags & _ENCRYPTED or method or packed != size:
            _refuse(file, f"its record {name!r} is compressed or encrypted; torch.save writes neither")
        if name in records:
            _refuse(file, f"its record {name!r} is there twice")
        if bytes(data[local : local + 4]) != _LOCAL or local + 30 > start:
            _refuse(file, f"its record {name!r} is not where it is said to be")
        n_local_name, n_local_extra = struct.unpack("<HH", data[local + 26 : local + 30])
        at = local + 30 + n_local_name + n_local_extra
        if bytes(data[local + 30 : local + 30 + n_local_name]) != raw:
            _refuse(file, f"its record {name!r} has another name where it lies")
        if at + size > start:
            _refuse(file, f"its record {name!r} reaches beyond the file")
        records[name] = Record(name, at, size, crc)
        spans.append((local, at + size))
    if cursor != end:
        _refuse(file, "its zip directory holds more than its records")
    spans.sort()
    for (_, before), (after, _) in itertools.pairwise(spans):
        if after < before:
            _refuse(file, "two of its records overlap")
    return list(records.values())


def _wide(extra: memoryview, size: int, packed: int, local: int) -> tuple[int, int, int]:
    """The three numbers, with those that do not fit into 32 bits from the zip64 field."""
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack("<HH", extra[at : at + 4])
        if kind == 1:
            wide = [struct.unpack("<Q", extra[i : i + 8])[0] for i in range(at + 4, at + 4 + length // 8 * 8, 8)]
            size, packed, local = (
                (wide.pop(0) if wide and number == 0xFFFFFFFF else number) for number in (size, packed, local)
            )
            break
        at += 4 + length
    return size, packed, local


def _name(raw: bytes, file: str) -> str:
    try:
        name = raw.decode()
    except UnicodeDecodeError:
        _refuse(file, "a record of it has a name that is no UTF-8")
    parts = name.split("/")
    if len(parts) < 2 or len(raw) > 1024 or "\\" in name or "\0" in name or any(p in ("", ".", "..") for p in parts):
        _refuse(file, f"its record {name[:80]!r} has a name that leads out of the archive")
    return name


def _refuse(file: str, why: str) -> NoReturn:
    raise FormatRefused(f"{file} is refused: {why}", file=file, why=why)
