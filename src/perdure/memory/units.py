"""The passages of a space as columns: what a search needs to know of each without reading it.

A *unit* is a passage by its place in the order of telling, 0 to n - 1. Units of one source follow one another by
``prev`` (and ``next``) as long as no more than `GAP_S` passed between them; runs of `SECTION` of them are a section.
Columns only grow, so a reader that knows ``n`` may read while another thread appends.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["GAP_S", "SECTION", "UNIT", "Units"]

GAP_S: Final = 6 * 3600.0
SECTION: Final = 32

UNIT: Final = np.dtype(
    [
        ("passage", "<i8"),
        ("observed_s", "<f8"),
        ("prev", "<i4"),
        ("section", "<i4"),
        ("speaker", "<i4"),
        ("source", "<i4"),
        ("length", "<u2"),
        ("role", "u1"),
        ("spare", "u1"),
    ]
)
"""One unit as it is written in the index."""

_COLUMNS: Final = {
    "passage": np.int64,
    "observed_s": np.float64,
    "prev": np.int32,
    "next": np.int32,
    "section": np.int32,
    "speaker": np.int32,
    "source": np.int32,
    "length": np.float32,
    "role": np.uint8,
    "norm": np.float32,
}


class Units:
    """Columns of the first ``n`` units; ``section_length`` of the first ``sections`` sections, in terms."""

    passage: NDArray[np.int64]
    observed_s: NDArray[np.float64]
    prev: NDArray[np.int32]
    next: NDArray[np.int32]
    section: NDArray[np.int32]
    speaker: NDArray[np.int32]
    source: NDArray[np.int32]
    length: NDArray[np.float32]
    role: NDArray[np.uint8]
    norm: NDArray[np.float32]
    """What BM25 adds to how often a term stands in the unit: more in a long one."""

    def __init__(self, *, k1: float, b: float) -> None:
        self.n = 0
        self.sections = 0
        self.total = 0.0
        self._k1, self._b = k1, b
        self._normed = 0.0
        for name, kind in _COLUMNS.items():
            setattr(self, name, np.zeros(1024, kind))
        self.section_length = np.zeros(64, np.float32)

    @property
    def mean(self) -> float:
        """Terms in a unit, on average, and at least one."""
        return max(1.0, self.total / self.n if self.n else 1.0)

    def append(self, rows: NDArray[Any]) -> None:
        """Take in the next units, an array of `UNIT`."""
        old, new = self.n, self.n + len(rows)
        if new > len(self.passage):
            room = max(new, 2 * len(self.passage))
            for name in _COLUMNS:
                setattr(
                    self,
                    name,
                    np.concatenate([getattr(self, name), np.zeros(room - len(getattr(self, name)), _COLUMNS[name])]),
                )
        for name in UNIT.names or ():
            if name != "spare":
                getattr(self, name)[old:new] = rows[name]
        self.next[old:new] = -1
        later = np.flatnonzero(rows["prev"] >= 0)
        self.next[rows["prev"][later]] = later + old
        top = int(rows["section"].max()) + 1 if len(rows) else 0
        if top > len(self.section_length):
            room = max(top, 2 * len(self.section_length))
            self.section_length = np.concatenate(
                [self.section_length, np.zeros(room - len(self.section_length), np.float32)]
            )
        np.add.at(self.section_length, rows["section"], rows["length"].astype(np.float32))
        self.sections = max(self.sections, top)
        self.total += float(rows["length"].sum(dtype=np.float64))
        self.n = new
        start = old
        if abs(self.mean - self._normed) > 0.02 * self._normed:
            self._normed, start = self.mean, 0
        self.norm[start:new] = self._k1 * (1 - self._b + self._b * self.length[start:new] / self._normed)
