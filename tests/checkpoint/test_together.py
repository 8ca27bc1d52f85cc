"""Ranks of a node, as threads, load what several of them want with one read, bit for bit, whatever one of them does."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from functools import partial
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.checkpoint import together as together_module
from perdure.checkpoint.together import Together
from perdure.codec.dtypes import DTYPES
from perdure.errors import BlobCorrupt, StorageError
from perdure.layout import Box, Layout, Piece, TensorLayout
from perdure.state import save as save_module
from perdure.state.items import TensorItem
from perdure.state.load import LoadReport, PackSource, match, prepare
from perdure.store import PackIndex
from perdure.store.pack import plan_pack
from perdure.testing.layouts import layouts, shapes
from perdure.testing.ranks import Saved, bytes_of, items_of, random_bytes, save_layout, whole_box

TILE = 4096


@pytest.fixture(scope="module", autouse=True)
def small() -> Iterator[None]:
    """Many tiles and units without megabytes of tensors."""
    with (
        patch.object(save_module, "plan_pack", partial(plan_pack, tile_bytes=TILE)),
        patch.object(together_module, "LEAST_BYTES", 1),
        patch.object(together_module, "_BAY_BYTES", 3 * TILE),
        patch.object(together_module, "_LEAST_BAY_BYTES", 1),
        patch.object(together_module, "_BAYS", 2),
    ):
        yield


class Counting:
    """A pack in a store, and the bytes that were read of its tensors; maybe one that fails."""

    mapped = False

    def __init__(self, source: PackSource, *, broken: bool = False) -> None:
        self.source, self.broken = source, broken
        self.tier, self.file, self.raw = source.tier, source.file, source.raw
        self.read: list[tuple[int, int]] = []

    def index(self) -> PackIndex:
        return self.source.index()

    def fetch(self, start: int, nbytes: int, into: memoryview | None = None) -> memoryview:
        self._note(start, nbytes)
        return self.source.fetch(start, nbytes, into)

    def read_digested(self, start: int, nbytes: int, into: memoryview, tile_bytes: int) -> bytes:
        self._note(start, nbytes)
        return self.source.read_digested(start, nbytes, into, tile_bytes)

    def _note(self, start: int, nbytes: int) -> None:
        if self.broken:
            raise StorageError(f"{self.file} cannot be read: the wire is cut", file=self.file)
        self.read.append((start, start + nbytes))


class Node:
    """The ranks of one node and what each of them has done."""

    def __init__(self, saved: Saved, want: Layout, world: int, *, broken: Sequence[int] = (), stall_s: float = 80.0):
        self.items = [items_of(want, rank, None) for rank in range(world)]
        self.sources = [
            {pack: Counting(saved.in_store(pack), broken=rank in broken) for pack in saved.packs}
            for rank in range(world)
        ]
        self.reports: dict[int, LoadReport] = {}
        self.errors: dict[int, BaseException] = {}
        self._ranks: list[Together] = []
        for rank in range(world):
            matches = match(saved.catalog, self.items[rank], (), rank=rank, world=world)
            prepared = prepare(saved.catalog, matches, lambda pack, r=rank: [self.sources[r][pack]], threads=2)
            self._ranks.append(Together(prepared, rank=rank, ranks=range(world), stall_s=stall_s, label=f"test.{rank}"))
        self.invited = {rank: each.invitation for rank, each in enumerate(self._ranks)}

    def load(self, ranks: Sequence[int] | None = None) -> None:
        threads = [threading.Thread(target=self._load, args=(rank,)) for rank in ranks or range(len(self._ranks))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads), "a rank hangs"
        for each in self._ranks:
            each.close()

    def _load(self, rank: int) -> None:
        try:
            self.reports[rank] = self._ranks[rank].load(self.invited, on_bytes=lambda nbytes: None)
        except BaseException as error:
            self.errors[rank] = error

    def times_read(self) -> int:
        """How often the byte that was read most often was read."""
        most = 0
        for pack in self.sources[0]:
            spans = [span for sources in self.sources for span in sources[pack].read]
            for at, _ in spans:
                most = max(most, sum(lo <= at < hi for lo, hi in spans))
        return most

    @property
    def read_nbytes(self) -> int:
        return sum(report.read_nbytes + report.pad_nbytes for report in self.reports.values())


def check_holds(items: Sequence[TensorItem], wholes: dict[str, np.ndarray]) -> None:
    for item in items:
        for held in item.held:
            assert (bytes_of(held) == wholes[item.name][held.box.within(whole_box(item.shape))]).all()


def replicated(world: int, *, nbytes: int = 40 * TILE) -> Layout:
    """Two large tensors and many small ones, which all ranks hold."""
    shapes = {"large": (nbytes // 16, 4), "other": (nbytes // 3,)} | {f"small{i:02}": (i + 1,) for i in range(40)}
    return Layout(
        {
            name: TensorLayout(shape, tuple(Piece.alone(rank, whole_box(shape)) for rank in range(world)), "float32")
            for name, shape in shapes.items()
        }
    )


def saved_of(layout: Layout, world: int) -> tuple[Saved, dict[str, np.ndarray]]:
    wholes = {name: random_bytes(tensor.dtype, tensor.shape, i) for i, (name, tensor) in enumerate(layout.items())}
    return save_layout(layout, wholes, world=world), wholes


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_any_ranks_load_bit_for_bit_together_what_any_others_saved(data: st.DataObject) -> None:
    before, after = data.draw(st.integers(1, 3)), data.draw(st.integers(2, 4))
    of = {f"t{i}": data.draw(shapes(longest=data.draw(st.sampled_from([6, 40])))) for i in range(3)}
    dtype = data.draw(st.sampled_from(["float32", "bfloat16", "uint8", *sorted(DTYPES)]))

    def typed(layout: Layout) -> Layout:
        return Layout({name: TensorLayout(each.shape, each.pieces, dtype) for name, each in layout.items()})

    have = typed(data.draw(layouts(of, world=before)))
    want = typed(data.draw(layouts(of, world=after, extra_boxes=3)))
    saved, wholes = saved_of(have, before)
    node = Node(saved, want, after)
    node.load()
    assert not node.errors
    for rank, items in enumerate(node.items):
        check_holds(items, wholes)
        report = node.reports[rank]
        assert sum(report.tier_nbytes.values()) == sum(held.memory.nbytes for item in items for held in item.held)
        assert not report.notes
    assert node.times_read() <= 1 + after * (not any(node.invited.values()))


@pytest.mark.parametrize("world", [2, 3])
def test_what_all_ranks_want_is_read_once_in_equal_shares(world: int) -> None:
    want = replicated(world)
    saved, wholes = saved_of(want, world)
    node = Node(saved, want, world)
    node.load()
    assert not node.errors
    for items in node.items:
        check_holds(items, wholes)
    assert node.times_read() == 1
    shares = [report.read_nbytes for report in node.reports.values()]
    assert max(shares) - min(shares) <= 4 * TILE
    assert all(report.shared_nbytes == report.wanted_nbytes - report.read_nbytes for report in node.reports.values())


def test_a_rank_that_never_comes_is_read_around(monkeypatch: pytest.MonkeyPatch) -> None:
    want = replicated(3)
    saved, wholes = saved_of(want, 3)
    node = Node(saved, want, 3, stall_s=1.2)
    node.load(ranks=(0, 2))
    assert not node.errors
    for rank in (0, 2):
        check_holds(node.items[rank], wholes)
        assert any("rank 1 did nothing for 0.3 s" in note for note in node.reports[rank].notes)


def test_a_rank_that_cannot_read_fails_alone_and_the_others_read_what_it_was_to_read() -> None:
    want = replicated(3)
    saved, wholes = saved_of(want, 3)
    node = Node(saved, want, 3, broken=[1])
    node.load()
    assert list(node.errors) == [1]
    with pytest.raises(StorageError, match="the wire is cut"):
        raise node.errors[1]
    for rank in (0, 2):
        check_holds(node.items[rank], wholes)
        assert node.reports[rank].notes


def test_what_is_corrupt_in_the_store_is_found_by_every_rank_that_wants_it() -> None:
    want = replicated(2)
    saved, _ = saved_of(want, 2)
    for pack in saved.packs.values():
        pack[-100] ^= 1
    node = Node(saved, want, 2)
    node.load()
    assert len(node.errors) == 2
    for error in node.errors.values():
        assert isinstance(error, BlobCorrupt)


def test_what_is_spoilt_on_its_way_between_ranks_is_read_from_the_store() -> None:
    want = replicated(2)
    saved, wholes = saved_of(want, 2)
    node = Node(saved, want, 2)
    relay = node._ranks[0]._relay
    assert relay is not None
    filled = relay.filled

    def spoil(number: int) -> None:
        room = relay.room(number)
        assert room is not None
        room[len(room) // 2] ^= 1
        filled(number)

    with patch.object(relay, "filled", spoil):
        node.load()
    assert not node.errors
    for items in node.items:
        check_holds(items, wholes)
    assert any("corrupt in what rank 0 has read" in note for note in node.reports[1].notes)


def test_ranks_that_want_nothing_in_common_share_nothing() -> None:
    rows = Layout(
        {
            "w": TensorLayout(
                (2 * TILE, 4),
                tuple(Piece.alone(rank, Box((rank * TILE, 0), ((rank + 1) * TILE, 4))) for rank in range(2)),
                "float32",
            )
        }
    )
    saved, wholes = saved_of(rows, 2)
    node = Node(saved, rows, 2)
    node.load()
    assert not node.errors
    for rank, items in enumerate(node.items):
        check_holds(items, wholes)
        assert node.reports[rank].shared_nbytes == 0
