"""Prune a run: decide what is given up and what is deleted, then do it.

Theory. What may be deleted follows from names and commits alone (docs/spec/format-v1.md, "Prune"). A pack or part was
written under the name of one save; it may go if no commit that stays and no save in flight names it, and if its save is
over: it was given up, or its epoch is older than that of the head. (Epochs never fall as slots rise, so no commit of an
older epoch can come any more. An epoch that is merely claimed proves nothing: a late writer may still commit before the
first commit of the new one.) So a prune that was cut off is finished by the next one, whatever it had got to, and of
two at once each does what the other has not done.

A commit that cannot be read may name anything. While there is one that is not given up, nothing is given up or deleted.

A run may hold several trainings: one that began from scratch in the folder of another has a first commit without a
parent, its *root*. Rules look at the training of the head alone; what is of another root no rule was ever asked about.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from perdure.errors import BlobMissing, CallError, IntegrityError
from perdure.store import PartRef, Run
from perdure.store.places import PARTS, written_by
from perdure.upkeep.keep import Rule

__all__ = [
    "CommitFacts",
    "InFlight",
    "Kept",
    "PrunePlan",
    "Snapshot",
    "execute",
    "packs_in_flight",
    "part_of",
    "plan_prune",
]


@dataclass(frozen=True, slots=True)
class CommitFacts:
    """What pruning needs to know of a commit; see `perdure.store.Commit`."""

    slot: int
    parent: int | None
    epoch: int
    step: int
    metric: float | None
    pinned: bool
    created: float
    parts: tuple[PartRef, ...]


@dataclass(frozen=True, slots=True)
class InFlight:
    """A part that no commit names, of an epoch that may still commit: it names ``packs``, some by way of ``base``."""

    name: str
    step: int
    base: int | None
    packs: frozenset[str]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A run at a moment. ``commits`` are those that can be read, by slot; ``lost`` says why others cannot.

    ``given_up`` are slots, of ``lost`` ones too. ``packs`` and ``parts`` are the names that are there. ``unreadable``
    says why a part in flight cannot be read.
    """

    commits: Mapping[int, CommitFacts]
    given_up: frozenset[int] = frozenset()
    lost: Mapping[int, str] = field(default_factory=dict)
    epochs: frozenset[int] = frozenset()
    packs: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    in_flight: tuple[InFlight, ...] = ()
    unreadable: str | None = None

    @property
    def head(self) -> CommitFacts | None:
        """The newest commit that can be read."""
        return self.commits[max(self.commits)] if self.commits else None

    def branch(self) -> set[int]:
        """The slots of the branch that training is on. Where its chain is broken, all that is older belongs to it."""
        slot = max(self.commits, default=None)
        found: set[int] = set()
        while slot is not None:
            commit = self.commits.get(slot)
            if commit is None:
                return found.union(older for older in self.commits if older < slot)
            found.add(slot)
            slot = commit.parent
        return found

    def roots(self) -> dict[int, int]:
        """For each commit the slot of the first one of its training, or that at which its chain cannot be followed."""
        found: dict[int, int] = {}
        for slot in sorted(self.commits):  # a parent is lower than its child
            parent = self.commits[slot].parent
            found[slot] = slot if parent is None else found.get(parent, parent)
        return found


@dataclass(frozen=True, slots=True)
class Kept:
    """A step that stays, and why."""

    slot: int
    step: int
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PrunePlan:
    """What a prune does: ``give_up`` are slots and their steps (None: not known), ``packs``, ``parts`` what is deleted.

    ``blocked`` says why nothing is done. ``sizes`` has the bytes of what is deleted, where they were asked for.
    """

    kept: tuple[Kept, ...] = ()
    give_up: tuple[tuple[int, int | None], ...] = ()
    packs: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    named_parts: frozenset[str] = frozenset()
    blocked: str | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)

    @property
    def freed_bytes(self) -> int:
        """How much room it makes."""
        return sum(self.sizes.values())


def plan_prune(
    snapshot: Snapshot,
    packs_of: Callable[[CommitFacts], Collection[str]],
    *,
    rules: Sequence[Rule] = (),
    spared: Collection[int] = (),
    steps: Collection[int] = (),
    slots: Collection[int] = (),
    even_pinned: bool = False,
    lost: bool = False,
    other_trainings: bool = False,
) -> PrunePlan:
    """Plan what becomes of the run in ``snapshot``. ``packs_of`` gives the packs that a commit names.

    ``rules`` keep what they keep of the branch that training is on, and of its dead branches nothing; without rules
    every commit stays. The slots ``spared`` stay in any case. What is of another training stays, and with
    ``other_trainings`` goes, whatever the rules say.
    ``steps`` and ``slots`` are given up whatever else is said, pinned ones only with ``even_pinned``. ``lost`` gives up
    the commits that cannot be read.

    Raises `BlobMissing` for a step or slot that is not there, `CallError` for one that may not be given up.
    """
    head = snapshot.head
    live = {slot: each for slot, each in snapshot.commits.items() if slot not in snapshot.given_up}
    gone: dict[int, int | None] = dict.fromkeys(slot for slot in snapshot.lost if lost or slot in slots)
    reasons = _reasons(snapshot, live, rules, other_trainings=other_trainings)
    for slot in live.keys() & set(spared):
        reasons.setdefault(slot, []).append("on its way to a remote store")
    unwanted = _unwanted(live, steps, set(slots).difference(gone), head=head, even_pinned=even_pinned)
    kept = reasons.keys() - unwanted
    stays = tuple(Kept(slot, live[slot].step, tuple(reasons[slot])) for slot in sorted(kept))
    if head is None:
        return PrunePlan()
    why = _unreadable(snapshot, gone)
    packs = {pack for part in snapshot.in_flight for pack in part.packs}
    named = {part.name for slot in kept for part in live[slot].parts}
    for slot in sorted(kept, reverse=True) if why is None else ():
        try:
            packs.update(packs_of(live[slot]))
        except IntegrityError as error:
            if lost and slot != head.slot:
                gone[slot] = live[slot].step
            else:
                why = why or f"step {live[slot].step} (slot {slot}) cannot be read: {error}"
    if why is not None:
        everything = tuple(Kept(slot, each.step, tuple(reasons.get(slot, ()))) for slot, each in sorted(live.items()))
        return PrunePlan(everything, blocked=f"nothing is given up or deleted: {why}")
    stays = tuple(each for each in stays if each.slot not in gone)
    named -= {part.name for slot in gone if slot in live for part in live[slot].parts}
    given = gone | {slot: each.step for slot, each in live.items() if slot not in kept}
    over = {
        part.name for slot, each in snapshot.commits.items() if slot not in live or slot in given for part in each.parts
    }
    flying = {part.name for part in snapshot.in_flight}

    def may_go(name: str, *, part: str) -> bool:
        epoch = written_by(name)
        return epoch is not None and epoch in snapshot.epochs and (epoch < head.epoch or part in over)

    return PrunePlan(
        kept=stays,
        give_up=tuple(sorted(given.items())),
        packs=tuple(name for name in snapshot.packs if name not in packs and may_go(name, part=part_of(name))),
        parts=tuple(name for name in snapshot.parts if name not in named | flying and may_go(name, part=name)),
        named_parts=frozenset(named),
    )


def _reasons(
    snapshot: Snapshot, live: Mapping[int, CommitFacts], rules: Sequence[Rule], *, other_trainings: bool
) -> dict[int, list[str]]:
    """Why each commit stays that does; in the order in which a person wants to hear it."""
    reasons: dict[int, list[str]] = {}
    roots = snapshot.roots()
    mine = roots[snapshot.head.slot] if snapshot.head is not None else 0
    if snapshot.head is not None and snapshot.head.slot in live:
        reasons[snapshot.head.slot] = ["head"]
    for slot, each in live.items():
        if each.pinned:
            reasons.setdefault(slot, []).append("pinned")
        if roots[slot] != mine:
            if not other_trainings:
                broken = mine not in snapshot.commits or roots[slot] not in snapshot.commits
                why = "perhaps of another training: a slot between cannot be read" if broken else "of another training"
                reasons.setdefault(slot, []).append(why)
        elif not rules:
            reasons.setdefault(slot, []).append("no rules")
    newest: dict[int, CommitFacts] = {}  # of each step: an older commit of it can only be reached by falling back
    for slot in sorted(snapshot.branch() & live.keys()):
        if roots[slot] != mine:
            continue
        newest.pop(live[slot].step, None)
        newest[live[slot].step] = live[slot]
    branch = list(newest.values())
    for rule in rules:
        for at in rule.keeps(branch):
            reasons.setdefault(branch[at].slot, []).append(rule.reason)
    done = _newest_attempts(snapshot)
    for part in snapshot.in_flight:
        epoch, writer, seq = _attempt_of(part.name)
        if part.base is not None and part.base in live and seq > done.get((epoch, writer), -1):
            reasons.setdefault(part.base, []).append(f"base of step {part.step}")
    return reasons


def _unwanted(
    live: Mapping[int, CommitFacts],
    steps: Collection[int],
    slots: Collection[int],
    *,
    head: CommitFacts | None,
    even_pinned: bool,
) -> set[int]:
    """The slots of what is given up by name."""
    unwanted: set[int] = set()
    for slot in sorted(set(slots)):
        if slot not in live:
            raise BlobMissing(f"slot {slot} is not there to be pruned; `perdure checkpoint ls --all` shows what is")
        if head is not None and head.slot == slot:
            raise CallError(f"slot {slot} is the newest, which is never pruned; save another one first")
        if not even_pinned and live[slot].pinned:
            raise CallError(f"slot {slot} is pinned; add --even-pinned to give it up all the same")
        unwanted.add(slot)
    for step in sorted(set(steps)):
        of_step = [each for each in live.values() if each.step == step]
        if not of_step:
            raise BlobMissing(f"step {step} is not there to be pruned; without --step you see what is", step=step)
        if head is not None and head.step == step:
            raise CallError(
                f"step {step} is the newest, which is never pruned; save another one first, or name an older commit of "
                "that step by --slot",
                step=step,
            )
        if not even_pinned and any(each.pinned for each in of_step):
            raise CallError(f"step {step} is pinned; add --even-pinned to give it up all the same", step=step)
        unwanted.update(each.slot for each in of_step)
    return unwanted


def _unreadable(snapshot: Snapshot, gone: Collection[int]) -> str | None:
    for slot, why in sorted(snapshot.lost.items()):
        if slot not in gone:
            return f"slot {slot} cannot be read and may name anything: {why}; or give it up: prune --lost"
    return snapshot.unreadable


def part_of(pack: str) -> str:
    """The part of the save that wrote ``pack``.

    >>> part_of("packs/0000000003/000000000100-000007-node-2-0.safetensors")
    'parts/0000000003/000000000100-000007-node-2.jsonl'
    """
    return f"{PARTS}{pack.partition('/')[2].rpartition('-')[0]}.jsonl"


def _attempt_of(part: str) -> tuple[str, str, int]:
    """Epoch, writer and ``seq`` of the well-formed name of a part."""
    _, epoch, name = part.split("/")
    _, seq, writer = name.removesuffix(".jsonl").split("-", 2)
    return epoch, writer, int(seq)


def _newest_attempts(snapshot: Snapshot) -> dict[tuple[str, str], int]:
    """The last attempt of each writer that was committed; those before it, if they are not, never will be."""
    newest: dict[tuple[str, str], int] = {}
    if not snapshot.in_flight:
        return newest
    for commit in snapshot.commits.values():
        for part in commit.parts:
            if written_by(part.name) is not None:
                epoch, writer, seq = _attempt_of(part.name)
                newest[epoch, writer] = max(seq, newest.get((epoch, writer), -1))
    return newest


def execute(run: Run, plan: PrunePlan, *, on_blob: Callable[[str], None] | None = None) -> None:
    """Carry ``plan`` out. Cut off at any point, it is finished by the next prune; ``on_blob`` is told each deletion.

    Raises what the store raises; what is not deleted then stays until the next prune.
    """
    if not (plan.give_up or plan.packs or plan.parts):
        return
    if plan.kept:  # the head is the last: what it replaces goes, so it must outlive a power cut itself
        run.make_durable(run.read_slot(plan.kept[-1].slot))
    for slot, step in plan.give_up:
        run.give_up_slot(slot, step=step)
    if not (plan.packs or plan.parts):
        return
    # Only now: a writer that does not see the tombstones by now has its part where we see it.
    there = [name for name in run.store.names(PARTS) if name not in plan.named_parts]
    flying = packs_in_flight(run, set(there).difference(plan.parts))
    spared = {pack for each in flying for pack in each.packs}
    for name in (*(each for each in plan.packs if each not in spared), *plan.parts):
        run.store.delete(name)
        if on_blob is not None:
            on_blob(name)


def packs_in_flight(run: Run, names: Collection[str]) -> list[InFlight]:
    """What the parts ``names`` name, which no commit does; one that is withdrawn meanwhile is none.

    Raises `BlobCorrupt` or `FormatRefused` for one that cannot be read: it may name anything.
    """
    found: list[InFlight] = []
    for name in sorted(names):
        if written_by(name) is None:
            continue
        try:
            ref = run.part_ref(name)
            part = None if ref is None else run.read_part(ref)
        except BlobMissing:
            continue
        if part is not None:
            found.append(InFlight(name, part.step, part.base, frozenset(pack.name for pack in part.packs)))
    return found
