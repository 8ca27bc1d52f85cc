"""One restore, from lining up candidates to the vote that ends it. Every rank runs this with the others.

For each candidate, newest first: compare names, shapes and dtypes (vote), fill (vote), hand over values. A call that
cannot work (another model) fails at once on all ranks; bad bytes make all go to the next older candidate together.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from perdure.checkpoint.adoption import adoption
from perdure.checkpoint.config import Deadlines
from perdure.checkpoint.copies import Copies
from perdure.checkpoint.framework import Framework, Target
from perdure.checkpoint.lineup import Candidate, RankView, SlotFacts, holders_of, line_up
from perdure.checkpoint.link import AgentLink, Loan
from perdure.checkpoint.meeting import Peers
from perdure.checkpoint.messages import Adopt, Generation
from perdure.checkpoint.parts_together import MANY_PARTS, read_parts_together
from perdure.checkpoint.stalls import unless_stalled
from perdure.checkpoint.step_memory import StepMemory
from perdure.checkpoint.together import Together
from perdure.clock import Deadline
from perdure.errors import (
    AgentLost,
    BlobMissing,
    Bug,
    CallError,
    DeadlineExceeded,
    IntegrityError,
    PerdureError,
    StorageError,
    from_wire,
    to_wire,
)
from perdure.events import Restored
from perdure.fabric import Fabric
from perdure.state.alike import check_alike
from perdure.state.claims import check_claims, claims
from perdure.state.index import Catalog
from perdure.state.load import LoadReport, PackSource, match, prepare
from perdure.state.step_index import read_catalog
from perdure.store import Run
from perdure.store.branch import commit_of

__all__ = ["Done", "Restoring", "read_catalog"]

Result = TypeVar("Result")
_LINE_UPS = 20  # times that a restore looks for newer steps because those that it found were pruned meanwhile
_LOOK_BACK = 64  # commits that a restore of "the newest" may fall back through


@dataclass(frozen=True, slots=True)
class Done:
    """A restore that succeeded; ``adoption`` is what to tell the agent if the step was in memory alone.

    ``slot`` is its commit; of a step in memory alone, the commit that the next one is to follow if the step never
    becomes durable.
    """

    step: int
    slot: int | None
    adoption: Adopt | None
    fact: Restored


@dataclass(frozen=True, slots=True)
class _Opened:
    """A candidate ready to be loaded."""

    catalog: Catalog
    memory: StepMemory
    target: Target
    together: Together
    notes: Sequence[str]
    claims: tuple[str, str] | None
    """what this rank wants, where others may want the rest"""


class Restoring:
    """The collective restore of one tree."""

    def __init__(
        self,
        *,
        run: Run,
        fabric: Fabric,
        framework: Framework,
        link: AgentLink | None,
        deadlines: Deadlines,
        budget_bytes: int,
        node: int = 0,
        peers: Peers | None = None,
        url: str = "",
        copies: Copies | None = None,
    ) -> None:
        self._copies = copies if copies is not None else Copies(run)
        self._run, self._fabric, self._framework, self._link = run, fabric, framework, link
        self._node, self._peers, self._url = node, peers, url
        self._views: list[RankView] = []
        self._heard: list[Any] = []
        self._deadlines, self._budget_bytes = deadlines, budget_bytes
        self._mine: list[Generation] = []
        self._head: SlotFacts | None = None

    def run_through(self, tree: Mapping[str, Any], *, step: int | None, slot: int | None = None) -> Done | None:
        """Restore the newest candidate that verifies on all ranks (or ``step``, or what is committed in ``slot``).

        None if the run is empty. What somebody prunes meanwhile is no fault: newer steps are looked for again.
        """
        began = time.monotonic()
        notes: list[str] = []
        last: PerdureError | None = None
        written = False
        tried: set[tuple[int | None, str | None, int | None]] = set()
        waiting = self._candidates(step, slot)
        relined = 0
        while waiting:
            candidate = waiting.pop(0)
            tried.add((candidate.slot, candidate.session, candidate.seq))
            parts = self._parts(candidate)
            last, opened = self._vote(
                lambda c=candidate, p=parts: self._open(tree, c, p),  # type: ignore[misc]
                tell=lambda o: o.together.invitation,  # type: ignore[union-attr]
            )
            invited = dict(enumerate(self._heard))
            try:
                if last is None and opened is not None:
                    last = self._unclaimed(opened)
                if last is None and opened is not None:
                    written = True
                    last, report = self._vote(lambda o=opened, i=invited: self._load(o, i))  # type: ignore[misc]
                    if last is None:
                        last, _ = self._vote(lambda o=opened: self._hand_over(o))  # type: ignore[misc]
                    if last is None and report is not None:
                        return self._done(candidate, report, [*notes, *opened.notes], time.monotonic() - began)
            finally:
                if opened is not None:
                    opened.together.close()
                    opened.memory.close()
            assert last is not None
            if not isinstance(last, IntegrityError):
                break
            any_step = step is None and slot is None and relined < _LINE_UPS
            if any_step and candidate.slot is not None and self._was_pruned(candidate.slot):
                relined += 1
                again = self._candidates(None, None)
                waiting = [each for each in again if (each.slot, each.session, each.seq) not in tried]
                continue
            notes.append(f"step {candidate.step} could not be used ({last})")
        if last is None:
            return None
        if not written:
            raise last
        raise type(last)(
            f"no step can be restored, and the live state may be half written: do not train on; {last}", **last.facts
        )

    def _candidates(self, step: int | None, slot: int | None) -> list[Candidate]:
        """What there is to restore, newest first, alike on all ranks. Raises if ``step`` or ``slot`` is not there."""
        found = self._line_up(step, slot)
        if slot is not None:
            return [each for each in found if each.slot == slot]
        if step is None:
            return found
        chosen = [each for each in found if each.step == step]
        if not chosen:
            why, _ = self._vote(lambda: commit_of(self._run, step=step))
            raise why or BlobMissing(f"step {step} is not there to restore; steps() lists what is", step=step)
        return chosen

    def _was_pruned(self, slot: int) -> bool:
        """Whether the commit was given up since it was lined up; the word of rank 0 is everybody's."""
        mine = False
        if self._fabric.rank == 0:
            with suppress(PerdureError):  # then the candidate counts as bad, whatever it was
                mine = self._copies.is_gone(self._facts(slot))
        return bool(self._gather(mine, "all ranks to restore")[0])

    def _load(self, opened: _Opened, invitations: Mapping[int, Any]) -> LoadReport:
        def load(moved: Callable[[Any], None]) -> LoadReport:
            opened.memory.on_bytes = moved
            return opened.together.load(invitations, on_bytes=moved)

        return self._watched(load, "reading tensors")

    def _hand_over(self, opened: _Opened) -> None:
        opened.target.finish(opened.catalog, rank=self._fabric.rank, world=self._fabric.world)

    def _line_up(self, step: int | None, slot: int | None) -> list[Candidate]:
        problem: dict[str, Any] | None = None
        chain: list[SlotFacts] | None = None
        try:
            if self._link is not None:
                deadline = Deadline.after(self._deadlines.agent_s, "the agent's generations")
                # One that was deleted and begun again is another run: what memory holds of the old one stays there.
                mine = self._run.marker.run
                self._mine = [each for each in self._link.generations(deadline) if each.run == mine]
        except (AgentLost, DeadlineExceeded):
            self._mine = []  # the store still has what is committed
        if self._fabric.rank == 0:
            try:
                chain = self._watched(lambda moved: self._chain(step, slot), "the commits of the run")
            except PerdureError as error:
                problem = to_wire(error)
        view = RankView(node=self._node, generations=self._mine, chain=chain)
        told = self._gather([msgspec.to_builtins(view), problem], "all ranks to call restore")
        for _, refused in told:
            if refused is not None:
                raise from_wire(refused)
        views = [msgspec.convert(each, RankView) for each, _ in told]
        self._views = views
        self._head = next(iter(views[0].chain or ()), None)
        return line_up(views)

    def _chain(self, step: int | None, slot: int | None) -> list[SlotFacts]:
        return self._copies.chain(step=step, slot=slot, most=_LOOK_BACK)

    def _facts(self, slot: int) -> SlotFacts:
        """What rank 0 has lined up in ``slot``."""
        return next(each for each in self._views[0].chain or () if each.slot == slot)

    def _parts(self, candidate: Candidate) -> Mapping[str, memoryview]:
        """What the parts of a candidate say, where there are so many that ranks read them for one another."""
        slot = candidate.slot
        if slot is None or candidate.parts < MANY_PARTS or self._fabric.world == 1:
            return {}
        problem, commit = self._vote(lambda: self._run.read_slot(slot))
        if problem is not None or commit is None:
            return {}  # `_open` meets the same, and all ranks take the next candidate
        return read_parts_together(
            self._run.store,
            commit.parts,
            fabric=self._fabric,
            agree_s=self._deadlines.agree_s,
            stall_s=self._deadlines.stall_s,
            budget_bytes=self._budget_bytes,
        )

    def _open(self, tree: Mapping[str, Any], candidate: Candidate, parts: Mapping[str, memoryview]) -> _Opened:
        memory = self._in_memory(candidate)
        stored: Mapping[str, Sequence[PackSource]] = {}
        found: Catalog | None = None
        notes: Sequence[str] = ()
        if candidate.slot is not None:
            try:
                facts = self._facts(candidate.slot)
                found, stored, notes = self._watched(
                    lambda moved: self._copies.catalog(facts, rank=self._fabric.rank, known=parts, moved=moved),
                    f"the index of step {candidate.step}",
                )
            except (IntegrityError, StorageError) as error:
                if not memory.whole:
                    raise
                notes = (f"{error}; took what is in memory",)
        if found is not None:
            catalog = found
        elif memory.whole:
            catalog = memory.catalog()
        else:
            raise BlobMissing(f"step {candidate.step} is no longer in memory{memory.because}", step=candidate.step)
        target = self._framework.prepare(tree, catalog)
        rank, world = self._fabric.rank, self._fabric.world
        items = target.items(catalog, rank=rank, world=world)
        keys, partial = target.value_keys(), bool(target.apart)
        matches = match(catalog, items, keys, rank=rank, world=world, partial=partial, anew=target.anew)
        wanted = claims(catalog, matches, keys, apart=target.apart) if partial else None

        def packs(pack: str) -> Sequence[PackSource]:
            return stored.get(pack, ())

        nearer, budget_bytes = memory.holders, self._budget_bytes
        self._watched(
            lambda moved: check_alike(
                catalog, matches, target.alike, packs, budget_bytes=budget_bytes, nearer=nearer, on_bytes=moved
            ),
            "counts and options that are one here",
        )
        prepared = self._watched(
            lambda moved: prepare(catalog, matches, packs, budget_bytes=budget_bytes, nearer=nearer, opened=moved),
            "the headers of packs",
        )
        together = Together(
            prepared,
            rank=rank,
            ranks=[number for number, view in enumerate(self._views) if view.node == self._node],
            stall_s=self._deadlines.stall_s,
            label=f"restore.{rank}",
        )
        return _Opened(catalog, memory, target, together, [*memory.problems, *notes], wanted)

    def _unclaimed(self, opened: _Opened) -> PerdureError | None:
        """Why the ranks do not want all that was saved, where none of them wants all; the same on every rank."""
        told = self._gather(opened.claims, "all ranks to restore")
        try:
            check_claims(opened.catalog, told)
        except PerdureError as error:
            return error
        return None

    def _in_memory(self, candidate: Candidate) -> StepMemory:
        """What agents hold of a candidate: the own one first, others for what it lacks."""
        memory = StepMemory(f"the memory of step {candidate.step}", silent_s=self._deadlines.silent_s)
        if candidate.session is None or candidate.seq is None or self._link is None:
            return memory
        save = (candidate.session, candidate.seq)
        memory.add_loans(self._borrow(candidate))
        holders = holders_of(self._views, *save)
        memory.world = len(holders)
        if self._peers is not None:
            lacking = holders.keys() - memory.ranks
            turn = self._fabric.rank  # so that not all ask the same node
            asked = {rank: of[turn % len(of)] for rank, of in holders.items() if rank in lacking}
            for node in sorted(set(asked.values())):
                memory.add_peer(self._peers, node, url=self._url, save=save)
            for node in sorted({node for of in holders.values() for node in of} - {self._node}):
                ranks = [rank for rank, of in holders.items() if node in of and asked.get(rank) != node]
                memory.add_spare(self._peers, node, ranks, url=self._url, save=save)
        return memory

    def _borrow(self, candidate: Candidate) -> list[Loan]:
        mine = next((each for each in self._mine if (each.session, each.seq) == candidate.name), None)
        if mine is None or self._link is None:
            return []
        try:
            return self._link.borrow(mine.id, Deadline.after(self._deadlines.agent_s, "the agent's memory"))
        except (AgentLost, DeadlineExceeded):
            return []

    def _watched(self, work: Callable[[Callable[[Any], None]], Result], what: str) -> Result:
        return unless_stalled(work, stall_s=self._deadlines.stall_s, what=what)

    def _vote(
        self, work: Callable[[], Result], *, tell: Callable[[Result], Any] = lambda result: None
    ) -> tuple[PerdureError | None, Result | None]:
        """Run ``work`` and tell all ranks how it went; the error of the lowest failing rank is everybody's.

        What ``tell`` makes of each rank's result is what has been heard then.
        """
        result: Result | None = None
        mine: list[Any] = [None, None]
        try:
            result = work()
            mine = [None, tell(result)]
        except Exception as error:  # also a bug on one rank must not leave the others waiting
            mine = [to_wire(error), None]
        gathered = self._gather(mine, "all ranks to restore")
        told, self._heard = [each for each, _ in gathered], [each for _, each in gathered]
        errors = [(rank, from_wire(each)) for rank, each in enumerate(told) if each is not None]
        if not errors:
            return None, result
        rank, worst = next((pair for pair in errors if isinstance(pair[1], CallError | Bug)), errors[0])
        if len(told) > 1:
            worst = type(worst)(f"rank {rank}: {worst}", **worst.facts)
        return worst, None

    def _gather(self, value: Any, what: str) -> list[Any]:
        deadline = Deadline.after(self._deadlines.agree_s, what)
        told = self._fabric.all_gather(msgspec.json.encode(value), deadline=deadline)
        return [msgspec.json.decode(each) for each in told]

    def _done(self, candidate: Candidate, report: LoadReport, notes: list[str], seconds: float) -> Done:
        fact = Restored(
            step=candidate.step,
            tiers=report.tier_nbytes,
            seconds=seconds,
            read_nbytes=report.read_nbytes + report.pad_nbytes,
            shared_nbytes=report.shared_nbytes,
            verified_tiles=report.verified_tiles,
            committed=candidate.slot is not None,
            notes=(*notes, *report.notes),
        )
        if candidate.slot is not None:
            return Done(candidate.step, candidate.slot, None, fact)
        known = [
            each for view in self._views for each in view.generations if (each.session, each.seq) == candidate.name
        ]
        head = self._head
        follows = next((each.base_slot for each in known if each.base_slot is not None), None)
        if head is not None and head.epoch == known[0].epoch:
            follows = head.slot
        if head is not None and follows is not None and follows > head.slot:
            follows = head.slot  # the slot was lost with the store, which came back from its copy
        return Done(candidate.step, follows, adoption(self._views, candidate, node=self._node, follows=follows), fact)
