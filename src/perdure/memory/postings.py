"""Where each term stands: segments of postings in SQLite, packed so that NumPy reads them without a copy.

Theory. A segment covers at most 65,536 units that follow one another, and has one row for each of its terms: the
units (2 bytes each, counted from the segment's first), then how often the term stands in each (1 byte). What is newer
than the last segment is the *tail*: rows that are read into memory whole, at most `TAIL` of them. A full tail becomes a
segment, and eight small segments become one, so that a search reads a handful of rows for each term, and telling one
more thing costs the writing of one row (a log-structured merge, O'Neil 1996).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from perdure.memory.sqlite_files import File

__all__ = ["SPAN", "TAIL", "Postings", "Tail", "find", "merge_due", "pack", "rewrite", "seal", "unpack"]

SPAN: Final = 65_536
TAIL: Final = 1024
_FAN: Final = 8

Postings = tuple[NDArray[np.int32], NDArray[np.float32]]
"""Units, rising, and how often the term stands in each."""


def pack(units: Sequence[int] | NDArray[np.int32], counts: Sequence[int] | NDArray[np.float32]) -> bytes:
    """Units of a segment (0 to 65,535) and their counts as bytes."""
    return bytes(np.asarray(units, "<u2").tobytes() + np.minimum(np.asarray(counts), 255).astype("u1").tobytes())


def unpack(data: bytes) -> tuple[NDArray[np.uint16], NDArray[np.uint8]]:
    """The inverse of `pack`."""
    n = len(data) // 3
    return np.frombuffer(data, "<u2", n), np.frombuffer(data, "u1", n, 2 * n)


class Tail:
    """The postings of the newest units, in memory."""

    def __init__(self) -> None:
        self.by_term: dict[str, list[tuple[int, int]]] = {}

    def add(self, unit: int, found: Iterable[str]) -> None:
        """Take in the terms of one unit."""
        counts: dict[str, int] = {}
        for term in found:
            counts[term] = counts.get(term, 0) + 1
        for term, count in counts.items():
            self.by_term.setdefault(term, []).append((unit, count))


def find(db: File, segments: Sequence[int], tail: Tail, terms: Sequence[str], *, n: int) -> dict[str, Postings]:
    """The postings of ``terms`` among the first ``n`` units; a term that stands nowhere is left out."""
    parts: dict[str, list[tuple[NDArray[np.int32], NDArray[np.uint8]]]] = {}
    if segments:
        sql = (
            f"SELECT segment, term, data FROM posting WHERE segment IN ({','.join('?' * len(segments))})"
            f" AND term IN ({','.join('?' * len(terms))}) ORDER BY segment"
        )
        for segment, term, data in db.execute(sql, (*segments, *terms)).fetchall():
            units, counts = unpack(data)
            parts.setdefault(term, []).append((units.astype(np.int32) + np.int32(segment), counts))
    for term in terms:
        newest = [each for each in tail.by_term.get(term, ()) if each[0] < n]
        if newest:
            pairs = np.array(newest, np.int32)
            parts.setdefault(term, []).append((pairs[:, 0], np.minimum(pairs[:, 1], 255).astype(np.uint8)))
    return {
        term: (
            (some[0][0], some[0][1].astype(np.float32))
            if len(some) == 1
            else (
                np.concatenate([each[0] for each in some]),
                np.concatenate([each[1] for each in some], dtype=np.float32),
            )
        )
        for term, some in parts.items()
    }


def seal(db: File, first: int, tail: Mapping[str, Sequence[tuple[int, int]]]) -> None:
    """Write the postings of a tail as the segment that begins at unit ``first``."""
    db.executemany(
        "INSERT INTO posting(segment, term, data) VALUES (?, ?, ?)",
        (
            (first, term, pack([unit - first for unit, _ in tail[term]], [min(count, 255) for _, count in tail[term]]))
            for term in sorted(tail)
        ),
    )


def merge_due(sizes: Sequence[int]) -> int:
    """How many of the last segments are to become one, from the units in each; 0 for none.

    >>> merge_due([65_536] + [1024] * 7), merge_due([1024] * 8), merge_due([8192] * 8 + [1024])
    (0, 8, 0)
    """
    for level in (_FAN * TAIL, SPAN):
        run = 0
        for size in reversed(sizes):
            if size >= level:
                break
            run += 1
        some = 0
        while some < run and sum(sizes[len(sizes) - some - 1 :]) <= SPAN:
            some += 1
        if run >= _FAN and some > 1 and all(size >= level // _FAN // 2 for size in sizes[len(sizes) - some :]):
            return some
    return 0


def merge(db: File, segments: Sequence[int]) -> None:
    """Make one segment of some that follow one another."""
    first = segments[0]
    parts: dict[str, list[tuple[NDArray[np.int32], NDArray[np.uint8]]]] = {}
    for segment in segments:
        for term, data in db.execute("SELECT term, data FROM posting WHERE segment = ?", (segment,)).fetchall():
            units, counts = unpack(data)
            parts.setdefault(term, []).append((units.astype(np.int32) + (segment - first), counts))
        db.execute("DELETE FROM posting WHERE segment = ?", (segment,))
    db.executemany(
        "INSERT INTO posting(segment, term, data) VALUES (?, ?, ?)",
        (
            (
                first,
                term,
                pack(np.concatenate([p[0] for p in parts[term]]), np.concatenate([p[1] for p in parts[term]])),
            )
            for term in sorted(parts)
        ),
    )


def rewrite(db: File, segment: int, anew: Mapping[int, Sequence[str]]) -> None:
    """Let the units ``anew`` of a segment have these terms and no others."""
    gone = np.array(sorted(unit - segment for unit in anew), np.uint16)
    fresh = Tail()
    for unit, found in sorted(anew.items()):
        fresh.add(unit - segment, found)
    changed: list[tuple[bytes, int, str]] = []
    empty: list[tuple[int, str]] = []
    for term, data in db.execute("SELECT term, data FROM posting WHERE segment = ?", (segment,)).fetchall():
        units, counts = unpack(data)
        new = fresh.by_term.pop(term, [])
        keep = ~np.isin(units, gone)
        if keep.all() and not new:
            continue
        pairs = sorted([*zip(units[keep].tolist(), counts[keep].tolist(), strict=True), *new])
        if pairs:
            changed.append((pack([u for u, _ in pairs], [c for _, c in pairs]), segment, term))
        else:
            empty.append((segment, term))
    db.executemany("UPDATE posting SET data = ? WHERE segment = ? AND term = ?", changed)
    db.executemany("DELETE FROM posting WHERE segment = ? AND term = ?", empty)
    db.executemany(
        "INSERT INTO posting(segment, term, data) VALUES (?, ?, ?)",
        [
            (segment, term, pack([u for u, _ in new], [c for _, c in new]))
            for term, new in sorted(fresh.by_term.items())
        ],
    )
