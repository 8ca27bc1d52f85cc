"""A wall clock that jumps while a process runs: `time.time`, which all that perdure knows of wall time comes from."""

from __future__ import annotations

import pathlib
import time

_real = time.time


def install(folder: pathlib.Path) -> None:
    """From the moment that the file ``clock`` is in ``folder``, the wall clock is off by the seconds that it says."""
    file = folder / "clock"

    def jumped() -> float:
        try:
            return _real() + float(file.read_text() or 0.0)
        except FileNotFoundError:
            return _real()

    time.time = jumped
