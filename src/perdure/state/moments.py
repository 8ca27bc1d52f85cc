"""Find masters and moments of optimizers among blocks of one dtype and box, from samples of two steps alone.

A tensor moves against the sign of its first moment, and by that moment over the root of the second one: so the sign of
its change finds the first moment, and the size of the change beside that of the moment finds the second. What is found
so is only likely; `perdure.state.recipes` fits it and says what it is worth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from perdure.state.fitting import Array, step_of
from perdure.state.pairing import best_matches, chance, log_sizes, standardised
from perdure.state.relations import Of
from perdure.state.sampling import Group

__all__ = ["EPS", "Pair", "Samples", "Trio", "pairs_among", "trios_among"]

EPS: Final = 1e-8
"""What optimizers commonly add to the root of the second moment."""

_MANY: Final = 400  # of more alike, only the likeliest first moment of each tensor is looked at
_LEAST_SIGNS: Final = 0.15
_LEAST_SIZES: Final = 0.1
_LEAST_STEP: Final = 0.25


class Trio(NamedTuple):
    """Rows of a group: a tensor, its first moment, and its second one if there is one."""

    tensor: int
    moment: int
    square: int | None


class Pair(NamedTuple):
    """Rows of a group: a second moment, and the first one."""

    square: int
    moment: int


@dataclass(frozen=True, slots=True)
class Samples:
    """A group that has a base, as numbers: float64[blocks, elements] in both steps, zeros for rows not ``live``.

    Rows are live that are finite in both steps and changed. ``unit`` is the distance from 1 to the next float.
    """

    group: Group
    now: Array
    base: Array
    live: npt.NDArray[np.bool_]
    unit: float

    @classmethod
    def of_group(cls, group: Group) -> Samples:
        """The samples of ``group``, which is of float32 or float64 and has a base."""
        assert group.base is not None
        now, base = group.now.astype(np.float64), group.base.astype(np.float64)
        live = np.isfinite(now).all(axis=1) & np.isfinite(base).all(axis=1) & (now != base).any(axis=1)
        now[~live] = base[~live] = 0.0
        return cls(group, now, base, live, float(np.finfo(group.now.dtype).eps))

    def rows(self) -> list[int]:
        """The live ones."""
        return _where(self.live)

    def signed(self) -> list[int]:
        """Live rows with elements of both signs: a first moment has them."""
        return _where(self.live & (self.now.min(axis=1) < 0) & (self.now.max(axis=1) > 0))

    def squares(self) -> list[int]:
        """Live rows without a negative element: a second moment has none."""
        return _where(self.live & (self.now.min(axis=1) >= 0) & (self.base.min(axis=1) >= 0))

    def this(self, row: int) -> Of:
        """The block of that row in this step."""
        return Of(self.group.names[row], "this")

    def before(self, row: int) -> Of:
        """The block of that row in the base step."""
        return Of(self.group.names[row], "base")


def trios_among(samples: Samples) -> list[Trio]:
    """For each tensor the moments that explain its change best, if some seem to."""
    tensors, signed, squares = samples.rows(), samples.signed(), samples.squares()
    if not tensors or not signed:
        return []
    now, base = samples.now, samples.base
    change = now - base
    count = 2 if len(signed) <= _MANY else 1
    least = max(_LEAST_SIGNS, chance(len(signed), now.shape[1]))
    pulls = standardised(np.sign(now[signed] + base[signed] / 2))
    matches = best_matches(standardised(-np.sign(change[tensors])), pulls, count, least)
    pairs = [(t, signed[m]) for t, found in zip(tensors, matches, strict=True) for m in found if signed[m] != t]
    if not pairs:
        return []
    if len(pairs) > _MANY:  # sizes tell more than signs do: half the elements are enough
        now, base, change = now[:, ::2], base[:, ::2], change[:, ::2]
    t, m = (list(side) for side in zip(*pairs, strict=True))
    gradients = log_sizes(now**2 + base**2 + change**2)  # of all the steps, as far as is known
    sizes = standardised(gradients[m] - log_sizes(change)[t])
    found = best_matches(sizes, standardised(log_sizes(now[squares])), 2, _LEAST_SIZES)
    tried = [
        Trio(tensor, moment, square)
        for (tensor, moment), each in zip(pairs, found, strict=True)
        for square in [*(squares[v] for v in each), None]
        if square != tensor
    ]
    best: dict[int, tuple[float, Trio]] = {}
    for trio, score in zip(tried, _explained(now, base, tried).tolist(), strict=True):
        if score >= _LEAST_STEP and score > best.get(trio.tensor, (0.0, trio))[0]:
            best[trio.tensor] = score, trio
    return [trio for _, trio in best.values()]


def pairs_among(samples: Samples, trios: Sequence[Trio]) -> list[Pair]:
    """Second moments with their first ones: those of ``trios``, and for each other one that which varies most alike."""
    pairs = {Pair(trio.square, trio.moment) for trio in trios if trio.square is not None}
    signed = samples.signed()
    squares = sorted(set(samples.squares()) - {pair.square for pair in pairs})
    if signed and squares:
        now, base = samples.now[signed], samples.base[signed]
        gradients = standardised(log_sizes(now**2 + base**2 + 3 * (now - base) ** 2))
        found = best_matches(standardised(log_sizes(samples.now[squares])), gradients, 1, _LEAST_STEP)
        pairs |= {Pair(square, signed[each[0]]) for square, each in zip(squares, found, strict=True) if each}
    return sorted(pairs)


def _explained(now: Array, base: Array, trios: Sequence[Trio]) -> Array:
    """How much each tensor's change is alike the steps that its moments make: their correlation."""
    changes = standardised(now - base)
    scores = np.zeros(len(trios))
    with_square = [i for i, trio in enumerate(trios) if trio.square is not None]
    without = [i for i, trio in enumerate(trios) if trio.square is None]
    for at in (with_square, without):
        t, m = [trios[i].tensor for i in at], [trios[i].moment for i in at]
        v = [square for i in at if (square := trios[i].square) is not None]
        first, last = (step_of(side[m], side[v] if v else None, EPS) for side in (base, now))
        scores[at] = -(changes[t] * standardised(last + first / 2)).sum(axis=1)
    return scores


def _where(mask: npt.NDArray[Any]) -> list[int]:
    return [int(row) for row in np.flatnonzero(mask)]
