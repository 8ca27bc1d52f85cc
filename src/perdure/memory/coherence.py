"""Whether neighbours are about the same thing, measured on the source itself.

Theory. In a conversation the answer often stands in the turn after the one that has the words of the question, so a
passage should lend its score to its neighbours. In a list of facts that have nothing to do with one another that is
nothing but noise. The two are told apart without labels: by how much of its words a passage shares with the one before
it, against how much it shares with one told long before. Where the ratio is 1, order says nothing and nothing is lent;
from `FULL` on everything is. Few pairs are believed little: they are pulled towards what is usual.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

__all__ = ["Coherence", "shared"]

NONE: Final = 1.15
FULL: Final = 1.8
_PAIRS: Final = 10.0
"""As many pairs of the kind that is usual are added to those of a source."""
_USUAL: Final = (0.09, 0.075)
"""What neighbours and others share where nothing is known: hardly anything is lent."""


@dataclass(slots=True)
class Coherence:
    """Sums of what neighbours (``near``) and others (``far``) share."""

    near: float = 0.0
    far: float = 0.0

    def lends(self, usual: Coherence | None = None) -> float:
        """How much of its score a passage lends to its neighbours, 0 to 1. ``usual`` are the sums of all sources.

        >>> round(Coherence().lends(), 2), Coherence(50.0, 50.0).lends(), Coherence(160.0, 70.0).lends()
        (0.08, 0.0, 1.0)
        """
        near, far = usual._typical() if usual else _USUAL
        ratio = (self.near + _PAIRS * near) / (self.far + _PAIRS * far)
        return min(1.0, max(0.0, (ratio - NONE) / (FULL - NONE)))

    def _typical(self) -> tuple[float, float]:
        near, far = self.near + _PAIRS * _USUAL[0], self.far + _PAIRS * _USUAL[1]
        scale = _USUAL[1] / far
        return near * scale, far * scale


def shared(one: Collection[str], other: Collection[str]) -> float:
    """The part of the smaller set that the other has too.

    >>> shared({"a", "b"}, {"b", "c", "d"})
    0.5
    """
    if not one or not other:
        return 0.0
    return len(set(one) & set(other)) / min(len(one), len(other))
