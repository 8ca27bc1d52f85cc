"""BM25 over passages and over the sections they stand in, where passages lend their score to their neighbours.

Theory. Each term adds ``idf * tf * (k1 + 1) / (tf + norm)`` to every passage that it stands in (Robertson and Zaragoza
2009). All passages are scored, none is skipped: a posting costs a few nanoseconds in NumPy, so at a million passages
the sum over all of them costs less than an index of another kind needs to find out which it may skip. Only what comes
after is bounded: the `POOL` best passages by their own words and their neighbours up to two places away get the score

    own + lends * (next, previous, second next, second previous, each times its share)

times ``1 + lends * 2 * (score of the section) / (best score of a section)``. The section is scored as one text, so that
it counts how many *different* words of the question are near. ``lends`` is measured, see `perdure.memory.coherence`.
A passage outside the pool could be among the first only with a score of its own below that of `POOL` others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from perdure.memory.postings import Postings
from perdure.memory.units import Units

__all__ = ["K1", "POOL", "B", "Favour", "idf", "rank"]

K1: Final = 1.2
B: Final = 0.6
POOL: Final = 1000
_SECTION_B: Final = 0.75
_SECTION_WEIGHT: Final = 2.0
_SHARES: Final = ((0.5, 0.25), (0.4, 0.2))
"""What comes from the next and the second next passage, and from the previous and the second previous one."""


@dataclass(frozen=True, slots=True)
class Favour:
    """Passages of ``speaker`` (a code, or None), and those observed from ``since_s`` to ``until_s``, count for more."""

    speaker: int | None = None
    since_s: float | None = None
    until_s: float | None = None
    speaker_factor: float = 1.5
    time_factor: float = 1.5


def idf(n: int, have: int) -> float:
    """What a term counts that ``have`` of ``n`` passages have; never below 0."""
    return math.log(1 + (n - have + 0.5) / (have + 0.5))


def rank(
    units: Units,
    n: int,
    postings: Mapping[str, Postings],
    weights: Mapping[str, float],
    lends: NDArray[np.float32],
    *,
    keep: NDArray[np.bool_] | None,
    favour: Favour,
    limit: int,
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Return the best units and their scores, best first; of equals the newest.

    ``lends`` is by code of source; ``keep`` (n,) says which units may be returned.
    """
    own = np.zeros(n + 1, np.float32)  # the last stands for the neighbour that there is not
    together = bool(lends.any()) and len(postings) > 0
    many = units.sections  # another thread may add some meanwhile
    sections = np.zeros(many, np.float32)
    for term, (found, counts) in postings.items():
        weight = weights[term] * idf(n, len(found)) * (K1 + 1)
        own[found] += np.float32(weight) * counts / (counts + units.norm[found])
        if together:
            sections += weights[term] * _of_sections(units, many, found, counts)
    if favour.speaker is not None or favour.since_s is not None or favour.until_s is not None:
        _favour(units, n, own, favour)
    pool = _best(own[:n] if keep is None else np.where(keep, own[:n], np.float32(0)), POOL)
    if together:
        around = [pool]
        for step in (units.next, units.prev):
            one = step[pool]
            around += [one, _again(step, one)]
        pool = np.unique(np.concatenate(around))
        pool = pool[(pool >= 0) & (pool < n)]
        if keep is not None:
            pool = pool[keep[pool]]
        scores = own[pool]
        share = lends[units.source[pool]]
        for step, (first, second) in zip((units.next, units.prev), _SHARES, strict=True):
            one = np.where(step[pool] < n, step[pool], -1)
            two = _again(step, one)
            scores = scores + share * (first * own[one] + second * own[np.where(two < n, two, -1)])
        best = float(sections.max(initial=0.0))
        if best > 0:
            scores = scores * (1 + share * _SECTION_WEIGHT * sections[units.section[pool]] / best)
    else:
        scores = own[pool]
    order = np.lexsort((-pool, -scores))[:limit]
    order = order[scores[order] > 0]
    return pool[order], scores[order]


def _of_sections(units: Units, many: int, found: NDArray[np.int32], counts: NDArray[np.float32]) -> NDArray[np.float32]:
    summed = np.bincount(units.section[found], weights=counts, minlength=many)
    times: NDArray[np.float32] = summed.astype(np.float32)
    have = int(np.count_nonzero(times))
    mean = max(1.0, units.total / max(1, many))
    lengths = units.section_length[:many]
    norm = np.float32(K1 * (1 - _SECTION_B)) + np.float32(K1 * _SECTION_B / mean) * lengths
    scores = np.float32(idf(many, have) * (K1 + 1)) * times / (times + norm)
    return scores.astype(np.float32, copy=False)


def _favour(units: Units, n: int, own: NDArray[np.float32], favour: Favour) -> None:
    if favour.speaker is not None:
        own[:n] *= np.where(units.speaker[:n] == favour.speaker, np.float32(favour.speaker_factor), np.float32(1))
    if favour.since_s is not None or favour.until_s is not None:
        at = units.observed_s[:n]
        within = (at >= (favour.since_s or -math.inf)) & (at < (favour.until_s or math.inf))
        own[:n] *= np.where(within, np.float32(favour.time_factor), np.float32(1))


def _again(step: NDArray[np.int32], at: NDArray[np.int32]) -> NDArray[np.int32]:
    return np.where(at >= 0, step[at], np.int32(-1))


def _best(scores: NDArray[np.float32], limit: int) -> NDArray[np.int32]:
    """The places of the ``limit`` best scores above 0, in no order."""
    if len(scores) > 50 * limit:
        sample = scores[:: max(1, len(scores) // 20_000)]
        at = max(1, int(2 * limit * len(sample) / len(scores)))
        least = float(np.partition(sample, -at)[-at])
        found = np.flatnonzero(scores >= least) if least > 0 else np.flatnonzero(scores)
        if len(found) < limit:
            found = np.flatnonzero(scores)
    else:
        found = np.flatnonzero(scores)
    if len(found) > limit:
        found = found[np.argpartition(scores[found], -limit)[-limit:]]
    return found.astype(np.int32)
