"""The saves of one rank on their way to the remote store, and what becomes of each, whoever says so.

The agent of the node that commits carries, and every rank hears of it. Where ranks save by themselves rank 0 carries,
on a thread of its own; the others, whom nobody tells, look into the remote store while they wait.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from perdure.checkpoint.carrier import Arrived, Carrier, CarryOrder, reached
from perdure.checkpoint.messages import Carry, Reached
from perdure.checkpoint.remote import Remote
from perdure.checkpoint.saved import Saved
from perdure.errors import AgentLost, BlobMissing, PerdureError, from_wire
from perdure.events import Committed, Fact, Notice
from perdure.store import Run
from perdure.store.places import pruned_name, slot_name

__all__ = ["FarFlights"]

_AWAITED = 256  # saves of which word may yet come


class FarFlights:
    """Called from the thread that trains, the link's, the drainer's, the carrier's. Without ``remote`` it is idle."""

    def __init__(
        self, remote: Remote | None, *, rank: int, run: Callable[[], Run], tell: Callable[[Fact], None]
    ) -> None:
        self._remote, self._rank, self._run, self._tell = remote, rank, run, tell
        self._awaited: dict[int, Saved] = {}
        self._lock = threading.Lock()
        self._carrier: Carrier | None = None

    def begin(self, saved: Saved, *, asked: bool, alone: bool) -> Carry | None:
        """A save begins: what is to be done with it once it is committed. ``alone``: there is no agent."""
        if self._remote is None or not saved.durable:
            return None
        carry = self._remote.carries(saved.step, asked=asked)
        if carry is None:
            saved.note_carried(
                f"step {saved.step} is not to be carried to {self._remote.url}, which takes every "
                f'{self._remote.every} steps; save it with tier="remote"'
            )
            return None
        saved.note_carried()
        if alone and self._rank > 0:
            saved.watch_remote = self._is_there
            return carry
        with self._lock:
            self._awaited[saved.seq] = saved
            while len(self._awaited) > _AWAITED:
                del self._awaited[next(iter(self._awaited))]
        return carry

    def hear(self, said: Reached) -> None:
        """The word of whoever carries."""
        with self._lock:
            saved = self._awaited.get(said.seq) if said.error is not None else self._awaited.pop(said.seq, None)
        if saved is None:
            return
        if said.error is not None:
            saved.note_remote(from_wire(said.error))
            return
        saved.note_remote(None)
        before_s = saved.durable_s or 0.0
        self._tell(
            Committed(
                step=saved.step,
                slot=said.slot,
                tier="remote",
                seconds=before_s + said.seconds,
                raw_bytes=saved.raw_nbytes,
                stored_bytes=said.nbytes,
            )
        )

    def agent_lost(self, error: AgentLost) -> None:
        """Nobody carries any more what is committed; what is not will be carried by rank 0, or be looked for."""
        with self._lock:
            for seq, saved in list(self._awaited.items()):
                if saved.settled:
                    saved.note_remote(AgentLost(f"step {saved.step} was not carried: {error}"))
                    del self._awaited[seq]
                elif self._rank > 0:
                    saved.watch_remote = self._is_there
                    del self._awaited[seq]

    # --- by this rank -----------------------------------------------------------------------------------------------

    def committed(self, saved: Saved, carry: Carry | None, slot: int) -> None:
        """This rank has committed a save by itself: carry it, on a thread of its own."""
        if self._remote is None:
            return
        if carry is None:
            if self._carrier is not None:
                self._carrier.nudge()
            return
        if self._carrier is None:
            store = self._remote.store
            self._carrier = Carrier(self._run().store, host=self, open_store=lambda url: store)
        self._carrier.submit(CarryOrder(carry, ("", saved.seq), saved.step, slot, time.monotonic()))

    def spared(self) -> frozenset[int]:
        """Slots that no rule gives up yet."""
        return frozenset() if self._carrier is None else self._carrier.spared()

    def end(self, *, within_s: float) -> None:
        """No save begins any more: wait for what is carried; tell what is not."""
        if self._carrier is None or self._remote is None:
            return
        left = self._carrier.end(within_s=within_s)
        if left:
            steps = ", ".join(str(each.step) for each in left)
            text = f"not in {self._remote.url} yet: step {steps}; the next training that goes on from here carries on"
            self._tell(Notice(text=text))

    def carried(self, order: CarryOrder, result: Arrived | PerdureError) -> None:
        """The carrier has ended an order."""
        self.hear(reached(order, result))

    def prunes_copy(self, order: CarryOrder) -> bool:
        """Nobody else trains here that we could know of."""
        return True

    def told(self, order: CarryOrder, text: str) -> None:
        """What a person should know."""
        self._tell(Notice(text=text))

    # --- by others, who do not tell ---------------------------------------------------------------------------------

    def _is_there(self, slot: int) -> bool:
        """Whether the copy has the step in ``slot``; raises `BlobMissing` if it was passed over."""
        assert self._remote is not None
        store = self._remote.store
        if store.size(slot_name(slot)) is None:
            return False
        if store.size(pruned_name(slot)) is not None:
            raise BlobMissing(f"the step in slot {slot} was passed over on the way to {self._remote.url}")
        return True
