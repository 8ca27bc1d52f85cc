"""Measure cases for `bench/codecs.py`: sizes of whole tensors, and speeds of sides that take turns on warm memory.

Every side must give the bytes back, every frame must keep to its floor (raw + 64 bytes + 0.1 %): both end the run.
A side on one thread is timed by the processor time of the process: on a machine that does other work too, wall time
would count against whoever takes long, which are the peers. Sides on several threads have wall time, as have then the
memcpy and the peers that they are compared with.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from codec_cases import Case, Origin
from codec_sides import Side, of_frames, of_kernel, peers
from perdure import _native
from perdure.codec import decode, encode
from perdure.codec.stage import Level
from perdure.codec.ulp import KINDS

__all__ = ["Sizes", "Speed", "floor_nbytes", "frame_sizes", "measure_sizes", "measure_speeds", "sides_of"]

Seconds = tuple[float, float]  # by each clock
PROCESSOR, WALL = 0, 1
NEVER: Seconds = (float("inf"), float("inf"))
CAST_BYTES = {"float32": 2, "float64": 2}  # of an element, as bfloat16; lossy, and no gain for the others


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many bytes each side needs for one case."""

    case: str
    dtype: str
    elements: int
    raw_nbytes: int
    changed: float | None
    h0_bits: float | None
    nbytes: dict[str, int]
    """by side: frames of perdure under ``mask``, ``ulp``, ``ulp small``, ``planes``, ``planes on base``; peers"""
    apart: tuple[int, float, int] | None = None
    """each tensor in a frame of its own: bytes of `ulp`, bytes of their own order-0 entropies, how many tensors"""
    origin: Origin | None = None

    @property
    def h0_nbytes(self) -> float | None:
        return None if self.h0_bits is None else self.h0_bits * self.elements / 8

    def ratio(self, side: str) -> float | None:
        """Raw bytes over those of ``side``; None if it was not measured."""
        return self.raw_nbytes / self.nbytes[side] if side in self.nbytes and self.raw_nbytes else None


@dataclass(frozen=True, slots=True)
class Speed:
    """What one side took for one case, and a memcpy of the same bytes by the same clock: the best turns."""

    case: str
    dtype: str
    on_base: bool
    side: str
    simd: str
    threads: int
    nbytes: int
    memcpy_s: float
    encode_s: float
    decode_s: float
    origin: Origin | None = None
    peers: dict[str, tuple[float, float]] = field(default_factory=dict)
    """seconds of each peer in the same run, to encode and to decode; they have one thread"""

    def gbs(self, seconds: float) -> float:
        return self.nbytes / seconds / 1e9

    def peer(self) -> str | None:
        """The peer to be compared with: ZipNN for planes where it was measured, else zstd."""
        names = sorted(self.peers, key=lambda name: ("ZipNN" in name) != ("planes" in self.side))
        return names[0] if names else None


def floor_nbytes(raw_nbytes: int) -> int:
    """What no frame of so many raw bytes may exceed."""
    return raw_nbytes + 64 + raw_nbytes // 1000


def frame_sizes(case: Case) -> dict[str, int]:
    """The bytes of a frame of each codec that is made for ``case``; each is decoded and compared."""
    tries: list[tuple[str, str, bool, Level]] = [("planes", "planes", False, "normal")]
    if case.base is not None:
        tries += [("mask", "mask", True, "normal"), ("planes on base", "planes", True, "normal")]
        if case.dtype in KINDS:
            tries += [("ulp", "ulp", True, "normal"), ("ulp small", "ulp", True, "small")]
    found = {}
    for name, codec, on_base, level in tries:
        base = case.base if on_base else None
        frame = encode(case.data, codec=codec, base=base, dtype=case.dtype, shape=(case.elements,), level=level)
        back = decode(frame, base=base).view(np.uint8).reshape(-1)
        if not np.array_equal(back, case.data):
            raise AssertionError(f"{name} of {case.name} does not come back as it was")
        if len(frame) > floor_nbytes(case.data.size):
            raise AssertionError(f"{name} of {case.name}: {len(frame)} bytes for {case.data.size}")
        found[name] = len(frame)
    return found


def measure_sizes(case: Case) -> Sizes:
    """The sizes of all codecs and peers on the untiled tensor, checked."""
    nbytes = {"raw": case.data.size, **frame_sizes(case)}
    if case.dtype in CAST_BYTES or case.dtype == "bfloat16":
        nbytes["bf16 cast"] = case.elements * CAST_BYTES.get(case.dtype, 2)
    for against in (case, replace(case, base=None)) if case.base is not None else (case,):
        for side in peers(against):
            nbytes[side.name] = checked(side, against)
    apart = None
    if len(case.tensors) > 1 and case.h0_bits is not None:
        parts = case.each_tensor()
        entropy = sum((part.h0_bits or 0.0) * part.elements / 8 for part in parts)
        apart = (sum(ulp_nbytes(part) for part in parts), entropy, len(parts))
    return Sizes(
        case.name, case.dtype, case.elements, case.data.size, case.changed, case.h0_bits, nbytes, apart, case.origin
    )


def ulp_nbytes(case: Case) -> int:
    return len(encode(case.data, codec="ulp", base=case.base, dtype=case.dtype, shape=(case.elements,)))


def checked(side: Side, case: Case) -> int:
    """The coded bytes of ``side``, which must give ``case`` back."""
    side.prepare()
    coded = side.encode()
    if not np.array_equal(np.asarray(side.decode(coded)), case.data):
        raise AssertionError(f"{side.name} of {case.name} does not come back as it was")
    return sum(len(part) for part in coded)


def sides_of(case: Case, *, levels: Sequence[str], threads: Sequence[int]) -> list[Side]:
    """The kernels that fit ``case`` at each level, the frame of the codec that is meant for it, and the peers."""
    distances = case.base is not None and case.dtype in KINDS
    kernels = [("ulp", False), ("ulp", True)] if distances else []
    kernels += [("planes", False)] if case.base is None else [("mask", False), ("planes", False)]
    made = [of_kernel(codec, case, simd=level, small=small) for level in levels for codec, small in kernels]
    meant = "ulp" if distances else "planes"
    return [*made, *(of_frames(meant, case, simd=levels[0], threads=count) for count in threads), *peers(case)]


def measure_speeds(case: Case, sides: Sequence[Side], *, rounds: int) -> list[Speed]:
    """The best of ``rounds`` turns of each side and of memcpy, interleaved, after one turn that only checks."""
    copy = np.zeros_like(case.data)
    coded = {}
    for number, side in enumerate(sides):
        side.prepare()
        coded[number] = side.encode()
        if not np.array_equal(np.asarray(side.decode(coded[number])), case.data):
            raise AssertionError(f"{side.name} ({side.simd}) of {case.name} does not come back as it was")
    memcpy, best = NEVER, [(NEVER, NEVER)] * len(sides)
    for _ in range(rounds):
        memcpy = least(memcpy, took(lambda: np.copyto(copy, case.data)))
        for number, side in enumerate(sides):
            side.prepare()
            forth = took(side.encode)
            back = took(lambda side=side, number=number: side.decode(coded[number]))  # type: ignore[misc]
            best[number] = (least(best[number][0], forth), least(best[number][1], back))
    _native.use_simd(_native.simd_levels()[-1])
    made = []
    for side, (forth, back) in zip(sides, best, strict=True):
        clock = PROCESSOR if side.threads == 1 else WALL
        others = {other.name: (f[clock], b[clock]) for other, (f, b) in zip(sides, best, strict=True) if not other.simd}
        made.append(
            Speed(case.name, case.dtype, case.base is not None, side.name, side.simd, side.threads, case.data.size,
                  memcpy[clock], forth[clock], back[clock], case.origin, others if side.simd else {})
        )  # fmt: skip
    return made


def took(work: Callable[[], object]) -> Seconds:
    """The seconds of ``work`` by each clock."""
    wall, processor = time.perf_counter(), time.process_time()
    work()
    return time.process_time() - processor, time.perf_counter() - wall


def least(a: Seconds, b: Seconds) -> Seconds:
    return min(a[0], b[0]), min(a[1], b[1])
