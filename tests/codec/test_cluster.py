"""The lossy codec keeps its promises: a bounded ratio, signs, zeros, the error that it tells; on any bits at all."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.codec import DTYPES, TILE_BYTES, cluster_twin, decode, decode_tile, digest, encode, error_twin, frame_info
from perdure.codec.cluster import VALUE_BITS
from perdure.codec.error import FrameError
from perdure.codec.header import render
from perdure.codec.stage import LEVELS
from perdure.errors import BlobCorrupt, CallError, FormatRefused

native = pytest.importorskip("perdure._native", reason="the kernels are not built")

Floats = npt.NDArray[np.float32]
SIMD: list[str] = native.simd_levels()
RNG = np.random.default_rng(21)
TINY, LARGEST = np.float32(2.0**-126), np.finfo(np.float32).max
NAMED = [0.0, -0.0, np.inf, -np.inf, np.nan, TINY, -TINY, TINY / 2, 1e-45, -1e-45, LARGEST, -LARGEST]
ODD = np.array(NAMED, np.float32)
PAYLOADS = np.array([0x7F800001, 0xFFC12345, 0x7FFFFFFF, 0x7FFFFF, 0x807FFFFF, 0x7F7FC000], np.uint32).view(np.float32)


def moments(n: int, seed: int = 0) -> tuple[Floats, Floats]:
    """What an optimizer keeps: m of both signs, v not negative; the scale changes along the tensor."""
    rng = np.random.default_rng(seed)
    scale = np.exp(3 * np.sin(np.arange(n) / 500)) * 1e-4
    m = scale * rng.standard_normal(n)
    return m.astype(np.float32), (scale**2 * rng.gamma(0.7, 1.0, n)).astype(np.float32)


def kept_promises(x: Floats, y: Floats, value_bits: int) -> None:
    """Every rule for single elements."""
    x, y = x.ravel(), y.ravel()
    exact = ~np.isfinite(x) | (np.abs(x) < TINY)
    assert (x.view(np.uint32)[exact] == y.view(np.uint32)[exact]).all()
    assert (np.signbit(x) == np.signbit(y)).all()
    assert ((x == 0) == (y == 0)).all()
    assert np.isfinite(y[np.isfinite(x)]).all()
    a, b = x[~exact].astype(np.float64), y[~exact].astype(np.float64)
    assert (np.abs(a - b) <= np.abs(a) * 2.0 ** -(value_bits + 1)).all()


def check_error(x: Floats, y: Floats, error: FrameError) -> None:
    """The error that a frame tells is the true one."""
    finite = np.isfinite(x)
    a, b = x[finite].astype(np.float64), y[finite].astype(np.float64)
    distance, some = np.abs(a - b), a != 0
    ratio = distance[some] / np.abs(a[some])
    assert error.max_absolute == distance.max(initial=0)
    assert error.max_relative == ratio.max(initial=0)
    assert error.mean_relative == pytest.approx(ratio.mean() if ratio.size else 0, rel=1e-12)
    assert error.root_mean_square == pytest.approx(np.sqrt(np.mean(distance**2)) if distance.size else 0, rel=1e-12)
    assert error.possible


@st.composite
def tensors(draw: st.DrawFn) -> Floats:
    """Any bits, or numbers of few or many octaves with any share of odd ones."""
    n = draw(st.one_of(st.integers(0, 300), st.integers(0, 5000)))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 20)))
    if draw(st.booleans()):
        return rng.integers(0, 1 << 32, n, dtype=np.uint32).view(np.float32)
    x = np.ldexp(rng.standard_normal(n), rng.integers(-draw(st.integers(0, 120)), draw(st.integers(1, 120)), n))
    x = x.astype(np.float32)
    if draw(st.booleans()):
        x = np.abs(x)
    odd = rng.random(n) < draw(st.sampled_from([0.0, 0.01, 0.5, 1.0]))
    return np.where(odd, rng.choice(np.concatenate((ODD, PAYLOADS)), n), x).astype(np.float32)


@settings(max_examples=150, deadline=None)
@given(x=tensors(), level=st.sampled_from(LEVELS), simd=st.sampled_from(SIMD))
def test_any_tensor_comes_back_within_what_its_frame_tells(x: Floats, level: str, simd: str) -> None:
    before = native.simd()
    native.use_simd(simd)
    try:
        frame = encode(x, codec="cluster", level=level)  # type: ignore[arg-type]
        y, info = decode(frame), frame_info(frame)
    finally:
        native.use_simd(before)
    assert len(frame) <= x.nbytes + 64
    assert info.digest == digest(y)
    kept_promises(x, y, VALUE_BITS[level])
    if info.error is None:
        assert (info.codec, y.tobytes()) == ("raw", x.tobytes())
    else:
        assert info.codec == "cluster"
        check_error(x, y, info.error)


@pytest.fixture(params=SIMD)
def simd(request: pytest.FixtureRequest) -> Iterator[str]:
    before = native.simd()
    native.use_simd(request.param)
    yield request.param
    native.use_simd(before)


def coded(module: object, x: Floats, value_bits: int) -> bytes:
    room = module.cluster_room(x.nbytes)  # type: ignore[attr-defined]
    out = np.full(room + 32, 0xA5, np.uint8)
    size = module.cluster_encode(x, out[:room], value_bits)  # type: ignore[attr-defined]
    assert size <= room
    assert (out[room:] == 0xA5).all()
    return out[:size].tobytes()


TENSORS = {
    "m": moments(40_000)[0],
    "v": moments(40_000)[1],
    "every exponent": np.arange(0, 1 << 32, 65_537, dtype=np.uint64).astype(np.uint32).view(np.float32),
    "odd ones": np.resize(np.concatenate((ODD, PAYLOADS)), 5000),
    "groups far apart": np.ldexp(moments(6400)[0], np.repeat(RNG.integers(-70, 120, 100), 64)).astype(np.float32),
    "zeros": np.zeros(1000, np.float32),
    "minus zeros": np.full(1000, -0.0, np.float32),
    "one number": np.full(1000, -3.3, np.float32),
    "mostly zeros": np.where(RNG.random(20_000) < 0.02, moments(20_000)[0], 0).astype(np.float32),
}


def error_of(module: object, x: Floats, y: Floats) -> bytes:
    sums, counts = np.zeros(4), np.zeros(2, np.uint64)
    module.float32_error(x, y, sums, counts)  # type: ignore[attr-defined]
    return sums.tobytes() + counts.tobytes()


def agree(x: Floats, value_bits: int) -> None:
    """Kernel and twin write the same bytes, each reads them, and both measure the same error."""
    ours = coded(native, x, value_bits)
    assert ours == coded(cluster_twin, x, value_bits)
    for module in (native, cluster_twin):
        y = np.zeros_like(x)
        assert module.cluster_decode(ours, y.view(np.uint8))
        kept_promises(x, y, value_bits)
    assert error_of(native, x, y) == error_of(error_twin, x, y)


@pytest.mark.parametrize("what", TENSORS)
def test_kernel_and_twin_write_and_read_the_same_bytes(simd: str, what: str) -> None:
    for n in (1, 7, 8, 9, 63, 64, 65, 128, 1000, TENSORS[what].size):
        agree(TENSORS[what][:n], 8)


@pytest.mark.parametrize("value_bits", [4, 5, 6, 7])
def test_kernel_and_twin_agree_for_any_number_of_bits(value_bits: int) -> None:
    for x in TENSORS.values():
        agree(x[-5000:], value_bits)


def test_what_was_rounded_once_comes_back_exactly_ever_after() -> None:
    m, v = moments(1 << 17)
    for x in (m, v):
        once = decode(encode(x, codec="cluster"))
        again = encode(once, codec="cluster")
        assert np.array_equal(decode(again), once)
        assert frame_info(again).error == FrameError(0.0, 0.0, 0.0, 0.0)


def test_moments_take_a_third_of_their_bytes_at_half_the_error_of_a_16_bit_cast() -> None:
    m, v = moments(1 << 19)
    frames = {level: [encode(x, codec="cluster", level=level) for x in (m, v)] for level in LEVELS}
    assert sum(map(len, frames["normal"])) < 3.05 * m.size
    assert sum(map(len, frames["small"])) < 2.55 * m.size
    for x, frame in zip((m, v), frames["normal"], strict=True):
        bits = x.view(np.uint32)
        cast = ((bits + np.uint32(0x8000)) & np.uint32(0xFFFF0000)).view(np.float32)
        error = frame_info(frame).error
        assert error is not None
        assert error.mean_relative < 0.55 * np.mean(np.abs(cast - x) / np.abs(x))


def test_the_frame_is_the_same_for_any_number_of_threads_and_has_an_error_over_all_tiles() -> None:
    m = np.resize(moments(1 << 16)[0], 3 * TILE_BYTES // 4 - 5)
    m[TILE_BYTES // 4 : TILE_BYTES // 2] = RNG.integers(0, 1 << 23, TILE_BYTES // 4, dtype=np.uint32).view(np.float32)
    frame = encode(m, codec="cluster", threads=1)
    assert frame == encode(m, codec="cluster", threads=3)
    assert frame == encode(m, codec="cluster", base=m)  # of which it makes no use
    info = frame_info(frame)
    assert info.coded_nbytes[1] == TILE_BYTES  # all subnormal: raw
    assert info.error is not None
    y = decode(frame, threads=2)
    last = np.zeros(y.nbytes - 2 * TILE_BYTES, np.uint8)
    decode_tile(info, 2, frame[-info.coded_nbytes[2] :], last)
    assert last.tobytes() == y[TILE_BYTES // 2 :].tobytes()
    check_error(m, y, info.error)
    kept_promises(m, y, 8)


def test_what_gets_no_smaller_is_a_raw_frame_and_lossless() -> None:
    for x in (ODD, RNG.integers(0, 1 << 23, 5000, dtype=np.uint32).view(np.float32), np.zeros(0, np.float32)):
        frame = encode(x, codec="cluster")
        assert frame == encode(x)
        assert frame_info(frame).error is None


@pytest.mark.parametrize("name", [name for name in DTYPES if name != "float32"])
def test_other_dtypes_are_refused_with_what_to_do(name: str) -> None:
    for n in (0, 64):
        with pytest.raises(CallError, match=rf"takes float32, not {name}: convert .* 'planes'"):
            encode(np.zeros(n * DTYPES[name].itemsize, np.uint8), codec="cluster", dtype=name, shape=(n,))


# --- hostile bytes ---------------------------------------------------------------------------------------------------

FRAME_OF = moments(3000)[0]
FRAME = encode(FRAME_OF, codec="cluster")
INFO = frame_info(FRAME)
PAYLOAD = FRAME[INFO.header_nbytes :]


def with_header(payload: bytes, **changes: object) -> bytes:
    fields: dict[str, object] = {
        "codec": "cluster", "dtype": "float32", "shape": INFO.shape, "base": None, "tile_bytes": TILE_BYTES,
        "coded_nbytes": (len(payload),), "tile_digests": INFO.tile_digests, "error": INFO.error,
    }  # fmt: skip
    return render(**(fields | changes)) + payload  # type: ignore[arg-type]


def test_truncations_and_flipped_bits_are_noticed() -> None:
    for cut in (*range(200), *range(200, len(FRAME), 97)):
        with pytest.raises((BlobCorrupt, FormatRefused)):
            decode(FRAME[:cut])
    for bit in range(8 * INFO.header_nbytes):
        damaged = bytearray(FRAME)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises((BlobCorrupt, FormatRefused)):
            decode(damaged)


@pytest.mark.parametrize("twin", [False, True], ids=["native", "twin"])
def test_hostile_tiles_under_a_right_header_never_do_more_than_raise(
    twin: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if twin:
        monkeypatch.setattr("perdure.codec.cluster._decode", cluster_twin.cluster_decode)
    good = decode(FRAME)
    for _ in range(60 if twin else 2000):
        tile = bytearray(PAYLOAD)
        for at in RNG.integers(0, len(tile) if RNG.random() < 0.5 else 40, RNG.integers(1, 5)):
            tile[at] = RNG.integers(0, 256)
        payload = bytes(tile[: RNG.integers(0, len(tile))] if RNG.random() < 0.2 else tile)
        try:
            assert decode(with_header(payload)).tobytes() == good.tobytes()
        except (BlobCorrupt, FormatRefused):
            pass  # noticed


@pytest.mark.parametrize(
    "changes",
    [
        {"error": None},
        {"codec": "planes"},
        {"error": FrameError(-1.0, 0.0, 0.0, 0.0)},
        {"error": FrameError(1.0, 0.1, 0.2, 0.0)},
        {"error": FrameError(1.0, 0.1, 0.1, 1.5)},
        {"error": FrameError(float("nan"), 0.0, 0.0, 0.0)},
        {"error": FrameError(float("inf"), 0.0, 0.0, 0.0)},
        {"error": FrameError(-0.0, 0.0, 0.0, 0.0)},
    ],
)
def test_a_lossy_frame_that_tells_no_possible_error_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(FormatRefused, match="tells its error if its codec is lossy"):
        decode(with_header(PAYLOAD, **changes))


@pytest.mark.parametrize("dtype", ["int32", "float64", "uint8"])
def test_clusters_of_another_dtype_are_refused(dtype: str) -> None:
    shape = (12000 // DTYPES[dtype].itemsize,)
    with pytest.raises(BlobCorrupt, match="no clusters"):
        decode(with_header(PAYLOAD, dtype=dtype, shape=shape))


@pytest.mark.parametrize(
    ("call", "args"),
    [
        ("cluster_encode", (bytes(8), np.zeros(10, np.uint8), 8)),
        ("cluster_encode", (bytes(7), np.zeros(900, np.uint8), 8)),
        ("cluster_encode", (bytes(8), np.zeros(900, np.uint8), 9)),
        ("cluster_encode", (bytes(8), np.zeros(900, np.uint8), 3)),
        ("cluster_decode", (bytes(8), np.zeros(7, np.uint8))),
        ("float32_error", (bytes(8), bytes(12), np.zeros(4), np.zeros(2, np.uint64))),
        ("float32_error", (bytes(6), bytes(6), np.zeros(4), np.zeros(2, np.uint64))),
    ],
)
def test_calls_of_kernels_that_do_not_fit_are_refused(call: str, args: tuple[object, ...]) -> None:
    with pytest.raises(ValueError, match=r"."):
        getattr(native, call)(*args)
