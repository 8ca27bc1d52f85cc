"""Plan what each rank writes of a step, then copy it.

Two stages. *Settle* joins the offers of all ranks once (and again only when what is saved changes): every rank computes
the same answer from the same offers, so nobody has to be asked. It proves that the pieces cover every tensor, and
gives each piece that several ranks hold to one of them, worst-fit by size (ByteCheckpoint, NSDI'25). *Copy* is a
cached list of addresses and offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from perdure.codec.digest import digest
from perdure.codec.dtypes import nbytes as nbytes_of
from perdure.errors import CallError, LayoutError, StateMismatch
from perdure.layout import Box, EvenGrid, Layout, Piece, TensorLayout
from perdure.shm import copy_many
from perdure.state.index import RankIndex, SavedGrid, SavedPiece, SavedTensor, SavedValue, piece_key
from perdure.state.items import Capture
from perdure.state.scopes import Among
from perdure.store.pack import PackItem, PackPlan, plan_pack
from perdure.store.pack_header import HEADER_ALIGN_BYTES, wrong_key

__all__ = ["Offer", "PlacedPack", "SavePlan", "Write", "copy_writes", "offer", "packs_of", "place_packs", "settle"]

PACK_TENSORS = 4096  # so that a reader of one tensor need not read the header of a million

_Shared = tuple[str, tuple[int, ...], tuple[int, ...]]  # a piece of a tensor that is not rank-local: name, lo, hi


class OfferedTensor(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    name: str
    dtype: str
    shape: tuple[int, ...]
    boxes: tuple[tuple[tuple[int, ...], tuple[int, ...], int], ...]  # lo, hi, bytes
    local: bool
    aliases: tuple[str, ...]
    alike: bool
    among: Among | None = None


class Offer(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What one rank holds of a step, without the bytes."""

    rank: int
    tensors: tuple[OfferedTensor, ...]
    values: tuple[tuple[str, bool, Among | None], ...]  # key, local, among which ranks


@dataclass(frozen=True, slots=True)
class Write:
    """Piece ``piece`` of tensor ``tensor`` (positions in the capture) goes to byte ``start`` of the segment."""

    tensor: int
    piece: int
    start: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class PlacedPack:
    """A pack of a segment: it begins at byte ``start``, a multiple of 4096."""

    start: int
    plan: PackPlan

    @property
    def stop(self) -> int:
        """The byte after its last."""
        return self.start + self.plan.total_nbytes


@dataclass(frozen=True, slots=True)
class SavePlan:
    """What this rank writes, while its offer stays the same.

    ``plan_id`` is equal on all ranks of one settlement. ``replicas`` are the pieces that several ranks must hold alike,
    as ``(tensor, box)``; one of them is compared between the ranks at each save. ``tied`` are those of them that
    several stages of a pipeline hold, of which more are compared.
    """

    plan_id: str
    offer: Offer
    packs: tuple[PlacedPack, ...]
    writes: tuple[Write, ...]
    tensors: tuple[SavedTensor, ...]
    layouts: tuple[SavedGrid, ...]
    value_keys: frozenset[str]
    replicas: tuple[tuple[str, Box], ...]
    tied: tuple[tuple[str, Box], ...]
    aliases: tuple[str, ...]

    @property
    def raw_nbytes(self) -> int:
        """Bytes of tensors that this rank writes."""
        return sum(write.nbytes for write in self.writes)

    @property
    def total_nbytes(self) -> int:
        """Bytes of the segment that holds the packs."""
        return self.packs[-1].stop

    def index(self, capture: Capture, *, rank: int, world: int) -> RankIndex:
        """The rank's index of a step: the planned tensors and the values of ``capture`` that it writes."""
        values = tuple(
            SavedValue(key=item.key, value=item.value, local=item.local)
            for item in capture.values
            if item.local or item.key in self.value_keys
        )
        return RankIndex(rank=rank, world=world, tensors=self.tensors, values=values, layouts=self.layouts)


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
                item.alike,
                item.among,
            )
            for item in capture.tensors
        ),
        tuple((item.key, item.local, item.among) for item in capture.values),
    )


def settle(offers: Sequence[Offer], *, rank: int) -> SavePlan:
    """Plan ``rank``'s part from the offers of all ranks, in rank order.

    Raises `StateMismatch` where ranks offer one shared name with different dtypes or shapes, `LayoutError` where the
    pieces of all ranks leave a gap, `CallError` for a name that a pack cannot hold. Every rank raises the same.
    """
    layout, aliases = _joined(offers)
    layout.check()
    holders, nbytes = _holders(offers)
    unlike = {tensor.name for each in offers for tensor in each.tensors if not tensor.alike}
    writer = _assigned(offers, holders, nbytes, unlike)
    value_writer: dict[str, int] = {}
    for each in offers:
        for key, local, _ in each.values:
            if not local:
                value_writer.setdefault(key, each.rank)
    grids, layouts = _grids(offers, writer)
    mine = offers[rank]
    items: list[PackItem] = []
    places: list[tuple[int, int]] = []
    saved: list[SavedTensor] = []
    for i, tensor in enumerate(mine.tensors):
        pieces = []
        for j, (lo, hi, size) in enumerate(tensor.boxes):
            if not tensor.local and writer.get((tensor.name, lo, hi)) != rank:
                continue
            key = _key(tensor, lo, hi, rank)
            items.append(PackItem(key, tensor.dtype, Box(lo, hi).shape, size))
            places.append((i, j))
            pieces.append(SavedPiece(key, lo, hi))
        if pieces or tensor.local or not tensor.boxes:
            saved.append(
                SavedTensor(
                    name=tensor.name,
                    dtype=tensor.dtype,
                    shape=tensor.shape,
                    pieces=tuple(pieces),
                    aliases=tensor.aliases if tensor.local else aliases[tensor.name],
                    local=tensor.local,
                    layout=None if tensor.local else grids.get(tensor.name),
                )
            )
    replicas = tuple(
        (name, Box(lo, hi)) for name, lo, hi in sorted(holders) if len(holders[name, lo, hi]) > 1 and name not in unlike
    )
    tied = {tensor.name for each in offers for tensor in each.tensors if tensor.among and tensor.among.shared}
    packs = place_packs(items)
    starts = [(pack.start + entry.start, entry.nbytes) for pack in packs for entry in pack.plan.entries]
    writes = tuple(Write(i, j, start, nbytes) for (i, j), (start, nbytes) in zip(places, starts, strict=True))
    return SavePlan(
        plan_id=digest(msgspec.json.encode(list(offers))),
        offer=mine,
        packs=packs,
        writes=writes,
        tensors=tuple(saved),
        layouts=layouts,
        value_keys=frozenset(key for key, chosen in value_writer.items() if chosen == rank),
        replicas=replicas,
        tied=tuple((name, box) for name, box in replicas if name in tied),
        aliases=tuple(alias for tensor in mine.tensors for alias in tensor.aliases),
    )


def packs_of(index: RankIndex) -> tuple[PlacedPack, ...]:
    """The packs that ``index`` describes: the same as in the plan of the rank that wrote them."""
    return place_packs(
        [
            PackItem(piece.key, tensor.dtype, box.shape, nbytes_of(tensor.dtype, box.shape))
            for tensor in index.tensors
            for piece in tensor.pieces
            for box in (Box(piece.lo, piece.hi),)
        ]
    )


def place_packs(items: Sequence[PackItem]) -> tuple[PlacedPack, ...]:
    """Lay ``items`` out in packs one after another, as many tensors in each as a reader of one is glad of."""
    placed: list[PlacedPack] = []
    start = 0
    for first in range(0, max(len(items), 1), PACK_TENSORS):
        placed.append(PlacedPack(start, plan_pack(items[first : first + PACK_TENSORS])))
        start = -(-placed[-1].stop // HEADER_ALIGN_BYTES) * HEADER_ALIGN_BYTES
    return tuple(placed)


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


def _holders(offers: Sequence[Offer]) -> tuple[dict[_Shared, list[int]], dict[_Shared, int]]:
    """The ranks that hold each piece of the shared tensors, and its bytes. Raises `CallError` for names of no use."""
    holders: dict[_Shared, list[int]] = {}
    size: dict[_Shared, int] = {}
    keys: dict[str, tuple[int | None, _Shared]] = {}
    for each in offers:
        for tensor in each.tensors:
            for lo, hi, nbytes in tensor.boxes:
                if not nbytes and 0 not in tensor.shape and not tensor.local:
                    continue  # an empty shard; of a tensor that is empty as a whole one piece is kept
                piece = (tensor.name, lo, hi)
                key = _key(tensor, lo, hi, each.rank)
                owner = (each.rank if tensor.local else None, piece)
                why = wrong_key(key) or ("is that of two tensors" if keys.setdefault(key, owner) != owner else None)
                if why:
                    raise CallError(f"the name {key[:80]!r} {why}; give the tensor another name", tensor=tensor.name)
                if not tensor.local:
                    holders.setdefault(piece, []).append(each.rank)
                    size[piece] = nbytes
    return holders, size


def _assigned(
    offers: Sequence[Offer],
    holders: Mapping[_Shared, Sequence[int]],
    nbytes: Mapping[_Shared, int],
    unlike: Set[str],
) -> dict[_Shared, int]:
    """Who writes each shared piece: the one holder, or else, large ones first, the holder with the least load."""
    load = [0] * len(offers)
    for each in offers:
        load[each.rank] += sum(nbytes for tensor in each.tensors if tensor.local for _, _, nbytes in tensor.boxes)
    writer: dict[_Shared, int] = {}
    for piece in sorted(holders, key=lambda piece: (len(holders[piece]) > 1, -nbytes[piece], piece)):
        among = holders[piece] if piece[0] not in unlike else [min(holders[piece])]
        chosen = min(among, key=lambda holder: (load[holder], holder))
        writer[piece] = chosen
        load[chosen] += nbytes[piece]
    return writer


def _key(tensor: OfferedTensor, lo: tuple[int, ...], hi: tuple[int, ...], rank: int) -> str:
    return piece_key(tensor.name, tensor.shape, Box(lo, hi), rank if tensor.local else None)


def _grids(offers: Sequence[Offer], writer: Mapping[_Shared, int]) -> tuple[dict[str, int], tuple[SavedGrid, ...]]:
    """For each shared tensor whose blocks lie in an even grid of writers, its number in the list of such grids."""
    shapes = {tensor.name: tensor.shape for each in offers for tensor in each.tensors if not tensor.local}
    pieces: dict[str, list[tuple[int, Box]]] = {}
    for (name, lo, hi), rank in writer.items():
        pieces.setdefault(name, []).append((rank, Box(lo, hi)))
    known: dict[EvenGrid, int] = {}
    found: dict[str, int] = {}
    seen: dict[tuple[Any, ...], EvenGrid | None] = {}  # the layers of a model repeat each other
    for name in sorted(pieces):  # the same numbers on every rank
        like = (shapes[name], *pieces[name])
        if like not in seen:
            seen[like] = EvenGrid.of(shapes[name], pieces[name])
        grid = seen[like]
        if grid is not None:
            found[name] = known.setdefault(grid, len(known))
    return found, tuple(SavedGrid(grid.parts, grid.first, grid.strides) for grid in known)


def _joined(offers: Sequence[Offer]) -> tuple[Layout, dict[str, tuple[str, ...]]]:
    """The layout of all shared tensors, and the other names of each."""
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
            at = 0
            for box in (Box(lo, hi) for lo, hi, _ in tensor.boxes):
                of.append(Piece(each.rank, box, Box((at,), (at + box.size,))))  # several blocks, one after the other
                at += box.size
    layout = Layout(
        {name: TensorLayout(first.shape, tuple(pieces[name]), first.dtype) for name, (first, _) in known.items()}
    )
    aliases: dict[str, tuple[str, ...]] = dict.fromkeys(known, ())
    for alias, name in names.items():
        if alias != name:
            aliases[name] += (alias,)
    return layout, aliases
