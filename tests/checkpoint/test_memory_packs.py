"""A filled segment becomes a valid pack, whatever lay in it before; packs are read from memory and from a store."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.checkpoint.memory_packs import MemoryPacks, seal
from perdure.codec.digest import tile_digests
from perdure.errors import BlobCorrupt, FormatRefused
from perdure.state.disk_pack import DiskPack
from perdure.state.index import RankIndex, SavedPiece, SavedTensor
from perdure.state.save import PACK_TENSORS, packs_of
from perdure.store import Ram, Run

SIZES = st.lists(st.integers(0, 300), max_size=5)


def index_of(sizes: list[int]) -> RankIndex:
    tensors = tuple(
        SavedTensor(name=f"t{i}", dtype="uint8", shape=(size,), pieces=(SavedPiece(f"t{i}", (0,), (size,)),))
        for i, size in enumerate(sizes)
    )
    return RankIndex(rank=0, world=1, tensors=tensors, values=())


def fill(segment: memoryview, index: RankIndex, value: int) -> None:
    for entry in packs_of(index)[0].plan.entries:
        segment[entry.start : entry.start + entry.nbytes] = bytes([value]) * entry.nbytes


@given(SIZES, SIZES)
@settings(max_examples=60, deadline=None)
def test_a_segment_that_held_another_step_holds_a_whole_new_one(before: list[int], after: list[int]) -> None:
    segment = memoryview(bytearray(b"\xee" * 20_000))
    for value, sizes in enumerate((before, after), 1):
        index = index_of(sizes)
        fill(segment, index, value)
        filled = bytes(segment)
        nbytes = seal(index, segment)
        assert bytes(segment[nbytes:]) == filled[nbytes:]
        pack = MemoryPacks([(index, segment[:nbytes])], file="memory")
        found = pack.index()
        assert [(entry.key, entry.nbytes) for entry in found.entries] == [(f"t{i}", n) for i, n in enumerate(sizes)]
        for entry in found.entries:
            data = pack.fetch(entry.start, entry.nbytes)
            assert bytes(data) == bytes([value]) * entry.nbytes
            tiles = found.digests[16 * entry.first_tile : 16 * (entry.first_tile + entry.n_tiles)]
            assert tile_digests(data, found.tile_bytes) == tiles
        plan = packs_of(index)[0].plan
        assert all(not any(segment[pad.start : pad.start + pad.nbytes]) for pad in plan.pads)


def sealed(sizes: list[int]) -> memoryview:
    index = index_of(sizes)
    segment = memoryview(bytearray(20_000))
    fill(segment, index, 7)
    return segment[: seal(index, segment)]


def in_memory(sizes: list[int], view: memoryview) -> MemoryPacks:
    return MemoryPacks([(index_of(sizes), view)], file="memory")


def test_memory_lends_views_and_copies_on_request() -> None:
    view = sealed([10])
    pack = in_memory([10], view)
    entry = pack.index().entry("t0")
    lent = pack.fetch(entry.start, 10)
    view[entry.start] = 9
    assert lent[0] == 9
    target = memoryview(bytearray(16))
    assert bytes(pack.fetch(entry.start, 10, target)) == bytes(target[:10]) == bytes([9] + [7] * 9)


def test_a_stored_pack_is_read_like_one_in_memory() -> None:
    run, view = Run.open(Ram(), create=True), sealed([10, 0, 100])
    pack = DiskPack(run, run.write_pack([view], epoch=1, step=2, seq=3, writer="w", number=0))
    lent = in_memory([10, 0, 100], view).index()
    assert (pack.index().entries, pack.index().digests) == (lent.entries, lent.digests)
    assert pack.index() is pack.index()
    entry = pack.index().entry("t2")
    assert bytes(pack.fetch(entry.start, entry.nbytes)) == b"\x07" * 100
    target = memoryview(bytearray(100))
    assert bytes(pack.fetch(entry.start, entry.nbytes, target)) == bytes(target)
    assert (pack.tier, pack.file) == ("disk", "packs/0000000001/000000000002-000003-w-0.safetensors")


@given(st.integers(0, 4095))
@settings(max_examples=60, deadline=None)
def test_a_header_with_a_flipped_bit_is_refused_or_says_the_same(at: int) -> None:
    view = sealed([10, 100])
    good = in_memory([10, 100], view).index()
    ref = Run.open(Ram(), create=True).write_pack([view], epoch=1, step=2, seq=3, writer="w", number=0)
    view[at] ^= 4
    try:
        found = in_memory([10, 100], view).index()
    except FormatRefused:
        pass
    else:
        # Only digests or the letter of a name differ: no tile hashes to the ones, nobody asks for the other.
        places = [(each.start, each.nbytes, each.first_tile) for each in found.entries]
        assert places == [(each.start, each.nbytes, each.first_tile) for each in good.entries]
    run = Run.open(Ram(), create=True)
    run.store.put(ref.name, [view])
    with pytest.raises(BlobCorrupt):
        DiskPack(run, ref).index()


def test_several_segments_answer_as_one() -> None:
    """Of two ranks, one with more tensors than a pack has."""
    sizes = [3] * (PACK_TENSORS + 2)
    many = SavedTensor(name="other", dtype="uint8", shape=(5,), pieces=(SavedPiece("other", (0,), (5,)),))
    other = RankIndex(rank=1, world=2, tensors=(many,), values=())
    first, second = memoryview(bytearray(2_000_000)), memoryview(bytearray(20_000))
    for index, view in ((index_of(sizes), first), (other, second)):
        for placed in packs_of(index):
            for entry in placed.plan.entries:
                start = placed.start + entry.start
                view[start : start + entry.nbytes] = bytes([len(entry.key)]) * entry.nbytes
    lengths = [seal(index_of(sizes), first), seal(other, second)]
    packs = MemoryPacks([(index_of(sizes), first[: lengths[0]]), (other, second[: lengths[1]])], file="memory")
    for key in ("t0", "t4095", "t4096", "t4097", "other"):
        entry = packs.index().entry(key)
        data = packs.fetch(entry.start, entry.nbytes)
        assert bytes(data) == bytes([len(key)]) * entry.nbytes
        tile = packs.index().digests[16 * entry.first_tile : 16 * (entry.first_tile + entry.n_tiles)]
        assert tile_digests(data) == tile
    with pytest.raises(BlobCorrupt, match="cut off"):
        MemoryPacks([(index_of(sizes), first[: lengths[0] - 1])], file="memory").index()
