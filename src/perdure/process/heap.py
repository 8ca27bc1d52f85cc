"""Give memory back to the system that this process has freed but keeps."""

from __future__ import annotations

import ctypes

__all__ = ["trim_heap"]

_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc alone


def trim_heap() -> None:
    """Return freed memory to the system; takes milliseconds, any thread may call it.

    glibc keeps what threads have freed for the next time. A process that needs hundreds of MiB once a save, and then
    waits, is better off without them.
    """
    if _trim is not None:
        _trim(0)
