"""The entropy coder of `ulp` and `planes` without C++ (theory in `native/rans.h`): the oracle of every version of it.

Lanes are NumPy arrays of 128: the second set of 64 first, because that is the order of the bytes in both streams.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

__all__ = ["BLOCK", "CLASSES", "FIRST", "RAW_BITS", "ROUND", "STATE_BYTES", "Model", "Streams", "class_of", "log2_16"]

Bytes = npt.NDArray[np.uint8]
Counts = npt.NDArray[np.int64]

LANES: Final = 64
ROUND: Final = 2 * LANES
BLOCK: Final = 1 << 17
CLASSES: Final = 16
STATE_BYTES: Final = 2 * ROUND
ESCAPE: Final = 15
FIRST: Final = np.array([0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 0], np.uint8)
RAW_BITS: Final = np.array([0, 1, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 8, 0], np.uint8)
class_of: Final = (np.searchsorted(FIRST[:15], np.arange(256), side="right") - 1).astype(np.uint8)
"""The class of a distance, by its magnitude up to 255."""

_SWAPPED: Final = np.r_[LANES:ROUND, 0:LANES]  # the second set first


def log2_16(n: int) -> int:
    """log2(n) * 2^16, within 0.01, in integers alone so that all writers decide alike.

    >>> log2_16(8) / 2**16
    3.0
    """
    whole = n.bit_length() - 1
    part = (n << 16 >> whole) & 0xFFFF
    return (whole << 16) + part + ((part * (0x10000 - part) >> 16) * 22544 >> 16)


def n_log_n(n: int) -> int:
    """n * log2(n) * 2^16."""
    return n * log2_16(n) if n > 1 else 0


@dataclass(frozen=True, slots=True)
class Streams:
    """The parts of a coded block."""

    symbols: Bytes
    raws: Bytes
    states: Bytes


@dataclass(frozen=True, slots=True)
class Model:
    """Frequencies that sum to 256 in each context, uint8[contexts, 16], and the raw bits of each class."""

    freq: npt.NDArray[np.int64]
    bits: Bytes

    @property
    def start(self) -> npt.NDArray[np.int64]:
        """The first slot of each class."""
        return np.cumsum(self.freq, axis=1) - self.freq

    def cost_bits(self, counts: Counts) -> int:
        """What coding these counts takes, headers and states left out."""
        cost = 0
        for freq, row in zip(self.freq.tolist(), counts.tolist(), strict=True):
            for f, bits, n in zip(freq, self.bits.tolist(), row, strict=True):
                if n:
                    cost += n * ((8 << 16) - log2_16(f) + (bits << 16))
        return cost >> 16

    def tables(self) -> bytes:
        """For each context 16 bits that say which classes occur and a byte for each of those."""
        out = bytearray()
        for row in self.freq:
            out += int(np.dot(row > 0, 1 << np.arange(CLASSES))).to_bytes(2, "little")
            out += row[row > 0].astype(np.uint8).tobytes()
        return bytes(out)

    @staticmethod
    def of_counts(counts: Counts, bits: Bytes) -> Model:
        """The frequencies that every writer derives from ``counts``, int64[contexts, 16]."""
        return Model(np.array([_normalised(row.tolist()) for row in counts], np.int64), bits)

    @staticmethod
    def of_tables(data: bytes, contexts: int, bits: Bytes) -> tuple[Model, int] | None:
        """The model at the beginning of ``data`` and how long it is, or None."""
        freq, at = np.zeros((contexts, CLASSES), np.int64), 0
        for row in freq:
            present = int.from_bytes(data[at : at + 2], "little")
            held = np.frombuffer(data[at + 2 : at + 2 + present.bit_count()], np.uint8)
            if len(data) < at + 2 or held.size < present.bit_count():
                return None
            row[[i for i in range(CLASSES) if present >> i & 1]] = held
            if present and (not held.all() or row.sum() != 256):
                return None
            at += 2 + held.size
        return Model(freq, bits), at

    def encode(self, index: Bytes, raw: Bytes) -> Streams:
        """Encode cells (16 * context + class) and raw bits, both in lane order and whole rounds."""
        freq, start = self.freq.ravel(), self.start.ravel()
        cells = index.reshape(-1, ROUND)[:, _SWAPPED]
        values = raw.reshape(-1, ROUND)[:, _SWAPPED].astype(np.int64)
        shifts = self.bits.astype(np.int64)[cells & 15]
        x = np.full(ROUND, 256, np.int64)
        symbols, raws = [], []
        for row in range(len(cells) - 1, -1, -1):
            full = x >> 8 > 0xFF >> shifts[row]
            raws.append(x[full] & 0xFF)
            x = np.where(full, x >> 8, x) << shifts[row] | values[row]
            f = freq[cells[row]]
            full = x >> 8 >= f
            symbols.append(x[full] & 0xFF)
            x = np.where(full, x >> 8, x)
            x = (x // f << 8) + x % f + start[cells[row]]
        states = np.concatenate([part(x[s]) for s in (slice(LANES, ROUND), slice(LANES)) for part in (_low, _high)])
        return Streams(np.concatenate(symbols).astype(np.uint8), np.concatenate(raws).astype(np.uint8), states)

    def decode(self, streams: Streams, contexts: Bytes) -> tuple[Bytes, Bytes] | None:
        """Cells and raw bits for ``contexts`` (16 * context, lane order, whole rounds), or None."""
        freq, start = self.freq.ravel(), self.start.ravel()
        class_at = np.zeros((len(self.freq), 256), np.int64)
        for context, row in enumerate(self.freq):
            if row.any():
                class_at[context] = np.repeat(np.arange(CLASSES), row)
        states = streams.states.astype(np.int64).reshape(2, 2, LANES)
        x = np.concatenate([states[s, 0] | states[s, 1] << 8 for s in (1, 0)])
        rows = contexts.reshape(-1, ROUND)[:, _SWAPPED].astype(np.int64)
        cells, values = np.empty_like(rows), np.empty_like(rows)
        at = [streams.symbols.size, streams.raws.size]
        for i, context in enumerate(rows):
            cells[i] = context + class_at[context >> 4, x & 0xFF]
            x = freq[cells[i]] * (x >> 8) + (x & 0xFF) - start[cells[i]]
            if not _take(x, streams.symbols, at, 0):
                return None
            shift = self.bits.astype(np.int64)[cells[i] & 15]
            values[i] = x & ((1 << shift) - 1)
            x >>= shift
            if not _take(x, streams.raws, at, 1):
                return None
        if at != [0, 0] or (x != 256).any():
            return None
        back = np.argsort(_SWAPPED)
        return cells[:, back].astype(np.uint8).ravel(), values[:, back].astype(np.uint8).ravel()


def _low(x: npt.NDArray[np.int64]) -> Bytes:
    return (x & 0xFF).astype(np.uint8)


def _high(x: npt.NDArray[np.int64]) -> Bytes:
    return (x >> 8).astype(np.uint8)


def _take(x: npt.NDArray[np.int64], stream: Bytes, at: list[int], which: int) -> bool:
    """Take a byte into each state below 256, from the end of the stream; false if there are not as many."""
    empty = x < 256
    n = int(np.count_nonzero(empty))
    at[which] -= n
    if at[which] < 0:
        return False
    x[empty] = x[empty] << 8 | stream[at[which] : at[which] + n]
    return True


def _normalised(counts: list[int]) -> list[int]:
    total, present = sum(counts), [i for i, n in enumerate(counts) if n]
    freq = [0] * CLASSES
    if len(present) == 1:
        freq[present[0]] = 255
        freq[(present[0] + 1) % CLASSES] = 1
    if len(present) < 2:
        return freq
    for i in present:
        freq[i] = min(max((counts[i] * 256 + total // 2) // total, 1), 255)
    while (step := (sum(freq) < 256) - (sum(freq) > 256)) != 0:
        # Take from, or give to, the one for which it matters least, or most; the first of equals.
        best = -1
        for i in present:
            if freq[i] == (1 if step < 0 else 255):
                continue
            mine = counts[i] * (2 * freq[best] + step)
            theirs = counts[best] * (2 * freq[i] + step)
            if best < 0 or (mine < theirs if step < 0 else mine > theirs):
                best = i
        freq[best] += step
    return freq
