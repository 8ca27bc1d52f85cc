"""The kernels of `ulp` without C++: their oracle in the tests, their fallback where they are not built."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from perdure.codec.digest import BytesLike, as_bytes
from perdure.codec.planes_twin import planes_decode, planes_encode, planes_room
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
from perdure.codec.twin import digest_pair

__all__ = ["ulp_decode", "ulp_encode", "ulp_room"]

Bytes = npt.NDArray[np.uint8]
Elements = npt.NDArray[np.signedinteger[Any]]

_SAME, _RAW, _CODED = range(3)
_WIDTH: Final = (2, 2, 1)
_SHIFT: Final = (7, 9, 1)
_HEADER_BYTES: Final = 13
_SAMPLES: Final = 128
_MIN_SHARE: Final = 1024
_LARGE: Final = 91
_MAX_CONTEXTS: Final = 8
_CONTEXT_BITS: Final = 18 * 8
_TOGETHER: Final = 0x80
_FOOTER_BYTES: Final = 8
_TOGETHER_SHARE: Final = 128
_TOGETHER_LEAST: Final = 1024
_LANE_OF: Final = np.array([(j & 31) << 1 | j >> 5 for j in range(LANES)])  # of each element of a group
_ELEMENT_OF: Final = np.argsort(_LANE_OF)


def ulp_room(nbytes: int, kind: int) -> int:
    """The bytes that ``out`` needs."""
    n = nbytes // _WIDTH[kind]
    literals = planes_room(nbytes, 2) - nbytes + _FOOTER_BYTES if _WIDTH[kind] == 2 else 0
    return 1 + _MAX_CONTEXTS + n * _WIDTH[kind] + -(-n // BLOCK) + literals


def ulp_encode(
    data: BytesLike,
    base: BytesLike,
    out: Bytes,
    kind: int,
    contexts: int,
    most: int = 0,
    digests: Bytes | None = None,
) -> int:
    """Encode a tile into ``out``; the bytes written."""
    digest_pair(data, base, digests)
    now, before = _elements(as_bytes(data), kind), _elements(as_bytes(base), kind)
    first, begins, many = _choose(now, before, kind, contexts, max(contexts, most))
    together = bytearray() if many and _WIDTH[kind] == 2 else None
    blocks = [slice(at, at + BLOCK) for at in range(0, now.size, BLOCK)]
    coded = [_encode_block(now[block], before[block], kind, first, begins, together) for block in blocks]
    flag = _TOGETHER if together else 0
    parts = [bytes((flag | 1 + len(begins), first, *begins)), *coded]
    if together:
        literals = np.frombuffer(together, np.uint8)
        tile = np.empty(planes_room(literals.size, 2), np.uint8)
        size = planes_encode(literals, None, tile, 2, True)
        parts += [tile[:size].tobytes(), np.array((literals.size // 2, size), "<u4").tobytes()]
    joined = np.frombuffer(b"".join(parts), np.uint8)
    out[: joined.size] = joined
    return int(joined.size)


def ulp_decode(coded: BytesLike, base: BytesLike, out: Bytes, kind: int, digests: Bytes | None = None) -> bool:
    """Decode a tile into ``out``; whether it was one."""
    data, before = as_bytes(coded).tobytes(), _elements(as_bytes(base), kind)
    now = _elements(out, kind)
    if len(data) < 2:
        return False
    contexts = data[0] & ~_TOGETHER
    if not 1 <= contexts <= _MAX_CONTEXTS or len(data) < 1 + contexts:
        return False
    together: list[bytes] | None = None
    if data[0] & _TOGETHER:
        read = _read_literals(data[1 + contexts :], now.size) if _WIDTH[kind] == 2 else None
        if read is None:
            return False
        literals, tail = read
        data, together = data[: len(data) - tail], [literals]
    first, begins = data[1], list(data[2 : 1 + contexts])
    if first > (192 if kind == 0 else 0) or begins != sorted({*begins}) or not all(1 <= bin <= 63 for bin in begins):
        return False
    at = 2 + len(begins)
    for start in range(0, now.size, BLOCK):
        block = slice(start, start + BLOCK)
        end = _decode_block(data, at, before[block], now[block], kind, first, begins, together)
        if end is None:
            return False
        at = end
    whole = at == len(data) and not (together and together[0])
    if whole:
        digest_pair(out, base, digests)
    return whole


def _read_literals(data: bytes, most: int) -> tuple[bytes, int] | None:
    """The literals whose tile ends ``data``, and how many bytes of it that was, or None."""
    if len(data) < _FOOTER_BYTES:
        return None
    count, size = np.frombuffer(data[-_FOOTER_BYTES:], "<u4").tolist()
    if not 1 <= count <= most or size > len(data) - _FOOTER_BYTES:
        return None
    literals = np.empty(2 * count, np.uint8)
    tile = np.frombuffer(data[len(data) - _FOOTER_BYTES - size : len(data) - _FOOTER_BYTES], np.uint8)
    if not planes_decode(tile, None, literals, 2, True):
        return None
    return literals.tobytes(), size + _FOOTER_BYTES


def _elements(data: Bytes, kind: int) -> Elements:
    return data.view(np.int16) if _WIDTH[kind] == 2 else data.view(np.int8)


def _ordered(bits: Elements) -> Elements:
    """Integers in the order of the floats, as int16; its own inverse. -0 is -1."""
    magnitude = 0x7F if bits.dtype == np.int8 else 0x7FFF
    wide = bits.astype(np.int16)
    return np.where(wide < 0, wide ^ magnitude, wide).astype(np.int16)


def _bins(before: Elements, kind: int) -> npt.NDArray[np.int64]:
    return (before.astype(np.int64) & (0x7F if _WIDTH[kind] == 1 else 0x7FFF)) >> _SHIFT[kind]


def _contexts(before: Elements, kind: int, first: int, begins: list[int]) -> npt.NDArray[np.int64]:
    bins = np.clip(_bins(before, kind) - first, 0, 63)
    return np.searchsorted(np.array(begins, np.int64), bins, side="right")


def _distances(now: Elements, before: Elements) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Signed distances, and their classes."""
    distance = (_ordered(now) - _ordered(before)).astype(np.int64)
    magnitude = np.abs(distance)
    return distance, np.where(magnitude > 255, ESCAPE, class_of[np.minimum(magnitude, 255)]).astype(np.int64)


def _choose(now: Elements, before: Elements, kind: int, contexts: int, most: int) -> tuple[int, list[int], bool]:
    """The first bin, and the bins at which contexts begin, so that a sample takes the fewest bits; and whether
    literals are so many that they are worth coding.

    More than ``contexts`` are tried only while the sample takes much of what one context takes.
    """
    groups = now.size // LANES
    samples = min(groups, _SAMPLES)
    if samples == 0:
        return 0, [], False
    starts = np.arange(samples) * groups // samples * LANES
    at = (starts[:, None] + np.arange(LANES)).ravel()
    _, classes = _distances(now[at], before[at])
    seen = np.zeros((256, CLASSES), np.int64)
    np.add.at(seen, (_bins(before[at], kind), classes), 1)
    highest = int(np.flatnonzero(seen.any(axis=1))[-1])
    first = max(highest - 63, 0)
    escapes, sampled = int(seen[:, ESCAPE].sum()), samples * LANES
    many = escapes * _TOGETHER_SHARE >= sampled and escapes * now.size >= _TOGETHER_LEAST * sampled
    if most < 2:
        return first, [], many

    enough = max(samples * LANES // _MIN_SHARE, 1)
    sums, run_ends = [np.zeros(CLASSES, np.int64)], [0]
    open_ = np.zeros(CLASSES, np.int64)
    for bin_ in range(256):
        open_ = open_ + seen[bin_]
        if (open_.sum() < enough or bin_ < first) and bin_ != 255:
            continue
        sums.append(sums[-1] + open_)
        run_ends.append(min(63, bin_ + 1 - first))
        open_ = np.zeros(CLASSES, np.int64)
    runs = len(run_ends) - 1
    cost = {}
    for a in range(runs):
        for b in range(a + 1, runs + 1):
            held = (sums[b] - sums[a]).tolist()
            cost[a, b] = max(n_log_n(sum(held)) - sum(map(n_log_n, held)), 0)
    each = (_CONTEXT_BITS * -(-now.size // BLOCK) * samples * LANES << 16) // now.size
    best = [{b: (cost[0, b], 0) for b in range(1, runs + 1)}]
    rest = sum(8 * _WIDTH[kind] if c == ESCAPE else int(RAW_BITS[c]) for c in classes.ravel().tolist()) << 16
    fewest, used = cost[0, runs] + each, 1
    for c in range(1, min(most, runs)):
        if c >= contexts and 100 * (fewest + rest) <= _LARGE * (cost[0, runs] + rest):
            break
        best.append({b: min((best[-1][m][0] + cost[m, b], m) for m in range(c, b)) for b in range(c + 1, runs + 1)})
        fewest, used = min((fewest, used), (best[c][runs][0] + each * (c + 1), c + 1))
    begins, to = [], runs
    for c in range(used - 1, 0, -1):
        to = best[c][to][1]
        begins.append(run_ends[to])
    return first, begins[::-1], many


def _encode_block(
    now: Elements, before: Elements, kind: int, first: int, begins: list[int], together: bytearray | None
) -> bytes:
    """A block; its literals go to ``together`` if there is one."""
    if np.array_equal(now, before):
        return bytes((_SAME,))
    pad = -now.size % ROUND
    padded_now, padded_before = np.pad(now, (0, pad)), np.pad(before, (0, pad))
    distance, classes = _distances(padded_now, padded_before)
    rest = np.abs(distance) - FIRST[classes]
    raw = np.where(classes == ESCAPE, 0, rest << 1 | (distance < 0))
    cells = 16 * _contexts(padded_before, kind, first, begins) + classes
    literals = padded_now[classes == ESCAPE].tobytes()
    counts = np.bincount(cells, minlength=CLASSES * (1 + len(begins))).reshape(-1, CLASSES)
    model = Model.of_counts(counts, RAW_BITS)
    if model.cost_bits(counts) // 8 + len(literals) + _HEADER_BYTES + STATE_BYTES < now.nbytes:
        streams = model.encode(_to_lanes(cells), _to_lanes(raw))
        sizes = (streams.symbols.size, streams.raws.size, len(literals) // 2)
        coded = b"".join(
            (
                bytes((_CODED,)),
                np.array(sizes, "<u4").tobytes(),
                model.tables(),
                streams.symbols.tobytes(),
                streams.raws.tobytes(),
                literals if together is None else b"",
                streams.states.tobytes(),
            )
        )
        if len(coded) + (0 if together is None else len(literals)) < 1 + now.nbytes:
            if together is not None:
                together += literals
            return coded
    return bytes((_RAW,)) + now.tobytes()


def _decode_block(
    data: bytes,
    at: int,
    before: Elements,
    now: Elements,
    kind: int,
    first: int,
    begins: list[int],
    together: list[bytes] | None,
) -> int | None:
    """Decode the block that begins at ``at``; where the next one begins, or None.

    Literals are taken from the front of the one item of ``together`` if there is such a list.
    """
    mode, at = data[at : at + 1], at + 1
    if mode == bytes((_SAME,)):
        now[:] = before
        return at
    if mode == bytes((_RAW,)):
        if len(data) - at < now.nbytes:
            return None
        now[:] = np.frombuffer(data[at : at + now.nbytes], now.dtype)
        return at + now.nbytes
    if mode != bytes((_CODED,)) or len(data) - at < _HEADER_BYTES - 1:
        return None
    n_symbols, n_raws, n_literals = np.frombuffer(data[at : at + 12], "<u4").tolist()
    at += 12
    read = Model.of_tables(data[at : at + 18 * _MAX_CONTEXTS], 1 + len(begins), RAW_BITS)
    if read is None or n_symbols > BLOCK or n_raws > BLOCK or n_literals > (now.size if _WIDTH[kind] == 2 else 0):
        return None
    model, size = read
    at += size
    inside = 2 * n_literals if together is None else 0
    parts = np.frombuffer(data[at : at + n_symbols + n_raws + inside + STATE_BYTES], np.uint8)
    if parts.size != n_symbols + n_raws + inside + STATE_BYTES:
        return None
    symbols, raws, literals, states = np.split(parts, np.cumsum((n_symbols, n_raws, inside)))
    if together is not None:
        if 2 * n_literals > len(together[0]):
            return None
        literals, together[0] = np.frombuffer(together[0][: 2 * n_literals], np.uint8), together[0][2 * n_literals :]
    padded = np.pad(before, (0, -before.size % ROUND))
    contexts = (16 * _contexts(padded, kind, first, begins)).astype(np.uint8)
    decoded = model.decode(Streams(symbols, raws, states), _to_lanes(contexts))
    if decoded is None:
        return None
    cells, raw = map(_from_lanes, decoded)
    escaped = (cells & 15) == ESCAPE
    if np.count_nonzero(escaped) != n_literals or escaped[now.size :].any():
        return None
    magnitude = FIRST[cells & 15].astype(np.int64) + (raw >> 1)
    after = (_ordered(padded) + np.where(raw & 1, -magnitude, magnitude)).astype(np.int16)
    values = _ordered(after.astype(now.dtype))[: now.size].astype(now.dtype)
    if n_literals:
        values[escaped[: now.size]] = np.frombuffer(literals.tobytes(), now.dtype)
    now[:] = values
    return at + parts.size


def _to_lanes(elements: npt.NDArray[np.int64] | Bytes) -> Bytes:
    return elements.astype(np.uint8).reshape(-1, LANES)[:, _ELEMENT_OF].ravel()


def _from_lanes(lanes: Bytes) -> Bytes:
    return lanes.reshape(-1, LANES)[:, _LANE_OF].ravel()
