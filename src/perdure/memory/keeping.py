"""A thread that keeps one space in order: it takes in edits of documents and consolidates when it is time.

What goes wrong is kept for `Consolidation` and tried again later, less and less often; it never reaches who observes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from perdure.memory.consolidate import Consolidator, When
from perdure.memory.powers import ChatModel
from perdure.memory.records import Change

__all__ = ["Consolidation", "Keeper"]

_LONGEST_WAIT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Consolidation:
    """How a space stands. ``staged`` facts and ``staged_tokens`` are not sorted yet (counted up to a bound); ``last``
    is the last consolidation, whose ``outcome`` and ``note`` say how it went; ``error`` is what last went wrong in the
    background; ``behind`` documents do not show the latest; ``left_alone`` says of files why they were not taken in."""

    staged: int
    staged_tokens: int
    last: Change | None
    error: str = ""
    behind: int = 0
    left_alone: Mapping[str, str] = field(default_factory=dict)


class Keeper:
    """Runs until `stop`; ``every_s`` is how often it looks."""

    def __init__(self, worker: Consolidator, *, when: When, every_s: float, model: ChatModel | None) -> None:
        self.error = ""
        self._worker = worker
        self._when = when
        self._every_s = every_s
        self._model = model
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="perdure-memory-keeper", daemon=True)
        self._thread.start()

    def stop(self, *, wait_s: float) -> bool:
        """Stop; return whether it has come to an end. What it had not finished is as if it had never begun."""
        self._stop.set()
        self._thread.join(wait_s)
        return not self._thread.is_alive()

    def _work(self) -> None:
        wait_s = self._every_s
        while not self._stop.wait(wait_s):
            try:
                if self._worker.due(self._when).why:
                    self._worker.run(model=self._model, wait_s=1.0)
                else:
                    self._worker.documents.catch_up(wait_s=1.0)
                self.error, wait_s = "", self._every_s
            except Exception as error:  # whatever it is, it is shown, and the next look may go better
                if self._stop.is_set():
                    return
                at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
                self.error = f"{at} {type(error).__name__}: {str(error)[:500]}"
                wait_s = min(max(wait_s, 0.1) * 2, _LONGEST_WAIT_S)
