"""Moments, as a table shows them."""

from __future__ import annotations

import time

__all__ = ["when"]


def when(wall_s: float) -> str:
    """A moment of the wall clock, in this machine's time.

    >>> len(when(0.0))
    19
    """
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(wall_s))
