"""Whether neighbours are about the same thing, measured on the source itself.

Theory. In a conversation the answer often stands in the turn after the one that has the words of the question, so a
passage should lend its score to its neighbours. In a list of facts that have nothing to do with one another that is
nothing but noise. The two are told apart without labels: by how much of its words a passage shares with the one before
it, against how much it shares with one told long before. Where the ratio is 1, order says nothing and nothing is lent;
from `FULL` on everything is. Few pairs are believed little: they are pulled towards what is usual in the space, and
the ratio that counts is one standard error below the one that was seen.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

__all__ = ["Coherence", "shared"]

NONE: Final = 1.15
FULL: Final = 1.8
_PAIRS: Final = 20.0
"""As many pairs of the kind that is usual are added to those of a source."""
_ONE: Final = 0.125
"""What one word in common adds, typically: a sum of such has this times itself as its variance."""
_USUAL: Final = (0.09, 0.075)
"""What neighbours and others share where nothing is known: hardly anything is lent."""


@dataclass(slots=True)
class Coherence:
    """Sums of what neighbours (``near``) and others (``far``) share, in as many ``pairs`` of each."""

    near: float = 0.0
    far: float = 0.0
    pairs: int = 0

    def lends(self, usual: Coherence | None = None) -> float:
        """How much of its score a passage lends to its neighbours, 0 to 1. ``usual`` are the sums of all sources.

        >>> Coherence().lends(), Coherence(50.0, 50.0, 1000).lends(), Coherence(160.0, 70.0, 1000).lends()
        (0.0, 0.0, 1.0)
        """
        of_all = usual or Coherence()
        near = self.near + _PAIRS * (of_all.near + _PAIRS * _USUAL[0]) / (of_all.pairs + _PAIRS)
        far = self.far + _PAIRS * (of_all.far + _PAIRS * _USUAL[1]) / (of_all.pairs + _PAIRS)
        ratio = (near - math.sqrt(_ONE * near)) / (far + math.sqrt(_ONE * far))
        return min(1.0, max(0.0, (ratio - NONE) / (FULL - NONE)))


def shared(one: Collection[str], other: Collection[str]) -> float:
    """The part of the smaller set that the other has too.

    >>> shared({"a", "b"}, {"b", "c", "d"})
    0.5
    """
    if not one or not other:
        return 0.0
    return len(set(one) & set(other)) / min(len(one), len(other))
