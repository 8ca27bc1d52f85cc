"""Stage a save: copy what a rank writes into a segment, then hand it over to the agent, or to this rank's own drain.

What no optimizer owns is copied before `Stager.stage` returns. The rest is copied beside the next forward and backward
pass, and the next optimizer step waits for it: of host memory on a thread (copies release the interpreter's lock), of a
device's by the device itself, which then also does the waiting. How is the copier's business (`copying`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import msgspec

from perdure.checkpoint.background import Worker
from perdure.checkpoint.config import Deadlines
from perdure.checkpoint.copying import Block, Copier, Copying
from perdure.checkpoint.flights import Flight, Flights
from perdure.checkpoint.link import AgentLink
from perdure.checkpoint.messages import Begin, Sample, Staged, Terms
from perdure.checkpoint.planning import Sampled, sampled
from perdure.checkpoint.pool import Pool
from perdure.checkpoint.saved import Saved
from perdure.checkpoint.solo import SoloSave
from perdure.clock import Deadline
from perdure.codec.digest import TILE_BYTES, digest
from perdure.errors import AgentLost, DeadlineExceeded
from perdure.shm import Segment
from perdure.state.index import RankIndex
from perdure.state.items import Capture, Memory
from perdure.state.save import SavePlan

__all__ = ["Stager"]

Base = Callable[[], tuple[int | None, int | None]]


class Stager:
    """One a checkpointer; called from the thread that trains. ``label`` names the segments of a rank on its own."""

    def __init__(self, *, flights: Flights, deadlines: Deadlines, copier: Copier, label: str) -> None:
        self._flights, self._deadlines, self._copier = flights, deadlines, copier
        self._link: AgentLink | None = None
        self._pool = Pool(label=label)
        self._thread: Worker | None = None
        self._copied = threading.Event()
        self._copied.set()
        self._copying: tuple[Saved, Copying] | None = None
        self._tiles: Segment | None = None

    def start(self, *, link: AgentLink | None) -> None:
        """The ranks have met."""
        self._link = link
        self._thread = Worker("perdure-copy")

    def end(self) -> None:
        """No save begins any more."""
        if self._thread is not None:
            self._thread.end()

    def wait_for_the_copy_before(self, step: int) -> None:
        """Of a save that has failed the copy may still run, in the very segment that is granted next."""
        if not self._copied.wait(self._deadlines.stage_s):
            raise DeadlineExceeded(f"the copy of the step before {step} still runs", what="the copier", missing="")

    def fence(self, saved: Saved) -> None:
        """Return once an optimizer may step: it can no longer reach what ``saved`` copies."""
        under_way = self._copying
        if under_way is None or under_way[0] is not saved or not under_way[1].fence(self._deadlines.stage_s):
            saved.staged()

    def stage(
        self, flight: Flight, capture: Capture, plan: SavePlan, index: RankIndex, *, base: Base, keep: str
    ) -> None:
        """Copy what ``plan`` gives this rank to write of ``capture``; its ``flight.order`` is made.

        ``base`` tells, once all is copied, the slot and the generation that training went on from; ``keep`` says what
        stays, as text. Raises what keeps the save from beginning; what fails later fails ``flight``.
        """
        assert self._thread is not None
        saved = flight.saved
        segment, release = self._segment(flight, plan)
        blocks: dict[bool, list[Block]] = {False: [], True: []}  # by `owned`
        for write in plan.writes:
            item = capture.tensors[write.tensor]
            if write.nbytes:
                blocks[item.owned].append(Block(item.name, item.held[write.piece].memory, segment, write.start))
        tiles = self._aside(sampled(plan, capture, saved.seq), blocks)
        try:
            copying = self._copier.begin(blocks[False], blocks[True])
        except BaseException:
            release()
            raise
        samples = [tile.sample() for tile in tiles if not tile.owned]  # now: the next forward may change them
        shared = {item.key: digest(msgspec.json.encode(item.value)) for item in capture.values if not item.local}

        copied = self._copied = threading.Event()
        self._copying = (saved, copying)

        def finish() -> None:
            try:
                copying.finish()
                both = samples + [tile.sample() for tile in tiles if tile.owned]
            except BaseException:
                release()
                raise
            finally:
                self._copying = None
                copied.set()
            said = {each.tensor: each.digest for each in both} | shared
            assert flight.order is not None
            flight.solo = SoloSave(saved, flight.order, index, segment, plan.raw_nbytes, release, said)
            saved.note_staged()
            self._hand_over(flight, index, both, shared, plan.raw_nbytes, base=base, keep=keep)

        self._thread.submit(finish, lambda error: self._flights.stage_failed(flight, error))

    def _aside(self, tiles: list[Sampled], blocks: dict[bool, list[Block]]) -> list[Sampled]:
        """``tiles``, those that cannot be read later as they will lie aside once all is copied; ``blocks`` do that."""
        mixed = any(block.memory.device for block in blocks[True])  # then the device alone holds the next step back
        found = []
        for i, tile in enumerate(tiles):
            if tile.memory.device or (tile.owned and mixed):
                if self._tiles is None or self._tiles.nbytes < len(tiles) * TILE_BYTES:
                    self._tiles = Segment.create(len(tiles) * TILE_BYTES, label="tiles")
                blocks[tile.owned].append(Block(tile.tensor, tile.memory, self._tiles, i * TILE_BYTES))
                here = Memory(self._tiles.address + i * TILE_BYTES, tile.memory.nbytes, self._tiles)
                tile = Sampled(tile.tensor, here, owned=True)
            found.append(tile)
        return found

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
                base_slot=slot,
                base_generation=generation,
                index=index,
                samples=samples,
                value_digests=shared,
                raw_nbytes=raw_nbytes,
                terms=Terms(
                    claim=order.claim,
                    meta=dict(order.meta or {}),
                    metric=order.metric,
                    pinned=order.pinned,
                    coding=order.coding,
                    keep=keep,
                    carry=flight.carry,
                ),
            )
            try:
                link.post(staged)
                link.populate_spares()
                for segment in list(link.segments.values()):
                    self._copier.adopt(segment)
                return
            except AgentLost:
                pass
        self._flights.drain_alone(flight)
