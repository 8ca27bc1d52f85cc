"""Try the relations of the save before first: their shape is kept, their coefficients are fitted anew, and priced.

Which tensor is the moment of which hardly ever changes within a training; by how much a tensor moved since the base
does with every save. So what is left of a search is one small fit for those that shared a recipe, and one comparison.
What is kept between two saves is `Findings`: names, relations and numbers, no bytes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from perdure.layout import Box
from perdure.state.fitting import SecondFit, UpdateFit
from perdure.state.moments import Pair, Samples, Trio
from perdure.state.predicting import NARROWER, PREDICTABLE, predict
from perdure.state.pricing import distance_bits
from perdure.state.recipes import Family, Offer, Seconds, Updates, based, faded, few_of
from perdure.state.relations import Relation, Rounding, SecondMoment, Update, sources
from perdure.state.sampling import Group

__all__ = ["Estimate", "Findings", "Kind", "Priced", "Wide", "kinds_of", "offers_again", "still_good"]

_REUSED: Final = 15
"""After so many saves that tried what was found before, all is searched again: better relations may have come up."""
_SHRUNK: Final = 0.5  # a relation that saves less of what it saved is searched for again,
_LEAST_LOSS: Final = 0.05  # if that is so much of the tensor
_GROWN: Final = 1.25  # tensors alike that have come to cost so many times more or less are searched again
_LEAST_BITS: Final = 1.0  # an element, which nobody searches for

_Subject = TypeVar("_Subject", Trio, Pair)
_Fit = TypeVar("_Fit", UpdateFit, SecondFit)

Kind: TypeAlias = tuple[str, Box, bool]
"""The dtype and box of a group, and whether it has a base: blocks of one kind are searched together."""


Wide: TypeAlias = Mapping[tuple[str, Box], Sequence[Group]]
"""Groups by dtype and box, with a base and without."""


class Estimate(NamedTuple):
    """What a block costs, in bits an element: ``alone``, and ``on`` the base that its ``relation`` gives it.

    None where nobody can tell without coding it: elements that are no floats.
    """

    relation: Relation | None
    alone: float | None
    on: float | None


class Priced(NamedTuple):
    """What a block cost in bits an element when relations to others were searched for: without one, and with it."""

    without: float
    bits: float


@dataclass(frozen=True, slots=True)
class Findings:
    """What one save found: the ``estimates`` of its blocks, and what the next save needs in order to try them first.

    ``kept`` are relations to others that held in the last search or since, also where they save too little now;
    ``names`` are the blocks of each kind; ``priced`` is of the last search of each; ``searched`` are the kinds that
    this save searched; ``reused`` is how many saves in a row have tried first what was found before.
    """

    estimates: dict[str, Estimate]
    kept: dict[str, Relation]
    names: dict[Kind, tuple[str, ...]]
    priced: dict[str, Priced]
    searched: frozenset[Kind]
    reused: int

    def serve(self, names: Mapping[Kind, tuple[str, ...]]) -> bool:
        """Whether a save of those ``names`` should try them first: the same blocks, and not too often in a row."""
        return self.reused < _REUSED and self.names == names


def kinds_of(groups: Sequence[Group]) -> dict[Kind, Group]:
    """The groups of a save by their kinds."""
    return {(group.dtype, group.box, group.base is not None): group for group in groups}


def still_good(
    group: Group, priced: Mapping[str, Priced], without: Mapping[str, float], offered: Sequence[Offer]
) -> bool:
    """Whether relations among the blocks of ``group`` save about as much as when they were ``priced``; if not, a search
    is due.

    ``without`` is what blocks cost in bits an element with no other tensors, ``offered`` what their relations give now.
    """
    bits = {offer.name: min(offer.bits, without[offer.name]) for offer in offered}
    then = sum(priced[name].bits for name in group.names)
    now = sum(bits.get(name, without[name]) for name in group.names)
    if abs(now - then) > max((_GROWN - 1) * min(now, then), _LEAST_BITS * len(group.names)):
        return False
    for name in group.names:
        saved = 1 - priced[name].bits / max(priced[name].without, _LEAST_BITS)
        if without[name] < _LEAST_BITS or saved < _LEAST_LOSS:
            continue
        saves = 1 - bits.get(name, without[name]) / without[name]
        if saves < saved * _SHRUNK and saves < saved - _LEAST_LOSS:
            return False
    return True


def offers_again(group: Group, relations: Mapping[str, Relation], wide: Wide) -> list[Offer]:
    """Those of ``relations`` that are of blocks of ``group``, with coefficients and costs of now; no plain deltas.

    ``wide`` are the groups, by dtype and box, that roundings are taken of. A relation is left out if a block that it
    needs is not there, has not changed, or is not finite.
    """
    made = _rounded(group, relations, wide)
    if group.base is not None and group.dtype in PREDICTABLE:
        with np.errstate(all="ignore"):  # what is no number after all is no good fit
            made += _refitted(Samples.of_group(group), relations)
    if not made:
        return []
    bits = distance_bits(group.now[[each.row for each in made]], np.stack([each.base for each in made]), group.dtype)
    return [Offer(group.names[each.row], each.relation, cost) for each, cost in zip(made, bits.tolist(), strict=True)]


class _Again(NamedTuple):
    """A relation for a row of a group, and the base that it gives its samples."""

    row: int
    relation: Relation
    base: npt.NDArray[Any]


def _rounded(group: Group, relations: Mapping[str, Relation], wide: Wide) -> list[_Again]:
    copies: dict[str, list[int]] = defaultdict(list)
    for row, name in enumerate(group.names):
        relation = relations.get(name)
        if isinstance(relation, Rounding):
            copies[relation.of].append(row)
    made: list[_Again] = []
    for dtype in NARROWER.get(group.dtype, ()):
        for other in wide.get((dtype, group.box), ()):
            owners = [row for row, name in enumerate(other.names) if name in copies]
            if not owners:
                continue
            flat = other.now[owners].view(np.uint8).reshape(-1)
            base = predict(Rounding("-"), [flat], dtype=group.dtype, wide=dtype).view(group.now.dtype)
            for owner, rounded in zip(owners, base.reshape(len(owners), -1), strict=True):
                of = other.names[owner]
                made += [_Again(row, Rounding(of), rounded) for row in copies[of]]
    return made


def _refitted(samples: Samples, relations: Mapping[str, Relation]) -> list[_Again]:
    """Relations to the base step; those that had the same coefficients are fitted together."""
    row_of = {name: row for row, name in enumerate(samples.group.names) if samples.live[row]}
    fading: list[int] = []
    trios: dict[tuple[bool, float, object], list[Trio]] = defaultdict(list)
    pairs: dict[object, list[Pair]] = defaultdict(list)
    for name, row in row_of.items():
        relation = relations.get(name)
        if relation is None or any(of.name not in row_of for of in sources(name, relation)):
            continue
        match relation:
            case Update(keep, terms) if terms:
                last = terms[-1]  # the moments of this step; those of the base step have the same names
                shared = keep, last.square is None, *(term.by for term in terms)
                square = None if last.square is None else row_of[last.square.name]
                trios[len(terms) > 1, last.eps, shared].append(Trio(row, row_of[last.moment.name], square))
            case Update():
                fading.append(row)
            case SecondMoment(moment, _, keep, fade, by, rest):
                pairs[keep, fade, by, rest].append(Pair(row, row_of[moment.name]))
    made: list[_Again] = []
    if fading:
        made += map(_Again, fading, *faded(samples, fading))
    for (first, eps, _), alike in trios.items():
        made += _together(Updates(samples, first, eps), alike)
    for like in pairs.values():
        made += _together(Seconds(samples), like)
    return made


def _together(family: Family[_Subject, _Fit], subjects: Sequence[_Subject]) -> list[_Again]:
    (fit,) = family.fit([subjects[i] for i in few_of(len(subjects))], together=True)
    return [
        _Again(family.row(subject), family.relation(subject, fit), base)
        for subject, base in zip(subjects, based(family, subjects, fit), strict=True)
    ]
