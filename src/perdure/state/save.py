"""Plan what each rank writes of a step, then copy it.

Two stages. *Settle* joins the offers of all ranks once (and again only when what is saved changes): every rank computes
the same answer from the same offers, so nobody has to be asked. It proves that the pieces cover every tensor, and
gives each piece that several ranks hold to one of them, worst-fit by size (ByteCheckpoint, NSDI'25). *Copy* is a
cached list of addresses and offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from perdure.codec.digest import digest
from perdure.codec.dtypes import nbytes as nbytes_of
from perdure.errors import LayoutError, StateMismatch
from perdure.layout import Box, Layout, Piece, TensorLayout
from perdure.shm import copy_many
from perdure.state.index import RankIndex, SavedPiece, SavedTensor, SavedValue
from perdure.state.items import Capture
from perdure.store.pack import PackItem, PackPlan, plan_pack

__all__ = ["Offer", "SavePlan", "Write", "copy_writes", "offer", "pack_of", "settle"]


class OfferedTensor(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    name: str
    dtype: str
    shape: tuple[int, ...]
    boxes: tuple[tuple[tuple[int, ...], tuple[int, ...], int], ...]  # lo, hi, bytes
    local: bool
    aliases: tuple[str, ...]


class Offer(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What one rank holds of a step, without the bytes."""

    rank: int
    tensors: tuple[OfferedTensor, ...]
    values: tuple[tuple[str, bool], ...]  # key, local


@dataclass(frozen=True, slots=True)
class Write:
    """Piece ``piece`` of tensor ``tensor`` (positions in the capture) goes to byte ``start`` of the pack."""

    tensor: int
    piece: int
    start: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class SavePlan:
    """What this rank writes, while its offer stays the same.

    ``plan_id`` is equal on all ranks of one settlement. ``replicas`` are the pieces held by several ranks, as
    ``(tensor, box)``; one of them is compared between the ranks at each save.
    """

    plan_id: str
    offer: Offer
    pack: PackPlan
    writes: tuple[Write, ...]
    tensors: tuple[SavedTensor, ...]
    value_keys: frozenset[str]
    replicas: tuple[tuple[str, Box], ...]
    aliases: tuple[str, ...]

    @property
    def raw_nbytes(self) -> int:
        """Bytes of tensors that this rank writes."""
        return sum(write.nbytes for write in self.writes)

    def index(self, capture: Capture, *, rank: int, world: int) -> RankIndex:
        """The rank's index of a step: the planned tensors and the values of ``capture`` that it writes."""
        values = tuple(
            SavedValue(key=item.key, value=item.value, local=item.local)
            for item in capture.values
            if item.local or item.key in self.value_keys
        )
        return RankIndex(rank=rank, world=world, tensors=self.tensors, values=values)


def offer(capture: Capture, *, rank: int) -> Offer:
    """Describe ``capture`` without its bytes; equal offers make the same plan."""
    return Offer(
        rank,
        tuple(
            OfferedTensor(
                item.name,
                item.dtype,
                item.shape,
                tuple((held.box.lo, held.box.hi, held.memory.nbytes) for held in item.held),
                item.local,
                item.aliases,
            )
            for item in capture.tensors
        ),
        tuple((item.key, item.local) for item in capture.values),
    )


def settle(offers: Sequence[Offer], *, rank: int) -> SavePlan:
    """Plan ``rank``'s part from the offers of all ranks, in rank order.

    Raises `StateMismatch` where ranks offer one shared name with different dtypes or shapes, `LayoutError` where the
    pieces of all ranks leave a gap. Every rank raises the same.
    """
    layout = _joined(offers)
    layout.check()
    holders: dict[tuple[str, tuple[int, ...], tuple[int, ...]], list[int]] = {}
    size: dict[tuple[str, tuple[int, ...], tuple[int, ...]], int] = {}
    load = [0] * len(offers)
    value_writer: dict[str, int] = {}
    for each in offers:
        for tensor in each.tensors:
            for lo, hi, nbytes in tensor.boxes:
                if tensor.local:
                    load[each.rank] += nbytes
                else:
                    holders.setdefault((tensor.name, lo, hi), []).append(each.rank)
                    size[tensor.name, lo, hi] = nbytes
        for key, local in each.values:
            if not local:
                value_writer.setdefault(key, each.rank)
    writer: dict[tuple[str, tuple[int, ...], tuple[int, ...]], int] = {}
    shared = sorted(holders, key=lambda piece: (len(holders[piece]) > 1, -size[piece], piece))
    for piece in shared:  # pieces with one holder first, then the others onto the least loaded
        chosen = min(holders[piece], key=lambda holder: (load[holder], holder))
        writer[piece] = chosen
        load[chosen] += size[piece]
    mine = offers[rank]
    items: list[PackItem] = []
    places: list[tuple[int, int]] = []
    saved: list[SavedTensor] = []
    for i, tensor in enumerate(mine.tensors):
        pieces = []
        for j, (lo, hi, nbytes) in enumerate(tensor.boxes):
            if not tensor.local and writer[tensor.name, lo, hi] != rank:
                continue
            key = _key(tensor, lo, hi, rank)
            items.append(PackItem(key, tensor.dtype, tuple(b - a for a, b in zip(lo, hi, strict=True)), nbytes))
            places.append((i, j))
            pieces.append(SavedPiece(key, lo, hi))
        if pieces or tensor.local or not tensor.boxes:
            saved.append(
                SavedTensor(
                    name=tensor.name,
                    dtype=tensor.dtype,
                    shape=tensor.shape,
                    pieces=tuple(pieces),
                    aliases=tensor.aliases,
                    local=tensor.local,
                )
            )
    pack = plan_pack(items)
    writes = tuple(Write(i, j, entry.start, entry.nbytes) for (i, j), entry in zip(places, pack.entries, strict=True))
    return SavePlan(
        plan_id=digest(msgspec.json.encode(list(offers))),
        offer=mine,
        pack=pack,
        writes=writes,
        tensors=tuple(saved),
        value_keys=frozenset(key for key, chosen in value_writer.items() if chosen == rank),
        replicas=tuple((name, Box(lo, hi)) for name, lo, hi in shared if len(holders[name, lo, hi]) > 1),
        aliases=tuple(alias for tensor in mine.tensors for alias in tensor.aliases),
    )


def pack_of(index: RankIndex) -> PackPlan:
    """The pack that ``index`` describes: the same plan as that of the rank that wrote it."""
    return plan_pack(
        [
            PackItem(piece.key, tensor.dtype, box.shape, nbytes_of(tensor.dtype, box.shape))
            for tensor in index.tensors
            for piece in tensor.pieces
            for box in (Box(piece.lo, piece.hi),)
        ]
    )


def copy_writes(
    plan: SavePlan, capture: Capture, base_address: int, *, which: Callable[[bool], bool], threads: int = 1
) -> int:
    """Copy the planned pieces to ``base_address`` + their start; return the bytes copied.

    ``which`` gets ``owned`` of a tensor and says whether to copy it now. Called from the thread that saves for what
    may change at once and from the copier's thread for the rest; releases the GIL.
    """
    source, target, count = [], [], []
    for write in plan.writes:
        item = capture.tensors[write.tensor]
        if write.nbytes and which(item.owned):
            source.append(item.held[write.piece].memory.address)
            target.append(base_address + write.start)
            count.append(write.nbytes)
    if count:
        copy_many(np.array(source, np.uint64), np.array(target, np.uint64), np.array(count, np.uint64), threads=threads)
    return sum(count)


def _key(tensor: OfferedTensor, lo: tuple[int, ...], hi: tuple[int, ...], rank: int) -> str:
    name = f"{tensor.name}@rank{rank}" if tensor.local else tensor.name
    if all(a == 0 for a in lo) and hi == tensor.shape:
        return name
    return f"{name}[{','.join(f'{a}:{b}' for a, b in zip(lo, hi, strict=True))}]"


def _joined(offers: Sequence[Offer]) -> Layout:
    known: dict[str, tuple[OfferedTensor, int]] = {}
    pieces: dict[str, list[Piece]] = {}
    names: dict[str, str] = {}
    for each in offers:
        for tensor in each.tensors:
            if tensor.local:
                continue
            first, holder = known.setdefault(tensor.name, (tensor, each.rank))
            if (first.dtype, first.shape) != (tensor.dtype, tensor.shape):
                raise StateMismatch(
                    f"{tensor.name} is {first.dtype}{list(first.shape)} on rank {holder} but "
                    f"{tensor.dtype}{list(tensor.shape)} on rank {each.rank}; give what differs from rank to rank "
                    "as perdure.RankLocal(...)",
                    shape=[tensor.name],
                )
            for alias in (tensor.name, *tensor.aliases):
                if names.setdefault(alias, tensor.name) != tensor.name:
                    raise LayoutError(f"{alias} is a name of two different tensors", tensor=alias)
            of = pieces.setdefault(tensor.name, [])
            of.extend(Piece.alone(each.rank, Box(lo, hi)) for lo, hi, _ in tensor.boxes)
    return Layout(
        {name: TensorLayout(first.shape, tuple(pieces[name]), first.dtype) for name, (first, _) in known.items()}
    )
