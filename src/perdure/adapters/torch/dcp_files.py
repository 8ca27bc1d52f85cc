"""Read a folder of ``torch.distributed.checkpoint`` (DCP) without running it.

``.metadata`` is a pickle of dataclasses; here they become records without behaviour, through a closed table. It says
for each tensor which chunks it has, and for each chunk in which file its bytes lie: each a small file of
``torch.save`` of its own, read as those are. The chunks of a tensor must cover it once; a value is read when it is
asked for.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

import torch

from perdure.adapters.torch.flattening import flatten
from perdure.adapters.torch.foreign import Foreign, ForeignTensor, Mapped, inside
from perdure.adapters.torch.tensors import LocalBlock, dtype_name
from perdure.adapters.torch.torch_files import TorchFile, open_torch_file
from perdure.adapters.torch.torch_names import FoundTensor, Names
from perdure.adapters.torch.unpickling import Inert, Limits, Malformed, State, unpickle
from perdure.codec.dtypes import DTYPES
from perdure.errors import CallError, FormatRefused, LayoutError
from perdure.layout import Box, Piece, TensorLayout

__all__ = ["METADATA", "read_dcp_folder"]

METADATA = ".metadata"
_HOME = "torch.distributed.checkpoint.metadata"
_LIMIT = 1 << 62
_LIMITS = Limits(opcodes_a_byte=1, object_bytes_a_byte=64)  # metadata is dense: many small records
_RECORDS = {
    f"{_HOME}.Metadata",
    f"{_HOME}.TensorStorageMetadata",
    f"{_HOME}.TensorProperties",
    f"{_HOME}.ChunkStorageMetadata",
    f"{_HOME}.BytesStorageMetadata",
    f"{_HOME}.StorageMeta",
    f"{_HOME}._MEM_FORMAT_ENCODING",
    "torch.distributed.checkpoint.filesystem._StorageInfo",
    "torch.distributed.checkpoint.filesystem._StoragePrefix",
    "torch.distributed._shard.sharded_tensor.metadata.TensorProperties",
    "torch.distributed._shard.sharded_tensor.metadata.MEM_FORMAT_ENCODING",
    "pathlib.PosixPath",
    "pathlib.PurePosixPath",
    "pathlib.WindowsPath",
}


@dataclass(slots=True, eq=False)
class _Record(State):
    """An object of DCP: the last word of its class's name, and its state. Never a key, never equal to another."""

    kind: str
    state: Any = None

    def set_state(self, state: Any) -> None:
        self.state = state


class _Index(State):
    """``MetadataIndex``, the key of DCP's table of places. Its state comes before it is used as a key."""

    __slots__ = ("fqn", "offset")
    plain_key = True

    def __init__(self) -> None:
        self.fqn: str = ""
        self.offset: tuple[int, ...] | None = None

    def set_state(self, state: Any) -> None:
        if type(state) is not dict or type(state.get("fqn")) is not str or self.fqn:
            raise Malformed("it has an index without a name")
        self.fqn = state["fqn"]
        offset = state.get("offset")
        self.offset = None if offset is None else _sizes(offset)

    def __hash__(self) -> int:
        return hash((self.fqn, self.offset))

    def __eq__(self, other: object) -> bool:
        return type(other) is _Index and (self.fqn, self.offset) == (other.fqn, other.offset)


@dataclass(frozen=True, slots=True)
class _Place:
    file: str
    start: int
    nbytes: int


class _DcpNames(Names):
    def __call__(self, name: str) -> Any:
        if name in _RECORDS:
            kind = name.rpartition(".")[2]
            return Inert(name, lambda *arguments: _Record(kind, arguments or None))
        return Inert(name, _Index) if name == f"{_HOME}.MetadataIndex" else super().__call__(name)


def read_dcp_folder(folder: str, *, values: bool = True) -> Foreign:
    """All that the folder holds; without ``values`` only its tensors.

    Raises `FormatRefused` for what is malformed, incomplete, or asks to run code.
    """
    return _Folder(folder).read(values=values)


class _Folder:
    def __init__(self, folder: str) -> None:
        self.folder = folder
        path = os.path.join(folder, METADATA)
        mapped = Mapped(path)
        self.file = path
        root, end = unpickle(mapped.view, file=path, find=_DcpNames(path), limits=_LIMITS)
        if end != mapped.nbytes:
            self.refuse("something follows its pickle")
        self.entries = self.dict_of(self.field(root, "Metadata", "state_dict_metadata"), "entries")
        self.places = self._places(self.field(root, "Metadata", "storage_data"))
        self._files: dict[str, Mapped] = {}
        self._notes: dict[str, None] = {}

    def refuse(self, why: str) -> NoReturn:
        raise FormatRefused(f"{self.file} is refused: {why}", file=self.file, why=why)

    def read(self, *, values: bool) -> Foreign:
        tensors: list[ForeignTensor] = []
        found: dict[str, Any] = {}
        left: list[str] = []
        for name, entry in self.entries.items():
            if type(name) is not str or not name:
                self.refuse("an entry of it has no name")
            if type(entry) is _Record and entry.kind == "BytesStorageMetadata":
                if not values:
                    left.append(name)
                    continue
                more, value = self._value(name)
                tensors += more
                found |= value
            else:
                tensors.append(self._tensor(name, entry))
        names = [tensor.name for tensor in tensors]
        if len(set(names)) != len(names):
            self.refuse("two tensors of it have one name")
        notes = [*self._notes, *([f"values left out: {', '.join(left[:8])}"] if left else [])]
        return Foreign("DCP", tuple(tensors), found, tuple(notes))

    # --- the metadata ------------------------------------------------------------------------------------------------

    def field(self, record: Any, kind: str, name: str) -> Any:
        """The field ``name`` of ``record``, which must be a ``kind``."""
        if type(record) is not _Record or record.kind != kind or type(record.state) is not dict:
            self.refuse(f"something stands where a {kind} should be")
        if name not in record.state:
            self.refuse(f"a {kind} of it has no {name}")
        return record.state[name]

    def dict_of(self, value: Any, what: str) -> dict[Any, Any]:
        if not isinstance(value, dict):
            self.refuse(f"it has no table of {what}")
        return value

    def sizes(self, value: Any) -> tuple[int, ...]:
        try:
            return _sizes(value)
        except Malformed as error:
            self.refuse(str(error))

    def _places(self, table: Any) -> dict[tuple[str, tuple[int, ...] | None], _Place]:
        places: dict[tuple[str, tuple[int, ...] | None], _Place] = {}
        for index, info in self.dict_of(table, "places").items():
            if type(index) is not _Index:
                self.refuse("its table of places has a key that is no index")
            path = self.field(info, "_StorageInfo", "relative_path")
            start, nbytes = (self.field(info, "_StorageInfo", each) for each in ("offset", "length"))
            if info.state.get("transform_descriptors"):
                self.refuse(f"{index.fqn[:80]!r} was written through an extension (compressed?); save it without")
            if any(type(each) is not int or not 0 <= each < _LIMIT for each in (start, nbytes)):
                self.refuse(f"{index.fqn[:80]!r} lies at an impossible place")
            places[index.fqn, index.offset] = _Place(inside(self.folder, path, file=self.file), start, nbytes)
        return places

    def _chunks(self, name: str, entry: Any) -> Iterator[Box]:
        chunks = self.field(entry, "TensorStorageMetadata", "chunks")
        if type(chunks) is not list:
            self.refuse(f"{name[:80]!r} has no list of chunks")
        for chunk in chunks:
            lo = self.sizes(self.field(chunk, "ChunkStorageMetadata", "offsets"))
            extent = self.sizes(self.field(chunk, "ChunkStorageMetadata", "sizes"))
            if len(lo) != len(extent):
                self.refuse(f"a chunk of {name[:80]!r} has offsets and sizes of different dims")
            yield Box(lo, tuple(a + b for a, b in zip(lo, extent, strict=True)))

    # --- what it leads to --------------------------------------------------------------------------------------------

    def _open(self, name: str, offset: tuple[int, ...] | None) -> tuple[TorchFile, _Place]:
        place = self.places.get((name, offset))
        if place is None:
            self.refuse(f"it does not say where {name[:80]!r} lies")
        if place.file not in self._files:
            try:
                self._files[place.file] = Mapped(place.file)
            except CallError:
                self.refuse(f"{os.path.basename(place.file)}, which holds {name[:80]!r}, is not in the folder")
        mapped = self._files[place.file]
        if place.start + place.nbytes > mapped.nbytes:
            self.refuse(f"{os.path.basename(place.file)}, which holds {name[:80]!r}, was cut")
        return open_torch_file(mapped, start=place.start, nbytes=place.nbytes), place

    def _value(self, name: str) -> tuple[tuple[ForeignTensor, ...], dict[str, Any]]:
        try:
            opened, place = self._open(name, None)
            return flatten({name: opened.root}, opened.block, file=opened.mapped.file, file_nbytes=place.nbytes)
        except FormatRefused as error:
            why = f"the value {name[:80]!r}: {error}; leave all values out with --skip-values"
            raise FormatRefused(why, **{**error.facts, "key": name}) from error

    def _tensor(self, name: str, entry: Any) -> ForeignTensor:
        shape = self.sizes(self.field(entry, "TensorStorageMetadata", "size"))
        dtype = self._dtype(self.field(entry, "TensorStorageMetadata", "properties"), name)
        boxes = list(self._chunks(name, entry))
        if len(set(boxes)) != len(boxes):
            self.refuse(f"a chunk of {name[:80]!r} is there twice")
        pieces = tuple(Piece.alone(number, box) for number, box in enumerate(boxes))
        layout = TensorLayout(shape, pieces, f"uint{DTYPES[dtype].bits}")
        try:
            layout.check(name[:80])
        except LayoutError as error:
            self.refuse(f"its chunks do not cover a tensor once: {error}")
        blocks, crcs = [], []
        for box in boxes:
            opened, _ = self._open(name, box.lo)
            found = opened.root
            if type(found) is not FoundTensor or (found.shape, found.dtype) != (box.shape, dtype):
                self.refuse(f"a chunk of {name[:80]!r} holds something else than is said of it")
            if found.nbytes > max(found.storage.nbytes, 1):
                self.refuse(f"a chunk of {name[:80]!r} unfolds to more bytes than it has")
            block, crc = opened.block(found)
            blocks.append(LocalBlock(box, block.view))
            crcs.append(crc)
        if any(crc.crc == 0 and crc.nbytes for crc in crcs):
            self._notes[
                f"{self.folder} has no checksums: a bit that flipped in it before the import is not noticed"
            ] = None
        return ForeignTensor(name, dtype, shape, tuple(blocks), crcs=tuple(crcs))

    def _dtype(self, properties: Any, name: str) -> str:
        state = properties.state if type(properties) is _Record and properties.kind == "TensorProperties" else None
        found = state[0] if type(state) is tuple and state else None
        if type(found) is not torch.dtype or dtype_name(found) not in DTYPES:
            self.refuse(f"{name[:80]!r} has no dtype that can be saved")
        return dtype_name(found)


def _sizes(value: Any) -> tuple[int, ...]:
    if not isinstance(value, tuple) or len(value) > 64 or any(type(n) is not int or not 0 <= n < _LIMIT for n in value):
        raise Malformed("it has sizes that fit no tensor")
    return tuple(value)
