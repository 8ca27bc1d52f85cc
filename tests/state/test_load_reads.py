"""Loads by reads of tiles: exact bytes, each tile once, in bounded memory, bad tiles alone from the next copy."""

from __future__ import annotations

import re
import threading
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, ClassVar
from unittest.mock import patch

import numpy as np
import pytest
from handmade import TILE, Made, Recorded, framed, make
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.codec import DTYPES, frame, header
from perdure.errors import BlobCorrupt, FormatRefused, IntegrityError, StorageError
from perdure.layout import Box, Layout, Piece, TensorLayout
from perdure.state import load as load_module
from perdure.state.crew import Buffers
from perdure.state.items import TensorItem
from perdure.state.load import LoadReport, load, match
from perdure.testing.layouts import layouts, shapes
from perdure.testing.ranks import bytes_of, items_of, random_bytes

BOUNDED = settings(max_examples=60, deadline=None)
SHAPE = (256, 1024)  # of bytes: a tile is four rows


class Squeeze:
    """A codec that makes most tiles smaller, to have coded tiles of any size."""

    name: ClassVar[str] = "squeeze"
    number: ClassVar[int] = 200

    def encode(self, tile: np.ndarray, **_: Any) -> bytes:
        return zlib.compress(tile.tobytes(), 1)

    def decode(self, coded: np.ndarray, out: np.ndarray, **_: Any) -> None:
        try:
            data = zlib.decompress(coded.tobytes())
        except zlib.error as error:
            raise FormatRefused(f"these are no squeezed bytes: {error}") from error
        if len(data) != out.size:
            raise FormatRefused("a squeezed tile of another size")
        out[:] = np.frombuffer(data, np.uint8)


@pytest.fixture(scope="module", autouse=True)
def squeeze() -> Iterator[None]:
    codecs = MappingProxyType({**header.CODECS, "squeeze": Squeeze()})
    names = {codec.number: name for name, codec in codecs.items()}
    with patch.object(header, "CODECS", codecs), patch.object(header, "_CODEC_NAMES", names):
        with patch.object(frame, "CODECS", codecs):
            yield


@contextmanager
def sizes(direct: int = 4 * TILE, staged: int = 2 * TILE, small: int = 100) -> Iterator[list[Buffers]]:
    """Reads of few tiles; the buffers of the loads."""
    made: list[Buffers] = []

    def buffers(budget_bytes: int) -> Buffers:
        made.append(Buffers(budget_bytes))
        return made[-1]

    with (
        patch.object(load_module, "_DIRECT_BYTES", direct),
        patch.object(load_module, "_STAGED_BYTES", staged),
        patch.object(load_module, "_SMALL_BYTES", small),
        patch.object(load_module, "Buffers", buffers),
    ):
        yield made


def wholes_of(layout: Layout) -> dict[str, np.ndarray]:
    return {name: random_bytes(tensor.dtype, tensor.shape, i) for i, (name, tensor) in enumerate(layout.items())}


def check_holds(items: Sequence[TensorItem], wholes: dict[str, np.ndarray]) -> None:
    for item in items:
        for held in item.held:
            assert (bytes_of(held) == wholes[item.name][held.box.within(Box.whole(item.shape))]).all()


def fill(made: Made, items: Sequence[TensorItem], *copies: dict[str, Recorded], **options: Any) -> LoadReport:
    matches = match(made.catalog, items, (), rank=0, world=1)
    return load(made.catalog, matches, lambda pack: [copy[pack] for copy in copies], **options)


@given(st.data(), st.sampled_from([TILE, TILE + 1]), st.booleans(), st.integers(1, 4), st.integers(1, 8))
@BOUNDED
def test_any_cut_is_loaded_from_any_other_exactly_with_every_tile_read_once(
    data: st.DataObject, tile_bytes: int, mapped: bool, threads: int, budget: int
) -> None:
    of = {f"t{i}": data.draw(shapes(longest=data.draw(st.sampled_from([6, 40])))) for i in range(3)}
    dtypes = [data.draw(st.sampled_from(sorted(DTYPES))) for _ in of]
    have, want = (
        Layout({name: TensorLayout(t.shape, t.pieces, d) for (name, t), d in zip(each.items(), dtypes, strict=True)})
        for each in (data.draw(layouts(of, world=2)), data.draw(layouts(of, world=1, extra_boxes=3)))
    )
    coded = {name: codec for name in of if (codec := data.draw(st.sampled_from(["", "raw", "squeeze"])))}
    wholes = wholes_of(have)
    made = make(have, wholes, tile_bytes=tile_bytes, coded=coded)
    packs = made.recorded(mapped=mapped, tier="memory" if mapped else "disk")
    items = items_of(want, 0, None)
    seen: list[int] = []
    with sizes() as buffers:
        report = fill(made, items, packs, threads=threads, budget_bytes=budget * TILE, on_bytes=seen.append)
    check_holds(items, wholes)
    wanted = sum(held.memory.nbytes for item in items for held in item.held)
    assert report.wanted_nbytes == sum(report.tier_nbytes.values()) == sum(seen) == wanted
    assert not report.notes
    # One tile, coded and decoded, is the least.
    assert buffers[0].high_nbytes <= max(budget * TILE, 2 * tile_bytes)
    read_nbytes = 0
    for pack in packs.values():
        touched = np.zeros(len(pack.data), np.int8)
        for start, nbytes in pack.reads:
            touched[start : start + nbytes] += 1
            read_nbytes += nbytes
        for entry in pack.index().entries:
            probed = 4096 if entry.key.partition("[")[0] in coded else 0  # the header of a frame, and what it came with
            assert touched[entry.start + probed : entry.start + entry.nbytes].max(initial=0) <= 1
    assert report.read_nbytes + report.pad_nbytes == read_nbytes


def tall(name: str = "w", *, coded: str | None = None, ranks: int = 1) -> tuple[Made, dict[str, np.ndarray]]:
    rows = SHAPE[0] // ranks
    pieces = tuple(Piece.alone(rank, Box((rows * rank, 0), (rows * rank + rows, SHAPE[1]))) for rank in range(ranks))
    layout = Layout({name: TensorLayout(SHAPE, pieces, "uint8")})
    wholes = wholes_of(layout)
    return make(layout, wholes, coded={} if coded is None else {name: coded}), wholes


def whole_of(box: Box = Box.whole(SHAPE)) -> tuple[TensorItem, ...]:  # noqa: B008
    return items_of(Layout({"w": TensorLayout(SHAPE, (Piece.alone(0, box),), "uint8")}), 0, None)


def spoiled(copy: dict[str, Recorded], at: int, pack: str = "pack0") -> dict[str, Recorded]:
    """``copy`` with a flipped bit in byte ``at`` of the first tensor of ``pack``."""
    data = bytearray(copy[pack].data)
    data[copy[pack].index().entries[0].start + at] ^= 4
    return {**copy, pack: Recorded(bytes(data), file=copy[pack].file, tier=copy[pack].tier, mapped=copy[pack].mapped)}


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("box", [Box.whole(SHAPE), Box((5, 0), (200, 1024)), Box((5, 9), (200, 10))], ids=str)
def test_a_corrupt_tile_alone_comes_from_the_next_copy(box: Box, mapped: bool) -> None:
    made, wholes = tall()
    first = spoiled(made.recorded(mapped=mapped, tier="memory"), 17 * TILE + 5)
    second = made.recorded()
    items = whole_of(box)
    with sizes():
        report = fill(made, items, first, second)
    check_holds(items, wholes)
    start = second["pack0"].index().entries[0].start
    assert second["pack0"].reads == [(start + 17 * TILE, TILE)]
    (note,) = report.notes
    assert note.startswith(f"w is corrupt in {first['pack0'].file} (memory): tile 17 does not hash to its digest")
    assert note.endswith("; took the copy on disk")
    assert report.tier_nbytes["disk"] == box.size // (200 - 5 if box.lo[0] else 256) * 4


@pytest.mark.parametrize("codec", ["raw", "squeeze"])
def test_a_corrupt_coded_tile_alone_comes_from_the_next_copy(codec: str) -> None:
    made, wholes = tall(coded=codec)
    copy = made.recorded()
    frame_bytes = memoryview(copy["pack0"].data)[copy["pack0"].index().entries[0].start :]
    info = header.frame_info(frame_bytes)
    at = info.header_nbytes + sum(info.coded_nbytes[:9])
    second = made.recorded(tier="remote")
    items = whole_of()
    with sizes():
        report = fill(made, items, spoiled(copy, at + 5), second)
    check_holds(items, wholes)
    assert len(report.notes) == 1
    assert "tile 9 cannot be decoded" in report.notes[0]
    assert report.notes[0].count("use another copy") == 1
    assert [nbytes for _, nbytes in second["pack0"].reads[1:]] == [info.coded_nbytes[9]]


def test_small_tensors_in_one_read_with_a_bad_one_fall_back_alone() -> None:
    layout = Layout({f"t{i:02}": TensorLayout((9,), (Piece.alone(0, Box((0,), (9,))),), "int32") for i in range(50)})
    wholes = wholes_of(layout)
    made = make(layout, wholes)
    items, second = items_of(layout, 0, None), made.recorded()
    report = fill(made, items, spoiled(made.recorded(), 7 * 64), second)
    check_holds(items, wholes)
    assert report.notes[0].startswith("t07 is corrupt")
    assert [nbytes for _, nbytes in second["pack0"].reads] == [36]
    assert report.tier_nbytes == {"disk": 50 * 36}


def test_a_copy_that_fails_in_the_middle_is_passed_over_for_what_it_did_not_give() -> None:
    made, wholes = tall()
    first = made.recorded()
    broken = StorageError("disk pack0 cannot be read", file="disk pack0")
    first["pack0"].fails.update({3: broken, 5: broken})
    second, items = made.recorded(tier="remote"), whole_of()
    with sizes():
        report = fill(made, items, first, second, threads=1)
    check_holds(items, wholes)
    assert [nbytes for _, nbytes in second["pack0"].reads] == 2 * [4 * TILE]
    assert report.notes == ["disk pack0 cannot be read; took the copy on remote"]


def test_the_last_copy_may_have_other_tiles() -> None:
    made, wholes = tall()
    layout = Layout({"w": TensorLayout(SHAPE, (Piece.alone(0, Box.whole(SHAPE)),), "uint8")})
    other = make(layout, wholes, tile_bytes=3 * TILE).recorded(tier="remote")
    items = whole_of(Box((5, 9), (250, 1000)))
    with sizes(staged=TILE):
        fill(made, items, spoiled(made.recorded(), 17 * TILE + 5), other)
    check_holds(items, wholes)
    assert [nbytes for _, nbytes in other["pack0"].reads] == [3 * TILE]


@pytest.mark.parametrize("threads", [1, 4])
def test_the_first_error_is_raised_when_all_threads_have_stopped_and_no_read_is_begun_after_it(threads: int) -> None:
    made, _ = tall()
    before = threading.active_count()
    bad = spoiled(made.recorded(), 0)
    with sizes(direct=TILE), pytest.raises(BlobCorrupt, match="w is corrupt") as caught:
        fill(made, whole_of(), bad, threads=threads)
    assert (caught.value.tensor, caught.value.tile, caught.value.tier) == ("w", 0, "disk")
    assert threading.active_count() == before
    if threads == 1:  # with more, the others are as far as they are when the first has looked
        assert len(bad["pack0"].reads) == 1


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("no bug is hidden")])
def test_whatever_stops_a_load_leaves_no_thread(threads: int, error: BaseException) -> None:
    made, _ = tall()
    before = threading.active_count()
    calls: list[int] = []

    def stop(nbytes: int) -> None:
        calls.append(nbytes)
        if len(calls) == 2:
            raise error

    with sizes(direct=TILE), pytest.raises(type(error)):
        fill(made, whole_of(), made.recorded(), threads=threads, on_bytes=stop)
    assert threading.active_count() == before
    assert len(calls) <= 2 + threads


def test_packs_are_opened_and_read_by_several_threads() -> None:
    made, wholes = tall(ranks=4)
    together = threading.Barrier(4, timeout=10)

    class Meeting(Recorded):
        def index(self) -> Any:
            together.wait()
            return super().index()

        def read_digested(self, *span: Any) -> bytes:
            together.wait()
            return super().read_digested(*span)

    packs: dict[str, Recorded] = {name: Meeting(data) for name, data in made.packs.items()}
    items = whole_of()
    with sizes(direct=16 * TILE):
        fill(made, items, packs, threads=4)
    check_holds(items, wholes)


# --- frames ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["raw", "squeeze"])
def test_a_quarter_of_a_frame_reads_at_most_a_fifth_more_than_its_bytes(codec: str) -> None:
    made, wholes = tall(coded=codec)
    items, packs = whole_of(Box((64, 0), (128, 1024))), made.recorded()
    report = fill(made, items, packs)
    check_holds(items, wholes)
    probed = min(TILE, len(packs["pack0"].data))
    assert report.read_nbytes - probed <= 1.2 * report.wanted_nbytes
    assert packs["pack0"].reads[0][1] == probed


def test_a_quarter_of_64_mib_reads_at_most_a_fifth_more_framed_and_not_a_byte_more_raw() -> None:
    shape, quarter = (4096, 16 << 10), Box((1024, 0), (2048, 16 << 10))
    layout = Layout({"w": TensorLayout(shape, (Piece.alone(0, Box.whole(shape)),), "uint8")})
    wholes = {"w": np.random.default_rng(1).integers(0, 256, (*shape, 1), np.uint8)}
    for coded, most in (({}, 1.0), ({"w": "raw"}, 1.2)):
        made = make(layout, wholes, tile_bytes=4 << 20, coded=coded, frame_tile_bytes=4 << 20)
        items = items_of(Layout({"w": TensorLayout(shape, (Piece.alone(0, quarter),), "uint8")}), 0, None)
        report = fill(made, items, made.recorded())
        check_holds(items, wholes)
        assert report.wanted_nbytes == 16 << 20
        assert (report.read_nbytes + report.pad_nbytes) / report.wanted_nbytes <= most


def test_what_came_out_of_a_lossy_frame_is_loaded_and_told() -> None:
    shape = (256, 64)
    tensors = {name: TensorLayout(shape, (Piece.alone(0, Box.whole(shape)),), "float32") for name in ("m", "v", "w")}
    values = np.random.default_rng(2).standard_normal(shape).astype(np.float32)
    wholes = {name: values.view(np.uint8).reshape(*shape, 4) for name in tensors}
    made = make(Layout(tensors), wholes, coded={"m": "cluster", "v": "cluster"})
    items = items_of(Layout(tensors), 0, None)
    report = fill(made, items, made.recorded())
    assert sorted(report.lossy) == ["m", "v"]
    (note,) = report.notes
    assert re.fullmatch(r"[mv] and another tensor are lossy: relative error up to 0\.0019\d?", note)
    for item in items:
        found = bytes_of(item.held[0]).copy().view(np.float32).reshape(shape)
        error = np.abs(found - values).max()
        assert (error == 0) == (item.name == "w")
        assert (np.abs(found - values) <= np.abs(values) * report.lossy.get(item.name, 0.0)).all()


def test_a_frame_on_a_base_that_the_index_does_not_name_is_refused() -> None:
    layout = Layout({"w": TensorLayout(SHAPE, (Piece.alone(0, Box.whole(SHAPE)),), "uint8")})
    wholes = {"w": np.zeros((*SHAPE, 1), np.uint8)}
    made = make(layout, wholes, coded={"w": "squeeze"}, base="ab" * 16)
    with pytest.raises(FormatRefused, match="the index does not say how; use another step") as caught:
        fill(made, whole_of(), made.recorded())
    assert caught.value.file == "disk pack0"


@pytest.mark.parametrize(
    ("dtype", "shape"), [("int8", SHAPE), ("uint8", (1024, 256)), ("uint8", (1, 1)), ("uint8", (512, 1024))]
)
def test_the_frame_of_another_tensor_is_refused(dtype: str, shape: tuple[int, ...]) -> None:
    made, _ = tall(coded="raw")
    data = np.zeros(int(np.prod(shape)), np.uint8)
    other = framed(data, dtype, shape)
    layout = Layout({"w": TensorLayout((len(other),), (Piece.alone(0, Box((0,), (len(other),))),), "uint8")})
    piece = made.catalog.tensors["w"].pieces[0]
    packs = make(layout, {"w": np.frombuffer(other, np.uint8).reshape(-1, 1)}).packs
    renamed = packs["pack0"].replace(f'"w[0:{len(other)}]"'.encode(), f'"{piece.key}"'.encode())
    with pytest.raises(IntegrityError):
        fill(made, whole_of(), {"pack0": Recorded(renamed)})


def test_a_header_that_claims_to_be_long_is_not_read_beyond_what_the_piece_can_have() -> None:
    made, _ = tall(coded="raw")
    copy = made.recorded()
    entry = copy["pack0"].index().entries[0]
    data = bytearray(copy["pack0"].data)
    data[entry.start + 12 : entry.start + 16] = (200_000).to_bytes(4, "little")
    hostile = Recorded(bytes(data), file="disk pack0")
    with pytest.raises(BlobCorrupt, match="w in disk pack0"):
        fill(made, whole_of(), {"pack0": hostile})
    assert sum(nbytes for _, nbytes in hostile.reads) <= TILE
