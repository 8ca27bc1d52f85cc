"""The index of a part says what the ranks told, whatever the cut of its leaves: `Catalog.join` is the oracle."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.errors import FormatRefused, LayoutError
from perdure.layout import Box, EvenGrid, Layout, TensorLayout
from perdure.state import manifest
from perdure.state.catalogs import catalog_of
from perdure.state.index import Catalog, RankIndex
from perdure.state.items import Capture, Held, TensorItem, ValueItem
from perdure.state.manifest import write_index
from perdure.state.part_reader import PartReader
from perdure.state.save import offer, settle
from perdure.store import LeafRef, PackRef, Part
from perdure.testing.layouts import layouts, shapes
from perdure.testing.ranks import items_of, memory_of, random_bytes, whole_box

BOUNDED = settings(max_examples=40, deadline=None)
NAMES = ["a", "a.b", "b", "layers.0.w", "layers.1.w", "layers.10.w", "z/é", 'q"\\']
RUN = "0" * 32


@st.composite
def indexes(draw: st.DrawFn) -> list[RankIndex]:
    """What 1 to 4 ranks tell of a save: any cuts, replicas, other names, local tensors, values of one or all."""
    world = draw(st.integers(1, 4))
    names = draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=5))
    layout = draw(layouts({name: draw(shapes()) for name in names}, world=world))
    dtypes = {name: draw(st.sampled_from(["float32", "bfloat16", "complex128", "uint8"])) for name in names}
    layout = Layout({name: TensorLayout(t.shape, t.pieces, dtypes[name]) for name, t in layout.items()})
    wholes = {name: random_bytes(t.dtype, t.shape, 1) for name, t in layout.items()}
    tied = draw(st.sets(st.sampled_from(names))) if names else set()
    captures = []
    for rank in range(world):
        items = [
            dataclasses.replace(each, aliases=(f"{each.name}.tied", f"0{each.name}") if each.name in tied else ())
            for each in items_of(layout, rank, wholes)
        ]
        local = [
            TensorItem(
                name, "uint8", (n,), (Held(whole_box((n,)), memory_of(random_bytes("uint8", (n,), n))),), local=True
            )
            for name, n in draw(st.dictionaries(st.sampled_from(["rng", "seen"]), st.integers(0, 9))).items()
        ]
        values = [
            ValueItem(key, draw(st.integers(0, 9) | st.text(max_size=3)) if local else key, local=local)
            for key, local in draw(st.dictionaries(st.sampled_from("pqrs"), st.booleans())).items()
        ]
        captures.append(Capture((*items, *local), tuple(values)))
    offers = [offer(capture, rank=rank) for rank, capture in enumerate(captures)]
    return [settle(offers, rank=rank).index(capture, rank=rank, world=world) for rank, capture in enumerate(captures)]


def pack_of(rank: int) -> PackRef:
    return PackRef(name=f"pack{rank}", nbytes=1 << 40, header_nbytes=4096, header_digest=RUN)


def reader_of(group: Sequence[RankIndex]) -> PartReader:
    """The part of a writer of some ranks, each of which has a pack."""
    keys = {
        piece.key: number for number, index in enumerate(group) for saved in index.tensors for piece in saved.pieces
    }
    written = write_index(group, keys)
    part = Part(
        run=RUN,
        writer="w",
        epoch=1,
        step=1,
        seq=0,
        base=None,
        packs=tuple(pack_of(index.rank) for index in group),
        index=written.index,
        leaves=written.refs,
    )
    leaves = dict(zip(written.refs, written.leaves, strict=True))
    return PartReader(part, lambda leaf: memoryview(leaves[leaf]), file=f"part{group[0].rank}")


def normal(catalog: Catalog) -> Catalog:
    """The order of pieces and names is of no meaning."""

    def sort(tensors: dict[Any, Any]) -> dict[Any, Any]:
        return {
            key: dataclasses.replace(
                each,
                pieces=tuple(sorted(each.pieces, key=lambda piece: (piece.box.lo, piece.key))),
                aliases=tuple(sorted(each.aliases)),
            )
            for key, each in sorted(tensors.items())
        }

    return dataclasses.replace(
        catalog, tensors=sort(catalog.tensors), local_tensors=sort(catalog.local_tensors),
        aliases=dict(sorted(catalog.aliases.items())),
    )  # fmt: skip


@given(indexes(), st.data(), st.sampled_from([1, 2, 3, 4096]))
@BOUNDED
def test_parts_say_what_the_ranks_told(of: list[RankIndex], data: st.DataObject, entries: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manifest, "LEAF_ENTRIES", entries)
        cuts = sorted(data.draw(st.sets(st.integers(1, len(of)))) | {len(of)})
        readers = [reader_of(of[lo:hi]) for lo, hi in zip([0, *cuts], cuts, strict=False)]
        told = Catalog.join((f"pack{index.rank}", index) for index in of)
        assert normal(catalog_of(readers)) == normal(told)


@given(
    indexes(),
    st.sampled_from([1, 2, 4096]),
    st.lists(
        st.sampled_from(
            [*NAMES, "*", "layers.*", "layers.?.w", "[ab]*", "a.tied", "0*", "nothing", "rng@rank0", "*@rank1"]
        ),
        max_size=3,
    ),
)
@BOUNDED
def test_what_patterns_ask_for_is_what_the_whole_would_have_given(
    of: list[RankIndex], entries: int, wanted: list[str]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manifest, "LEAF_ENTRIES", entries)
        whole = normal(catalog_of([reader_of(of)]))
        found = normal(catalog_of([reader_of(of)], wanted=wanted))

    def fits(name: str) -> bool:
        return any(fnmatch.fnmatchcase(name, each) for each in wanted)

    meant = {
        name: each for name, each in whole.tensors.items() if fits(name) or (any(fits(alias) for alias in each.aliases))
    }
    assert {name: each for name, each in found.tensors.items() if name in meant} == meant
    assert found.tensors.keys() <= whole.tensors.keys()
    assert found.local_tensors == {
        (rank, name): each for (rank, name), each in whole.local_tensors.items() if fits(f"{name}@rank{rank}")
    }
    assert found.values == {}


@given(indexes(), st.sampled_from([1, 2, 3, 4096]))
@BOUNDED
def test_a_tensor_is_found_by_itself_in_one_leaf(of: list[RankIndex], entries: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manifest, "LEAF_ENTRIES", entries)
        reader = reader_of(of)
    asked: list[LeafRef] = []
    read = reader._read
    reader._read = lambda leaf: asked.append(leaf) or read(leaf)  # type: ignore[func-returns-value]
    every = {each.name: each for each in reader.tensors()}
    for name in [*NAMES, "", "zzz"]:
        asked.clear()
        assert reader.tensor(name) == every.get(name)
        assert len(asked) <= 1


@given(indexes(), st.sampled_from([1, 2, 4096]))
@BOUNDED
def test_the_same_indexes_give_the_same_bytes_in_any_order(of: list[RankIndex], entries: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manifest, "LEAF_ENTRIES", entries)
        keys = {piece.key: 0 for index in of for saved in index.tensors for piece in saved.pieces}
        written = write_index(of, keys)
        assert write_index(list(reversed(of)), keys) == written
    assert sum(ref.nbytes for ref in written.refs) == len(b"".join(written.leaves))
    assert all(ref.count <= entries for ref in written.refs)


GRIDS = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 5)), min_size=0, max_size=3)


@given(GRIDS, st.integers(0, 3), st.data())
@settings(max_examples=200, deadline=None)
def test_the_blocks_of_some_ranks_are_those_among_all_blocks(
    dims: list[tuple[int, int]], first: int, data: st.DataObject
) -> None:
    """Of any strides, also of those that no mesh has."""
    shape = tuple(data.draw(st.sampled_from([n, 2 * n, 3 * n])) for n, _ in dims)
    grid = EvenGrid(tuple(n for n, _ in dims), first, tuple(stride for _, stride in dims))
    ranks = data.draw(st.sets(st.integers(0, grid.last + 1), max_size=5))
    every = [block for block in grid.blocks(shape) if block[0] in ranks]
    wanted = sorted(every, key=lambda block: (block[0], block[1].lo))
    assert grid.blocks_of(shape, ranks, most=len(wanted)) == wanted
    if wanted:
        with pytest.raises(LayoutError, match="more than"):
            grid.blocks_of(shape, ranks, most=len(wanted) - 1)


def test_a_grid_of_all_ranks_there_can_be_is_looked_into_without_enumerating_it() -> None:
    grid = EvenGrid((1 << 12, 1 << 12), 0, (1 << 12, 1))
    shape = (1 << 13, 1 << 12)
    assert grid.blocks_of(shape, [0, 4097, (1 << 24) - 1], most=3) == [
        (0, Box((0, 0), (2, 1))),
        (4097, Box((2, 1), (4, 2))),
        ((1 << 24) - 1, Box((8190, 4095), (8192, 4096))),
    ]
    tangled = EvenGrid((2,) * 24, 0, tuple(range(100_000, 124_000, 1000)))
    with pytest.raises(LayoutError, match="bounded time"):
        tangled.blocks_of((2,) * 24, [1_300_001], most=1)


def test_a_part_left_out_is_a_rank_that_is_not_there() -> None:
    of = [RankIndex(rank=rank, world=2, tensors=(), values=()) for rank in range(2)]
    with pytest.raises(FormatRefused, match="rank 1 is not") as caught:
        catalog_of([reader_of(of[:1])])
    assert caught.value.file == "part0"
    with pytest.raises(FormatRefused, match="others are of"):
        catalog_of([reader_of(of), reader_of(of[1:])])
