"""What `bench/codecs.py` measures on: tensors, each with or without a base, that say what bytes they are.

A `Case` knows the fraction of its elements that changed and the order-0 entropy of their distances, which is what a
coder without contexts could reach at best.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from perdure.codec import DTYPES
from perdure.codec.ulp import KINDS

if TYPE_CHECKING:
    from codec_traces import Trace

__all__ = ["Bytes", "Case", "Origin", "distances", "order_0_bits", "rounded", "trace_cases"]

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where in a training a case comes from."""

    trace: str
    """the options that tell this training from the others, such as ``seed 0``"""
    kind: str
    """``weights``, ``master``, ``m`` or ``v``"""
    stage: str
    step: int
    since: int
    """the step of the base"""
    rounding: bool = False
    """whether these weights are the rounding of the master that lies beside them, in every bit"""


@dataclass(frozen=True, slots=True)
class Case:
    """One tensor to code, as its bytes, and its base if it has one."""

    name: str
    dtype: str
    data: Bytes
    base: Bytes | None
    origin: Origin | None = None
    """None for what no training made"""
    tensors: tuple[int, ...] = ()
    """the elements of each tensor, if ``data`` is several in a row"""
    timed: bool = True
    """whether speeds are measured too"""
    alone: bool = False
    """whether they are measured without the base as well"""

    @property
    def elements(self) -> int:
        return self.data.size // DTYPES[self.dtype].itemsize

    @property
    def changed(self) -> float | None:
        """The part of the elements that are not the base's, from 0 to 1; None without a base or elements."""
        if self.base is None or self.data.size == 0:
            return None
        differs = (self.data != self.base).reshape(-1, DTYPES[self.dtype].itemsize)
        return float(differs.any(1).mean())

    @property
    def h0_bits(self) -> float | None:
        """Bits an element of the order-0 entropy of the distances; None where `ulp` knows no distances."""
        if self.base is None or self.dtype not in KINDS or self.dtype == "float8_e8m0fnu":
            return None
        return order_0_bits(self.data, self.base, DTYPES[self.dtype].itemsize)

    def each_tensor(self) -> list[Case]:
        """The tensors that ``data`` is made of, one case each."""
        width = DTYPES[self.dtype].itemsize
        ends = list(accumulate(self.tensors or (self.elements,), initial=0))
        assert ends[-1] == self.elements, "the tensors are the whole"
        parts = [slice(a * width, b * width) for a, b in pairwise(ends)]
        return [
            Case(self.name, self.dtype, self.data[at], None if self.base is None else self.base[at]) for at in parts
        ]

    def tiled(self, nbytes: int) -> Case:
        """The same bytes again and again, at least ``nbytes``: more than a cache holds, for speeds."""
        times = -(-nbytes // max(1, self.data.size))
        base = None if self.base is None else np.tile(self.base, times)
        return replace(self, data=np.tile(self.data, times), base=base, tensors=())

    def without_base(self) -> Case:
        """The same tensor, to be coded alone."""
        return replace(self, name=f"{self.name}, alone", base=None)


def distances(new: Bytes, old: Bytes, width: int) -> npt.NDArray[np.int64]:
    """The signed distances from ``old`` to ``new`` in units of the last place, modulo 2^(8 ``width``).

    Elements are floats of ``width`` bytes, 1 or 2: a sign above a magnitude. They are put in the order of their values,
    -0 right below 0, so that the map is one to one and NaN payloads count too.
    """
    sign = 1 << 8 * width - 1
    ordered = [
        np.where(bits & sign, ~(bits & sign - 1), bits)
        for bits in (x.view(f"u{width}").astype(np.int64) for x in (new, old))
    ]
    return (ordered[0] - ordered[1] + sign) % (2 * sign) - sign


def order_0_bits(new: Bytes, old: Bytes, width: int) -> float:
    """The order-0 entropy of `distances`: bits an element, 0 if there are none."""
    if new.size == 0:
        return 0.0
    _, counts = np.unique(distances(new, old, width), return_counts=True)
    share = counts / counts.sum()
    return float(-(share * np.log2(share)).sum()) + 0.0


def rounded(master: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """The bits of ``master`` as bfloat16, to nearest, ties to even; for finite numbers."""
    bits = master.view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def trace_cases(
    trace: Trace, label: str, *, bases: Mapping[str, int], distances: Sequence[int], timed: bool
) -> Iterator[Case]:
    """The pairs of every stage, ``distances`` steps apart, and master, m and v at the longest of them.

    ``timed`` asks for speeds of the shortest and longest pairs of every stage, and of the other kinds in the last one.
    """
    far = max(distances)
    for stage, since in bases.items():
        old = trace.at[since]
        for distance in sorted(distances):
            new, step = trace.at[since + distance], since + distance
            last = distance == far and stage == list(bases)[-1]
            for kind, dtype in (("weights", "bfloat16"), *((k, "float32") for k in ("master", "m", "v"))):
                now, before = getattr(new, kind), getattr(old, kind)
                if kind != "weights" and distance != far:
                    continue
                holds = kind == "weights" and new.master is not None and np.array_equal(rounded(new.master), now)
                yield Case(
                    f"{kind} {since} to {step} ({stage}{label})", dtype, now.view(np.uint8), before.view(np.uint8),
                    Origin(label, kind, stage, step, since, holds), trace.tensors,
                    timed=timed and (last or (kind == "weights" and distance in (far, min(distances)))),
                    alone=timed and last,
                )  # fmt: skip
