"""The thread of an agent that hashes generations in its memory, one after another, and what is read of them then."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from perdure.checkpoint.agent_memory import AgentMemory
from perdure.checkpoint.memory_packs import seal
from perdure.checkpoint.messages import Packed
from perdure.checkpoint.vocabulary import Generation
from perdure.errors import PerdureError, from_wire, to_wire
from perdure.shm import Segment
from perdure.state.index import RankIndex

__all__ = ["Sealer"]


class Sealer:
    """Reads ``memory``; tells ``done`` of each generation, with why if it could not be hashed, on its thread."""

    def __init__(self, memory: AgentMemory, *, done: Callable[[Generation, PerdureError | None], None]) -> None:
        self._memory, self._done = memory, done
        self._queue: queue.SimpleQueue[Generation | None] = queue.SimpleQueue()

    def start(self) -> None:
        """Begin."""
        threading.Thread(target=self._work, name="digest", daemon=True).start()

    def submit(self, generation: Generation) -> None:
        """Hash the tiles of ``generation`` and write its packs' headers, after those before it."""
        self._queue.put(generation)

    def end(self) -> None:
        """Nothing comes any more."""
        self._queue.put(None)

    def packs(self, generation: Generation) -> list[tuple[RankIndex, memoryview]]:
        """The sealed packs of ``generation``, by local rank; none if it is here for what is kept of it for others."""
        return [
            (staged.index, self._memory[generation.lanes[lane]].view[: generation.sealed[lane]])
            for lane, staged in sorted(generation.staged.items())
        ]

    def segments(self, generation: Generation) -> list[tuple[Packed, Segment]]:
        """The same, each with the memory that it is the front of."""
        return [
            (
                Packed(nbytes=generation.sealed[lane], number=lane, index=staged.index),
                self._memory[generation.lanes[lane]],
            )
            for lane, staged in sorted(generation.staged.items())
        ]

    def _work(self) -> None:
        while (generation := self._queue.get()) is not None:
            try:
                for lane, staged in generation.staged.items():
                    generation.sealed[lane] = seal(staged.index, self._memory[generation.lanes[lane]].view)
            except Exception as error:  # also a bug must reach the ranks that wait, not end the thread
                self._done(generation, from_wire(to_wire(error)))  # without its traceback, which holds views
                continue
            self._done(generation, None)
