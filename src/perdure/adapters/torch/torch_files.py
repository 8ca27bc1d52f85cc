"""Read what ``torch.save`` wrote, without running it: the zip format, and the one before it.

The pickle inside is understood by `unpickling` through the closed table of `torch_names`; tensors are views of the
mapped file. The zip format has CRCs, which an import compares; the old format has none, so a flipped bit in it stays
unseen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from perdure.adapters.torch.flattening import flatten
from perdure.adapters.torch.foreign import Crc, Foreign, Mapped
from perdure.adapters.torch.tensors import LocalBlock
from perdure.adapters.torch.torch_names import FoundStorage, FoundTensor, Names, storage_of
from perdure.adapters.torch.torch_zip import Record, is_zip, read_directory
from perdure.adapters.torch.unpickling import Malformed, unpickle
from perdure.codec.dtypes import DTYPES
from perdure.errors import FormatRefused
from perdure.layout import Box

__all__ = ["TorchFile", "is_torch_file", "open_torch_file", "read_torch_file"]

_MAGIC = 0x1950A86A20F9469CFC6C
_PROTOCOL = 1001
_LEGACY_START = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."
_OBJECT_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class TorchFile:
    """The object that was saved, with `FoundTensor` for tensors, and where the storages of those lie."""

    mapped: Mapped
    root: Any
    storages: dict[str, Record]

    def view(self, found: FoundTensor) -> torch.Tensor:
        """The tensor as a view of the file."""
        record = self.storages[found.storage.key]
        width = DTYPES[found.dtype].itemsize
        base = self.mapped.tensor(record.start, found.dtype, record.nbytes // width)
        if 0 in found.shape:
            return torch.empty(found.shape, dtype=base.dtype)
        tensor = base.as_strided(found.shape, found.stride, found.offset)
        tensor = tensor.conj() if found.conj else tensor
        return torch._neg_view(tensor) if found.neg else tensor

    def block(self, found: FoundTensor) -> tuple[LocalBlock, Crc]:
        """The tensor as the one block of itself, and what is known of the bytes of its storage."""
        record = self.storages[found.storage.key]
        crc = Crc(self.mapped, record.start, record.nbytes, record.crc)
        return LocalBlock(Box.whole(found.shape), self.view(found)), crc


def is_torch_file(mapped: Mapped) -> bool:
    """Whether the file begins as those of ``torch.save`` do."""
    return is_zip(mapped.view) or bytes(mapped.view[: len(_LEGACY_START)]) == _LEGACY_START


def read_torch_file(mapped: Mapped) -> Foreign:
    """All that the file holds. Raises `FormatRefused` for what is malformed or would need code to be run."""
    opened = open_torch_file(mapped)
    tensors, values = flatten(opened.root, opened.block, file=mapped.file, file_nbytes=mapped.nbytes)
    return Foreign("torch.save", tensors, values, _unchecked(opened))


def open_torch_file(mapped: Mapped, *, start: int = 0, nbytes: int | None = None) -> TorchFile:
    """The object in ``nbytes`` bytes from ``start`` (all by default), without looking at the tensors' data."""
    end = mapped.nbytes if nbytes is None else start + nbytes
    data = mapped.view[start:end]
    if is_zip(data):
        return _open_zip(mapped, data, start)
    if bytes(data[: len(_LEGACY_START)]) == _LEGACY_START:
        return _open_legacy(mapped, data, start)
    raise FormatRefused(f"{mapped.file} is refused: it is no file of torch.save", file=mapped.file)


def _open_zip(mapped: Mapped, data: memoryview, start: int) -> TorchFile:
    file = mapped.file
    records = read_directory(data, file=file)
    if "constants.pkl" in records or any(name.startswith("code/") for name in records):
        raise FormatRefused(f"{file} is refused: it is a TorchScript program, not a checkpoint", file=file)
    if "data.pkl" not in records:
        raise FormatRefused(f"{file} is refused: it is a zip file, but not of torch.save", file=file)
    order = records.get("byteorder")
    if order is not None and bytes(data[order.start : order.start + order.nbytes]) != b"little":
        raise FormatRefused(f"{file} is refused: its numbers are big-endian; save it on this machine", file=file)
    object_ = records["data.pkl"]
    mapped.check_crc(start + object_.start, object_.nbytes, object_.crc, "data.pkl")
    storages: dict[str, Record] = {}

    def persistent(saved_id: Any) -> FoundStorage:
        storage = storage_of(saved_id, fields=5)
        record = records.get(f"data/{storage.key}")
        if record is None:
            raise Malformed(f"its storage {storage.key[:40]!r} is not in the archive")
        if record.nbytes != storage.nbytes:
            raise Malformed(f"its storage {storage.key[:40]!r} has {record.nbytes} bytes, not {storage.nbytes}")
        storages[storage.key] = Record(record.name, start + record.start, record.nbytes, record.crc)
        return storage

    pickle = data[object_.start : object_.start + object_.nbytes]
    root, _ = unpickle(pickle, file=file, find=Names(file), persistent=persistent)
    return TorchFile(mapped, root, storages)


def _open_legacy(mapped: Mapped, data: memoryview, start: int) -> TorchFile:
    """Three small pickles, the object, the keys of its storages, and then each storage: its length and its bytes."""
    file, names = mapped.file, Names(mapped.file)
    found: dict[str, FoundStorage] = {}

    def persistent(saved_id: Any) -> FoundStorage:
        storage = storage_of(saved_id, fields=6)
        if saved_id[5] is not None:
            raise Malformed("its storages are views of one another, which torch stopped to write long ago")
        if found.setdefault(storage.key, storage) != storage:
            raise Malformed(f"its storage {storage.key[:40]!r} is described in two ways")
        return storage

    magic, at = unpickle(data, file=file, find=names)
    protocol, at = unpickle(data, file=file, find=names, start=at)
    if (magic, protocol) != (_MAGIC, _PROTOCOL):
        raise FormatRefused(f"{file} is refused: it is of an unknown format of torch.save", file=file)
    system, at = unpickle(data, file=file, find=names, start=at)
    if type(system) is not dict or system.get("little_endian") is not True:
        raise FormatRefused(f"{file} is refused: its numbers are big-endian; save it on this machine", file=file)
    root, at = unpickle(data, file=file, find=names, persistent=persistent, start=at)
    keys, at = unpickle(data, file=file, find=names, start=at)
    if type(keys) is not list or len(keys) != len(found) or any(type(key) is not str for key in keys):
        raise FormatRefused(f"{file} is refused: it lists other storages than its tensors have", file=file)
    storages: dict[str, Record] = {}
    for key in keys:
        storage = found.get(key)
        if storage is None or key in storages:
            raise FormatRefused(f"{file} is refused: it lists other storages than its tensors have", file=file)
        width = 1 if storage.dtype is None else DTYPES[storage.dtype].itemsize
        count = int.from_bytes(data[at : at + 8], "little")
        if count * width != storage.nbytes or at + 8 + storage.nbytes > len(data):
            raise FormatRefused(f"{file} is refused: its storage {key[:40]!r} is shorter than its tensors", file=file)
        storages[key] = Record(key, start + at + 8, storage.nbytes, 0)
        at += 8 + storage.nbytes
    if at != len(data):
        raise FormatRefused(f"{file} is refused: something follows its storages", file=file)
    return TorchFile(mapped, root, storages)


def _unchecked(opened: TorchFile) -> tuple[str, ...]:
    if any(record.crc == 0 and record.nbytes for record in opened.storages.values()):
        return (f"{opened.mapped.file} has no checksums: a bit that flipped in it before the import is not noticed",)
    return ()
