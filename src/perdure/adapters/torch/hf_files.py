"""Read safetensors: one file, or a Hugging Face folder whose index says which shard holds which tensor."""

from __future__ import annotations

import os
from typing import Annotated, NoReturn

import msgspec

from perdure.adapters.torch.foreign import Foreign, ForeignTensor, Mapped, inside
from perdure.adapters.torch.tensors import LocalBlock
from perdure.codec.dtypes import DTYPES, nbytes
from perdure.errors import CallError, FormatRefused
from perdure.layout import Box
from perdure.store.safetensors import Header, read_header

__all__ = ["INDEX", "SINGLE", "read_safetensors_file", "read_safetensors_folder"]

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
_INDEX_LIMIT_BYTES = 100_000_000


class _Metadata(msgspec.Struct, frozen=True):
    """What perdure writes into an index beside the format's own: other names of tensors, by name."""

    perdure_aliases: dict[str, str] = {}


class _Index(msgspec.Struct, frozen=True):
    weight_map: Annotated[dict[str, str], msgspec.Meta(min_length=1)]
    metadata: _Metadata = _Metadata()


def read_safetensors_file(mapped: Mapped) -> Foreign:
    """All tensors of one file."""
    return Foreign("safetensors", _tensors(mapped, _header(mapped)), notes=(_unchecked(mapped.file),))


def read_safetensors_folder(folder: str) -> Foreign:
    """All tensors of a folder with an index; every tensor must be in the shard that the index says, and no other."""
    mapped = Mapped(os.path.join(folder, INDEX))
    if mapped.nbytes > _INDEX_LIMIT_BYTES:
        _refuse(mapped.file, f"an index of {mapped.nbytes} bytes is none")
    try:
        index = msgspec.json.decode(bytes(mapped.view), type=_Index)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        _refuse(mapped.file, f"it cannot be read: {error}")
    tensors: dict[str, ForeignTensor] = {}
    for shard in dict.fromkeys(index.weight_map.values()):
        path = inside(folder, shard, file=mapped.file)
        try:
            part = Mapped(path)
        except CallError:
            _refuse(mapped.file, f"its shard {shard[:80]} is not in the folder")
        for tensor in _tensors(part, _header(part)):
            if index.weight_map.get(tensor.name) != shard:
                _refuse(mapped.file, f"{shard[:80]} holds {tensor.name[:80]!r}, which the index has elsewhere")
            tensors[tensor.name] = tensor
    gone = [name for name in index.weight_map if name not in tensors]
    if gone:
        _refuse(mapped.file, f"{gone[0][:80]!r} is not in the shard that the index says")
    return Foreign("safetensors", _with_aliases(tensors, index, mapped.file), notes=(_unchecked(folder),))


def _with_aliases(tensors: dict[str, ForeignTensor], index: _Index, file: str) -> tuple[ForeignTensor, ...]:
    others: dict[str, list[str]] = {}
    for alias, name in index.metadata.perdure_aliases.items():
        if name not in tensors or alias in tensors:
            _refuse(file, f"it calls {alias[:80]!r} another name of {name[:80]!r}, which does not fit its tensors")
        others.setdefault(name, []).append(alias)
    return tuple(
        ForeignTensor(each.name, each.dtype, each.shape, each.blocks, tuple(others.get(each.name, ())))
        for each in tensors.values()
    )


def _header(mapped: Mapped) -> Header:
    return read_header(lambda start, nbytes: mapped.view[start : start + nbytes], mapped.nbytes, file=mapped.file)


def _tensors(mapped: Mapped, header: Header) -> tuple[ForeignTensor, ...]:
    tensors = []
    for entry in header.entries:
        if entry.dtype not in DTYPES or nbytes(entry.dtype, entry.shape) != entry.nbytes:
            _refuse(mapped.file, f"{entry.key[:80]!r} has bytes that do not fill its true dtype and shape")
        width = DTYPES[entry.dtype].itemsize
        view = mapped.tensor(entry.start, entry.dtype, entry.nbytes // width).view(entry.shape)
        block = LocalBlock(Box.whole(entry.shape), view)
        tensors.append(ForeignTensor(entry.key, entry.dtype, entry.shape, (block,)))
    return tuple(tensors)


def _unchecked(name: str) -> str:
    return f"{name} has no checksums: a bit that flipped in it before the import is not noticed"


def _refuse(file: str, why: str) -> NoReturn:
    raise FormatRefused(f"{file} is refused: {why}", file=file, why=why)
