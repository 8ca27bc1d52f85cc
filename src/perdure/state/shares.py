"""Who of a node reads what: what several of its ranks want is cut into units, and each given to one of them.

Pure. What a rank wants are tiles of saved pieces, in rows (`WANT`), as its reads have them; tiles are what has digests,
so a unit is whole tiles and can be verified by each who takes it. Tiles that the same ranks want, and that lie one
after another in a pack, make a unit. Each goes, in order, to the one of them that has the fewest bytes to read by then,
what it alone wants counted first; the rule of `perdure.plan.read_once`, over tiles in place of boxes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from perdure.state.relay import MOST_UNITS, Unit

__all__ = ["WANT", "SharedTiles", "Shares", "share_out"]

WANT = np.dtype(
    [
        ("pack", "<u8"),
        ("start", "<i8"),
        ("key", "<u8"),
        ("tile_bytes", "<i8"),
        ("nbytes", "<i8"),
        ("first", "<i8"),
        ("last", "<i8"),
    ]
)
"""Tiles ``first <= i < last`` of the piece ``key``, which has ``nbytes`` (decoded) bytes, at ``start`` of ``pack``.

Names are 8 bytes of their digests; two that are alike would show in the digests of tiles.
"""
_PIECE = ("pack", "start", "key", "tile_bytes", "nbytes")
_ALIGN = 64

Rows = npt.NDArray[np.void]
Ints = npt.NDArray[np.int64]


class SharedTiles(NamedTuple):
    """Tiles ``first <= i < last`` of the piece ``key`` lie ``at`` bytes behind the begin of ``unit``."""

    key: int
    tile_bytes: int
    first: int
    last: int
    unit: int
    at: int


@dataclass(frozen=True, slots=True)
class Shares:
    """The units, in the order in which all work on them, and what lies in each."""

    units: tuple[Unit, ...]
    tiles: tuple[SharedTiles, ...]

    @property
    def spared_nbytes(self) -> int:
        """Bytes that the node does not read because it has read them."""
        return sum(unit.nbytes * (len(unit.wanters) - 1) for unit in self.units)


def share_out(wants: Mapping[int, Rows], *, unit_bytes: int) -> Shares:
    """Cut what more than one rank wants of ``wants`` (rank to rows of `WANT`) into units of at most ``unit_bytes``.

    The same on every rank that is given the same. A tile of more than ``unit_bytes`` is left to each.

    >>> rows = np.array([(1, 0, 5, 4, 10, 0, 3)], WANT)
    >>> [(unit.reader, unit.nbytes) for unit in share_out({0: rows, 3: rows}, unit_bytes=8).units]
    [(0, 8), (3, 2)]
    """
    ranks = sorted(wants)
    rows = np.concatenate([wants[rank] for rank in ranks]) if ranks else np.empty(0, WANT)
    if not len(rows):
        return Shares((), ())
    who = np.repeat(np.arange(len(ranks)), [len(wants[rank]) for rank in ranks])
    order = np.lexsort(tuple(rows[name] for name in (*reversed(_PIECE),)))
    ordered = rows[order]
    other = np.zeros(len(rows), np.int64)
    for name in _PIECE:
        other[1:] |= ordered[name][1:] != ordered[name][:-1]
    piece = np.empty(len(rows), np.int64)
    piece[order] = np.cumsum(other)
    of = ordered[np.concatenate(([True], other[1:] == 1))]  # one row for each piece
    # Edges of tile ranges, counted through all pieces; between two of them the same ranks want all tiles.
    far = int(rows["last"].max()) + 1
    lows, highs = piece * far + rows["first"], piece * far + rows["last"]
    edges = np.unique(np.concatenate((lows, highs)))
    change = np.zeros((len(ranks), len(edges) + 1), np.int64)
    np.add.at(change, (who, np.searchsorted(edges, lows)), 1)
    np.add.at(change, (who, np.searchsorted(edges, highs)), -1)
    wanted = np.cumsum(change, axis=1)[:, :-1] > 0
    load = _alone(of, edges, wanted, far)
    making = _Making(ranks, load, unit_bytes)
    for at in np.flatnonzero(wanted.sum(axis=0) > 1).tolist():
        number, first = divmod(int(edges[at]), far)
        making.add(of[number], first, int(edges[at + 1]) % far, wanted[:, at])
    making.flush()
    return Shares(tuple(making.units), tuple(making.tiles))


def _alone(of: Rows, edges: Ints, wanted: npt.NDArray[np.bool_], far: int) -> Ints:
    """The bytes that each rank wants and no other."""
    alone = np.flatnonzero(wanted.sum(axis=0) == 1)
    rows, tile = of[edges[alone] // far], edges % far
    lo = tile[alone] * rows["tile_bytes"]
    hi = np.minimum(tile[np.minimum(alone + 1, len(edges) - 1)] * rows["tile_bytes"], rows["nbytes"])
    found: Ints = (wanted[:, alone] * (hi - lo)).sum(axis=1)
    return found


class _Making:
    """Units in the making, in order."""

    def __init__(self, ranks: list[int], load: Ints, unit_bytes: int) -> None:
        self.units: list[Unit] = []
        self.tiles: list[SharedTiles] = []
        self._ranks, self._load, self._unit_bytes = ranks, load.tolist(), unit_bytes
        self._who: bytes = b""
        self._pack = -1
        self._nbytes = 0

    def add(self, piece: np.void, first: int, last: int, wanted: npt.NDArray[np.bool_]) -> None:
        """Tiles of a piece that the same ranks want."""
        tile_bytes, nbytes, who, pack = int(piece["tile_bytes"]), int(piece["nbytes"]), wanted.tobytes(), piece["pack"]
        if (who, pack) != (self._who, self._pack):
            self.flush()
            self._who, self._pack = who, pack
        while first < last and len(self.units) < MOST_UNITS:
            at = -(-self._nbytes // _ALIGN) * _ALIGN
            room = self._unit_bytes - at
            lo = first * tile_bytes
            end = last if min(last * tile_bytes, nbytes) - lo <= room else first + max(room, 0) // tile_bytes
            if end == first:
                if not self._nbytes:  # not even one tile
                    return
                self.flush()
                continue
            self.tiles.append(SharedTiles(int(piece["key"]), tile_bytes, first, end, len(self.units), at))
            self._nbytes = at + min(end * tile_bytes, nbytes) - lo
            first = end

    def flush(self) -> None:
        """Give the unit to one of those who want it."""
        if self._nbytes:
            wanters = [number for number, wants in enumerate(self._who) if wants]
            reader = min(wanters, key=lambda number: (self._load[number], number))
            self._load[reader] += self._nbytes
            ranks = tuple(self._ranks[number] for number in wanters)
            self.units.append(Unit(self._ranks[reader], ranks, self._nbytes))
        self._nbytes = 0
