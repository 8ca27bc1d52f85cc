"""The kernels of `planes` without C++: their oracle in the tests, their fallback where they are not built."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from perdure.codec.digest import BytesLike, as_bytes
from perdure.codec.rans_twin import (
    BLOCK,
    CLASSES,
    ESCAPE,
    FIRST,
    LANES,
    RAW_BITS,
    ROUND,
    STATE_BYTES,
    Model,
    Streams,
    class_of,
    n_log_n,
)

__all__ = ["planes_decode", "planes_encode", "planes_room"]

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[Any]

_SAME, _RAW, _CODED = range(3)
_NONE_CHANGED, _TURNED, _DISTANCE, _XORED = range(4)
_NONE, _VALUES, _GROUPS16, _LOGS = 0, 1, 5, 6
_BLOCK_BYTES: Final = 1 << 18
_HEADER_BYTES: Final = 9
_SAMPLES: Final = 64
_LISTED: Final = 15


@dataclass(frozen=True, slots=True)
class _Plan:
    """How the values of a plane become classes."""

    family: int = _NONE
    values: tuple[int, ...] = ()

    def classes(self) -> tuple[Bytes, Bytes, Bytes]:
        """The class of each value, and the first value and the raw bits of each class."""
        of, first, bits = np.full(256, ESCAPE, np.uint8), np.zeros(CLASSES, np.uint8), np.zeros(CLASSES, np.uint8)
        if self.family == _LOGS:
            of, first = class_of.copy(), FIRST.copy()
            bits = np.maximum(RAW_BITS, 1) - np.uint8(1)
        for number, value in enumerate(self.values):
            of[value : value + (1 << self.family - _VALUES)] = number
            first[number], bits[number] = value, self.family - _VALUES
        bits[ESCAPE] = 8
        return of, first, bits

    def cost(self, counts: npt.NDArray[np.int64]) -> int:
        """Bits * 2^16 that a plane with these counts of values takes, without headers."""
        of, _, bits = self.classes()
        held = np.bincount(of, weights=counts, minlength=CLASSES).astype(np.int64)
        entropy = max(n_log_n(int(counts.sum())) - sum(map(n_log_n, held.tolist())), 0)
        return entropy + (int(np.dot(held, bits.astype(np.int64))) << 16)


def planes_room(nbytes: int, width: int) -> int:
    """The bytes that ``out`` needs."""
    n = nbytes // width
    return 1 + width * (2 + _LISTED) + n * width + 2 * width * -(-n // _block_elements(width))


def planes_encode(data: BytesLike, base: BytesLike | None, out: Bytes, width: int, floats: bool) -> int:
    """Encode a tile into ``out``; the bytes written."""
    now = as_bytes(data).view(f"u{width}")
    before = None if base is None else as_bytes(base).view(f"u{width}")
    change, plans = _choose(now, before, width, floats)
    coded = [bytes((change,))]
    for plan in plans:
        listed = bytes((len(plan.values), *plan.values)) if _VALUES <= plan.family <= _GROUPS16 else b""
        coded.append(bytes((plan.family,)) + listed)
    most = _block_elements(width)
    for at in range(0, now.size, most):
        block = slice(at, at + most)
        planes = _split(_changed(now[block], None if before is None else before[block], change, floats))
        coded += [_encode_plane(plan, plane) for plan, plane in zip(plans, planes, strict=True)]
    joined = np.frombuffer(b"".join(coded), np.uint8)
    out[: joined.size] = joined
    return int(joined.size)


def planes_decode(coded: BytesLike, base: BytesLike | None, out: Bytes, width: int, floats: bool) -> bool:
    """Decode a tile into ``out``; whether it was one."""
    data, now = as_bytes(coded).tobytes(), out.view(f"u{width}")
    before = None if base is None else as_bytes(base).view(f"u{width}")
    if not data or data[0] > (_TURNED if before is None else _XORED):
        return False
    at, plans = 1, []
    for _ in range(width):
        plan = _read_plan(data, at)
        if plan is None:
            return False
        plans.append(plan)
        at += 2 + len(plan.values) if _VALUES <= plan.family <= _GROUPS16 else 1
    most = _block_elements(width)
    for start in range(0, now.size, most):
        block = slice(start, start + most)
        words = np.zeros_like(now[block])
        for plan in plans:
            plane = _decode_plane(data, at, plan, words.size)
            if plane is None:
                return False
            words = (words << 8 if width > 1 else 0 * words) | plane[0]
            at = plane[1]
        now[block] = _restored(words, None if before is None else before[block], data[0], floats)
    return at == len(data)


def _block_elements(width: int) -> int:
    return min(BLOCK, _BLOCK_BYTES // width)


def _turned(x: Words) -> Words:
    return x << 1 | x >> 8 * x.itemsize - 1


def _turned_back(x: Words) -> Words:
    return x >> 1 | x << 8 * x.itemsize - 1


def _signs(x: Words) -> Words:
    """All bits of each word its sign."""
    return (x.view(f"i{x.itemsize}") >> 8 * x.itemsize - 1).view(x.dtype)


def _ordered(x: Words, floats: bool) -> Words:
    """In the order of the values, as two's complement; its own inverse."""
    return x ^ (_signs(x) & x.dtype.type(~x.dtype.type(0) >> x.dtype.type(1))) if floats else x


def _changed(now: Words, before: Words | None, change: int, floats: bool) -> Words:
    if change == _TURNED:
        return _turned(now)
    if before is not None and change == _XORED:
        return _turned(now ^ before)
    if before is not None and change == _DISTANCE:
        distance = _ordered(now, floats) - _ordered(before, floats)
        return distance << 1 ^ _signs(distance)
    return now


def _restored(words: Words, before: Words | None, change: int, floats: bool) -> Words:
    if change == _TURNED:
        return _turned_back(words)
    if before is not None and change == _XORED:
        return _turned_back(words) ^ before
    if before is not None and change == _DISTANCE:
        distance = words >> 1 ^ (0 - (words & 1)).astype(words.dtype)
        return _ordered(_ordered(before, floats) + distance, floats)
    return words


def _split(words: Words) -> list[Bytes]:
    """Planes, that of the most significant bytes first."""
    return [(words >> 8 * (words.itemsize - 1 - plane)).astype(np.uint8) for plane in range(words.itemsize)]


def _choose(now: Words, before: Words | None, width: int, floats: bool) -> tuple[int, list[_Plan]]:
    """The change and the plans that take the fewest bits on a sample."""
    groups = -(-now.size // LANES)
    samples = min(groups, _SAMPLES)
    starts = np.arange(samples) * groups // samples * LANES
    at = (starts[:, None] + np.arange(LANES)).ravel()
    at = at[at < now.size]
    best: tuple[int, int, list[_Plan]] | None = None
    for change in (_TURNED if floats else _NONE_CHANGED, _DISTANCE, _XORED):
        if before is None and change in (_DISTANCE, _XORED):
            continue
        planes = _split(_changed(now[at], None if before is None else before[at], change, floats))
        chosen = [_choose_plane(np.bincount(plane, minlength=256)) for plane in planes]
        cost = sum(cost for _, cost in chosen)
        if best is None or cost < best[0]:
            best = (cost, change, [plan for plan, _ in chosen])
    assert best is not None
    return best[1], best[2]


def _choose_plane(counts: npt.NDArray[np.int64]) -> tuple[_Plan, int]:
    best, cost = _Plan(), int(counts.sum()) * 8 << 16
    limit = cost - cost // 64
    offers = []
    for family in range(_VALUES, _GROUPS16 + 1):
        step = 1 << family - _VALUES
        sums = counts.reshape(-1, step).sum(axis=1)
        order = np.argsort(-sums, kind="stable")[:_LISTED]
        offers.append(_Plan(family, tuple(int(i) * step for i in order if sums[i])))
    for plan in (*offers, _Plan(_LOGS)):
        taken = plan.cost(counts)
        if taken < limit and taken < cost:
            best, cost = plan, taken
    return best, cost


def _read_plan(data: bytes, at: int) -> _Plan | None:
    if at >= len(data) or data[at] > _LOGS:
        return None
    family = data[at]
    if not _VALUES <= family <= _GROUPS16:
        return _Plan(family)
    if at + 1 >= len(data) or data[at + 1] > _LISTED or len(data) < at + 2 + data[at + 1]:
        return None
    values = data[at + 2 : at + 2 + data[at + 1]]
    return None if any(value % (1 << family - _VALUES) for value in values) else _Plan(family, tuple(values))


def _encode_plane(plan: _Plan, plane: Bytes) -> bytes:
    if (plane == plane[0]).all():
        return bytes((_SAME, plane[0]))
    if plan.family != _NONE:
        of, first, bits = plan.classes()
        padded = np.pad(plane, (0, -plane.size % ROUND), mode="edge")
        index = of[padded]
        counts = np.bincount(index, minlength=CLASSES).reshape(1, CLASSES)
        model = Model.of_counts(counts, bits)
        if model.cost_bits(counts) // 8 + _HEADER_BYTES + STATE_BYTES < plane.size - plane.size // 128:
            streams = model.encode(index, padded - first[index])
            sizes = np.array((streams.symbols.size, streams.raws.size), "<u4").tobytes()
            parts = (streams.symbols, streams.raws, streams.states)
            coded = bytes((_CODED,)) + sizes + model.tables() + b"".join(part.tobytes() for part in parts)
            if len(coded) < 1 + plane.size:
                return coded
    return bytes((_RAW,)) + plane.tobytes()


def _decode_plane(data: bytes, at: int, plan: _Plan, n: int) -> tuple[Bytes, int] | None:
    """The plane that begins at ``at`` and where the next one begins, or None."""
    mode, at = data[at : at + 1], at + 1
    if mode == bytes((_SAME,)):
        return (np.full(n, data[at], np.uint8), at + 1) if at < len(data) else None
    if mode == bytes((_RAW,)):
        plane = np.frombuffer(data[at : at + n], np.uint8)
        return (plane, at + n) if plane.size == n else None
    if mode != bytes((_CODED,)) or plan.family == _NONE or len(data) - at < _HEADER_BYTES - 1:
        return None
    n_symbols, n_raws = np.frombuffer(data[at : at + 8], "<u4").tolist()
    at += 8
    _, first, bits = plan.classes()
    read = Model.of_tables(data[at : at + 18], 1, bits)
    if read is None or n_symbols > BLOCK or n_raws > BLOCK:
        return None
    model, size = read
    parts = np.frombuffer(data[at + size : at + size + n_symbols + n_raws + STATE_BYTES], np.uint8)
    if parts.size != n_symbols + n_raws + STATE_BYTES:
        return None
    symbols, raws, states = np.split(parts, np.cumsum((n_symbols, n_raws)))
    decoded = model.decode(Streams(symbols, raws, states), np.zeros(n + -n % ROUND, np.uint8))
    if decoded is None:
        return None
    index, raw = decoded
    return (first[index] + raw)[:n], at + size + parts.size
