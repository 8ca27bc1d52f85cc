"""The thread that carries committed steps to the store far away, behind the drain and never in its way.

Theory. What is committed is safe; to carry it is to make a second copy. So nothing here fails a save. Orders come after
commits, and the lowest slot goes first, for a copy takes slots as they rise. An order that somebody asked for (by a
rhythm, or by hand) stays until it is carried; one that nobody asked for gives way to the next one as long as it waits,
so that where carrying takes longer than saving, the newest step goes next. What fails for now (a server that is away)
stays, too, and is tried again when the next step is committed; what can never come (a pack that rotted, a step that was
pruned) goes. Either is told, once until it works again.

`spared` are the slots that retention must leave alone meanwhile: that which is carried, and the two newest that wait.
Older ones may be pruned, so that a copy that is away for days does not fill the disk.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from perdure.checkpoint.messages import Carry, Reached
from perdure.errors import BlobMissing, CallError, IntegrityError, PerdureError, Superseded, from_wire, to_wire
from perdure.store import Note, Run, Store
from perdure.upkeep.carrying import Carried, carry
from perdure.upkeep.keep import parse
from perdure.upkeep.retention import Retention

__all__ = ["Arrived", "Carrier", "CarrierHost", "CarryOrder", "reached"]

_NEVER = (IntegrityError, CallError, Superseded)  # what trying again does not mend
_OWED = 16  # steps that wait for a copy that is away
_STALL_S = 600.0  # without any progress nobody waits for it any more
_SPARED = 2


@dataclass(frozen=True, slots=True)
class CarryOrder:
    """A committed step that is to be carried. ``save`` is its session and count; ``began`` when it was committed."""

    carry: Carry
    save: tuple[str, int]
    step: int
    slot: int
    began: float


@dataclass(frozen=True, slots=True)
class Arrived:
    """A step is in the copy: the bytes that were sent for it, and seconds since its commit."""

    slot: int
    sent_nbytes: int
    seconds: float


def reached(order: CarryOrder, result: Arrived | PerdureError) -> Reached:
    """How ranks are told of the end of an order."""
    seq = order.save[1]
    if isinstance(result, PerdureError):
        return Reached(seq=seq, tier="remote", error=to_wire(result))
    return Reached(seq=seq, tier="remote", slot=result.slot, nbytes=result.sent_nbytes, seconds=result.seconds)


class CarrierHost(Protocol):
    """Who gives orders; called on the carrier's thread."""

    def carried(self, order: CarryOrder, result: Arrived | PerdureError) -> None:
        """An order has ended. After an error that trying again may mend, it may yet arrive."""
        ...

    def prunes_copy(self, order: CarryOrder) -> bool:
        """Whether nobody else is about to go on from some step."""
        ...

    def told(self, order: CarryOrder, text: str) -> None:
        """What a person should know."""
        ...


class Carrier:
    """Takes orders from any thread; one thread of its own, begun with the first order, carries them out."""

    def __init__(self, here: Store, *, host: CarrierHost, open_store: Callable[[str], Store]) -> None:
        self._here, self._host, self._open_store = here, host, open_store
        self._changed = threading.Condition()
        self._waiting: list[CarryOrder] = []
        self._now: CarryOrder | None = None
        self._due = False  # whether what waits is to be tried
        self._commits = 0  # that were told of; one during an attempt that fails is reason enough for another
        self._ended = False
        self._moved = 0.0
        self._thread: threading.Thread | None = None
        self._stores: dict[str, Store] = {}
        self._retention: dict[str, Retention] = {}
        self._noted: set[str] = set()
        self._failing = ""  # the kind of the last error, until something arrives

    def submit(self, order: CarryOrder) -> None:
        """Carry a step once those before it are carried; what waits and was not asked for gives way to it."""
        with self._changed:
            passed = [each for each in self._waiting if not each.carry.asked]
            asked = [each for each in self._waiting if each.carry.asked]
            self._waiting = sorted([*asked, order], key=lambda each: each.slot)
            passed += self._waiting[:-_OWED]
            self._waiting = self._waiting[-_OWED:]
            self._stir()
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="carry", daemon=True)
                self._thread.start()
            self._changed.notify_all()
        for each in passed:
            self._host.carried(each, _passed_over(each, order))

    def nudge(self) -> None:
        """A step was committed that is not to be carried: what has failed is tried again."""
        with self._changed:
            self._stir()
            self._changed.notify_all()

    def _stir(self) -> None:
        self._commits += 1
        self._due, self._moved = True, time.monotonic()

    @property
    def busy(self) -> bool:
        """Whether something is carried or about to be; no longer once nothing moves."""
        with self._changed:
            at_work = self._now is not None or (self._due and bool(self._waiting))
            return at_work and time.monotonic() - self._moved < _STALL_S

    def spared(self) -> frozenset[int]:
        """The slots that retention must leave alone."""
        with self._changed:
            now = [] if self._now is None else [self._now]
            return frozenset(each.slot for each in [*now, *self._waiting[-_SPARED:]])

    def end(self, *, within_s: float) -> list[CarryOrder]:
        """No order comes any more: wait for what is under way; return what was not carried by then."""
        give_up = time.monotonic() + within_s
        while self.busy and time.monotonic() < give_up:
            with self._changed:
                self._changed.wait(min(0.2, max(0.0, give_up - time.monotonic())))
        with self._changed:
            self._ended = True
            left = [*([] if self._now is None else [self._now]), *self._waiting]
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(0.0 if left else 1.0)
        return left

    # --- the thread -------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while True:
            with self._changed:
                self._now = None
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._ended or (self._due and self._waiting))
                if self._ended:
                    return
                self._now = order = self._waiting.pop(0)
                seen = self._commits
            try:
                done = self._carry(order)
            except Exception as error:  # also a bug must not end the thread
                self._failed(order, from_wire(to_wire(error)), seen)
            else:
                self._failing = ""
                self._host.carried(order, Arrived(done.slot, done.sent_nbytes, time.monotonic() - order.began))
                self._prune(order)

    def _carry(self, order: CarryOrder) -> Carried:
        began, sent = time.monotonic(), 0

        def pace(nbytes: int) -> None:
            nonlocal sent
            with self._changed:
                self._moved = time.monotonic()
                if self._ended:
                    raise BlobMissing("the carry was ended with its process")
            sent += nbytes
            limit = order.carry.bytes_per_s
            if limit is not None:
                time.sleep(max(0.0, began + sent / limit - time.monotonic()))

        run = Run.open(self._here, create=False, tell=lambda note: self._note(order, note))
        return carry(run, self._store(order.carry.url), order.slot, pace=pace)

    def _failed(self, order: CarryOrder, error: PerdureError, seen: int) -> None:
        never = isinstance(error, _NEVER)
        late: list[CarryOrder] = []
        with self._changed:
            if self._ended:
                return
            if not never:
                newer = any(not each.carry.asked for each in self._waiting)
                self._due = self._commits != seen
                late = [] if self._due else list(self._waiting)
                if order.carry.asked or not newer:
                    self._waiting = sorted([order, *self._waiting], key=lambda each: each.slot)
        if self._failing != error.kind:
            self._failing = error.kind
            again = "" if never else "; it is tried again after the next save"
            self._host.told(order, f"step {order.step} is not in {order.carry.url}: {error}{again}")
        for each in (order, *late):
            self._host.carried(each, error)

    def _prune(self, order: CarryOrder) -> None:
        """Prune the copy by its rules; what goes wrong is told, and fails nothing."""
        if not order.carry.keep or not self._host.prunes_copy(order):
            return
        url = order.carry.url
        try:
            far = Run.open(self._store(url), create=False, tell=lambda note: self._note(order, note))
            told = self._retention.setdefault(url, Retention()).keep(far, parse(order.carry.keep))
        except Exception as error:  # a bug too
            told = f"older steps could not be pruned ({error}); the next save tries again"
        if told is not None:
            self._host.told(order, f"in {url} {told}")

    def _store(self, url: str) -> Store:
        if url not in self._stores:
            self._stores[url] = self._open_store(url)
        return self._stores[url]

    def _note(self, order: CarryOrder, note: Note) -> None:
        if note.message not in self._noted:  # the same damaged file is met with each step
            self._noted.add(note.message)
            self._host.told(order, note.message)


def _passed_over(order: CarryOrder, newer: CarryOrder) -> BlobMissing:
    return BlobMissing(
        f"step {order.step} was passed over on the way to {order.carry.url}: step {newer.step} is newer",
        step=order.step,
    )
