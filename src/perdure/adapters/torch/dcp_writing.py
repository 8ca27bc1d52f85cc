"""What this process writes to a run through DCP: in which epoch, the how-manieth save, and which step it goes on from.

Theory. To write to a run is to hold an epoch of it, so that of two trainings the older one is refused; and a commit
names its parent. DCP knows neither: it is given a storage writer for each save, or one for all, on any thread. So both
belong to the process and the run, and not to the writer. A load begins anew: what is saved next goes on from the step
that was loaded, in an epoch of its own.

Saves may overlap (``dcp.async_save``), and their threads come in any order. Steps rise all the same: a save begins only
if no later step is under way, and is committed only if no later step was committed meanwhile. So it is always the older
one that is refused.
"""

from __future__ import annotations

import os
import secrets
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field

from perdure.checkpoint.drain import Order, WrittenPart, commit
from perdure.checkpoint.pool import Pool
from perdure.checkpoint.unchanged import Stored, recall
from perdure.errors import CallError, Superseded
from perdure.store import Commit, PartRef, Run, StoreUrl

__all__ = ["Ticket", "Writing", "writing_to"]


@dataclass(frozen=True, slots=True)
class Ticket:
    """What the coordinator tells each rank of a save; travels with DCP's plan."""

    rank: int
    world: int
    order: Order
    parent: int | None
    parent_save: int | None
    """the count of the parent among the saves of this process and epoch; None if it is none of them"""


@dataclass(frozen=True, slots=True)
class _Unfinished:
    """A save that was begun and is not committed."""

    writer: weakref.ref[object]
    thread: threading.Thread
    order: Order
    world: int

    def given_up(self, thread: threading.Thread) -> bool:
        """Whether it will not be committed any more, seen from ``thread``, which begins another.

        DCP does a save on one thread from its begin to its end, and holds the writer meanwhile.
        """
        return self.writer() is None or self.thread is thread or not self.thread.is_alive()


@dataclass(slots=True)
class Writing:
    """What one process has written to, and loaded from, one run."""

    session: str = field(default_factory=lambda: secrets.token_hex(8))
    pool: Pool = field(default_factory=lambda: Pool(label="dcp"))
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _committing: threading.Lock = field(default_factory=threading.Lock)
    _run: str | None = None  # one that was deleted and begun again at the same place is another
    _epoch: int | None = None
    _claim: str | None = None
    _base: int | None = None
    _saves: int = 0
    _last: tuple[int, WrittenPart] | None = None
    _unfinished: list[_Unfinished] = field(default_factory=list)

    @property
    def base(self) -> tuple[str, int] | None:
        """Run and slot that were loaded last; None if this process has loaded nothing."""
        return None if self._run is None or self._base is None else (self._run, self._base)

    def went_on_from(self, run: str, slot: int) -> None:
        """The step in ``slot`` of ``run`` was loaded: what is saved next is its child."""
        with self._lock:
            self._forget(run)
            self._base = slot

    def given_up(self, thread: threading.Thread) -> list[tuple[Order, int]]:
        """Order and world of each save that will not be committed any more: of ``thread``, which begins another, of
        threads that have ended, and of writers that nobody has any more. The others may be under way."""
        with self._lock:
            over = [each for each in self._unfinished if each.given_up(thread)]
            self._unfinished = [each for each in self._unfinished if each not in over]
            return [(each.order, each.world) for each in over]

    def commit(self, run: Run, order: Order, parts: Sequence[PartRef]) -> Commit:
        """Commit a save; called by the coordinator.

        Raises `CallError` if a step that is not before it was committed by this process while it was on its way: as a
        child of that it would be the newest, and it is older. What another process has committed meanwhile is of a
        newer epoch, and refused by `Run.commit` (`Superseded`).
        """
        with self._committing:
            head = run.head()
            if head is not None and head.epoch == order.epoch and head.step >= order.step:
                raise CallError(
                    f"step {order.step} was not saved: it was still on its way (dcp.async_save) when step {head.step} "
                    "was saved by the same process; wait for the future of a save before the next one",
                    step=order.step,
                )
            return commit(run, order, parts)

    def ended(self, order: Order) -> None:
        """The save of ``order`` is committed."""
        with self._lock:
            self._unfinished = [each for each in self._unfinished if each.order.save != order.save]

    def begin(
        self, run: Run, step: int, *, writer: object, thread: threading.Thread, world: int
    ) -> tuple[Order, Commit | None]:
        """The order of the next save, which ``writer`` does on ``thread``, and the commit that it goes on from; called
        by the coordinator.

        Raises `CallError` if ``step`` is not after the one that it goes on from, or before one that is on its way,
        `Superseded` if a newer training has taken the run over.
        """
        with self._lock:
            if self._run != run.marker.run:
                self._forget(run.marker.run)
            if self._epoch is None:
                self._epoch = run.claim_epoch(f"dcp pid {os.getpid()}")
                self._claim = run.token_of(self._epoch)
            newer = run.newest_epoch()
            if newer > self._epoch:  # the commit would be refused, after all has been written
                raise Superseded(
                    f"epoch {newer} owns this run now; this process of epoch {self._epoch} must stop, or load a step "
                    "and go on from there",
                    epoch=self._epoch,
                    newer=newer,
                    slot=None,
                )
            head = run.head()
            parent = head if head is not None and head.epoch == self._epoch else None
            if parent is None and self._base is not None:
                parent = run.read_slot(self._base)
            if parent is not None and step <= parent.step:
                raise CallError(
                    f"step {step} is not after step {parent.step}, which this training goes on from; count steps up, "
                    "or load the step to go back to",
                    step=step,
                )
            later = max((each.order.step for each in self._unfinished if self._is_mine(each.order)), default=step)
            if later > step:
                raise CallError(
                    f"step {step} was not saved: the later step {later} is still on its way (dcp.async_save of the "
                    "same process), and steps rise; wait for the future of a save before the next one",
                    step=step,
                )
            self._saves += 1
            order = Order(
                self._epoch,
                step,
                self._saves,
                None if parent is None else parent.slot,
                session=self.session,
                save=self._saves,
                claim=self._claim,
            )
            self._unfinished.append(_Unfinished(weakref.ref(writer), thread, order, world))
            return order, parent

    def _is_mine(self, order: Order) -> bool:
        """Whether a save is of the epoch that this process writes in now: not of one before a load."""
        return (order.epoch, order.claim) == (self._epoch, self._claim)

    def _forget(self, run: str) -> None:
        self._run, self._base, self._epoch, self._last = run, None, None, None

    def stored(self, run: Run, ticket: Ticket) -> Stored | None:
        """What of this rank's tensors the parent has stored: from memory if it is of this process, else recalled."""
        last = self._last
        if last is not None and ticket.parent is not None and last[0] == ticket.parent_save:
            return last[1].stored(ticket.parent)
        return recall(run, ticket.parent)

    def wrote(self, ticket: Ticket, part: WrittenPart) -> None:
        """This rank's part of a save is durable."""
        self._last = ticket.order.save, part


_writings: dict[tuple[int, str], Writing] = {}
_writings_lock = threading.Lock()


def writing_to(place: StoreUrl) -> Writing:
    """What this process writes to the run at ``place``; a forked process begins its own."""
    with _writings_lock:
        return _writings.setdefault((os.getpid(), str(place)), Writing())
