"""Fit relations to a few tensors, try what fits on all that are alike, and offer the best for each with its cost.

An optimizer treats its tensors alike, so the coefficients of one are a recipe for the others: a checkpoint of thousands
of tensors needs a handful of fits. Fits of tensors that agree are made once more on all of these together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from perdure.state.fitting import Array, SecondFit, UpdateFit, fit_fade, fit_second, fit_update, refit_update
from perdure.state.moments import EPS, Pair, Samples, Trio, pairs_among, trios_among
from perdure.state.predicting import predict
from perdure.state.pricing import distance_bits
from perdure.state.relations import Relation, SecondMoment, Term, Update
from perdure.state.sampling import Group

__all__ = [
    "LEAST_ELEMENTS",
    "Family",
    "Offer",
    "Seconds",
    "Updates",
    "based",
    "faded",
    "few_of",
    "offers",
]

LEAST_ELEMENTS: Final = 64
"""Blocks with fewer are not looked at: a frame's own bytes weigh more there."""

_FITTED: Final = 8  # of many alike, so many are fitted
_RECIPES: Final = 3  # and so many of the fits tried on all
_LEAST_BITS: Final = 0.02  # a fit that saves less is not another one

_Subject = TypeVar("_Subject", contravariant=True)
_Fit = TypeVar("_Fit", UpdateFit, SecondFit)


class Offer(NamedTuple):
    """A relation for the tensor ``name``, on which it would cost ``bits`` an element, by the estimate."""

    name: str
    relation: Relation
    bits: float


class Family(Protocol[_Subject, _Fit]):
    """One kind of relation, for any subjects of a group (a few of its rows each)."""

    @property
    def samples(self) -> Samples:
        """What is looked at."""
        ...

    def row(self, subject: _Subject) -> int:
        """The tensor among the rows of ``subject``."""
        ...

    def fit(self, subjects: Sequence[_Subject], *, together: bool) -> list[_Fit]:
        """A fit of finite numbers for each of ``subjects``, or one for all ``together``."""
        ...

    def relation(self, subject: _Subject, fit: _Fit) -> Relation:
        """What ``fit`` says of ``subject``."""
        ...

    def inputs(self, subjects: Sequence[_Subject]) -> list[npt.NDArray[Any]]:
        """The samples that `perdure.state.relations.sources` of such a relation names, a row a subject."""
        ...


def offers(group: Group) -> list[Offer]:
    """All relations between two steps that are worth a comparison, for any block of ``group`` (float32 or float64)."""
    if group.base is None or group.now.shape[1] < LEAST_ELEMENTS:
        return []
    with np.errstate(all="ignore"):  # what is no number after all is no good fit
        samples = Samples.of_group(group)
        trios = trios_among(samples)
        made = _fades(samples)
        for alike in [t for t in trios if t.square is not None], [t for t in trios if t.square is None]:
            for first in (False, True):
                made += _offered(Updates(samples, first), alike)
        made += _offered(Seconds(samples), pairs_among(samples, trios))
        return made


@dataclass(frozen=True, slots=True)
class Updates:
    """Updates by the moments of this step, and with ``first`` also by those of the base step. Subjects: trios alike.

    ``eps`` is that of the optimizer; None if it is to be found out.
    """

    samples: Samples
    first: bool
    eps: float | None = None

    def row(self, subject: Trio) -> int:
        return subject.tensor

    def fit(self, subjects: Sequence[Trio], *, together: bool) -> list[UpdateFit]:
        t, m = [trio.tensor for trio in subjects], [trio.moment for trio in subjects]
        v = _squares(subjects)

        def shaped(rows: Array) -> Array:
            return rows.reshape(1, -1) if together else rows

        sides = [self.samples.base, self.samples.now][0 if self.first else 1 :]
        moments = [(shaped(side[m]), shaped(side[v]) if v else None) for side in sides]
        now, base = shaped(self.samples.now[t]), shaped(self.samples.base[t])
        nothing = UpdateFit(1.0, (0.0,) * len(sides), EPS)
        if self.eps is None:
            fits = fit_update(now, base, moments, self.samples.unit, EPS)
        else:
            fits = refit_update(now, base, moments, self.samples.unit, self.eps)
        return [fit if _sane(fit.keep, *fit.by, fit.eps) else nothing for fit in fits]

    def relation(self, subject: Trio, fit: UpdateFit) -> Update:
        ofs = [self.samples.before, self.samples.this][0 if self.first else 1 :]
        _, m, v = subject
        return Update(
            fit.keep,
            tuple(
                Term(of(m), None, by) if v is None else Term(of(m), of(v), by, fit.eps)
                for of, by in zip(ofs, fit.by, strict=True)
            ),
        )

    def inputs(self, subjects: Sequence[Trio]) -> list[npt.NDArray[Any]]:
        group = self.samples.group
        assert group.base is not None
        m, v = [trio.moment for trio in subjects], _squares(subjects)
        made = [group.base[[trio.tensor for trio in subjects]]]
        for side in [group.base, group.now][0 if self.first else 1 :]:
            made += [side[m], side[v]] if v else [side[m]]
        return made


@dataclass(frozen=True, slots=True)
class Seconds:
    """Second moments by the first ones."""

    samples: Samples

    def row(self, subject: Pair) -> int:
        return subject.square

    def fit(self, subjects: Sequence[Pair], *, together: bool) -> list[SecondFit]:
        v, m = [pair.square for pair in subjects], [pair.moment for pair in subjects]
        now, base = self.samples.now, self.samples.base
        rows = [each.reshape(1, -1) if together else each for each in (now[v], base[v], now[m], base[m])]
        fits = fit_second(rows[0], rows[1], rows[2], rows[3], self.samples.unit)
        return [fit if _sane(fit.keep, fit.fade, fit.by, fit.rest) else SecondFit(1.0, 0.0, 0.0, 0.0) for fit in fits]

    def relation(self, subject: Pair, fit: SecondFit) -> SecondMoment:
        this, before = self.samples.this(subject.moment), self.samples.before(subject.moment)
        return SecondMoment(this, before, fit.keep, fit.fade, fit.by, fit.rest)

    def inputs(self, subjects: Sequence[Pair]) -> list[npt.NDArray[Any]]:
        group = self.samples.group
        assert group.base is not None
        v, m = [pair.square for pair in subjects], [pair.moment for pair in subjects]
        return [group.base[v], group.base[m], group.now[m]]


def faded(samples: Samples, rows: Sequence[int]) -> tuple[list[Update], npt.NDArray[Any]]:
    """How each of ``rows`` is its old self times a number, and the base [rows, elements] that it gives them."""
    group = samples.group
    assert group.base is not None
    fades = [fade if _sane(fade) else 1.0 for fade in fit_fade(samples.now[rows], samples.base[rows])]
    return [Update(fade) for fade in fades], np.array(fades, group.now.dtype)[:, None] * group.base[rows]


def _fades(samples: Samples) -> list[Offer]:
    rows, group = samples.rows(), samples.group
    if not rows:
        return []
    found, base = faded(samples, rows)
    bits = distance_bits(group.now[rows], base, group.dtype)
    return [Offer(group.names[row], fade, float(cost)) for row, fade, cost in zip(rows, found, bits, strict=True)]


def _offered(family: Family[_Subject, _Fit], subjects: Sequence[_Subject]) -> list[Offer]:
    """The cheapest recipe for each of ``subjects``, or its own fit if it is one of those fitted and cheaper still."""
    if not subjects:
        return []
    spread = few_of(len(subjects))
    few = [subjects[i] for i in spread]
    own = family.fit(few, together=False)
    costs = np.stack([_bits(family, few, fit) for fit in own])  # [fit, subject]
    recipes = _recipes(family, few, own, costs)
    tried = np.stack([_bits(family, subjects, recipe) for recipe in recipes])
    chosen = [(float(tried[at, i]), recipes[at]) for i, at in enumerate(tried.argmin(axis=0).tolist())]
    for place, i in enumerate(spread):
        if costs[place, place] < chosen[i][0] - _LEAST_BITS:
            chosen[i] = float(costs[place, place]), own[place]
    names = family.samples.group.names
    return [
        Offer(names[family.row(subject)], family.relation(subject, fit), cost)
        for subject, (cost, fit) in zip(subjects, chosen, strict=True)
    ]


def _recipes(family: Family[_Subject, _Fit], few: Sequence[_Subject], own: Sequence[_Fit], costs: Array) -> list[_Fit]:
    """The fits that together serve ``few`` best; ``costs`` are those of each of them by each of ``own``."""
    recipes: list[_Fit] = []
    best = np.full(len(few), np.inf)
    while len(recipes) < min(_RECIPES, len(own)):
        sums = np.minimum(costs, best).sum(axis=1)
        chosen = int(sums.argmin())
        if recipes and sums[chosen] > best.sum() - _LEAST_BITS * len(few):
            break
        fit, cost = own[chosen], costs[chosen]
        members = [few[i] for i in np.flatnonzero(cost < best).tolist()]
        if len(members) > 1:
            (shared,) = family.fit(members, together=True)
            shared_cost = _bits(family, few, shared)
            if np.minimum(shared_cost, best).sum() < sums[chosen]:
                fit, cost = shared, shared_cost
        best = np.minimum(best, cost)
        recipes.append(fit)
    return recipes


def _bits(family: Family[_Subject, _Fit], subjects: Sequence[_Subject], fit: _Fit) -> Array:
    """What each of ``subjects`` costs on the base that ``fit`` gives it."""
    group = family.samples.group
    rows = [family.row(subject) for subject in subjects]
    return distance_bits(group.now[rows], based(family, subjects, fit), group.dtype)


def based(family: Family[_Subject, _Fit], subjects: Sequence[_Subject], fit: _Fit) -> npt.NDArray[Any]:
    """The base [subjects, elements] that ``fit`` gives ``subjects``."""
    group = family.samples.group
    flat = [np.ascontiguousarray(rows).view(np.uint8).reshape(-1) for rows in family.inputs(subjects)]
    base = predict(family.relation(subjects[0], fit), flat, dtype=group.dtype)
    return base.view(group.now.dtype).reshape(len(subjects), -1)


def few_of(count: int) -> list[int]:
    """Which of ``count`` tensors alike are fitted: all of a few, else some spread over them."""
    return np.unique(np.linspace(0, count - 1, min(_FITTED, count)).astype(int)).tolist()  # type: ignore[no-any-return]


def _squares(trios: Sequence[Trio]) -> list[int]:
    return [trio.square for trio in trios if trio.square is not None]


def _sane(*numbers: float) -> bool:
    """Whether they may be coefficients of a relation."""
    return all(abs(number) < 1e30 for number in numbers)
