"""Moments, as a table shows them."""

from __future__ import annotations

import time

__all__ = ["clock", "when"]


def when(wall_s: float) -> str:
    """A moment of the wall clock, in this machine's time.

    >>> len(when(0.0))
    19
    """
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(wall_s))


def clock(wall_s: float) -> str:
    """The time of day of a moment, in this machine's time.

    >>> len(clock(0.0))
    8
    """
    return time.strftime("%H:%M:%S", time.localtime(wall_s))
