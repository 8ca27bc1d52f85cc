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

__all__ = ["SecondFit", "UpdateFit", "fit_fade", "fit_second", "fit_update", "step_of"]

Array = npt.NDArray[np.float64]

_ROUNDS: Final = 5
_TINY: Final = 1e-300
_MODE_SHARE: Final = 0.05


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
    steps = [step_of(moment, square, eps) for moment, square in moments]
    found = _robust([old, *(-step for step in steps)], now - old, unit / 2 * np.abs(now))
    at = np.full(now.shape[0], eps)
    squared = [(i, moment, square) for i, (moment, square) in enumerate(moments) if square is not None]
    if squared:
        for _ in range(3):  # Gauss-Newton: what one more eps would do is a column like the others
            steps = [step_of(moment, square, at[:, None]) for moment, square in moments]
            slope = np.zeros_like(now)
            for i, moment, square in squared:
                by = found[:, 1 + i : 2 + i]
                slope += by * step_of(step_of(moment, square, at[:, None]), square, at[:, None])
            wider = _robust([old, *(-step for step in steps), slope], now - old, unit / 2 * np.abs(now))
            moved = np.clip(at + wider[:, -1], at / 4, at * 4 + 1e-12)
            useful = np.isfinite(moved) & (np.abs(slope).max(axis=1) * at > unit / 8 * np.median(np.abs(now), axis=1))
            at = np.where(useful, moved, at)
        steps = [step_of(moment, square, at[:, None]) for moment, square in moments]
        found = _robust([old, *(-step for step in steps)], now - old, unit / 2 * np.abs(now))
    return [
        UpdateFit(1 + float(row[0]), tuple(float(by) for by in row[1:]), float(small))
        for row, small in zip(found, at, strict=True)
    ]


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
    """The factor from ``old`` to ``now`` for each row: that of elements without gradient, if there are some, else the best.

    Where a gradient is 0 (a token that did not occur) a moment is its old self times the same number everywhere.
    """
    scale = 1 / (np.abs(now) + _TINY)
    best = _robust([np.nan_to_num(old * scale, posinf=0.0, neginf=0.0)], now * scale, np.full(now.shape, 1e-7))[:, 0]
    ratio = now / np.where(old == 0, np.nan, old)
    ranked = np.sort(ratio, axis=1)
    step = max(2, int(_MODE_SHARE * now.shape[1]))
    fades = best.tolist()
    if step < ranked.shape[1]:
        width = ranked[:, step:] - ranked[:, :-step]
        width = np.where(np.isfinite(width), width, np.inf)
        at = width.argmin(axis=1)
        rows = np.arange(len(fades))
        tight = width[rows, at] < 1e-5
        middle = ranked[rows, at + step // 2]
        fades = [float(m) if t else b for m, t, b in zip(middle, tight, fades, strict=True)]
    return fades


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
        middle = np.median(np.abs(residual), axis=1, keepdims=True)
        weight = 1 / (residual**2 + floor**2 + (middle / 2) ** 2 + _TINY)
        weight /= weight.max(axis=1, keepdims=True)
    return np.asarray(found / size)
