"""A few elements of many blocks at once: what relations are looked for in.

Blocks of one dtype and box are a group; every block of a group is sampled at the same places, in runs as long as a
cache line, so that a block costs a few dozen cache misses whatever its size. Narrower and wider blocks of one box are
sampled at the same elements.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from perdure.codec.dtypes import DTYPES
from perdure.codec.stage import Bytes
from perdure.errors import CallError
from perdure.layout import Box

__all__ = ["Block", "Group", "groups_of", "places"]

_RUNS: Final = 16
_RUN: Final = 16


@dataclass(frozen=True, slots=True)
class Block:
    """What a rank holds of a tensor: its dtype, its box, and its bytes, row-major, uint8[n], contiguous.

    Raises: `CallError` if there are not as many bytes as dtype and box say.
    """

    dtype: str
    box: Box
    data: Bytes

    def __post_init__(self) -> None:
        if self.data.dtype != np.uint8 or self.data.ndim != 1 or self.data.size != self.box.size * self.itemsize:
            raise CallError(f"{self.data.size} bytes are no {self.dtype} block {self.box}", dtype=self.dtype)

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return DTYPES[self.dtype].itemsize


@dataclass(frozen=True, slots=True)
class Group:
    """Blocks of one dtype and box: their names in order, and samples of each, one row a block.

    ``now`` is [blocks, elements]; so is ``base``, of the blocks with the same names in the base step, or it is None.
    Elements are of the dtype, or unsigned words of its width where NumPy lacks it.
    """

    dtype: str
    box: Box
    names: tuple[str, ...]
    now: npt.NDArray[Any]
    base: npt.NDArray[Any] | None


def groups_of(now: Mapping[str, Block], base: Mapping[str, Block]) -> list[Group]:
    """All blocks of ``now`` in groups, those with a block in ``base`` apart from those without; empty ones left out."""
    names: dict[tuple[str, Box, bool], list[str]] = defaultdict(list)
    for name, block in now.items():
        below = base.get(name)
        paired = below is not None and below.dtype == block.dtype and below.box == block.box
        if not block.box.empty:
            names[block.dtype, block.box, paired].append(name)
    return [
        Group(dtype, box, tuple(each), _sampled(now, each), _sampled(base, each) if paired else None)
        for (dtype, box, paired), each in names.items()
    ]


def places(size: int) -> npt.NDArray[np.int64]:
    """Which elements of a block of ``size`` are sampled: all of a small one, else 256, in runs spread over it."""
    if size <= _RUNS * _RUN:
        return np.arange(size)
    starts = np.linspace(0, size - _RUN, _RUNS).astype(np.int64)
    return (starts[:, None] + np.arange(_RUN)).ravel()


def _sampled(blocks: Mapping[str, Block], names: list[str]) -> npt.NDArray[Any]:
    first = blocks[names[0]]
    at = places(first.box.size)
    rows = np.empty((len(names), at.size), DTYPES[first.dtype].numpy)
    for row, name in zip(rows, names, strict=True):
        blocks[name].data.view(rows.dtype).take(at, out=row, mode="clip")  # "clip" writes to out without a buffer
    return rows
