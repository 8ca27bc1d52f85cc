"""Whether each core computes what every other core does: products of matrices against known digests.

A core that computes wrong without a word is rare and poisons a whole job. The operands are whole numbers, so small that
every partial sum is exact in the type used; then no order of additions, no fused multiply-add, no library and no vector
width changes a bit, and one digest holds for every healthy machine, for NumPy and `perdure.adapters.torch.gpu_check`.
"""

from __future__ import annotations

import os
import time

import numpy as np
import numpy.typing as npt

from perdure.codec.digest import digest
from perdure.supervisor.checks import Context, Result

__all__ = ["DIGESTS", "cpu", "operands", "product_digest", "wrong_products"]

SIZE = 192
"""Rows and columns."""

LARGEST = {"float64": 1 << 22, "float32": 255, "int64": 1 << 31, "small": 1}
"""Largest magnitude of an operand's element: 192 products of two stay below 2**53, 2**24, and 2**8; int64 wraps."""

DIGESTS = {
    "float64": "58f0743cba2d286ea93457a7d0e42f0d",
    "float32": "3dfd6cbea16b4eebdecff97ff79fe909",
    "int64": "45af15bf075d94084d4ed1a579db2f56",
    "small": "ef847c4ad6fad239df65e0064cee70da",
}
"""Digest of each product as int64 bytes, little-endian. ``small`` has sums that bfloat16 and float16 hold."""

_BUDGET_S = 12.0
_REPEATS = 4


def operands(kind: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The two matrices of ``kind``, of whole numbers from -largest to largest: the bits of splitmix64 over 0, 1, 2, ...

    >>> operands("small")[0][0, :6].tolist()
    [0, -1, 0, 0, 0, -1]
    """
    largest = np.uint64(LARGEST[kind])
    words = _splitmix64(np.arange(2 * SIZE * SIZE, dtype=np.uint64))
    values = (words % (2 * largest + np.uint64(1))).astype(np.int64) - np.int64(LARGEST[kind])
    a, b = values.reshape(2, SIZE, SIZE)
    return a, b


def product_digest(product: npt.NDArray[np.int64]) -> str:
    """Digest of a product of whole numbers."""
    return digest(np.ascontiguousarray(product, dtype="<i8"))


def wrong_products() -> list[str]:
    """Compute every product once, here; return the kinds whose digest is not the known one."""
    wrong = []
    for kind in ("float64", "float32", "int64"):
        a, b = operands(kind)
        dtype = np.dtype(kind)
        product = a.astype(dtype) @ b.astype(dtype)
        if product_digest(product.astype(np.int64)) != DIGESTS[kind]:
            wrong.append(kind)
    return wrong


def cpu(context: Context, *, budget_s: float = _BUDGET_S) -> Result:
    """Compute on each core that this process may use, one after the other, until the budget of time is spent."""
    cores = sorted(os.sched_getaffinity(0))
    wrong: dict[int, list[str]] = {}
    tried = 0
    end = time.monotonic() + budget_s
    try:
        for core in cores:
            if tried and time.monotonic() > end:
                break
            os.sched_setaffinity(0, {core})
            found = {kind for _ in range(_REPEATS) for kind in wrong_products()}
            if found:
                wrong[core] = sorted(found)
            tried += 1
    finally:
        os.sched_setaffinity(0, cores)
    return verdict(wrong, tried=tried, cores=len(cores))


def verdict(wrong: dict[int, list[str]], *, tried: int, cores: int) -> Result:
    """The result for ``wrong`` products by core."""
    facts = {"cores": cores, "tried": tried, "wrong": {str(core): kinds for core, kinds in wrong.items()}}
    if wrong:
        named = "; ".join(f"core {core} in {', '.join(kinds)}" for core, kinds in wrong.items())
        return Result(
            check="cpu",
            word="problem",
            says=f"it computes wrong, without an error: {named}",
            do="take the node out; what it computed lately may be wrong as well",
            facts=facts,
        )
    if tried < cores:
        says = f"{tried} of {cores} cores compute right; time was over before the others"
        return Result(check="cpu", word="note", says=says, do="check again when the node is idle", facts=facts)
    return Result(check="cpu", word="ok", says=f"all {cores} cores compute right", facts=facts)


def _splitmix64(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014; wraps at 2**64."""
    with np.errstate(over="ignore"):
        z = words * np.uint64(0x9E3779B97F4A7C15) + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))
