"""Whose turn it is to be drained, which slot each commit follows, and what deltas are made on.

Generations are drained one after another, in the order in which they became complete, so the parent of each commit is
known when its turn comes. One that a new session went on from, and that could not be committed (its epoch was over, the
disk was full), is drained again under the new session's epoch, before that session's first save.

The *base* is the durable generation that deltas are made on. It is the first to go where memory is short, but never
while it is being read.
"""

from __future__ import annotations

from perdure.checkpoint.vocabulary import Drain, Drained, Generation, Phase

__all__ = ["Turns"]


class Turns:
    """The part of the agent's memory that `generations` has drained; moves a generation on from ``COMPLETE``."""

    def __init__(self) -> None:
        self.base: Generation | None = None
        self.base_must_go = False
        """it is wanted for its memory, and being read"""
        self.waiting: list[Generation] = []
        """in the order of their turns"""
        self._base_is_read = False
        self._no_base: set[str] = set()  # sessions that have no memory for one
        self._drained_for: str | None = None  # the session for which one is written now
        self._slots: dict[int, int | None] = {}  # generation -> its slot, else the one that it would have followed
        self._newest: dict[str, int] = {}  # session -> the last slot of it

    # --- turns -------------------------------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        """Whether nothing is drained or waits for it."""
        return self._drained_for is None and not self.waiting

    def drains_for(self, session: str) -> bool:
        """Whether a generation is being written just now for ``session``."""
        return self._drained_for == session

    def add(self, generation: Generation, *, before: Generation | None = None) -> None:
        """It waits for its turn: the last one, or the one just before that of another."""
        generation.phase = Phase.COMPLETE
        self.waiting.insert(len(self.waiting) if before is None else self.waiting.index(before), generation)

    def again(self, generation: Generation, *, before: Generation | None = None) -> None:
        """It is no longer known to be durable: it waits for its turn, and no delta is made on it meanwhile."""
        generation.slot = None
        if self.base is generation:
            self.base = None  # its segments stay: it waits
        self.add(generation, before=before)

    def remove(self, generation: Generation) -> None:
        """It needs no turn any more, if it waits for one."""
        if generation in self.waiting:
            self.waiting.remove(generation)

    def withdraw(self, session: str) -> None:
        """What waits to be made durable for ``session`` will not be."""
        for generation in [each for each in self.waiting if each.by == session]:
            self.waiting.remove(generation)
            generation.phase = Phase.UNDRAINED

    def next(self) -> Drain | None:
        """Begin the next drain, if none is under way and its generation can be read."""
        if self._drained_for is not None or not self.waiting or not self.waiting[0].digested:
            return None
        generation = self.waiting.pop(0)
        generation.phase = Phase.DRAINING
        self._drained_for = generation.by
        on = None if self.base_must_go else self.base
        self._base_is_read = on is not None
        return Drain(generation, self.follows(generation), on)

    def ended(self) -> str | None:
        """The drain is over, however it ended; the session for which it was."""
        drained_for, self._drained_for = self._drained_for, None
        self._base_is_read = False
        if self.base_must_go:
            self.base, self.base_must_go = None, False
        return drained_for

    # --- slots -------------------------------------------------------------------------------------------------------

    def committed(self, generation: Generation, result: Drained) -> None:
        """It is durable."""
        generation.phase, generation.slot = Phase.DURABLE, result.slot
        self._slots[generation.id] = self._newest[generation.session] = result.slot
        if result.keep is not None:
            self.base = generation if result.keep and generation.session not in self._no_base else None

    def not_committed(self, generation: Generation) -> None:
        """It could not be made durable."""
        generation.phase = Phase.UNDRAINED
        self._slots[generation.id] = self._newest.get(generation.session, self._went_on_from(generation))

    def held(self, generation: Generation) -> None:
        """It stays in memory and has no turn, unless a new session goes on from it."""
        generation.phase = Phase.HELD
        self._slots[generation.id] = self.follows(generation)

    def follows(self, generation: Generation) -> int | None:
        """The slot that ``generation`` follows if its epoch has no commit yet, as far as it is known."""
        slot = self._went_on_from(generation)
        return slot if generation.new_epoch is None else self._newest.get(generation.session, slot)

    def _went_on_from(self, generation: Generation) -> int | None:
        """The slot that the session of ``generation`` went on from."""
        if not generation.staged:
            return None if generation.fostered is None else generation.fostered.base
        lead = generation.lead
        return lead.base_slot if lead.base_generation is None else self._slots.get(lead.base_generation)

    # --- the base ----------------------------------------------------------------------------------------------------

    def give_up_base(self, session: str) -> bool:
        """``session`` has no memory for a base: it goes, once nobody reads it. Whether that is news."""
        news = session not in self._no_base
        self._no_base.add(session)
        if self._base_is_read:
            self.base_must_go = True
        else:
            self.base = None
        return news
