"""Which saved bytes a load wants, and where each of them goes: matches in, `Transfer`s out; no bytes yet.

A transfer is a box that lies in one saved piece and in one live block. Most are the whole of both, and are found by
one look-up; only blocks that nobody saved as they are go through `reshard`. Where a box is one strip of bytes on both
sides it can be read straight into its final memory; every other box is scattered, row by row, by `put`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod
from operator import sub

import msgspec
import numpy as np
import numpy.typing as npt

from perdure.codec.dtypes import DTYPES
from perdure.errors import CallError, NotCovered
from perdure.layout import Box, Layout, Piece, Pieces, TensorLayout
from perdure.plan import reshard
from perdure.state.index import Catalog, CatalogTensor, StoredPiece
from perdure.state.items import Held, Memory
from perdure.state.lying import lying
from perdure.state.match import Match
from perdure.state.stored import StoredPieces

__all__ = ["Strip", "Transfer", "blocks", "put", "spans", "transfers_of"]

Bytes = npt.NDArray[np.uint8]


# A load has one of these for every tensor, of which there may be 100,000: a Struct is made in a tenth of the time of a
# dataclass, and is nothing that the garbage collector has to look through.
class Strip(msgspec.Struct, frozen=True, gc=False):
    """Bytes ``lo <= i < hi`` of a piece are, in order, the bytes of a live block from ``at`` on."""

    lo: int
    hi: int
    at: int


class Transfer(msgspec.Struct, frozen=True, gc=False):
    """Copy ``box`` of tensor ``name`` from the saved ``piece`` into ``memory``, which holds the block ``dest``.

    ``strip`` is set if the bytes of the box are contiguous on both sides. The box is not empty.
    """

    name: str
    dtype: str
    piece: StoredPiece
    piece_nbytes: int
    box: Box
    nbytes: int
    dest: Box
    memory: Memory
    strip: Strip | None

    @classmethod
    def of(cls, saved: CatalogTensor, piece: StoredPiece, box: Box, held: Held) -> Transfer:
        """The transfer of ``box`` from ``piece`` of ``saved`` into ``held``."""
        width, memory, dest = DTYPES[saved.dtype].itemsize, held.memory, held.box
        if memory.nbytes != _size(dest) * width:
            raise CallError(f"{memory.nbytes} bytes of memory do not hold {dest} of {saved.name}", tensor=saved.name)
        if box == dest == piece.box:
            nbytes = memory.nbytes
            return cls(saved.name, saved.dtype, piece, nbytes, box, nbytes, dest, memory, Strip(0, nbytes, 0))
        nbytes, strip = _size(box) * width, _strip(box, piece.box, dest, width)
        return cls(saved.name, saved.dtype, piece, _size(piece.box) * width, box, nbytes, dest, memory, strip)

    @property
    def width(self) -> int:
        """Bytes of an element."""
        return DTYPES[self.dtype].itemsize

    def within(self, lo: int, hi: int) -> tuple[Transfer, ...]:
        """The parts of this transfer that have a byte in ``lo <= i < hi`` of the piece."""
        if lo <= 0 and hi >= self.piece_nbytes:
            return (self,)
        if lo >= hi:
            return ()
        boxes = blocks(self.piece.box.shape, lo // self.width, -(-hi // self.width))
        parts = [box.shift(self.piece.box.lo) & self.box for box in boxes]
        return tuple(self._part(box) for box in parts if not box.empty)

    def _part(self, box: Box) -> Transfer:
        strip = _strip(box, self.piece.box, self.dest, self.width)
        return msgspec.structs.replace(self, box=box, nbytes=_size(box) * self.width, strip=strip)


def transfers_of(catalog: Catalog, matches: Sequence[Match]) -> list[Transfer]:
    """Plan where every block of every matched item comes from; empty blocks need nothing.

    Raises `NotCovered` if nobody saved a part of a block.
    """
    found: list[Transfer] = []
    cut: dict[str, tuple[CatalogTensor, list[Held]]] = {}
    for matched in matches:
        saved = matched.saved
        held_blocks = [held for held in matched.item.held if _size(held.box)]
        if not held_blocks:
            continue
        look_up = _by_box(saved)
        for held in held_blocks:
            piece = look_up(held.box)
            if piece is not None:
                found.append(Transfer.of(saved, piece, held.box, held))
            elif saved.rank is None:
                cut.setdefault(saved.name, (saved, []))[1].append(held)
            else:
                raise NotCovered(
                    f"rank {saved.rank} saved no block {held.box} of {saved.name}; use another step",
                    tensor=saved.name,
                    box=held.box.as_json(),
                )
    return found + _resharded(catalog.world, cut) if cut else found


def _by_box(saved: CatalogTensor) -> Callable[[Box], StoredPiece | None]:
    """What finds the piece that is a box, if there is one."""
    pieces = saved.pieces
    if len(pieces) == 1:
        (only,) = pieces
        return lambda box: only if only.box == box else None
    if not isinstance(pieces, StoredPieces):
        return {piece.box: piece for piece in reversed(tuple(pieces))}.get
    where = lying(pieces, saved.shape)

    def found(box: Box) -> StoredPiece | None:
        for near in where.pattern.touching(box):
            if near.box == box:
                return pieces.of(where.first + near.ranks[0], box)
        return None

    return found


def _resharded(world: int, cut: dict[str, tuple[CatalogTensor, list[Held]]]) -> list[Transfer]:
    """The transfers into blocks that nobody saved as they are.

    A holder is the rank that wrote, or, of pieces that are given as they are, the number of the pack.
    """
    given = {name: saved.pieces for name, (saved, _) in cut.items() if not isinstance(saved.pieces, StoredPieces)}
    place = {pack: at for at, pack in enumerate(sorted({piece.pack for each in given.values() for piece in each}))}
    reader = max(len(place), world)  # this process, as a rank beyond those that hold something
    have: dict[str, TensorLayout] = {}
    want: dict[str, TensorLayout] = {}
    listed: dict[tuple[str, int, Box], StoredPiece] = {}
    wanted: dict[tuple[Box, ...], Pieces] = {}  # of tensors that lie alike it is the same, and worked out once
    for name, (saved, helds) in cut.items():
        if isinstance(saved.pieces, StoredPieces):
            where = lying(saved.pieces, saved.shape)
        else:
            of = {(place[piece.pack], piece.box): piece for piece in reversed(saved.pieces)}
            listed |= {(name, *key): piece for key, piece in of.items()}
            where = Pieces.of([Piece.alone(number, box) for number, box in reversed(of)])
        dtype = f"uint{DTYPES[saved.dtype].bits}"  # only its width counts in a layout
        have[name] = TensorLayout(saved.shape, where, dtype)
        boxes = tuple(dict.fromkeys(held.box for held in helds))
        if boxes not in wanted:
            wanted[boxes] = Pieces.of([Piece.alone(reader, box) for box in boxes])
        want[name] = TensorLayout(saved.shape, wanted[boxes], dtype)
    found: list[Transfer] = []
    for move in reshard(Layout(have), Layout(want)).moves:
        saved, helds = cut[move.name]
        key, stored = (move.source.rank, move.source.box), saved.pieces
        piece = stored.of(*key) if isinstance(stored, StoredPieces) else listed.get((move.name, *key))
        if piece is None:
            raise NotCovered(
                f"no part has {move.source.box} of {move.name}; use another copy or an older step",
                tensor=move.name,
                box=move.source.box.as_json(),
            )
        homes = (held for held in helds if held.box == move.dest.box)
        found += [Transfer.of(saved, piece, move.box, held) for held in homes]
    return found


def put(transfer: Transfer, data: Bytes, at: int) -> int:
    """Copy what ``data``, the bytes of the piece from byte ``at`` on, holds of the box; return how many bytes."""
    strip = transfer.strip
    if strip is not None:
        lo, hi = max(strip.lo, at), min(strip.hi, at + data.size)
        if lo >= hi:
            return 0
        target = np.frombuffer(transfer.memory.view(), np.uint8)
        target[strip.at + lo - strip.lo : strip.at + hi - strip.lo] = data[lo - at : hi - at]
        return hi - lo
    piece, box, dest, width = transfer.piece.box, transfer.box, transfer.dest, transfer.width
    if at % width or data.size % width:  # a tile that ends within an element: its bytes are one dim more
        byte = ((0,), (width,))
        piece, box, dest = (Box(each.lo + byte[0], each.hi + byte[1]) for each in (piece, box, dest))
        width = 1
    element = np.dtype(f"u{width}") if width in (1, 2, 4, 8) else np.dtype((np.void, width))
    want = np.frombuffer(transfer.memory.view(), element).reshape(dest.shape)
    have = data.view(element)
    cursor = done = 0
    for inner in blocks(piece.shape, at // width, (at + data.size) // width):
        block = inner.shift(piece.lo)
        common = block & box
        if not common.empty:
            part = have[cursor : cursor + block.size].reshape(block.shape)
            want[common.within(dest)] = part[common.within(block)]
            done += common.size * width
        cursor += block.size
    return done


def spans(box: Box, outer: Box, width: int, *, bridge_bytes: int) -> list[tuple[int, int]]:
    """The bytes of ``outer`` (row-major, ``width`` bytes an element) that hold ``box``, as rising spans.

    Bytes between two rows of the box belong to a span too where they are fewer than ``bridge_bytes``.

    >>> spans(Box((1, 1), (3, 2)), Box((0, 0), (4, 3)), 1, bridge_bytes=1)
    [(4, 5), (7, 8)]
    """
    found = [(0, width)]
    stride = width
    for low, high, start, end in zip(*(reversed(side) for side in (box.lo, box.hi, outer.lo, outer.hi)), strict=True):
        first, last = low - start, high - start - 1
        if len(found) == 1 and stride - (found[0][1] - found[0][0]) < max(bridge_bytes, 1):
            found = [(first * stride + found[0][0], last * stride + found[0][1])]
        else:
            rows = found
            found = []
            for row in range(first, last + 1):
                for lo, hi in rows:
                    if found and row * stride + lo - found[-1][1] < max(bridge_bytes, 1):
                        found[-1] = (found[-1][0], row * stride + hi)
                    else:
                        found.append((row * stride + lo, row * stride + hi))
        stride *= end - start
    return found


def blocks(shape: Sequence[int], lo: int, hi: int) -> Iterator[Box]:
    """Elements ``lo <= i < hi`` of a row-major block of ``shape`` as boxes: in order, at most two a dim.

    >>> [str(box) for box in blocks((4, 3), 1, 8)]
    ['[0:1, 1:3]', '[1:2, 0:3]', '[2:3, 0:2]']
    """
    if lo >= hi:
        return
    if not shape:
        yield Box((), ())
        return
    inner = tuple(shape[1:])
    size = prod(inner)
    first, head = divmod(lo, size)
    last, tail = divmod(hi, size)
    if head:
        for box in blocks(inner, head, min(size, hi - first * size)):
            yield Box((first, *box.lo), (first + 1, *box.hi))
        first += 1
    if first < last:
        yield Box((first, *(0,) * len(inner)), (last, *inner))
    if tail and first <= last:
        for box in blocks(inner, 0, tail):
            yield Box((last, *box.lo), (last + 1, *box.hi))


def _size(box: Box) -> int:
    """As `Box.size`, for those who ask very often."""
    return prod(map(sub, box.hi, box.lo))


def _strip(box: Box, piece: Box, dest: Box, width: int) -> Strip | None:
    there, here = _offset(box, piece), _offset(box, dest)
    if there is None or here is None:
        return None
    return Strip(there * width, (there + _size(box)) * width, here * width)


def _offset(box: Box, outer: Box) -> int | None:
    """Which element of ``outer`` the box begins with, if its elements are contiguous there."""
    offset, stride, whole = 0, 1, True
    for low, high, start, end in zip(*(reversed(side) for side in (box.lo, box.hi, outer.lo, outer.hi)), strict=True):
        if not whole and high - low != 1:
            return None
        whole = whole and (low, high) == (start, end)
        offset += (low - start) * stride
        stride *= end - start
    return offset
