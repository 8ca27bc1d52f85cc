"""Bytes and moments, as a table shows them."""

from __future__ import annotations

import time

__all__ = ["sized", "when"]


def sized(nbytes: int) -> str:
    """Bytes in the largest unit that leaves a number of at least 1.

    >>> sized(999), sized(5 << 20), sized(1536)
    ('999 B', '5.0 MiB', '1.5 KiB')
    """
    value = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{nbytes} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def when(wall_s: float) -> str:
    """A moment of the wall clock, in this machine's time.

    >>> len(when(0.0))
    19
    """
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(wall_s))
