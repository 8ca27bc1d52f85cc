"""Which blocks may belong together: candidates from samples, by correlation or by equal rounded bits, never by name.

Everything is a product of matrices or a sort over all blocks of a group, so that thousands of blocks with one shape
cost little; what is found here is only tried, not believed. Rows are blocks, columns sampled elements.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from perdure.codec.dtypes import DTYPES
from perdure.state.predicting import predict
from perdure.state.relations import Rounding

__all__ = ["best_matches", "chance", "log_sizes", "rounded_from", "standardised"]

Array = npt.NDArray[np.float32]

_CHUNK_ROWS: Final = 1024
_KEY_BYTES: Final = 8
_MIX: Final = np.uint64(0x9E3779B97F4A7C15)


def standardised(rows: npt.NDArray[Any]) -> Array:
    """Rows with mean 0 and length 1, so that a product of two is their correlation; a constant row becomes zeros."""
    centred = rows - rows.mean(axis=1, keepdims=True)
    peak = np.abs(centred).max(axis=1, keepdims=True)
    centred = centred / np.where(peak > 0, peak, 1)
    length = np.linalg.norm(centred, axis=1, keepdims=True)
    return np.asarray(centred / np.where(length > 0, length, 1), np.float32)


def log_sizes(rows: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """The logarithms of what each element is in size; zeros count as the smallest other of the row."""
    size = np.abs(rows)
    least = np.where(size > 0, size, np.inf).min(axis=1, keepdims=True)
    return np.asarray(np.log2(np.maximum(size, np.where(np.isfinite(least), least, 1))))


def best_matches(wanted: Array, offered: Array, count: int, least: float) -> list[list[int]]:
    """For each row of ``wanted`` up to ``count`` rows of ``offered``, the best first.

    Both are standardised; the correlation is at least ``least`` and counts with its sign.
    """
    if not len(offered):
        return [[] for _ in wanted]
    found: list[list[int]] = []
    for start in range(0, len(wanted), _CHUNK_ROWS):
        alike = wanted[start : start + _CHUNK_ROWS] @ offered.T
        rows = np.arange(len(alike))
        ranked: list[list[int]] = [[] for _ in rows]
        for _ in range(min(count, len(offered))):
            best = alike.argmax(axis=1)
            for row, place, enough in zip(ranked, best.tolist(), (alike[rows, best] >= least).tolist(), strict=True):
                if enough:
                    row.append(place)
            alike[rows, best] = -2
        found += ranked
    return found


def chance(rows: int, columns: int) -> float:
    """The best correlation that one row has with ``rows`` others of noise, about."""
    return math.sqrt(2 * math.log(max(rows, 2)) / columns)


def rounded_from(narrow: npt.NDArray[Any], dtype: str, wide: npt.NDArray[Any], wide_dtype: str) -> list[int | None]:
    """For each row of ``narrow`` (samples of ``dtype``) the row of ``wide`` that it is probably the rounding of.

    Eight bytes of rounded neighbours and their place are a key: a copy that is rounded in any other way
    (stochastically, upwards) still has some keys in common with its master. Keys of equal neighbours say nothing and
    do not count.
    """
    itemsize = DTYPES[dtype].itemsize
    per_key = _KEY_BYTES // itemsize
    columns = narrow.shape[1] // per_key * per_key
    if not columns or not len(wide):
        return [None] * len(narrow)
    flat = np.ascontiguousarray(wide[:, :columns]).view(np.uint8).reshape(-1)
    rounded = predict(Rounding("-"), [flat], dtype=dtype, wide=wide_dtype).view(f"u{itemsize}").reshape(len(wide), -1)
    offered, offered_ok = _keys(rounded, per_key)
    wanted, wanted_ok = _keys(np.ascontiguousarray(narrow[:, :columns]).view(f"u{itemsize}"), per_key)
    owners = np.broadcast_to(np.arange(len(wide))[:, None], offered.shape)[offered_ok]
    if not len(owners):
        return [None] * len(narrow)
    known = offered[offered_ok]
    order = np.argsort(known, kind="stable")
    known, owners = known[order], owners[order]
    at = np.minimum(np.searchsorted(known, wanted), known.size - 1)
    owner = np.where(wanted_ok & (known[at] == wanted), owners[at], -1)
    return [_most_common(row[row >= 0]) for row in owner]


def _keys(words: npt.NDArray[Any], per_key: int) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.bool_]]:
    """A key for each ``per_key`` neighbours of a row, with their place in it; and whether they differ."""
    parts = words.reshape(len(words), -1, per_key)
    places = np.arange(1, parts.shape[1] + 1, dtype=np.uint64) * _MIX
    telling = np.asarray((parts != parts[:, :, :1]).any(axis=2))
    return np.ascontiguousarray(parts).view(np.uint64)[:, :, 0] ^ places, telling


def _most_common(owners: npt.NDArray[np.int64]) -> int | None:
    return None if not owners.size else int(np.bincount(owners).argmax())
