"""Inputs for `bench/codecs.py` that no training made: random, equal, hostile to one codec or another, of every width.

Each is a pure function of a seed. Weights are normal with the deviation that layers start from; a changed element moves
by a few units of the last place, as an optimizer moves it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from codec_cases import Bytes, Case
from perdure.codec import DTYPES

__all__ = ["synthetic"]

DEVIATION = 0.02
FRACTIONS = (0.001, 0.05, 0.54, 0.90)
ROW = 256  # elements of a row of an embedding
OTHERS = ("float8_e4m3fn", "float8_e5m2", "float16", "int8", "int64", "bool", "complex64")


def synthetic(nbytes: int, *, seed: int = 0) -> Iterator[Case]:
    """All of them, of about ``nbytes`` bytes each (a multiple of a row of 512 bytes)."""
    random = np.random.default_rng(seed)
    n = max(1, nbytes // (2 * ROW)) * ROW
    base = weights(random, n)

    def of(name: str, new: npt.NDArray[np.uint16], old: npt.NDArray[np.uint16] = base) -> Case:
        return Case(name, "bfloat16", new.view(np.uint8), old.view(np.uint8))

    noise, other = (random.integers(0, 1 << 16, n, np.uint16) for _ in range(2))
    yield replace(of("random bits", noise, other), alone=True)
    yield of("all equal", base.copy())
    yield of("all changed by 1 ulp", base + np.uint16(1))
    yield of("all signs flipped", base ^ np.uint16(0x8000))
    yield of("half the signs flipped", base ^ (random.integers(0, 2, n, np.uint16) << np.uint16(15)))
    nan = random.integers(0x7F81, 0x8000, n).astype(np.uint16) | (base & np.uint16(0x8000))
    yield of("NaNs, payloads changed", nan, (nan & np.uint16(0xFF80)) | random.integers(1, 0x80, n).astype(np.uint16))
    for fraction in FRACTIONS:
        yield of(f"{100 * fraction:g} % changed", moved(random, base, random.uniform(size=n) < fraction))
    rows = np.repeat(random.uniform(size=n // ROW) < 0.05, ROW)
    yield of(f"5 % of the rows of {ROW} changed", moved(random, base, rows))
    for dtype in OTHERS:
        yield of_dtype(random, dtype, n * 2)


def of_dtype(random: np.random.Generator, dtype: str, nbytes: int) -> Case:
    """Plausible values of ``dtype`` of which a twentieth changed in their lowest bits."""
    width = DTYPES[dtype].itemsize
    old = plausible(random, dtype, nbytes // width)
    elements = old.reshape(-1, width)
    new = elements.copy()
    at = random.uniform(size=len(elements)) < 0.05
    new[at, 0] ^= np.uint8(1) if dtype == "bool" else random.integers(1, 8, at.sum(), np.uint8)
    return Case(f"{dtype}, 5 % changed", dtype, new.reshape(-1), old, alone=True)


def plausible(random: np.random.Generator, dtype: str, n: int) -> Bytes:
    """``n`` elements as they are met: weights, token numbers, rare flags, waves."""
    if dtype == "int8":
        values: npt.NDArray[np.generic] = random.normal(0, 20, n).astype(np.int8)
    elif dtype == "int64":
        values = np.clip(random.zipf(1.3, n), 0, 50_000).astype(np.int64)
    elif dtype == "bool":
        values = random.uniform(size=n) < 0.1
    elif dtype == "complex64":
        values = random.normal(0, DEVIATION, 2 * n).astype(np.float32)
    elif dtype == "float16":
        values = random.normal(0, DEVIATION, n).astype(np.float16)
    else:  # 8-bit floats are scaled to use their range: the top bits of a float16 are an e5m2, near enough to an e4m3
        values = (random.normal(0, 1, n).astype(np.float16).view(np.uint16) >> 8).astype(np.uint8)
    return values.view(np.uint8)


def weights(random: np.random.Generator, n: int) -> npt.NDArray[np.uint16]:
    """Normal bfloat16 weights, as their bits."""
    return (random.normal(0, DEVIATION, n).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def moved(
    random: np.random.Generator, base: npt.NDArray[np.uint16], at: npt.NDArray[np.bool_]
) -> npt.NDArray[np.uint16]:
    """``base`` with the elements ``at`` moved by a few units of the last place: 1 is the likeliest, never 0."""
    steps = random.geometric(0.3, base.size) * random.choice((-1, 1), base.size)
    return np.where(at, base.astype(np.int64) + steps, base).astype(np.uint16)
