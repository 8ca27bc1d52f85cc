"""The kernels of `planes` without C++: their oracle in the tests, their fallback where they are not built."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from perdure.codec.digest import BytesLike, as_bytes
from perdure.codec.rans_twin import (
    BLOCK,
    CLASSES,
    ESCAPE,
    LANES,
    ROUND,
    STATE_BYTES,
    Model,
    Streams,
    n_log_n,
)

__all__ = ["planes_decode", "planes_encode", "planes_room"]

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[Any]

_SAME, _RAW, _CODED = range(3)
_NONE_CHANGED, _TURNED, _DISTANCE, _XORED = range(4)
_LEAST_LOG2, _MOST_LOG2 = 15, 17  # of the elements of a block
_HEADER_BYTES: Final = 13
_SAMPLES: Final = 64
_MOST_RANGES: Final = 15


@dataclass(frozen=True, slots=True)
class _Plan:
    """How the values of a plane become classes: ranges of 2^bits values, as (first, bits); none if it is not coded."""

    ranges: tuple[tuple[int, int], ...] = ()

    def classes(self) -> tuple[Bytes, Bytes, Bytes]:
        """The class of each value, and the first value and the raw bits of each class."""
        of, first, bits = np.full(256, ESCAPE, np.uint8), np.zeros(CLASSES, np.uint8), np.zeros(CLASSES, np.uint8)
        for number, (value, size) in enumerate(self.ranges):
            of[value : value + (1 << size)] = number
            first[number], bits[number] = value, size
        return of, first, bits


def planes_room(nbytes: int, width: int) -> int:
    """The bytes that ``out`` needs."""
    n = nbytes // width
    return 2 + width * (1 + 2 * _MOST_RANGES) + n * width + 2 * width * ((n >> _LEAST_LOG2) + 1)


def planes_encode(data: BytesLike, base: BytesLike | None, out: Bytes, width: int, floats: bool) -> int:
    """Encode a tile into ``out``; the bytes written."""
    now = as_bytes(data).view(f"u{width}")
    before = None if base is None else as_bytes(base).view(f"u{width}")
    change, plans = _choose(now, before, width, floats)
    log2 = _block_log2(plans)
    coded = [bytes((change, log2))]
    coded += [bytes((len(plan.ranges), *(number for range_ in plan.ranges for number in range_))) for plan in plans]
    most = 1 << log2
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
    if len(data) < 2 or data[0] > (_TURNED if before is None else _XORED):
        return False
    if not _LEAST_LOG2 <= data[1] <= _MOST_LOG2 - (width == 8):
        return False
    at, plans = 2, []
    for _ in range(width):
        plan = _read_plan(data, at)
        if plan is None:
            return False
        plans.append(plan)
        at += 1 + 2 * len(plan.ranges)
    most = 1 << data[1]
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


def _block_log2(plans: list[_Plan]) -> int:
    """Small blocks where mantissas are not noise; there is one plan a byte of an element."""
    if len(plans) >= 4 and sum(bool(plan.ranges) for plan in plans) >= 3:
        return _LEAST_LOG2
    return _MOST_LOG2 - (len(plans) == 8)


def _turned(x: Words) -> Words:
    """The sign below the next 8 bits."""
    if x.itemsize == 1:
        return x << 1 | x >> 7
    bits = 8 * x.itemsize
    low = x.dtype.type((1 << bits - 8) - 1)
    turned: Words = x << 1 & ~low | x >> bits - 1 << bits - 9 | x & (low >> x.dtype.type(1))
    return turned


def _turned_back(y: Words) -> Words:
    if y.itemsize == 1:
        return y >> 1 | y << 7
    bits = 8 * y.itemsize
    low = y.dtype.type((1 << bits - 8) - 1)
    back: Words = y << 8 & y.dtype.type(1 << bits - 1) | (y & ~low) >> 1 | y & (low >> y.dtype.type(1))
    return back


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
    """The ranges in which a plane with these counts takes the fewest bits, and how many (* 2^16).

    Ranges are nodes of a binary tree over the 256 values (`native/planes.cpp` tells more).
    """
    total, held = int(counts.sum()), counts.tolist()
    cost = total * 8 << 16
    limit = cost - cost // 256
    entropy = max(n_log_n(total) - sum(map(n_log_n, held)), 0) + 47186 * int(np.count_nonzero(counts))
    if entropy >= limit:
        return _Plan(), cost
    nodes = [0] * 256 + held
    best: list[dict[int, tuple[int, int | None]]] = [{} for _ in range(512)]  # ranges -> cost, those of the left half
    for node in range(511, 0, -1):
        if node < 256:
            nodes[node] = nodes[2 * node] + nodes[2 * node + 1]
        if not nodes[node]:
            continue
        best[node][1] = ((nodes[node] * (9 - node.bit_length()) << 16) - n_log_n(nodes[node]), None)
        if node >= 256:
            continue
        for i, (left, _) in (best[2 * node] or {0: (0, None)}).items():
            for j, (right, _) in (best[2 * node + 1] or {0: (0, None)}).items():
                known = best[node].get(i + j)
                if i + j <= _MOST_RANGES and (known is None or left + right < known[0]):
                    best[node][i + j] = (left + right, i)
    _, number = min((taken, k) for k, (taken, _) in best[1].items())
    taken = best[1][number][0] + n_log_n(total)
    return (_Plan(tuple(_ranges(best, 1, number))), taken) if taken < limit else (_Plan(), cost)


def _ranges(best: list[dict[int, tuple[int, int | None]]], node: int, number: int) -> Iterator[tuple[int, int]]:
    left = best[node][number][1]
    if left is None:
        level = 9 - node.bit_length()
        yield (node << level) - 256, level
        return
    if left:
        yield from _ranges(best, 2 * node, left)
    if number > left:
        yield from _ranges(best, 2 * node + 1, number - left)


def _read_plan(data: bytes, at: int) -> _Plan | None:
    if at >= len(data) or data[at] > _MOST_RANGES or len(data) < at + 1 + 2 * data[at]:
        return None
    held = data[at + 1 : at + 1 + 2 * data[at]]
    ranges = tuple(zip(held[::2], held[1::2], strict=True))
    return None if any(bits > 8 or first % (1 << bits) for first, bits in ranges) else _Plan(ranges)


def _encode_plane(plan: _Plan, plane: Bytes) -> bytes:
    if (plane == plane[0]).all():
        return bytes((_SAME, plane[0]))
    if plan.ranges:
        of, first, bits = plan.classes()
        padded = np.pad(plane, (0, -plane.size % ROUND), constant_values=first[0])
        index = of[padded]
        literals = padded[index == ESCAPE]
        counts = np.bincount(index, minlength=CLASSES).reshape(1, CLASSES)
        model = Model.of_counts(counts, bits)
        if model.cost_bits(counts) // 8 + literals.size + _HEADER_BYTES + STATE_BYTES < plane.size - plane.size // 128:
            streams = model.encode(index, np.where(index == ESCAPE, np.uint8(0), padded - first[index]))
            parts = (streams.symbols, streams.raws, literals, streams.states)
            sizes = np.array([part.size for part in parts[:3]], "<u4").tobytes()
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
    if mode != bytes((_CODED,)) or not plan.ranges or len(data) - at < _HEADER_BYTES - 1:
        return None
    n_symbols, n_raws, n_literals = np.frombuffer(data[at : at + 12], "<u4").tolist()
    at += 12
    _, first, bits = plan.classes()
    read = Model.of_tables(data[at : at + 18], 1, bits)
    if read is None or max(n_symbols, n_raws, n_literals) > BLOCK:
        return None
    model, size = read
    parts_bytes = n_symbols + n_raws + n_literals + STATE_BYTES
    parts = np.frombuffer(data[at + size : at + size + parts_bytes], np.uint8)
    if parts.size != parts_bytes:
        return None
    symbols, raws, literals, states = np.split(parts, np.cumsum((n_symbols, n_raws, n_literals)))
    decoded = model.decode(Streams(symbols, raws, states), np.zeros(n + -n % ROUND, np.uint8))
    if decoded is None:
        return None
    index, raw = decoded
    values = first[index] + raw
    if np.count_nonzero(index == ESCAPE) != n_literals:
        return None
    values[index == ESCAPE] = literals
    return values[:n], at + size + parts.size
