"""Bases are computed with the same bits by all versions of the kernels, whatever the numbers and the thread's mode."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.codec import digest
from perdure.errors import CallError
from perdure.state import predict_twin
from perdure.state.predicting import predict, predict_into
from perdure.state.relations import Of, Previous, Relation, Rounding, SecondMoment, Term, Update

native = pytest.importorskip("perdure._native", reason="the kernels are not built")

Bytes = npt.NDArray[np.uint8]
LEVELS: list[str] = native.simd_levels()
SIZES = (0, 1, 7, 8, 9, 63, 1000, 1024, 1025)
REALS = {4: (np.float32, np.uint32), 8: (np.float64, np.uint64)}
M, V = Of("m"), Of("v")


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    before = native.simd()
    native.use_simd(request.param)
    yield request.param
    native.use_simd(before)


def awkward(width: int, n: int, rng: np.random.Generator) -> Bytes:
    """Floats of every kind: any bits, near the ends of the range, subnormal, ordinary, special."""
    real, word = REALS[width]
    info = np.finfo(real)
    bits = np.frombuffer(rng.bytes(n * width), word)
    scale = rng.choice(
        [1.0, 1e-3, float(info.smallest_normal) * 4, float(info.max) / 4, float(info.smallest_subnormal)], n
    )
    with np.errstate(over="ignore"):
        ordinary = (rng.standard_normal(n) * scale).astype(real).view(word)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, info.max, info.smallest_subnormal], real).view(word)
    kind = rng.integers(0, 4, n)
    mixed = np.where(kind == 0, bits, np.where(kind == 1, rng.choice(special, n), ordinary))
    return np.ascontiguousarray(mixed.astype(word)).view(np.uint8)


factors = st.sampled_from([0.0, 1.0, -1.0, 0.9, 0.05, 5.0, 1e-8, 1e-40, 1e-300, 1e30, math.pi])


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(sorted(REALS)),
    st.sampled_from(SIZES),
    st.integers(0, 1 << 20),
    factors,
    st.lists(st.tuples(factors, factors, st.booleans()), max_size=4),
)
def test_updates_have_the_bits_of_the_twin_on_every_level(
    width: int, n: int, seed: int, keep: float, terms: list[tuple[float, float, bool]]
) -> None:
    rng = np.random.default_rng(seed)
    x = awkward(width, n, rng)
    moments = [awkward(width, n, rng) for _ in terms]
    squares = [awkward(width, n, rng) if square else None for *_, square in terms]
    rest = (x, keep, moments, squares, [by for by, *_ in terms], [eps for _, eps, _ in terms])
    wanted = np.empty(n * width, np.uint8)
    predict_twin.predict_update(*rest, wanted, width)
    assert_on_every_level(lambda out: native.predict_update(*rest, out, width), wanted)
    assert_no_made_up_nan(wanted, x, width)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(REALS)), st.sampled_from(SIZES), st.integers(0, 1 << 20), st.tuples(*[factors] * 4))
def test_second_moments_have_the_bits_of_the_twin_on_every_level(
    width: int, n: int, seed: int, numbers: tuple[float, ...]
) -> None:
    rng = np.random.default_rng(seed)
    square, before, moment = (awkward(width, n, rng) for _ in range(3))
    wanted = np.empty(n * width, np.uint8)
    predict_twin.predict_square(square, before, moment, *numbers, wanted, width)
    assert_on_every_level(lambda out: native.predict_square(square, before, moment, *numbers, out, width), wanted)
    assert_no_made_up_nan(wanted, square, width)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([(4, 0), (4, 1), (8, 0), (8, 1), (8, 2)]), st.sampled_from(SIZES), st.integers(0, 1 << 20))
def test_roundings_have_the_bits_of_the_twin_on_every_level(kind: tuple[int, int], n: int, seed: int) -> None:
    width, to = kind
    x = awkward(width, n, np.random.default_rng(seed))
    wanted = np.empty(n * (4 if to == 2 else 2), np.uint8)
    predict_twin.predict_rounding(x, wanted, width, to)
    assert_on_every_level(lambda out: native.predict_rounding(x, out, width, to), wanted)


def assert_on_every_level(kernel, wanted: Bytes) -> None:  # type: ignore[no-untyped-def]
    before = native.simd()
    try:
        for name in LEVELS:
            native.use_simd(name)
            out = np.full(wanted.size + 8, 0xA5, np.uint8)
            kernel(out[: wanted.size])
            assert out[: wanted.size].tobytes() == wanted.tobytes(), name
            assert (out[wanted.size :] == 0xA5).all()
    finally:
        native.use_simd(before)


def assert_no_made_up_nan(out: Bytes, first: Bytes, width: int) -> None:
    """A NaN comes from the first input, bit for bit, or there is none."""
    real, word = REALS[width]
    none = np.isnan(out.view(real))
    assert (out.view(word)[none] == first.view(word)[none]).all()


EVERY_171ST = np.arange(0, 1 << 32, 171 * 97, dtype=np.uint64).astype(np.uint32)
TIES = (np.arange(0x8000, 1 << 32, 0x10000, dtype=np.uint64)).astype(np.uint32)
HALF_TIES = (np.arange(0x1000, 1 << 32, 0x2000, dtype=np.uint64)).astype(np.uint32)


@pytest.mark.parametrize(("dtype", "theirs"), [("bfloat16", torch.bfloat16), ("float16", torch.float16)])
def test_rounding_is_that_of_torch(level: str, dtype: str, theirs: torch.dtype) -> None:
    bits = np.concatenate([EVERY_171ST, TIES, HALF_TIES])
    ours = predict(Rounding("w"), [bits.view(np.uint8)], dtype=dtype, wide="float32").view(np.uint16)
    wanted = torch.from_numpy(bits.view(np.float32)).to(theirs).view(torch.int16).numpy().view(np.uint16)
    number = ~np.isnan(bits.view(np.float32))
    assert (ours[number] == wanted[number]).all()
    assert np.isnan(torch.from_numpy(ours.view(np.int16)).view(theirs).float().numpy()[~number]).all()


def test_one_step_of_adamw_is_predicted_almost_exactly(level: str) -> None:
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(4096) * 0.02)
    optimizer = torch.optim.AdamW([weight], lr=1e-3, weight_decay=0.1, foreach=True)
    states = []
    for _ in range(3):
        weight.grad = torch.randn(4096) * 0.01
        optimizer.step()
        slot = optimizer.state[weight]
        states.append([t.detach().numpy().copy().view(np.uint8) for t in (weight, slot["exp_avg"], slot["exp_avg_sq"])])
    (w0, m0, v0), (w1, m1, v1) = states[1:]
    second = SecondMoment(M, Of("m", "base"), 0.999, 0.9, 0.001 / 0.1**2)
    found = predict(second, [v0, m0, m1], dtype="float32").view(np.int32) - v1.view(np.int32)
    assert np.abs(found).max() <= 8
    assert (np.abs(found) <= 1).mean() > 0.95
    late = math.sqrt(1 - 0.999**3)
    update = Update(1 - 1e-3 * 0.1, (Term(M, V, 1e-3 / (1 - 0.9**3) * late, 1e-8 * late),))
    predicted = predict(update, [w0, m1, v1], dtype="float32")
    assert np.abs(predicted.view(np.float32) - w1.view(np.float32)).max() < 1e-8  # two units of the largest weights
    assert (predicted.view(np.int32) == w1.view(np.int32)).mean() > 0.9


def test_predictions_are_the_same_bits_for_ever(level: str) -> None:
    """A frame that was written on one machine is read on another: these digests never change."""
    noise = [np.arange(i, 3000 + i, dtype=np.uint32) * np.uint32(2654435761 + 2 * i) for i in range(4)]
    # Both signs, from 2**-30 to 2: a second moment without its sign.
    small = [
        bits & np.uint32(0x807FFFFF) | (bits >> np.uint32(18) & np.uint32(31)) + np.uint32(97) << np.uint32(23)
        for bits in noise
    ]
    small[2] &= np.uint32(0x7FFFFFFF)
    x = [bits.view(np.uint8) for bits in small]
    y = [(bits.view(np.float32) + noise[0] * 2.0**-70).view(np.uint8) for bits in small]  # float64s
    update = Update(0.9999, (Term(M, V, 1e-3, 1e-8), Term(M, None, 0.1)))
    second = SecondMoment(M, M, 0.95, 0.9, 5.0, 0.01)
    digests = [
        digest(predict(update, x, dtype="float32")),
        digest(predict(second, [x[2], x[0], x[1]], dtype="float32")),
        digest(predict(update, y, dtype="float64")),
        digest(predict(second, [y[2], y[0], y[1]], dtype="float64")),
        digest(predict(Rounding("w"), x[:1], dtype="bfloat16", wide="float32")),
        digest(predict(Rounding("w"), x[:1], dtype="float16", wide="float32")),
        digest(predict(Rounding("w"), [noise[0].view(np.uint8)], dtype="float16", wide="float32")),
        digest(predict(Rounding("w"), y[:1], dtype="float32", wide="float64")),
    ]
    assert digests == KNOWN


KNOWN = [
    "1cce8350b51d389f46b2c2d1fd4ff2d8",
    "4b5345168383cdbff6512bc44a8e713c",
    "af94bc7b7ac91c7e8a1d87736c358b23",
    "2f66376fc0c1876d6db60012d5328753",
    "2b7a80e26216a25cd03346166ed9a45a",
    "0e0cf1efa2c53507ce46e6c6ba332d6d",
    "927a618cf2f1fdb290a318bc3b2e5cce",
    "ed425b9030117bb7563cb5d5abcbc7a0",
]


def test_any_slice_is_computed_alone(level: str) -> None:
    rng = np.random.default_rng(3)
    inputs = [awkward(4, 5000, rng) for _ in range(3)]
    update = Update(0.99, (Term(M, V, 0.01, 1e-8),))
    whole = predict(update, inputs, dtype="float32")
    for start, stop in ((0, 4), (12, 4096), (4000, 20000)):
        part = predict(update, [each[start:stop] for each in inputs], dtype="float32")
        assert part.tobytes() == whole[start:stop].tobytes()


def test_a_thread_that_flushes_subnormals_computes_the_same() -> None:
    x = np.full(64, 1e-40, np.float32).view(np.uint8)
    results: list[object] = []

    def work() -> None:
        if not torch.set_flush_denormal(True):
            results.append("this processor cannot flush")
            return
        results.append(predict(Update(1.0), [x], dtype="float32").tobytes())
        try:
            predict_twin.predict_update(x, 1.0, [], [], [], [], np.empty_like(x), 4)
        except CallError as error:
            results.append(str(error))
        results.append(np.float32(1e-40) * np.float32(1) == 0)
        torch.set_flush_denormal(False)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if results == ["this processor cannot flush"]:
        pytest.skip("this processor cannot flush subnormals")
    assert results[0] == x.tobytes()
    assert "flushes subnormal numbers" in str(results[1])
    assert results[2]  # the mode is the thread's own again


@pytest.mark.parametrize(
    ("relation", "sizes", "dtype", "wide"),
    [
        (Update(1.0), [16, 16], "float32", None),
        (Update(1.0, (Term(M, V, 1.0),)), [16, 16], "float32", None),
        (Update(1.0), [16], "bfloat16", None),
        (Update(1.0), [12], "float32", None),
        (SecondMoment(M, M, 1, 1, 1), [16, 16, 12], "float32", None),
        (Rounding("w"), [32], "bfloat16", "bfloat16"),
        (Rounding("w"), [32], "float32", "float32"),
        (Rounding("w"), [32], "bfloat16", None),
        (Rounding("w"), [16], "bfloat16", "float32"),
        (Previous(), [16, 16], "int8", None),
        (Previous(), [15], "int8", None),
    ],
)
def test_inputs_that_do_not_fit_are_refused(relation: Relation, sizes: list[int], dtype: str, wide: str | None) -> None:
    with pytest.raises(CallError):
        predict_into(np.empty(16, np.uint8), relation, [np.zeros(n, np.uint8) for n in sizes], dtype=dtype, wide=wide)


def test_the_kernels_refuse_what_would_read_or_write_elsewhere() -> None:
    a, out = np.zeros(16, np.uint8), np.zeros(16, np.uint8)
    for arguments in (
        (a, 1.0, [a], [], [1.0], [0.0], out, 4),
        (a, 1.0, [a], [None], [], [0.0], out, 4),
        (a, 1.0, [a] * 9, [None] * 9, [1.0] * 9, [0.0] * 9, out, 4),
        (a[:12], 1.0, [], [], [], [], out, 4),
        (a, 1.0, [a[:12]], [None], [1.0], [0.0], out, 4),
        (a, 1.0, [a], [out], [1.0], [0.0], out, 4),
        (a[:15], 1.0, [], [], [], [], out[:15], 4),
        (a, 1.0, [], [], [], [], out, 2),
    ):
        with pytest.raises(ValueError):  # noqa: PT011  # the kernels say what is wrong in as many ways
            native.predict_update(*arguments)
    for wrong in ((a, out, 4, 2), (a, out, 4, 3), (a, out, 2, 0), (a, out, 4, 0), (out, out[:8], 4, 0)):
        with pytest.raises(ValueError):  # noqa: PT011
            native.predict_rounding(*wrong)
    with pytest.raises(ValueError, match="as many elements"):
        native.predict_square(a, a, a[:8], 1.0, 1.0, 1.0, 1.0, out, 4)
