"""Each kernel against its twin, on every instruction level that this processor has."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.codec import twin as codec_twin
from perdure.shm import twin as shm_twin

native = pytest.importorskip("perdure._native", reason="the kernels are not built")

Bytes = npt.NDArray[np.uint8]
LEVELS: list[str] = native.simd_levels()
NOISE: Bytes = np.random.default_rng(7).integers(0, 256, (6 << 20) + 4096, dtype=np.uint8)


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    before = native.simd()
    native.use_simd(request.param)
    yield request.param
    native.use_simd(before)


def address(array: Bytes) -> int:
    return array.ctypes.data


def rows(n: int) -> Bytes:
    return np.zeros((n, 16), np.uint8)


def test_the_digest_is_that_of_the_reference_library_at_every_length_up_to_3000(level: str) -> None:
    for n in range(3000):
        data = NOISE[n % 61 : n % 61 + n]
        assert native.digest(data) == xxhash.xxh3_128_digest(data.data), n


def test_the_digest_is_right_around_every_block_boundary_of_a_large_input(level: str) -> None:
    for blocks in (3, 64, 1023, 1024):
        for off in (-65, -64, -63, -1, 0, 1, 63, 64, 65):
            data = NOISE[5 : 5 + 1024 * blocks + off]
            assert native.digest(data) == xxhash.xxh3_128_digest(data.data), (blocks, off)


@pytest.mark.parametrize("fill", [0x00, 0x01, 0xFF])
def test_the_digest_of_uniform_bytes_is_that_of_the_reference_library(level: str, fill: int) -> None:
    data = np.full(70_000, fill, np.uint8)
    for n in (0, 1, 7, 8, 9, 16, 17, 128, 129, 240, 241, 1000, 1024, 1025, 70_000):
        assert native.digest(data[:n]) == xxhash.xxh3_128_digest(data[:n].data), n


@settings(max_examples=60, deadline=None)
@given(
    start=st.integers(0, 200), n=st.integers(0, 1 << 20), tile_bytes=st.integers(1, 1 << 19), threads=st.integers(1, 3)
)
def test_tile_digests_equal_the_twins_at_any_size_and_alignment(
    start: int, n: int, tile_bytes: int, threads: int
) -> None:
    data = NOISE[start : start + n]
    tile_bytes = max(tile_bytes, n // 500 + 1)
    ours, theirs = rows(-(-n // tile_bytes)), rows(-(-n // tile_bytes))
    native.digest_tiles(data, tile_bytes, ours, threads)
    codec_twin.digest_tiles(data, tile_bytes, theirs)
    assert ours.tobytes() == theirs.tobytes()


def test_tiles_shared_by_threads_have_the_digests_of_one_thread(level: str) -> None:
    one, many = rows(24), rows(24)
    native.digest_tiles(NOISE[: 6 << 20], 256 << 10, one, 1)
    native.digest_tiles(NOISE[: 6 << 20], 256 << 10, many, 4)
    assert one.tobytes() == many.tobytes()


@settings(max_examples=80, deadline=None)
@given(
    level=st.sampled_from(LEVELS),
    n=st.one_of(st.integers(0, 3000), st.integers(0, 300_000), st.integers((4 << 20) - 70, (5 << 20))),
    tile_bytes=st.integers(1, 2 << 20),
    source_at=st.integers(0, 130),
    copy_at=st.one_of(st.just(64), st.integers(0, 130)),
)
def test_a_copy_with_digests_equals_the_twins_and_writes_nothing_around_itself(
    level: str, n: int, tile_bytes: int, source_at: int, copy_at: int
) -> None:
    tile_bytes = max(tile_bytes // 1024 * 1024 if copy_at == 64 else tile_bytes, n // 300 + 1)
    room = np.full(n + 512, 0xA5, np.uint8)
    start = -address(room) % 64 + copy_at
    source, copy = NOISE[source_at : source_at + n], room[start : start + n]
    ours, theirs = rows(-(-n // tile_bytes)), rows(-(-n // tile_bytes))
    before = native.simd()
    native.use_simd(level)
    try:
        native.copy_digest(address(source), address(copy), n, tile_bytes, ours)
    finally:
        native.use_simd(before)
    codec_twin.digest_tiles(source, tile_bytes, theirs)
    assert ours.tobytes() == theirs.tobytes()
    assert np.array_equal(source, copy)
    assert (room[:start] == 0xA5).all()
    assert (room[start + n :] == 0xA5).all()


SIZES = st.one_of(
    st.sampled_from([0, 1, 7, 8, 9, 1000, 65_536]), st.integers(0, 300_000), st.integers(1 << 20, 3 << 20)
)


@settings(max_examples=60, deadline=None)
@given(level=st.sampled_from(LEVELS), sizes=st.lists(SIZES, max_size=8), threads=st.integers(1, 4), data=st.data())
def test_many_copies_equal_the_twins_and_write_nothing_around_themselves(
    level: str, sizes: list[int], threads: int, data: st.DataObject
) -> None:
    gaps = [data.draw(st.integers(0, 100)) for _ in sizes]
    starts = [sum(sizes[:i]) + sum(gaps[: i + 1]) for i in range(len(sizes))]
    sources = [data.draw(st.integers(0, 3 << 20)) for _ in sizes]
    ours = np.full(sum(sizes) + sum(gaps) + 64, 0xA5, np.uint8)
    theirs = ours.copy()
    nbytes = np.array(sizes, np.uint64)
    src = np.array([address(NOISE) + at for at in sources], np.uint64)
    before = native.simd()
    native.use_simd(level)
    try:
        native.copy_many(src, np.array([address(ours) + at for at in starts], np.uint64), nbytes, threads)
    finally:
        native.use_simd(before)
    shm_twin.copy_many(src, np.array([address(theirs) + at for at in starts], np.uint64), nbytes)
    assert np.array_equal(ours, theirs)


def words(*values: int) -> npt.NDArray[np.uint64]:
    return np.array(values, np.uint64)


ONE, TWO = np.zeros(64, np.uint8), np.zeros(64, np.uint8)
A, B = address(ONE), address(TWO)


@pytest.mark.parametrize("kernel", [native.copy_many, shm_twin.copy_many], ids=["native", "twin"])
@pytest.mark.parametrize(
    ("src", "dst", "nbytes", "threads"),
    [
        (words(A), words(B), words(8, 8), 1),
        (words(A), words(B), words(8), 0),
        (words(A), words(B), words(8), 1025),
        (words(0), words(B), words(8), 1),
        (words(A), words(0), words(8), 1),
        (words(A), words(A), words(8), 1),
        (words(A), words(A + 7), words(8), 1),
        (words(A), words(B), words(2**64 - 1), 1),
    ],
)
def test_copies_that_cannot_be_made_are_refused_by_kernel_and_twin(
    kernel: object, src: object, dst: object, nbytes: object, threads: int
) -> None:
    with pytest.raises(ValueError, match=r"."):
        kernel(src, dst, nbytes, threads)  # type: ignore[operator]


@pytest.mark.parametrize("module", [native, codec_twin], ids=["native", "twin"])
def test_digests_that_have_no_place_are_refused_by_kernel_and_twin(module: object) -> None:
    for tile_bytes, out in [
        (0, rows(1)),
        (-1, rows(1)),
        (64, rows(2)),
        (32, rows(1)),
        (64, np.zeros((1, 15), np.uint8)),
    ]:
        with pytest.raises(ValueError, match=r"."):
            module.digest_tiles(ONE, tile_bytes, out)  # type: ignore[attr-defined]
        with pytest.raises(ValueError, match=r"."):
            module.copy_digest(A, B, 64, tile_bytes, out)  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="overlap"):
        module.copy_digest(A, A + 1, 32, 32, rows(1))  # type: ignore[attr-defined]


def test_a_read_only_place_for_digests_is_refused() -> None:
    out = rows(1)
    out.flags.writeable = False
    with pytest.raises(TypeError):
        native.digest_tiles(ONE, 64, out)


def test_an_unknown_instruction_level_is_refused() -> None:
    with pytest.raises(ValueError, match="level"):
        native.use_simd("abacus")


def test_other_threads_run_during_a_copy() -> None:
    """While a kernel runs a second thread counts; with the lock held it could not."""
    data, copy = np.zeros(64 << 20, np.uint8), np.zeros(64 << 20, np.uint8)
    counted, stop = [0], threading.Event()

    def count() -> None:
        while not stop.is_set():
            counted[0] += 1
            time.sleep(0)

    thread = threading.Thread(target=count)
    thread.start()
    try:
        during = 0
        for _ in range(20):
            before = counted[0]
            native.copy_many(words(address(data)), words(address(copy)), words(data.nbytes))
            during += counted[0] - before
    finally:
        stop.set()
        thread.join(10)
    assert during > 0
