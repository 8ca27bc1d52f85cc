"""Fit the coefficients of a relation to samples: many tensors at once, each on its own, in float64.

Least squares with weights that sink where the residual stays large (iteratively reweighted, the weights of a Cauchy
distribution): over one step an optimizer's update leaves residuals of half a unit in the last place but for a few
elements, and over several steps residuals of every size. Arrays are float64[tensors, elements] of finite numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

__all__ = ["Array", "SecondFit", "UpdateFit", "fit_fade", "fit_second", "fit_update", "refit_update", "step_of"]

Array = npt.NDArray[np.float64]

_ROUNDS: Final = 5
_TINY: Final = 1e-300
_EPS_ROUNDS: Final = 3
_MODE_SHARE: Final = 0.05
_ALIKE: Final = 1e-5


@dataclass(frozen=True, slots=True)
class UpdateFit:
    """``keep * tensor - by[0] * step 0 - ...`` with an ``eps`` in every step, for one tensor."""

    keep: float
    by: tuple[float, ...]
    eps: float


@dataclass(frozen=True, slots=True)
class SecondFit:
    """``keep * square + by * (moment - fade * before)**2 + rest * before**2``, for one tensor."""

    keep: float
    fade: float
    by: float
    rest: float


def step_of(moment: Array, square: Array | None, eps: float | Array) -> Array:
    """``moment / (sqrt(square) + eps)``, or ``moment``; 0 where that is no number."""
    if square is None:
        return moment
    bottom = np.sqrt(np.maximum(square, 0)) + eps
    return np.where(bottom > 0, moment / np.where(bottom > 0, bottom, 1), 0.0)


def fit_update(
    now: Array, old: Array, moments: Sequence[tuple[Array, Array | None]], unit: float, eps: float = 1e-8
) -> list[UpdateFit]:
    """Fit an update of ``old`` to ``now`` for each row; ``unit`` is the distance of 1 to the next float of the dtype.

    ``eps`` is where the search for the optimizer's own begins; it matters only where gradients are as small.
    """
    change, floor = now - old, unit / 2 * np.abs(now)
    at = np.full(now.shape[0], eps)

    def columns() -> list[Array]:
        return [old, *(-step_of(moment, square, at[:, None]) for moment, square in moments)]

    found = _robust(columns(), change, floor)
    squared = [(i, moment, square) for i, (moment, square) in enumerate(moments) if square is not None]
    for _ in range(
        _EPS_ROUNDS if squared else 0
    ):  # Gauss-Newton: what one more eps would do is a column like the others
        slope = np.zeros_like(now)
        for i, moment, square in squared:
            slope += found[:, 1 + i : 2 + i] * step_of(step_of(moment, square, at[:, None]), square, at[:, None])
        seen = np.abs(slope).max(axis=1) * at > np.median(floor, axis=1) / 4
        if not seen.any():
            break
        moved = np.clip(at + _robust([*columns(), slope], change, floor)[:, -1], at / 4, at * 4 + 1e-12)
        at = np.where(seen & np.isfinite(moved), moved, at)
        found = _robust(columns(), change, floor)
    return [
        UpdateFit(1 + float(row[0]), tuple(float(by) for by in row[1:]), float(small))
        for row, small in zip(found, at, strict=True)
    ]


def refit_update(
    now: Array, old: Array, moments: Sequence[tuple[Array, Array | None]], unit: float, eps: float
) -> list[UpdateFit]:
    """`fit_update` where the optimizer's ``eps`` is known, which is most of the work."""
    columns = [old, *(-step_of(moment, square, eps) for moment, square in moments)]
    found = _robust(columns, now - old, unit / 2 * np.abs(now))
    return [UpdateFit(1 + row[0], tuple(row[1:]), eps) for row in found.tolist()]


def fit_second(now: Array, old: Array, moment: Array, before: Array, unit: float) -> list[SecondFit]:
    """Fit a second moment to its ``old`` self and the first moment ``before`` and now, for each row."""
    scale = 1 / np.maximum(now, _TINY)
    change = moment - before  # before and change are less alike than before and moment: a better basis
    columns = [old * scale, before * before * scale, before * change * scale, change * change * scale]
    here = (now > 0).astype(np.float64)
    columns = [np.nan_to_num(column * here, posinf=0.0) for column in columns]
    found = _robust(columns, here, np.full(now.shape, unit / 2))
    fits = []
    for keep, both, mixed, by in found.tolist():
        fade = 1 - mixed / (2 * by) if by else 0.0
        rest = both - mixed + by - by * fade * fade
        if abs(rest) < 1e-5 * abs(by):  # a single step: what is left is rounding
            rest = 0.0
        fits.append(SecondFit(keep, fade, by, rest))
    return fits


def fit_fade(now: Array, old: Array) -> list[float]:
    """The factor from ``old`` to ``now`` for each row: that of elements without gradient, if there are some.

    Where a gradient is 0 (a token that did not occur) a moment is its old self times the same number everywhere; if
    there is no such number, the factor is what most elements come near to.
    """
    ranked = np.sort(now / np.where(old == 0, np.nan, old), axis=1)  # what is no number goes last
    rows = np.arange(len(ranked))
    known = np.isfinite(ranked).sum(axis=1)
    fades = np.where(known > 0, ranked[rows, np.maximum(known - 1, 0) // 2], 1.0)
    step = max(2, int(_MODE_SHARE * now.shape[1]))
    width = ranked[:, step:] - ranked[:, :-step]
    at = np.where(np.isfinite(width), width, np.inf).argmin(axis=1)
    return np.asarray(np.where(width[rows, at] < _ALIKE, ranked[rows, at + step // 2], fades)).tolist()  # type: ignore[no-any-return]


def _robust(columns: Sequence[Array], y: Array, floor: Array) -> Array:
    """Coefficients[tensors, columns] of the columns that give ``y``; residuals below ``floor`` count as rounding."""
    a = np.stack(columns, axis=2)
    size = np.maximum(np.abs(a).max(axis=1), _TINY)
    a /= size[:, None, :]
    weight = np.ones_like(y)
    found = np.zeros((a.shape[0], a.shape[2]))
    ridge = 1e-15 * np.eye(a.shape[2])
    for _ in range(_ROUNDS):
        heavy = a * weight[:, :, None]
        square: npt.NDArray[Any] = heavy.swapaxes(1, 2) @ a
        trace = np.trace(square, axis1=1, axis2=2)[:, None, None]
        right = heavy.swapaxes(1, 2) @ y[:, :, None]
        found = np.linalg.solve(square + (trace + _TINY) * ridge, right)[:, :, 0]
        residual = y - (a @ found[:, :, None])[:, :, 0]
        middle = np.sqrt(np.abs(residual)).mean(axis=1, keepdims=True) ** 2  # what most are like; a median takes longer
        weight = 1 / (residual**2 + floor**2 + (middle / 2) ** 2 + _TINY)
        weight /= weight.max(axis=1, keepdims=True)
    return np.asarray(found / size)
