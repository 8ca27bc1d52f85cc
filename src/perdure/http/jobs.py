"""The jobs that a console shows: looked at on behalf of many requests at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from perdure.errors import CallError, PerdureError
from perdure.http.memories import Memories
from perdure.http.watched import Watches
from perdure.supervisor.asking import Asker, Seen

__all__ = ["Jobs", "Looked"]


@dataclass(frozen=True, slots=True)
class Looked:
    """A job that was looked at: ``seen``, or ``error`` that says why not."""

    name: str
    seen: Seen | None
    error: PerdureError | None = None


class Jobs:
    """``askers`` tells which jobs there are now, ``records`` where watchers keep what they saw, ``memory`` in which
    folder memories are. Thread-safe.
    """

    def __init__(
        self,
        askers: Callable[[], Iterable[Asker]],
        records: Callable[[], Mapping[str, Path]] = dict,
        memory: Path | None = None,
    ) -> None:
        self._askers = askers
        self.memories = Memories(memory)
        self.watches = Watches(records)
        self._known: dict[str, tuple[Asker, threading.Lock]] = {}  # an asker remembers facts
        self._lock = threading.Lock()

    def look(self, name: str) -> Seen:
        """Look at job ``name``. Raises `CallError` if there is none."""
        asker, lock = self._find(name)
        with lock:
            return asker.look()

    def look_at_all(self) -> list[Looked]:
        """Look at every job."""
        found = []
        for name in self._names():
            try:
                found.append(Looked(name, self.look(name)))
            except PerdureError as error:
                found.append(Looked(name, None, error))
        return found

    def asker(self, name: str) -> Asker:
        """Who asks about job ``name``. Raises `CallError` if there is none."""
        return self._find(name)[0]

    def _find(self, name: str) -> tuple[Asker, threading.Lock]:
        if name not in self._names():
            raise CallError(f"there is no job {name}", missing=name)
        with self._lock:
            return self._known[name]

    def _names(self) -> list[str]:
        askers = list(self._askers())
        with self._lock:
            for asker in askers:
                self._known.setdefault(asker.name, (asker, threading.Lock()))
        return [asker.name for asker in askers]
