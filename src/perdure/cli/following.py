"""Following a job to its end, also while it has no controller for a moment."""

from __future__ import annotations

import time
from typing import Final

from perdure.errors import NeedsPerson
from perdure.supervisor.asking import Seen

__all__ = ["Following"]

_PATIENCE_S: Final = 30.0  # that ranks go on without a controller, unless --orphan says otherwise


class Following:
    """Says when to stop following a job. A controller that dies is followed by another one, which is waited for."""

    def __init__(self) -> None:
        self._was_live = False
        self._lost_s: float | None = None

    def over(self, seen: Seen) -> bool:
        """Whether the job is over, or had no controller from the beginning. Raises `NeedsPerson` if it has lost its
        controller and none comes.
        """
        if seen.live:
            self._was_live, self._lost_s = True, None
            return False
        if seen.view.job.state.final or not self._was_live:
            return True
        now = time.monotonic()
        self._lost_s = now if self._lost_s is None else self._lost_s
        if now - self._lost_s >= _PATIENCE_S:
            raise NeedsPerson(f"job {seen.view.job.name} is not over, but {seen.note}")
        return False
