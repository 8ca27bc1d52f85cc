"""Find masters and moments of optimizers among blocks of one dtype and box, from samples of two steps alone.

A tensor moves against the sign of its first moment, and by that moment over the root of the second one: so the sign of its
change finds the first moment, and the size of the change beside that of the moment finds the second. The pairs and triples
found so are fitted; what fits a few of them is tried on all, for an optimizer treats tensors alike. Offers come with what
a tensor would cost, and whoever takes one compares that with what it costs otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from perdure.state.fitting import SecondFit, UpdateFit, fit_fade, fit_second, fit_update, step_of
from perdure.state.pairing import best_matches, log_sizes, standardised
from perdure.state.predicting import predict
from perdure.state.pricing import distance_bits
from perdure.state.relations import Of, Relation, SecondMoment, Term, Update
from perdure.state.sampling import Group

__all__ = ["LEAST_ELEMENTS", "Offer", "offers"]

LEAST_ELEMENTS: Final = 64
"""Blocks with fewer are not looked at: a frame's own bytes weigh more there."""

_FITTED: Final = 24  # of many alike, so many are fitted
_RECIPES: Final = 3  # and so many of the fits tried on all
_LEAST_SIGNS: Final = 0.15
_LEAST_SIZES: Final = 0.1
_LEAST_STEP: Final = 0.25
_EPS: Final = 1e-8

Array = npt.NDArray[np.float64]


class Offer(NamedTuple):
    """A relation for the tensor ``name``, on which it would cost ``bits`` an element."""

    name: str
    relation: Relation
    bits: float


class _Trio(NamedTuple):
    """Rows of a group: a tensor, its first moment, and its second one if there is one."""

    tensor: int
    moment: int
    square: int | None


@dataclass(frozen=True, slots=True)
class _Samples:
    """A group as numbers: ``now`` and ``base`` in float64, and which rows are finite in both steps and changed."""

    group: Group
    now: Array
    base: Array
    live: npt.NDArray[np.bool_]
    unit: float

    def rows(self, mask: npt.NDArray[np.bool_]) -> list[int]:
        return [int(row) for row in np.flatnonzero(mask & self.live)]

    def of(self, row: int, step: str) -> Of:
        return Of(self.group.names[row], "this" if step == "this" else "base")


def offers(group: Group) -> list[Offer]:
    """All relations over two steps that are worth a comparison, for any block of ``group`` (of float32 or float64)."""
    if group.base is None or group.now.shape[1] < LEAST_ELEMENTS:
        return []
    with np.errstate(all="ignore"):
        now, base = group.now.astype(np.float64), group.base.astype(np.float64)
        live = np.isfinite(now).all(axis=1) & np.isfinite(base).all(axis=1) & (now != base).any(axis=1)
        now, base = np.where(live[:, None], now, 0.0), np.where(live[:, None], base, 0.0)
        samples = _Samples(group, now, base, live, float(np.finfo(group.now.dtype).eps))
        signed = samples.rows((now.min(axis=1) < 0) & (now.max(axis=1) > 0))
        squares = samples.rows((now >= 0).all(axis=1) & (base >= 0).all(axis=1))
        trios = _trios(samples, signed, squares)
        made = _updates(samples, trios)
        pairs = {(trio.square, trio.moment) for trio in trios if trio.square is not None}
        made += _seconds(samples, sorted(pairs | set(_direct(samples, signed, squares))))
        made += _fades(samples, sorted(set(signed) | set(squares)))
    return made


def _trios(samples: _Samples, signed: list[int], squares: list[int]) -> list[_Trio]:
    """For each tensor the moments that explain its change best, if some do."""
    tensors = samples.rows(np.ones(len(samples.now), np.bool_))
    if not tensors or not signed:
        return []
    now, base = samples.now, samples.base
    change = now - base
    pull = now[signed] + base[signed] / 2
    matches = best_matches(standardised(-np.sign(change[tensors])), standardised(np.sign(pull)), 2, _LEAST_SIGNS)
    pairs = [(t, signed[m]) for t, found in zip(tensors, matches, strict=True) for m in found if signed[m] != t]
    if not pairs:
        return []
    t, m = (np.array(side) for side in zip(*pairs, strict=True))
    gradients = now[m] ** 2 + base[m] ** 2 + (now[m] - base[m]) ** 2  # of several steps, as far as is known
    sizes = log_sizes(gradients) - log_sizes(change[t])
    found = best_matches(standardised(sizes), standardised(log_sizes(now[squares])), 2, _LEAST_SIZES)
    tried = [
        _Trio(tensor, moment, square)
        for (tensor, moment), each in zip(pairs, found, strict=True)
        for square in [*(squares[v] for v in each), None]
        if square != tensor
    ]
    alike = _explained(samples, tried)
    best: dict[tuple[int, bool], tuple[float, _Trio]] = {}
    for trio, score in zip(tried, alike.tolist(), strict=True):
        key = trio.tensor, trio.square is None
        if score >= _LEAST_STEP and score > best.get(key, (0.0, trio))[0]:
            best[key] = score, trio
    return [trio for _, trio in best.values()]


def _explained(samples: _Samples, trios: Sequence[_Trio]) -> Array:
    """How much each tensor's change is alike the steps of its moments: their correlation."""
    scores = np.zeros(len(trios))
    for with_square in (True, False):
        at = [i for i, trio in enumerate(trios) if (trio.square is not None) == with_square]
        if not at:
            continue
        t, m = [trios[i].tensor for i in at], [trios[i].moment for i in at]
        v = [trios[i].square or 0 for i in at]
        steps = sum(
            part * step_of(side[m], side[v] if with_square else None, _EPS)
            for part, side in ((1.0, samples.now), (0.5, samples.base))
        )
        change = samples.now[t] - samples.base[t]
        scores[at] = -np.einsum("ts,ts->t", standardised(change), standardised(steps))
    return scores


def _updates(samples: _Samples, trios: list[_Trio]) -> list[Offer]:
    made: list[Offer] = []
    for with_square in (True, False):
        alike = [trio for trio in trios if (trio.square is not None) == with_square]
        for steps in ("this",), ("base", "this"):
            made += _fitted_updates(samples, alike, steps)
    return made


def _fitted_updates(samples: _Samples, trios: list[_Trio], steps: tuple[str, ...]) -> list[Offer]:
    """Offers for ``trios``, all with a square or all without one, whose update has a term for each of ``steps``."""
    if not trios:
        return []

    def moments(of: Sequence[_Trio]) -> list[tuple[Array, Array | None]]:
        sides = [samples.now if step == "this" else samples.base for step in steps]
        m, v = [trio.moment for trio in of], [trio.square for trio in of]
        return [(side[m], None if None in v else side[[row for row in v if row is not None]]) for side in sides]

    def relation(trio: _Trio, fit: UpdateFit) -> Update:
        terms = [
            Term(samples.of(trio.moment, step), None if trio.square is None else samples.of(trio.square, step), by, eps)
            for step, by, eps in zip(steps, fit.by, [0.0 if trio.square is None else fit.eps] * len(steps), strict=True)
        ]
        return Update(fit.keep, tuple(terms))

    def fit(of: Sequence[_Trio]) -> list[UpdateFit]:
        t = [trio.tensor for trio in of]
        return [
            each if _sane((each.keep, *each.by, each.eps)) else UpdateFit(1.0, (0.0,) * len(steps), _EPS)
            for each in fit_update(samples.now[t], samples.base[t], moments(of), samples.unit)
        ]

    def pooled(of: Sequence[_Trio]) -> UpdateFit:
        t = [trio.tensor for trio in of]
        flat = [(m.reshape(1, -1), None if v is None else v.reshape(1, -1)) for m, v in moments(of)]
        now, base = samples.now[t].reshape(1, -1), samples.base[t].reshape(1, -1)
        return fit_update(now, base, flat, samples.unit)[0]

    def bits(of: Sequence[_Trio], how: UpdateFit) -> Array:
        sides = [(samples.group.now if step == "this" else samples.group.base) for step in steps]
        inputs = [samples.group.base[[trio.tensor for trio in of]]]  # type: ignore[index]  # there is a base
        for side in sides:
            inputs.append(side[[trio.moment for trio in of]])  # type: ignore[index]
            if of[0].square is not None:
                inputs.append(side[[trio.square for trio in of]])  # type: ignore[index]
        return _bits(samples.group, [trio.tensor for trio in of], relation(of[0], how), inputs)

    return _offered(samples, trios, [trio.tensor for trio in trios], fit, pooled, bits, relation)


def _seconds(samples: _Samples, pairs: list[tuple[int, int]]) -> list[Offer]:
    """Offers for second moments, given as (second, first)."""
    if not pairs:
        return []

    def relation(pair: tuple[int, int], fit: SecondFit) -> SecondMoment:
        return SecondMoment(
            samples.of(pair[1], "this"), samples.of(pair[1], "base"), fit.keep, fit.fade, fit.by, fit.rest
        )

    def fit(of: Sequence[tuple[int, int]]) -> list[SecondFit]:
        v, m = [pair[0] for pair in of], [pair[1] for pair in of]
        fits = fit_second(samples.now[v], samples.base[v], samples.now[m], samples.base[m], samples.unit)
        return [each if _sane((each.keep, each.fade, each.by, each.rest)) else SecondFit(1, 0, 0, 0) for each in fits]

    def pooled(of: Sequence[tuple[int, int]]) -> SecondFit:
        v, m = [pair[0] for pair in of], [pair[1] for pair in of]
        rows = [rows.reshape(1, -1) for rows in (samples.now[v], samples.base[v], samples.now[m], samples.base[m])]
        return fit_second(*rows, samples.unit)[0]

    def bits(of: Sequence[tuple[int, int]], how: SecondFit) -> Array:
        v, m = [pair[0] for pair in of], [pair[1] for pair in of]
        group = samples.group
        assert group.base is not None
        return _bits(group, v, relation(of[0], how), [group.base[v], group.base[m], group.now[m]])

    return _offered(samples, pairs, [pair[0] for pair in pairs], fit, pooled, bits, relation)


def _direct(samples: _Samples, signed: list[int], squares: list[int]) -> list[tuple[int, int]]:
    """For each second moment the first moment that varies most as it does: where no tensor tells which it is."""
    if not signed or not squares:
        return []
    now, base = samples.now[signed], samples.base[signed]
    gradients = now**2 + base**2 + 3 * (now - base) ** 2
    found = best_matches(
        standardised(log_sizes(samples.now[squares])), standardised(log_sizes(gradients)), 1, _LEAST_STEP
    )
    return [(square, signed[each[0]]) for square, each in zip(squares, found, strict=True) if each]


def _fades(samples: _Samples, rows: list[int]) -> list[Offer]:
    """Offers of tensors that are their old selves times a number."""
    if not rows:
        return []
    group = samples.group
    assert group.base is not None
    fades = [fade if _sane((fade,)) else 1.0 for fade in fit_fade(samples.now[rows], samples.base[rows])]
    base = (np.array(fades, group.now.dtype)[:, None] * group.base[rows]).astype(group.now.dtype)
    bits = distance_bits(group.now[rows], base, group.dtype)
    return [
        Offer(group.names[row], Update(fade), float(cost))
        for row, fade, cost in zip(rows, fades, bits, strict=True)
    ]


def _offered(
    samples: _Samples, subjects: Sequence[Any], rows: Sequence[int], fit: Any, pooled: Any, bits: Any, relation: Any
) -> list[Offer]:
    """Fit a few ``subjects`` (of which ``rows`` are the tensors), try what fits them on all, and offer the best for each."""
    spread = np.unique(np.linspace(0, len(subjects) - 1, min(_FITTED, len(subjects))).astype(int))
    few = [subjects[i] for i in spread]
    own = fit(few)
    costs = np.stack([bits(few, each) for each in own])  # [fit, subject]
    recipes: list[Any] = []
    best = np.full(len(few), np.inf)
    for _ in range(min(_RECIPES, len(own))):
        gains = np.minimum(costs, best).sum(axis=1)
        chosen = int(gains.argmin())
        if len(recipes) and gains[chosen] > best.sum() - 0.01 * len(few):
            break
        members = [i for i in range(len(few)) if costs[chosen, i] < best[i]]
        best = np.minimum(best, costs[chosen])
        recipes.append(own[chosen])
        if len(members) > 1:
            together = pooled([few[i] for i in members])
            if _sane(tuple(np.ravel([*_numbers(together)]).tolist())):
                recipes.append(together)
    tried = np.stack([bits(subjects, recipe) for recipe in recipes])
    at = tried.argmin(axis=0)
    found = {i: (float(tried[at[i], i]), recipes[int(at[i])]) for i in range(len(subjects))}
    for place, i in enumerate(spread.tolist()):
        if costs[place, place] < found[i][0]:
            found[i] = float(costs[place, place]), own[place]
    return [
        Offer(samples.group.names[rows[i]], relation(subjects[i], how), cost) for i, (cost, how) in found.items()
    ]


def _numbers(fit: UpdateFit | SecondFit) -> list[float]:
    return [fit.keep, *fit.by, fit.eps] if isinstance(fit, UpdateFit) else [fit.keep, fit.fade, fit.by, fit.rest]


def _bits(group: Group, rows: list[int], how: Relation, inputs: Sequence[npt.NDArray[Any]]) -> Array:
    flat = [np.ascontiguousarray(each).view(np.uint8).reshape(-1) for each in inputs]
    base = predict(how, flat, dtype=group.dtype).view(group.now.dtype).reshape(len(rows), -1)
    return distance_bits(group.now[rows], base, group.dtype)


def _sane(numbers: Sequence[float]) -> bool:
    """Whether they may be coefficients of a relation."""
    return bool(np.isfinite(numbers).all() and np.abs(numbers).max() < 1e30)
