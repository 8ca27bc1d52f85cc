"""What several ranks of a node want is given to one of them, whole tiles at a time."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.state.shares import WANT, Shares, share_out

PIECES = [(1, 0, 11, 4, 40), (1, 64, 12, 4, 3), (1, 128, 13, 8, 61), (2, 0, 14, 4, 40), (2, 0, 14, 8, 40)]


@st.composite
def wants(draw: st.DrawFn) -> dict[int, np.ndarray]:
    """What each of a few ranks wants: rising ranges of tiles of some pieces."""
    found = {}
    for rank in draw(st.lists(st.integers(0, 9), min_size=1, max_size=4, unique=True)):
        rows = []
        for piece in draw(st.lists(st.sampled_from(PIECES), unique=True)):
            most = -(-piece[4] // piece[3])
            edges = sorted(draw(st.sets(st.integers(0, most), max_size=4)))
            rows += [(*piece, lo, hi) for lo, hi in zip(edges[::2], edges[1::2], strict=False)]
        found[rank] = np.array(rows, WANT)
    return found


def tiles_of(rows: np.ndarray) -> set[tuple[int, int, int]]:
    return {
        (int(row["key"]), int(row["tile_bytes"]), tile) for row in rows for tile in range(row["first"], row["last"])
    }


def readers(shares: Shares) -> dict[tuple[int, int, int], int]:
    """Which unit each tile is in; a tile that is in two fails."""
    found: dict[tuple[int, int, int], int] = {}
    for each in shares.tiles:
        for tile in range(each.first, each.last):
            assert (each.key, each.tile_bytes, tile) not in found
            found[each.key, each.tile_bytes, tile] = each.unit
    return found


@given(wants(), st.integers(1, 200))
@settings(deadline=None)
def test_every_tile_that_more_than_one_rank_wants_is_in_one_unit_of_those_ranks(
    wanted: dict[int, np.ndarray], unit_bytes: int
) -> None:
    shares = share_out(wanted, unit_bytes=unit_bytes)
    units = readers(shares)
    of = {rank: tiles_of(rows) for rank, rows in wanted.items()}
    for tile in set().union(*of.values()):
        ranks = tuple(sorted(rank for rank, tiles in of.items() if tile in tiles))
        key, tile_bytes, number = tile
        nbytes = next(each[4] for each in PIECES if (each[2], each[3]) == (key, tile_bytes))
        if len(ranks) < 2 or min(tile_bytes, nbytes - number * tile_bytes) > unit_bytes:
            assert tile not in units or len(ranks) > 1
        if len(ranks) > 1 and tile_bytes <= unit_bytes:
            assert shares.units[units[tile]].wanters == ranks
    for number, unit in enumerate(shares.units):
        inside = [each for each in shares.tiles if each.unit == number]
        sizes = {(each[2], each[3]): each[4] for each in PIECES}
        ends = [
            each.at + min(each.last * each.tile_bytes, sizes[each.key, each.tile_bytes]) - each.first * each.tile_bytes
            for each in inside
        ]
        assert unit.reader in unit.wanters
        assert unit.nbytes == max(ends) <= unit_bytes
        assert all(end <= each.at for end, each in zip(ends, inside[1:], strict=False))
    assert shares.spared_nbytes == sum(unit.nbytes * (len(unit.wanters) - 1) for unit in shares.units)


def test_ranks_that_want_the_same_read_equal_shares() -> None:
    rows = np.array([(1, 0, 5, 4, 4000, 0, 1000)], WANT)
    shares = share_out(dict.fromkeys(range(4), rows), unit_bytes=100)
    read = {rank: sum(unit.nbytes for unit in shares.units if unit.reader == rank) for rank in range(4)}
    assert read == dict.fromkeys(range(4), 1000)


def test_whoever_has_much_to_read_alone_reads_less_for_the_others() -> None:
    both = (1, 0, 5, 4, 400, 0, 100)
    alone = (1, 1000, 6, 4, 300, 0, 75)
    shares = share_out({0: np.array([both, alone], WANT), 1: np.array([both], WANT)}, unit_bytes=40)
    read = {rank: sum(unit.nbytes for unit in shares.units if unit.reader == rank) for rank in (0, 1)}
    assert read == {0: 40, 1: 360}
