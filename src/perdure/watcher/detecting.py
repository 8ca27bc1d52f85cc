"""What detectors have found, as the analyser asks for it: what holds is to be found again at every look.

The detectors of this package tell what is new once, and most of them when it is over. `Held` keeps what they told until
then, or for a while, and gives it at every look. `of_nodes`, `of_pace`, `of_loss` and `of_lines` are made with it.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Final

import msgspec

from perdure.watcher.evidence import Evidence

__all__ = ["EVENT_LASTS_S", "Held"]

EVENT_LASTS_S: Final = 15.0
"""So long an event counts as found, of which nobody says when it is over."""


class Held:
    """Evidence by key; what is kept again under a key takes the place of what was there."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, tuple[Evidence, float]] = {}

    def __contains__(self, key: Hashable) -> bool:
        return key in self._kept

    def __len__(self) -> int:
        return len(self._kept)

    def items(self) -> list[tuple[Hashable, Evidence]]:
        """What is kept, and under which keys."""
        return [(key, each) for key, (each, _) in self._kept.items()]

    def keep(self, key: Hashable, each: Evidence, *, until_s: float = math.inf) -> None:
        """Give ``each`` at every look until ``until_s``, or until it is dropped."""
        self._kept[key] = each, until_s

    def drop(self, key: Hashable) -> None:
        """It is over; so is what was never there."""
        self._kept.pop(key, None)

    def clear(self) -> None:
        """All is over."""
        self._kept.clear()

    def found(self, now_s: float) -> list[Evidence]:
        """What holds now, as of now."""
        if not self._kept:
            return []
        self._kept = {key: kept for key, kept in self._kept.items() if kept[1] > now_s}
        return [msgspec.structs.replace(each, at_s=now_s) for each, _ in self._kept.values()]
