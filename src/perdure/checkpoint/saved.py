"""The handle of one save: what has been reached, and what went wrong."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from perdure.clock import Deadline
from perdure.errors import CallError, DeadlineExceeded, PerdureError

__all__ = ["Outcome", "Saved"]

_LOOK_S = 0.5


@dataclass(frozen=True, slots=True)
class Outcome:
    """A durable save: its slot, the bytes of its tensors, the bytes written, seconds from save to commit."""

    slot: int
    raw_nbytes: int
    stored_nbytes: int
    seconds: float


class Saved:
    """What `Checkpointer.save` returns, on every rank. All waits have a deadline; failures raise on every rank.

    ``blocked_s`` is the time that training stood still for this save: in ``save`` and at the fence.
    """

    def __init__(self, step: int, seq: int, *, stage_s: float, commit_s: float, durable: bool = True) -> None:
        self.step = step
        self.durable = durable
        """whether it is to be committed; else it has settled once it is in memory"""
        self.seq = seq
        self.blocked_s = 0.0
        self.nbytes = 0
        self.durable_s: float | None = None
        """how long it took from the save to its commit, once it is committed"""
        self._stage_s = stage_s
        self._commit_s = commit_s
        self._changed = threading.Condition()
        self._staged = False
        self._when_staged: list[Callable[[], None]] = []
        self._in_memory = False
        self._with_peers = False
        self._peers_error: PerdureError | None = None
        self._no_remote = "this run has no remote tier: give its store as tiers=[...]"
        self.watch_remote: Callable[[int], bool] | None = None
        """asks the remote store whether a slot is there, where nobody tells"""
        self._far = False
        self._far_error: PerdureError | None = None
        self._outcome: Outcome | None = None
        self._error: PerdureError | None = None

    def __repr__(self) -> str:
        state = "failed" if self._error else "committed" if self._outcome else "staged" if self._staged else "copying"
        return f"Saved(step={self.step}, {state})"

    def staged(self, timeout_s: float | None = None) -> None:
        """Return when the tensors may change again. Does not raise if the save failed: then they may change too."""
        with self._changed:
            within_s = self._stage_s if timeout_s is None else timeout_s
            self._await(lambda: self._staged or self._error is not None, within_s, "to be copied")

    def reached(self, tier: str, timeout_s: float | None = None) -> None:
        """Return when the save has reached a tier.

        ``"memory"``: all ranks of this node have staged. ``"peer"``: each node's packs lie in the memory of another one
        too, so that any one node may be lost. ``"disk"``: it is committed. ``"remote"``: this very step is committed in
        the store behind that one, too. Raises what kept it from there.
        """
        if tier not in ("memory", "peer", "disk", "remote"):
            raise CallError(f"there is no tier {tier!r}; tiers are 'memory', 'peer', 'disk' and 'remote'", tier=tier)
        if tier == "remote" and self._no_remote:
            raise CallError(self._no_remote, tier=tier)
        if tier in ("disk", "remote") and not self.durable:
            raise CallError(
                f"step {self.step} was saved to memory only, by request; it will not reach {tier}", tier=tier
            )
        if tier == "remote" and self.watch_remote is not None:
            self._watch(self.watch_remote, self._commit_s if timeout_s is None else timeout_s)
            return
        with self._changed:

            def done() -> bool:
                at = {
                    "memory": self._in_memory,
                    "peer": self._with_peers,
                    "disk": self._outcome is not None,
                    "remote": self._far,
                }
                return at[tier]

            def problem() -> PerdureError | None:
                of_tier = {"peer": self._peers_error, "remote": self._far_error}
                return of_tier.get(tier) or self._error

            within_s = self._commit_s if timeout_s is None else timeout_s
            self._await(lambda: done() or problem() is not None, within_s, f"to reach {tier}")
            why = problem()
            if not done() and why is not None:
                raise why

    def committed(self, timeout_s: float | None = None) -> Outcome:
        """Return when the save is durable: pulling the plug now loses nothing. Raises its error on every rank."""
        self.reached("disk", timeout_s)
        assert self._outcome is not None
        return self._outcome

    @property
    def error(self) -> PerdureError | None:
        """Why the save failed, if it did."""
        return self._error

    @property
    def settled(self) -> bool:
        """Whether the save is as durable as it is to be, or has failed."""
        return self._outcome is not None or self._error is not None or (self._in_memory and not self.durable)

    @property
    def is_staged(self) -> bool:
        """Whether this rank has copied its part."""
        return self._staged

    def when_staged(self, tell: Callable[[], None]) -> None:
        """Call ``tell`` once this rank has copied its part: now if it has, else from the thread that copies."""
        with self._changed:
            if not self._staged:
                self._when_staged.append(tell)
                return
        tell()

    # Called by the checkpointer's threads.

    def note_staged(self) -> None:
        with self._changed:
            self._staged = True
            self._changed.notify_all()
            waiting, self._when_staged = self._when_staged, []
        for tell in waiting:
            tell()

    def note_memory(self) -> None:
        with self._changed:
            self._in_memory = True
            self._changed.notify_all()

    def note_peers(self, error: PerdureError | None) -> None:
        with self._changed:
            self._with_peers = error is None
            self._peers_error = error
            self._changed.notify_all()

    def note_no_peers(self, error: PerdureError) -> None:
        """From here on it gets nowhere else; if it had, nothing changes."""
        with self._changed:
            if not self._with_peers and self._peers_error is None:
                self._peers_error = error
            self._changed.notify_all()

    def note_carried(self, no_remote: str = "") -> None:
        """It is to be carried to the remote store; or why it is not, as a sentence."""
        self._no_remote = no_remote

    def note_remote(self, error: PerdureError | None) -> None:
        with self._changed:
            if error is None:
                self._far, self._far_error = True, None
            elif not self._far:
                self._far_error = error
            self._changed.notify_all()

    def note_committed(self, outcome: Outcome) -> None:
        with self._changed:
            self._staged = self._in_memory = True
            self._outcome = outcome
            self.durable_s = outcome.seconds
            self._changed.notify_all()

    def note_failed(self, error: PerdureError) -> None:
        with self._changed:
            if self._outcome is None and self._error is None:
                self._error = error
            self._changed.notify_all()

    def _watch(self, is_there: Callable[[int], bool], within_s: float) -> None:
        deadline = Deadline.after(within_s, f"step {self.step} to reach remote")
        slot = self.committed(within_s).slot
        while not is_there(slot):
            deadline.check("it may still get there")
            time.sleep(min(_LOOK_S, deadline.left()))

    @property
    def raw_nbytes(self) -> int:
        """The bytes of the tensors of all ranks, once it is committed."""
        return self.nbytes if self._outcome is None else self._outcome.raw_nbytes

    def _await(self, done: Callable[[], bool], timeout_s: float, what: str) -> None:
        deadline = Deadline.after(timeout_s, f"step {self.step} {what}")
        while not done():
            if not self._changed.wait(min(deadline.left(), 1.0)) and deadline.passed():
                raise DeadlineExceeded(
                    f"step {self.step} took longer than {timeout_s:g} s {what}; it may still get there", step=self.step
                )
