"""What this process writes to a run through DCP: in which epoch, the how-manieth save, and which step it goes on from.

Theory. To write to a run is to hold an epoch of it, so that of two trainings the older one is refused; and a commit
names its parent. DCP knows neither: it is given a storage writer for each save, or one for all, on any thread. So both
belong to the process and the run, and not to the writer. A load begins anew: what is saved next goes on from the step
that was loaded, in an epoch of its own.
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
    _unfinished: list[tuple[weakref.ref[object], Order, int]] = field(default_factory=list)

    @property
    def base(self) -> tuple[str, int] | None:
        """Run and slot that were loaded last; None if this process has loaded nothing."""
        return None if self._run is None or self._base is None else (self._run, self._base)

    def went_on_from(self, run: str, slot: int) -> None:
        """The step in ``slot`` of ``run`` was loaded: what is saved next is its child."""
        with self._lock:
            self._forget(run)
            self._base = slot

    def given_up(self, writer: object) -> list[tuple[Order, int]]:
        """Order and world of each save that will not be committed any more: of ``writer``, which begins another, and
        of writers that nobody has any more. Those of others may be under way on threads of their own."""
        with self._lock:
            over = [each for each in self._unfinished if each[0]() in (None, writer)]
            self._unfinished = [each for each in self._unfinished if each not in over]
            return [(order, world) for _, order, world in over]

    def commit(self, run: Run, order: Order, parts: Sequence[PartRef]) -> Commit:
        """Commit a save; called by the coordinator.

        Raises `CallError` if a later step of this process was committed while this one was on its way: as a child of
        that it would be the newest, and it is older.
        """
        with self._committing:
            head = run.head()
            if head is not None and (head.epoch, head.session) == (order.epoch, self.session) and head.seq > order.save:
                raise CallError(
                    f"step {order.step} was not saved: it was still on its way (dcp.async_save) when step {head.step} "
                    "was saved by the same process; wait for the future of a save before the next one",
                    step=order.step,
                )
            return commit(run, order, parts)

    def ended(self, writer: object) -> None:
        """The save of ``writer`` is committed."""
        with self._lock:
            self._unfinished = [each for each in self._unfinished if each[0]() is not writer]

    def begin(self, run: Run, step: int, *, writer: object, world: int) -> tuple[Order, Commit | None]:
        """The order of the next save, and the commit that it goes on from; called by the coordinator.

        Raises `CallError` if ``step`` is not after the one that it goes on from, `Superseded` if a newer training has
        taken the run over.
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
            self._unfinished.append((weakref.ref(writer), order, world))
            return order, parent

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
