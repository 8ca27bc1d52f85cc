"""The kernels of the codecs against their twins, on every instruction level that this processor has, byte for byte."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.codec import mask_twin, planes_twin, ulp_twin

native = pytest.importorskip("perdure._native", reason="the kernels are not built")

Bytes = npt.NDArray[np.uint8]
LEVELS: list[str] = native.simd_levels()
SIZES = (1, 7, 8, 9, 63, 64, 65, 127, 128, 129, 1000)
BLOCK = 1 << 17
KIND_WIDTHS = ((0, 2), (1, 2), (2, 1))
RNG = np.random.default_rng(11)
WEIGHTS = (RNG.standard_normal(BLOCK + 200) * 0.02).astype(np.float32)


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    before = native.simd()
    native.use_simd(request.param)
    yield request.param
    native.use_simd(before)


def bfloat16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    return (values.view(np.uint32) + np.uint32(0x8000) >> np.uint32(16)).astype(np.uint16)


def moved(by: float) -> npt.NDArray[np.float32]:
    return (WEIGHTS + by * RNG.standard_normal(WEIGHTS.size)).astype(np.float32)


def pairs() -> dict[str, tuple[Bytes, Bytes]]:
    """New and old bytes of every character: what a training makes, and what no training makes."""
    every = np.arange(65536, dtype=np.uint16)
    noise = RNG.integers(0, 65536, 65536 + 500, dtype=np.uint16)
    old = bfloat16(WEIGHTS)
    rare = old.copy()
    rare[::1000] += 1
    ramp = np.repeat(np.arange(256, dtype=np.uint16), 300)
    made = {
        "small steps": (bfloat16(moved(1e-5)), old),
        "large steps": (bfloat16(moved(1e-3)), old),
        "half precision": (moved(1e-4).astype(np.float16), WEIGHTS.astype(np.float16)),
        "equal": (old, old),
        "one in a thousand": (rare, old),
        "signs flipped": (old ^ np.uint16(0x8000), old),
        "every pattern": (every, np.roll(every, 1)),
        "every pattern, shuffled": (every, RNG.permutation(every)),
        "noise": (noise[:-1], noise[1:]),
        "distances of every size": (np.uint16(0x3000) + ramp, np.full_like(ramp, 0x3000)),
        "zeros and minus zeros": (every % 2 << np.uint16(15), every % 3 % 2 << np.uint16(15)),
        "not numbers": (every | np.uint16(0x7F80), np.roll(every, 5) | np.uint16(0x7F80)),
    }
    return {name: (new.view(np.uint8), old.view(np.uint8)) for name, (new, old) in made.items()}


PAIRS = pairs()


def coded(encode: Callable[..., int], room: int, *args: object) -> Bytes:
    out = np.full(room + 32, 0xA5, np.uint8)
    size = encode(*args[:2], out[:room], *args[2:])
    assert size <= room
    assert (out[room:] == 0xA5).all()
    return out[:size]


def agree(
    kernel: tuple[Callable[..., int], Callable[..., bool]],
    twin: tuple[Callable[..., int], Callable[..., bool]],
    room: int,
    new: Bytes,
    old: Bytes | None,
    how: tuple[object, ...],
    reading: tuple[object, ...],
) -> None:
    """Kernel and twin write the same bytes, and each reads them."""
    ours, theirs = coded(kernel[0], room, new, old, *how), coded(twin[0], room, new, old, *how)
    assert ours.tobytes() == theirs.tobytes()
    for decode in (kernel[1], twin[1]):
        out = np.zeros_like(new)
        assert decode(ours, old, out, *reading)
        assert np.array_equal(out, new)


ULP = (native.ulp_encode, native.ulp_decode), (ulp_twin.ulp_encode, ulp_twin.ulp_decode)
MASK = (native.mask_encode, native.mask_decode), (mask_twin.mask_encode, mask_twin.mask_decode)
PLANES = (native.planes_encode, native.planes_decode), (planes_twin.planes_encode, planes_twin.planes_decode)


@pytest.mark.parametrize(("kind", "width"), KIND_WIDTHS)
def test_distances_of_any_number_of_elements_equal_the_twins(level: str, kind: int, width: int) -> None:
    new, old = PAIRS["large steps"]
    for n in SIZES:
        size = n * width
        agree(*ULP, native.ulp_room(size, kind), new[:size], old[:size], (kind, 4), (kind,))


@pytest.mark.parametrize("n", [BLOCK - 1, BLOCK, BLOCK + 1])
def test_distances_around_the_end_of_a_block_equal_the_twins(level: str, n: int) -> None:
    new, old = (data[: 2 * n] for data in PAIRS["small steps"])
    agree(*ULP, native.ulp_room(2 * n, 0), new, old, (0, 4), (0,))


@pytest.mark.parametrize(("contexts", "most"), [(1, 0), (2, 3), (4, 6), (8, 8)])
@pytest.mark.parametrize("what", PAIRS)
def test_distances_between_any_patterns_equal_the_twins(what: str, contexts: int, most: int) -> None:
    """All levels in one go, for the twin is the slow one."""
    new, old = PAIRS[what]
    before = native.simd()
    for kind, _ in KIND_WIDTHS if contexts == 4 else KIND_WIDTHS[:1]:
        room = native.ulp_room(new.size, kind)
        theirs = coded(ulp_twin.ulp_encode, room, new, old, kind, contexts, most)
        for level in LEVELS:
            native.use_simd(level)
            try:
                ours, out = coded(native.ulp_encode, room, new, old, kind, contexts, most), np.zeros_like(new)
                assert ours.tobytes() == theirs.tobytes(), level
                assert native.ulp_decode(ours, old, out, kind), level
                assert np.array_equal(out, new), level
            finally:
                native.use_simd(before)
        out = np.zeros_like(new)
        assert ulp_twin.ulp_decode(theirs, old, out, kind)
        assert np.array_equal(out, new)


def hot(n: int, share: float) -> tuple[Bytes, Bytes]:
    """Elements of which about ``share`` are so far from their base that they are literals."""
    rng = np.random.default_rng(n)
    old = bfloat16(np.resize(WEIGHTS, n))
    far = (rng.standard_normal(n) * 0.02).astype(np.float32)
    new = np.where(rng.random(n) < share, bfloat16(far) ^ np.uint16(0x4000), old + rng.integers(-9, 9, n).astype("i2"))
    return new.astype(np.uint16).view(np.uint8), old.view(np.uint8)


TOGETHER = 0x80  # in the first byte of a tile of `ulp`


@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize("n", [1700, 2048, 4001, BLOCK + 5000])
def test_many_literals_are_coded_together_and_equal_the_twins(level: str, n: int, kind: int) -> None:
    new, old = hot(n, 0.8 if n < 2000 else 0.6 if n < BLOCK else 0.05)
    agree(*ULP, native.ulp_room(2 * n, kind), new, old, (kind, 4, 6), (kind,))
    tile = coded(native.ulp_encode, native.ulp_room(2 * n, kind), new, old, kind, 4, 6)
    if n > 2000:
        assert tile[0] & TOGETHER
        literals, size = tile[-8:].view("<u4").tolist()
        assert literals > 1024
        assert size < 1.8 * literals


def test_literals_together_skip_blocks_that_are_equal_or_raw(level: str) -> None:
    """The second of five blocks equals its base, the third is noise: neither has literals there."""
    n = 4 * BLOCK + 1000
    new, old = (data.copy() for data in hot(n, 0.05))
    new[2 * BLOCK : 4 * BLOCK] = old[2 * BLOCK : 4 * BLOCK]
    new[4 * BLOCK : 6 * BLOCK] = np.random.default_rng(5).integers(0, 256, 2 * BLOCK, dtype=np.uint8)
    tile, out = coded(native.ulp_encode, native.ulp_room(2 * n, 0), new, old, 0, 4), np.zeros_like(new)
    assert tile[0] & TOGETHER
    assert 0.09 * BLOCK < int(tile[-8:-4].view("<u4")[0]) < 0.11 * BLOCK  # of the first and the fourth
    for decode in (native.ulp_decode, ulp_twin.ulp_decode):
        out[:] = 0
        assert decode(tile, old, out, 0)
        assert np.array_equal(out, new)


@pytest.mark.parametrize("twin", [False, True], ids=["native", "twin"])
def test_literals_together_that_do_not_fit_are_refused(level: str, twin: bool) -> None:
    new, old = hot(3000, 0.6)
    decode, out = (ulp_twin if twin else native).ulp_decode, np.zeros_like(new)
    tile = coded(native.ulp_encode, native.ulp_room(new.size, 0), new, old, 0, 4)
    assert decode(tile, old, out, 0)
    assert not decode(tile, old[:3000], out[:3000], 2)  # of 8-bit elements none are literals
    for at in (tile.size - 8, tile.size - 4):
        right = int(tile[at : at + 4].view("<u4")[0])
        for wrong in (0, 1, right - 1, right + 1, 3001, tile.size, 2**31, 2**32 - 1):
            hurt = tile.copy()
            hurt[at : at + 4].view("<u4")[0] = wrong
            assert not decode(hurt, old, out, 0), (at, wrong)
    for flipped in (tile[0] ^ TOGETHER, TOGETHER, TOGETHER | 9):
        hurt = tile.copy()
        hurt[0] = flipped
        assert not decode(hurt, old, out, 0), flipped
    for cut in (1, 2, 3, 9, 10, tile.size - 9, tile.size - 1):
        assert not decode(tile[:cut], old, out, 0), cut


@pytest.mark.parametrize(("share", "n"), [(0.002, BLOCK), (0.5, 1500)])
def test_few_literals_stay_in_their_blocks(share: float, n: int) -> None:
    new, old = hot(n, share)
    for encode in (native.ulp_encode, ulp_twin.ulp_encode):
        assert not coded(encode, native.ulp_room(2 * n, 0), new, old, 0, 4)[0] & TOGETHER


@pytest.mark.parametrize("what", PAIRS)
@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_masks_equal_the_twins(level: str, width: int, what: str) -> None:
    new, old = PAIRS[what]
    for n in (*SIZES, new.size // width):
        size = n * width
        agree(*MASK, native.mask_room(size, width), new[:size], old[:size], (width,), (width,))


@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_masks_go_anywhere_in_a_line_of_memory_and_touch_nothing_beside_it(level: str, width: int) -> None:
    new, old = (data[:6000] for data in PAIRS["large steps"])
    wanted = coded(mask_twin.mask_encode, native.mask_room(new.size, width), new, old, width)
    for at in range(64):
        memory = np.full(2 * new.size, 0xA5, np.uint8)
        out = memory[at : at + native.mask_room(new.size, width)]
        assert out[: native.mask_encode(new, old, out, width)].tobytes() == wanted.tobytes()
        assert (memory[:at] == 0xA5).all()
        assert (memory[at + out.size :] == 0xA5).all()
        memory[:] = 0xA5
        assert native.mask_decode(wanted, old, memory[at : at + new.size], width)
        assert memory[at : at + new.size].tobytes() == new.tobytes()
        assert (memory[:at] == 0xA5).all()
        assert (memory[at + new.size :] == 0xA5).all()


@pytest.mark.parametrize("what", ["ulp", "mask"])
def test_digests_on_the_way_are_those_of_tile_and_base(level: str, what: str) -> None:
    kernel, how, more = (ULP, (0,), (4, 0)) if what == "ulp" else (MASK, (2,), ())
    new, old = PAIRS["large steps"]
    for size, at in (
        (16, 0),
        (240, 0),
        (242, 2),
        (1024, 0),
        (1026, 0),
        (65536, 0),
        (65538, 0),
        (new.size, 0),
        (new.size, 16),
    ):
        tile, base = new[:size], old[:size]
        wanted = native.digest(tile) + native.digest(base)
        memory = np.zeros(size + 128, np.uint8)
        start = -memory.ctypes.data % 64 + at
        out = memory[start : start + size]
        room = native.ulp_room(size, 0) if what == "ulp" else native.mask_room(size, 2)
        for encode, decode in kernel:
            coded_tile, digests = np.zeros(room, np.uint8), np.zeros((2, 16), np.uint8)
            n = encode(tile, base, coded_tile, *how, *more, digests=digests)
            assert digests.tobytes() == wanted
            digests[:] = 0
            assert decode(coded_tile[:n], base, out, *how, digests=digests)
            assert digests.tobytes() == wanted
            assert np.array_equal(out, tile)


@pytest.mark.parametrize("floats", [False, True])
@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_planes_of_any_number_of_elements_equal_the_twins(level: str, width: int, floats: bool) -> None:
    new, old = PAIRS["large steps"]
    for n in SIZES:
        size, how = n * width, (width, floats)
        for base in (None, old[:size]):
            agree(*PLANES, native.planes_room(size, width), new[:size], base, how, how)


@pytest.mark.parametrize("what", [*PAIRS, "floats", "doubles", "counting", "few"])
def test_planes_of_any_patterns_equal_the_twins(level: str, what: str) -> None:
    data = {
        "floats": (4, True, moved(1e-6), WEIGHTS),
        "doubles": (8, True, moved(1e-6)[:9000].astype(np.float64), WEIGHTS[:9000].astype(np.float64)),
        "counting": (8, False, np.arange(40_000) + 3, np.arange(40_000)),
        "few": (4, False, RNG.integers(-3, 9, 40_000).astype(np.int32), RNG.integers(-3, 9, 40_000).astype(np.int32)),
    }
    width, floats, *both = data.get(what, (2, True, *PAIRS.get(what, ())))
    new, old = (array.view(np.uint8) for array in both)  # type: ignore[union-attr]
    for base in (None, old):
        agree(*PLANES, native.planes_room(new.size, width), new, base, (width, floats), (width, floats))


@settings(max_examples=60, deadline=None)
@given(data=st.binary(min_size=8, max_size=2000), seed=st.integers(0, 99), level=st.sampled_from(LEVELS))
def test_any_bytes_at_all_come_back(data: bytes, seed: int, level: str) -> None:
    new = np.frombuffer(data, np.uint8)[: len(data) // 8 * 8]
    old = np.where(np.random.default_rng(seed).random(new.size) < 0.2, new ^ 3, new).astype(np.uint8)
    before = native.simd()
    native.use_simd(level)
    try:
        for kind, _ in KIND_WIDTHS:
            agree(*ULP, native.ulp_room(new.size, kind), new, old, (kind, 4), (kind,))
        for width in (1, 2, 4, 8):
            agree(*MASK, native.mask_room(new.size, width), new, old, (width,), (width,))
            for floats in (False, True):
                agree(*PLANES, native.planes_room(new.size, width), new, old, (width, floats), (width, floats))
    finally:
        native.use_simd(before)


def test_every_level_refuses_what_no_encoder_wrote(level: str) -> None:
    new, old = (data[:20_000] for data in PAIRS["large steps"])
    out = np.zeros_like(new)
    whole = {
        "ulp": (coded(native.ulp_encode, native.ulp_room(new.size, 0), new, old, 0, 4), (0,), native.ulp_decode),
        "mask": (coded(native.mask_encode, native.mask_room(new.size, 2), new, old, 2), (2,), native.mask_decode),
        "planes": (
            coded(native.planes_encode, native.planes_room(new.size, 2), new, old, 2, True),
            (2, True),
            native.planes_decode,
        ),
    }
    for name, (data, how, decode) in whole.items():
        assert decode(data, old, out, *how)
        assert not decode(np.append(data, np.uint8(0)), old, out, *how), name
        for cut in (*range(min(data.size, 80)), *range(80, data.size, 397), data.size - 1):
            assert not decode(data[:cut], old, out, *how), (name, cut)


@pytest.mark.parametrize("twin", [False, True], ids=["native", "twin"])
def test_a_flipped_bit_is_refused_or_decodes_to_something_in_bounds(twin: bool) -> None:
    """Kernels promise no more: it is the digest of the tile that finds every damage."""
    new, old = (data[:3000] for data in PAIRS["large steps"])
    data = coded(native.ulp_encode, native.ulp_room(new.size, 0), new, old, 0, 4)
    room = np.full(new.size + 64, 0xA5, np.uint8)
    for bit in RNG.integers(0, 8 * data.size, 40 if twin else 2000):
        hurt = data.copy()
        hurt[bit // 8] ^= 1 << bit % 8
        (ulp_twin if twin else native).ulp_decode(hurt, old, room[: new.size], 0)
    assert (room[new.size :] == 0xA5).all()


@pytest.mark.parametrize(
    ("call", "args"),
    [
        ("ulp_encode", (bytes(8), bytes(6), 100, 0, 4)),
        ("ulp_encode", (bytes(8), bytes(8), 9, 0, 4)),
        ("ulp_encode", (bytes(7), bytes(7), 100, 0, 4)),
        ("ulp_encode", (bytes(8), bytes(8), 100, 3, 4)),
        ("ulp_encode", (bytes(8), bytes(8), 100, 0, 9)),
        ("ulp_encode", (bytes(8), bytes(8), 100, 0, 4, 9)),
        ("ulp_encode", (b"", b"", 100, 0, 4)),
        ("ulp_decode", (bytes(8), bytes(6), 8, 0)),
        ("mask_encode", (bytes(8), bytes(8), 72, 2)),
        ("mask_encode", (bytes(8), bytes(8), 100, 3)),
        ("mask_decode", (bytes(8), bytes(8), 9, 2)),
        ("planes_encode", (bytes(8), None, 9, 2, True)),
        ("planes_encode", (bytes(8), bytes(7), 100, 2, True)),
        ("planes_decode", (bytes(8), None, 7, 2, True)),
    ],
)
def test_calls_that_do_not_fit_are_refused(call: str, args: tuple[object, ...]) -> None:
    data, base, room, *how = args
    with pytest.raises(ValueError, match=r"."):
        getattr(native, call)(data, base, np.zeros(room, np.uint8), *how)  # type: ignore[call-overload]


BLOCK_4 = 1 << 15  # elements of 4 bytes whose planes are all coded


def of_blocks(kinds: str, rest: int) -> Bytes:
    """Blocks of 4-byte elements by kind (c: coded, s: one value, n: noise, m: half noise), and ``rest`` more."""
    rng = np.random.default_rng(3)
    made = []
    for kind, n in [*((kind, BLOCK_4) for kind in kinds), ("c", rest)]:
        block = rng.integers(60, 64, (n, 4), dtype=np.uint8)
        if kind == "s":
            block[:] = 61
        elif kind in "nm":
            block[:, : 4 if kind == "n" else 2] = rng.integers(0, 256, (n, 4 if kind == "n" else 2), dtype=np.uint8)
        made.append(block)
    return np.concatenate(made).reshape(-1)


@pytest.mark.parametrize(("kinds", "rest"), [("c", 0), ("c", 1), ("cc", 0), ("cs", 127), ("sc", 2048), ("cnc", 2049),
                                             ("ncs", 5000), ("mcmc", 129), ("cccmn", 64), ("sscc", 2047)])  # fmt: skip
def test_blocks_of_any_modes_side_by_side_come_back_at_every_level(kinds: str, rest: int) -> None:
    new = of_blocks(kinds, rest)
    how, room, before = (4, False), native.planes_room(new.size, 4), native.simd()
    tiles = []
    for level in LEVELS:
        native.use_simd(level)
        try:
            tiles.append(coded(native.planes_encode, room, new, None, *how))
        finally:
            native.use_simd(before)
    assert all(tile.tobytes() == tiles[0].tobytes() for tile in tiles)
    assert tiles[0][1] == 15  # so the blocks are as meant
    for level in LEVELS:
        native.use_simd(level)
        try:
            out = np.full(new.size + 128, 0xA5, np.uint8)
            assert native.planes_decode(tiles[0], None, out[64 : 64 + new.size], *how), level
            assert np.array_equal(out[64 : 64 + new.size], new), level
            assert (out[:64] == 0xA5).all()
            assert (out[64 + new.size :] == 0xA5).all()
            for cut in (1, 300, tiles[0].size // 2):
                assert not native.planes_decode(tiles[0][:-cut], None, out[64 : 64 + new.size], *how), level
        finally:
            native.use_simd(before)


def test_two_blocks_side_by_side_equal_the_twins(level: str) -> None:
    new = of_blocks("mc", 300)
    agree(*PLANES, native.planes_room(new.size, 4), new, None, (4, False), (4, False))
