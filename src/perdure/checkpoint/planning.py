"""Before the bytes of a save: what this rank has, what each rank will write, and under which epoch.

Ranks exchange that once, and again only when the set of tensors has changed; otherwise a save asks nobody.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from perdure.checkpoint.framework import Framework
from perdure.checkpoint.holders import check_names
from perdure.checkpoint.messages import Sample
from perdure.clock import Deadline
from perdure.codec.digest import TILE_BYTES, digest, n_tiles
from perdure.errors import CallError, PerdureError, from_wire, to_wire
from perdure.fabric import Fabric
from perdure.layout import Box
from perdure.process.environ import Placement
from perdure.state.items import Capture, Memory
from perdure.state.save import Offer, SavePlan, offer, settle
from perdure.store import Run

__all__ = ["Planner", "Sampled", "sampled"]

_TIED = 16  # pieces that stages share and that are compared at a save


class _Exchange(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What ranks tell each other before a save whose plan is new."""

    offer: Offer
    epoch: int | None
    claim: str | None
    error: dict[str, Any] | None


class Planner:
    """Keeps the plan and the epoch of one checkpointer. Called from the thread that trains, by all ranks alike."""

    def __init__(
        self, *, framework: Framework, fabric: Fabric, placement: Placement, run: Callable[[], Run], agree_s: float
    ) -> None:
        self._framework, self._fabric, self._placement = framework, fabric, placement
        self._run, self._agree_s = run, agree_s
        self._plan: SavePlan | None = None
        self._planned_for: tuple[Any, Any] = ((), ())
        self._epoch: int | None = None
        self.claim: str | None = None
        """the token of the epoch, as it was claimed"""

    def forget(self) -> None:
        """Training goes on from a restored step: under a new epoch, and with tensors that may be others."""
        self._plan, self._epoch, self.claim = None, None, None

    def plan(self, tree: Mapping[str, Any]) -> tuple[Capture, SavePlan, int]:
        """Describe ``tree`` as it is now; return that, this rank's part of the save, and the epoch.

        Raises `CallError` and its kinds: on every rank where a plan is made, else on the rank that cannot save.
        """
        capture = self._capture(tree)
        keys = tuple((item.key, item.local) for item in capture.values)
        if self._plan is not None and self._epoch is not None:
            same = self._planned_for == (capture.tensors, keys)  # equal tuples of the very same items compare at once
            if same or self._plan.offer == offer(capture, rank=self._fabric.rank):
                self._planned_for = (capture.tensors, keys)
                return capture, self._plan, self._epoch
        self._plan, self._epoch = self._agree(offer(capture, rank=self._fabric.rank))
        self._planned_for = (capture.tensors, keys)
        return capture, self._plan, self._epoch

    def _capture(self, tree: Mapping[str, Any]) -> Capture:
        try:
            return self._framework.capture(tree)
        except CallError as error:
            if self._epoch is None:  # the others are about to wait for this rank's offer: tell them
                self._exchange(offer(Capture((), ()), rank=self._fabric.rank), None, None, to_wire(error))
            raise

    def _agree(self, mine: Offer) -> tuple[SavePlan, int]:
        epoch, claim, problem = self._epoch, self.claim, None
        if self._fabric.rank == 0 and epoch is None:
            try:
                place = self._placement
                run = self._run()
                epoch = run.claim_epoch(f"{place.job} attempt {place.attempt} pid {os.getpid()}")
                claim = run.token_of(epoch)
            except PerdureError as error:
                problem = to_wire(error)
        told = self._exchange(mine, epoch, claim, problem)
        for each in told:
            if each.error is not None:
                raise from_wire(each.error)
        check_names([each.offer for each in told])
        plan = settle([each.offer for each in told], rank=self._fabric.rank)
        agreed = told[0].epoch
        assert agreed is not None, "rank 0 claimed an epoch or told why not"
        self.claim = told[0].claim
        return plan, agreed

    def _exchange(
        self, mine: Offer, epoch: int | None, claim: str | None, problem: dict[str, Any] | None
    ) -> list[_Exchange]:
        deadline = Deadline.after(self._agree_s, "all ranks to call save")
        told = self._fabric.all_gather(msgspec.json.encode(_Exchange(mine, epoch, claim, problem)), deadline=deadline)
        return [msgspec.json.decode(each, type=_Exchange) for each in told]


@dataclass(frozen=True, slots=True)
class Sampled:
    """One tile of one replicated piece as this rank holds it, to be compared between the ranks.

    ``owned`` as `TensorItem.owned`: what is owned may be read until the fence, what is not only until ``save`` returns.
    """

    tensor: str
    memory: Memory
    owned: bool

    def sample(self) -> Sample:
        """Its digest, as it is now."""
        return Sample(tensor=self.tensor, digest=digest(self.memory.view()))


def sampled(plan: SavePlan, capture: Capture, seq: int) -> list[Sampled]:
    """Choose the tiles to compare, others at each save: of one replicated piece, and of some that stages share."""
    chosen = dict(_turns(plan.replicas, seq, most=1)) | dict(_turns(plan.tied, seq, most=_TIED))
    found = []
    for item in capture.tensors if chosen else ():
        if item.name not in chosen or item.local:
            continue
        box, turn = chosen[item.name]
        for held in item.held:
            if held.box == box:
                nbytes = held.memory.nbytes
                start = turn % max(1, n_tiles(nbytes)) * TILE_BYTES
                part = held.memory.part(start, min(start + TILE_BYTES, nbytes))
                found.append(Sampled(item.name, part, item.owned))
    return found


def _turns(pieces: Sequence[tuple[str, Box]], seq: int, *, most: int) -> Iterator[tuple[str, tuple[Box, int]]]:
    """The pieces whose turn it is, and how often each has had it."""
    for i in range(min(most, len(pieces))):
        turn, which = divmod(seq * most + i, len(pieces))
        name, box = pieces[which]
        yield name, (box, turn)
