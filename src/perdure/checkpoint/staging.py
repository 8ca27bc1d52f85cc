"""Stage a save: copy what a rank writes into a segment, then hand it over to the agent, or to this rank's own drain.

What no optimizer owns is copied before `Stager.stage` returns. The rest is copied on a thread, beside the next forward
and backward pass (copies release the interpreter's lock), and the next optimizer step waits for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import msgspec

from perdure.checkpoint.background import Worker
from perdure.checkpoint.config import Deadlines
from perdure.checkpoint.flights import Flight, Flights
from perdure.checkpoint.link import AgentLink
from perdure.checkpoint.messages import Begin, Sample, Staged
from perdure.checkpoint.planning import sample
from perdure.checkpoint.pool import Pool
from perdure.checkpoint.solo import SoloSave
from perdure.clock import Deadline
from perdure.codec.digest import digest
from perdure.errors import AgentLost, DeadlineExceeded
from perdure.shm import Segment
from perdure.state.index import RankIndex
from perdure.state.items import Capture
from perdure.state.save import SavePlan, copy_writes

__all__ = ["Stager"]

Base = Callable[[], tuple[int | None, int | None]]


class Stager:
    """One a checkpointer; called from the thread that trains. ``label`` names the segments of a rank on its own."""

    def __init__(self, *, flights: Flights, deadlines: Deadlines, label: str) -> None:
        self._flights, self._deadlines = flights, deadlines
        self._link: AgentLink | None = None
        self._pool = Pool(label=label)
        self._copier: Worker | None = None
        self._copied = threading.Event()
        self._copied.set()

    def start(self, *, link: AgentLink | None) -> None:
        """The ranks have met."""
        self._link = link
        self._copier = Worker("perdure-copy")

    def end(self) -> None:
        """No save begins any more."""
        if self._copier is not None:
            self._copier.end()

    def wait_for_the_copy_before(self, step: int) -> None:
        """Of a save that has failed the copy may still run, in the very segment that is granted next."""
        if not self._copied.wait(self._deadlines.stage_s):
            raise DeadlineExceeded(f"the copy of the step before {step} still runs", what="the copier", missing="")

    def stage(
        self, flight: Flight, capture: Capture, plan: SavePlan, index: RankIndex, *, base: Base, keep: str
    ) -> None:
        """Copy what ``plan`` gives this rank to write of ``capture``; its ``flight.order`` is made.

        ``base`` tells, once all is copied, the slot and the generation that training went on from; ``keep`` says what
        stays, as text. Raises what keeps the save from beginning; what fails later fails ``flight``.
        """
        assert self._copier is not None
        saved = flight.saved
        segment, release = self._segment(flight, plan)
        try:
            copy_writes(plan, capture, segment.address, which=lambda owned: not owned)
        except BaseException:
            release()
            raise
        samples = sample(plan, capture, saved.seq, owned=False)  # now: the next forward may change it
        shared = {item.key: digest(msgspec.json.encode(item.value)) for item in capture.values if not item.local}

        copied = self._copied = threading.Event()

        def finish() -> None:
            try:
                copy_writes(plan, capture, segment.address, which=lambda owned: owned)
            except BaseException:
                release()
                raise
            finally:
                copied.set()
            both = samples + sample(plan, capture, saved.seq, owned=True)
            said = {each.tensor: each.digest for each in both} | shared
            assert flight.order is not None
            flight.solo = SoloSave(saved, flight.order, index, segment, plan.raw_nbytes, release, said)
            saved.note_staged()
            self._hand_over(flight, index, both, shared, plan.raw_nbytes, base=base, keep=keep)

        self._copier.submit(finish, lambda error: self._flights.stage_failed(flight, error))

    def _segment(self, flight: Flight, plan: SavePlan) -> tuple[Segment, Callable[[], None]]:
        nbytes = plan.total_nbytes
        link = self._link
        if link is not None and not link.lost:
            stage_s = self._deadlines.stage_s
            begin = Begin(
                seq=flight.saved.seq,
                step=flight.saved.step,
                nbytes=nbytes,
                plan_id=plan.plan_id,
                durable=flight.saved.durable,
                within_s=stage_s,
            )
            wait = Deadline.after(stage_s + self._deadlines.agent_s, "a segment of the node's agent")
            try:
                return link.grant(begin, wait), lambda: None
            except AgentLost:
                if not flight.saved.durable:
                    raise
                # told by the link; this very save goes on without the agent
        flight.alone = True
        segment = self._pool.take(nbytes, Deadline.after(self._deadlines.stage_s, "a segment to copy to"))
        return segment, lambda: self._pool.give_back(segment)

    def _hand_over(
        self,
        flight: Flight,
        index: RankIndex,
        samples: list[Sample],
        shared: dict[str, str],
        raw_nbytes: int,
        *,
        base: Base,
        keep: str,
    ) -> None:
        """On the copier's thread: hand the save over to the agent, or drain it here."""
        link, order = self._link, flight.order
        if not flight.alone and link is not None:
            assert order is not None
            slot, generation = base()
            staged = Staged(
                seq=flight.saved.seq,
                step=flight.saved.step,
                epoch=order.epoch,
                claim=order.claim,
                base_slot=slot,
                base_generation=generation,
                index=index,
                samples=samples,
                value_digests=shared,
                raw_nbytes=raw_nbytes,
                meta=dict(order.meta or {}),
                metric=order.metric,
                pinned=order.pinned,
                coding=order.coding,
                keep=keep,
            )
            try:
                link.post(staged)
                link.populate_spares()
                return
            except AgentLost:
                pass
        self._flights.drain_alone(flight)
