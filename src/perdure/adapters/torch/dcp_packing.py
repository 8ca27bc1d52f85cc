"""Carry out a rank's DCP save plan into memory: the packs that go to the store, and the index of what is in them.

Where everything goes follows from the plan alone; then DCP's planner is asked for one tensor after the other, so that
of a model on an accelerator no more than one tensor is on the host beside the packs. Values never become pickles: they
are taken from the planner as objects and written as tagged JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType

from perdure.adapters.torch.nested import take_tensors_out
from perdure.adapters.torch.tensors import as_integers, dtype_name, without_bytes
from perdure.checkpoint.memory_packs import seal
from perdure.codec.digest import digest
from perdure.codec.dtypes import DTYPES
from perdure.codec.dtypes import nbytes as nbytes_of
from perdure.errors import CallError
from perdure.layout import Box
from perdure.state.index import RankIndex, SavedPiece, SavedTensor, SavedValue, piece_key
from perdure.state.save import PlacedPack, place_packs
from perdure.state.values import encode_value
from perdure.store import PackItem
from perdure.store.pack_header import wrong_key

__all__ = ["Packing", "box_of", "value_digests"]


def box_of(item: WriteItem) -> Box:
    """The box of its tensor that ``item`` writes."""
    data = item.tensor_data
    assert data is not None, "only items of tensors are asked"
    lo = tuple(data.chunk.offsets)
    return Box(lo, tuple(a + b for a, b in zip(lo, data.chunk.sizes, strict=True)))


@dataclass(frozen=True, slots=True)
class _Piece:
    box: Box
    give: Callable[[], Any]


@dataclass(slots=True)
class _Tensor:
    dtype: str
    shape: tuple[int, ...]
    pieces: list[_Piece] = field(default_factory=list)


class Packing:
    """What one rank writes of a save, without its bytes so far. Raises `CallError` naming what cannot be saved."""

    def __init__(self, plan: SavePlan, planner: SavePlanner) -> None:
        self._tensors: dict[str, _Tensor] = {}
        self.values: list[SavedValue] = []
        self.inner: list[str] = []
        """names of tensors that lie in values; nobody but this rank has planned for them"""
        for item in plan.items:
            if item.type is WriteItemType.BYTE_IO:
                self._value(item, planner)
            else:
                self._tensor(item, planner)
        items: list[PackItem] = []
        self._give: list[tuple[str, _Tensor, _Piece]] = []
        for name, tensor in self._tensors.items():
            for piece in tensor.pieces:
                items.append(self._item(name, tensor, piece))
                self._give.append((name, tensor, piece))
        self._packs: tuple[PlacedPack, ...] = place_packs(items)

    @property
    def nbytes(self) -> int:
        """Bytes of all packs."""
        return self._packs[-1].stop

    def fill(self, view: memoryview, *, rank: int, world: int) -> RankIndex:
        """Ask for each tensor, copy it into ``view``, bit for bit, and seal the packs; the index of what lies there."""
        entries = ((pack.start + entry.start, entry.nbytes) for pack in self._packs for entry in pack.plan.entries)
        for (name, tensor, piece), (start, nbytes) in zip(self._give, entries, strict=True):
            given = _checked(piece.give(), name, tensor, piece.box)
            if nbytes:
                flat = torch.frombuffer(view, dtype=torch.uint8, count=nbytes, offset=start)
                into = flat.view(given.dtype).view(piece.box.shape)
                as_integers(into).copy_(as_integers(given))
        index = RankIndex(rank=rank, world=world, tensors=self._saved(), values=tuple(self.values))
        seal(index, view)
        return index

    # --- planning ----------------------------------------------------------------------------------------------------

    def _tensor(self, item: WriteItem, planner: SavePlanner) -> None:
        data = item.tensor_data
        assert data is not None, "DCP describes the tensor of every item that is no value"
        box, shape = box_of(item), tuple(data.size)
        known = self._tensors.setdefault(item.index.fqn, _Tensor(dtype_name(data.properties.dtype), shape))
        if not box.empty or 0 in shape:  # an empty shard is nobody's loss
            known.pieces.append(_Piece(box, lambda: planner.resolve_data(item)))

    def _value(self, item: WriteItem, planner: SavePlanner) -> None:
        key = item.index.fqn
        value, tensors = _taken(item, planner)
        self.values.append(SavedValue(key=key, value=value))
        for name, tensor in tensors.items():
            if name in self._tensors:
                raise CallError(f"two entries would both be saved as {name}; rename one", key=name)
            self.inner.append(name)
            whole = _Tensor(dtype_name(tensor.dtype), tuple(tensor.shape))
            whole.pieces.append(_Piece(Box.whole(whole.shape), lambda found=tensor: found))  # type: ignore[misc]
            self._tensors[name] = whole

    def _saved(self) -> tuple[SavedTensor, ...]:
        return tuple(
            SavedTensor(
                name=name,
                dtype=tensor.dtype,
                shape=tensor.shape,
                pieces=tuple(
                    SavedPiece(piece_key(name, tensor.shape, each.box, None), each.box.lo, each.box.hi)
                    for each in tensor.pieces
                ),
            )
            for name, tensor in self._tensors.items()
            if tensor.pieces
        )

    def _item(self, name: str, tensor: _Tensor, piece: _Piece) -> PackItem:
        key = piece_key(name, tensor.shape, piece.box, None)
        why = wrong_key(key) or (
            None if tensor.dtype in DTYPES else f"has the dtype {tensor.dtype}, which has no place"
        )
        if why:
            raise CallError(f"the tensor {key[:80]!r} {why}; rename or convert it", tensor=name)
        return PackItem(key, tensor.dtype, piece.box.shape, nbytes_of(tensor.dtype, piece.box.shape))


def value_digests(items: Sequence[WriteItem], planner: SavePlanner) -> dict[str, str]:
    """The digest of each value among ``items``, whoever writes it: they must be alike on all ranks that have them."""
    values = (item for item in items if item.type is WriteItemType.BYTE_IO)
    return {item.index.fqn: digest(msgspec.json.encode(_taken(item, planner)[0])) for item in values}


def _taken(item: WriteItem, planner: SavePlanner) -> tuple[Any, dict[str, torch.Tensor]]:
    """The value of ``item`` as tagged JSON, and the tensors that it refers to."""
    key = item.index.fqn
    if not isinstance(planner, DefaultSavePlanner):
        raise CallError(
            f"the planner {type(planner).__name__} gives the value {key} as a pickle, which is not written; use "
            "DefaultSavePlanner or a class of it",
            key=key,
        )
    skeleton, tensors = take_tensors_out(key, planner.lookup_object(item.index))
    return encode_value(skeleton, key=key), tensors


def _checked(given: Any, name: str, tensor: _Tensor, box: Box) -> torch.Tensor:
    if not isinstance(given, torch.Tensor):
        raise CallError(f"the planner gives a {type(given).__name__} for the tensor {name}", tensor=name)
    found = given.detach()
    why = without_bytes(found)
    if why is None and (dtype_name(found.dtype), tuple(found.shape)) != (tensor.dtype, box.shape):
        why = f"is {found.dtype}{list(found.shape)}, but {tensor.dtype}{list(box.shape)} was planned"
    if why is not None:
        raise CallError(f"{name} {why}", tensor=name)
    return found.resolve_conj().resolve_neg()
