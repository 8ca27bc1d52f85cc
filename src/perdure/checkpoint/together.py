"""A load that the ranks of a node share: bytes that several of them want come from the store once.

Each rank prepares its load as if it were alone and, where there is something to gain, makes a relay, whose invitation
goes to all ranks with the vote that ends the preparation. Then they meet, share out what more than one wants, and load.
What lies in the machine's page cache already is no gain: the kernel has read it once, and each rank copies it from
there. Whoever cannot take part, or fails, tells the others why; they read for themselves what it was to read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from perdure.errors import PerdureError
from perdure.state.load import LoadReport, Prepared, carry_out
from perdure.state.relay import Relay
from perdure.state.shares import WANT, Rows, Shares, share_out
from perdure.state.sharing import arrange, at_hand, stored_nbytes, wants_of

__all__ = ["LEAST_BYTES", "Together"]

LEAST_BYTES: Final = 16 << 20
"""What a node must spare by sharing; for less each rank reads for itself."""

_MOST_READ = 1.25  # bytes, for one that is wanted: who reads more tiles than that in vain gains, also from page cache
_MOST_WAIT_S = 60.0
_BAY_BYTES = 4 << 20  # one tile: the less memory is touched for the first time, the better
_LEAST_BAY_BYTES = 1 << 20
_BAYS = 4


class Together:
    """One rank's part in it; ``ranks`` are those of its node, this one (``rank``) among them.

    Half of the load's budget goes to what is handed over. ``stall_s`` is how long a store may keep a load waiting;
    another rank is waited for a quarter of that at most, and never more than a minute.
    """

    def __init__(self, prepared: Prepared, *, rank: int, ranks: Sequence[int], stall_s: float, label: str) -> None:
        self._prepared, self._rank, self._ranks = prepared, rank, ranks
        self._relay: Relay | None = None
        self._wants: Rows = np.empty(0, WANT)
        self._notes: list[str] = []
        self._bay_bytes = min(_BAY_BYTES, prepared.budget_bytes // 2 // _BAYS)
        if len(ranks) < 2 or self._bay_bytes < _LEAST_BAY_BYTES:
            return
        stored = stored_nbytes(prepared.jobs)
        alone = stored <= _MOST_READ * prepared.wanted_nbytes and at_hand(prepared.jobs)
        if stored < LEAST_BYTES or alone:
            return
        self._wants = wants_of(prepared.jobs)
        wait_s = min(stall_s / 4, _MOST_WAIT_S)
        try:
            self._relay = Relay(
                self._wants.tobytes(), n_bays=_BAYS, bay_bytes=self._bay_bytes, label=label, wait_s=wait_s
            )
        except PerdureError as error:
            self._notes.append(f"nothing is shared with the other ranks of this node: {error}")

    @property
    def invitation(self) -> Any:
        """For the other ranks, as JSON; None if this one reads alone."""
        return None if self._relay is None else [*self._relay.invitation, self._bay_bytes]

    def load(self, invitations: Mapping[int, Any], *, on_bytes: Callable[[int], None]) -> LoadReport:
        """Load, with those of the node that have sent an invitation; raises what keeps this rank from it."""
        relay = self._relay
        work: Sequence[Callable[[], None]] | None = None
        if relay is not None:
            try:
                shares = self._agree(relay, {rank: invitations[rank] for rank in self._ranks})
            except PerdureError as error:
                relay.leave(str(error))
                self._notes.append(f"nothing is shared with the other ranks of this node: {error}")
            else:
                if shares.spared_nbytes >= LEAST_BYTES:
                    relay.begin(shares.units)
                    filling = self._prepared.filling
                    filling.buffers.shrink(self._prepared.budget_bytes - _BAYS * self._bay_bytes)
                    work = arrange(self._prepared.jobs, shares, relay=relay, filling=filling)
        try:
            report = carry_out(self._prepared, on_bytes=on_bytes, work=work)
        except BaseException as error:
            if relay is not None:
                relay.leave(f"it failed: {error}")
            raise
        report.notes = [*self._notes, *report.notes]
        return report

    def close(self) -> None:
        """When all ranks are done with the load, or it is given up."""
        if self._relay is not None:
            self._relay.close()

    def _agree(self, relay: Relay, invitations: Mapping[int, Any]) -> Shares:
        others = {rank: each for rank, each in invitations.items() if each is not None and rank != self._rank}
        letters = relay.meet(self._rank, {rank: (pid, fd, token) for rank, (pid, fd, token, _) in others.items()})
        wants = {rank: np.frombuffer(letter, WANT) for rank, letter in letters.items()}
        unit_bytes = min([self._bay_bytes, *(bay_bytes for *_, bay_bytes in others.values())])
        return share_out({self._rank: self._wants, **wants}, unit_bytes=unit_bytes)
