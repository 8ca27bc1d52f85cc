"""Make a step durable: packs, then the part that names them, then, by one writer alone, the slot.

The agent runs this for its node; a rank whose agent is gone runs it for itself. Writers meet in the store and nowhere
else: whoever commits waits for the parts of all others, whose names it knows, under a deadline that names who is late.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from perdure.checkpoint.coded_packs import Base, CodedSave, NewPack, Wanted
from perdure.checkpoint.policy import Policy
from perdure.checkpoint.unchanged import Division, Entry, Lies, Stored, StoredTensor, divide, remember
from perdure.clock import Deadline
from perdure.errors import BlobMissing, IntegrityError, PerdureError
from perdure.state.entries import MOST_NOTE, BaseEntry, NoteEntry, SourceEntry
from perdure.state.index import RankIndex
from perdure.state.manifest import write_index
from perdure.state.relations import Relation
from perdure.state.save import packs_of, place_packs
from perdure.store import Commit, PackItem, PackRef, Part, PartRef, Run, parse_header
from perdure.store.counted import Anew
from perdure.store.places import part_name

__all__ = [
    "Order",
    "WrittenPart",
    "await_commit",
    "await_parts",
    "commit",
    "entries_of",
    "find_commit",
    "withdraw",
    "write_part",
]

_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Order:
    """Which step is to become durable, and what its commit says. ``base`` is the slot that training went on from.

    ``seq`` counts the writer's attempts; ``session`` and ``save`` name the save (a checkpointer, and its count there).
    ``claim`` is the token of the epoch when it was claimed; ``coding`` says how tensors are stored
    (`perdure.state.coding`); those of pinned steps are raw.
    """

    epoch: int
    step: int
    seq: int
    base: int | None
    meta: Mapping[str, Any] | None = None
    metric: float | None = None
    pinned: bool = False
    session: str = ""
    save: int = 0
    claim: str | None = None
    coding: str = "raw"


@dataclass(frozen=True, slots=True)
class WrittenPart:
    """A part that is durable. ``nbytes`` were written to packs for it; a ``delta`` has an earlier step as its base."""

    ref: PartRef
    nbytes: int
    delta: bool
    _run: str
    _entries: tuple[Entry, ...]
    _lies_in: dict[str, Lies]
    _packs: frozenset[str]

    @property
    def written(self) -> frozenset[str]:
        """The keys whose bytes were written for it; those of the others lay in the store already."""
        mine = _pack_prefix(self.ref)
        return frozenset(key for key, lies in self._lies_in.items() if lies.pack.name.startswith(mine))

    def stored(self, slot: int) -> Stored:
        """What is to be remembered once it is committed in ``slot``; see `perdure.checkpoint.unchanged`."""
        return remember(self._run, slot, self._entries, self._lies_in, self._packs)


def write_part(
    run: Run,
    order: Order,
    *,
    writer: str,
    packs: Sequence[tuple[RankIndex, memoryview]],
    stored: Stored | None = None,
    base: Base | None = None,
    policy: Policy | None = None,
) -> WrittenPart:
    """Store the sealed segments of ``writer``, each the whole of its view, and the part that names their packs.

    What is ``stored`` already and has not changed is referred to; if the order is to code, ``policy`` chooses how, and
    ``base`` may be what deltas are made on. After a failure the packs that were written are deleted again: no commit
    names them, and a full disk wants them.
    """
    writing = _Writing(run, order, writer, packs, policy or Policy())
    if stored is not None and stored.run == run.marker.run and not run.is_pruned(stored.slot):
        try:
            written = writing.write(stored, base)
        except BlobMissing:
            pass  # somebody deleted what we would refer to: write it all
        else:
            # The part is there to be seen. Whoever prunes says so first and looks for parts then, so if the base is not
            # given up by now, its packs stay.
            if not run.is_pruned(stored.slot):
                return written
            withdraw(run, written.ref)
    return writing.write(None, None)


class _Writing:
    """One part on its way to the store."""

    def __init__(
        self, run: Run, order: Order, writer: str, packs: Sequence[tuple[RankIndex, memoryview]], policy: Policy
    ) -> None:
        self._run, self._order, self._writer, self._policy = run, order, writer, policy
        self._indexes = [index for index, _ in packs]
        self._entries = entries_of(packs)

    def write(self, stored: Stored | None, base: Base | None) -> WrittenPart:
        """Write packs and part, referring to what is ``stored`` and to ``base``."""
        division, coded, why_raw = self._divided(stored, base)
        new = _new_packs(self._entries, division) if coded is None else coded.packs()
        lies_in = {key: Lies(each.pack, each.nbytes, each.coded) for key, each in division.referred.items()}
        relations: dict[str, tuple[Relation, tuple[Wanted, ...]]] = {}
        note = why_raw if coded is None else coded.note()
        notes = [NoteEntry("", note[:MOST_NOTE])] if note else []
        refs: list[PackRef] = []
        try:
            for number, made_pack in enumerate(new):
                refs.append(self._write_pack(made_pack, number))
                for key, nbytes in made_pack.keys.items():
                    lies_in[key] = Lies(refs[-1], nbytes, key in made_pack.coded, key in made_pack.bases)
                relations |= made_pack.bases
                notes += [NoteEntry(key, why[:MOST_NOTE]) for key, why in made_pack.notes.items()]
            below = [each.at.pack for _, wanted in relations.values() for each in wanted if each.at is not None]
            named = sorted(
                {pack.name: pack for pack in (*(at.pack for at in lies_in.values()), *below)}.values(),
                key=lambda ref: ref.name,
            )
            number_of = {ref.name: number for number, ref in enumerate(named)}

            def place(at: Lies | StoredTensor) -> int:
                return -1 - number_of[at.pack.name] if at.coded else number_of[at.pack.name]

            numbers = {key: place(at) for key, at in lies_in.items()}
            bases = [
                BaseEntry(
                    key,
                    relation,
                    tuple(SourceEntry(of.key, of.dtype, place(of.at or lies_in[of.key])) for of in wanted),
                )
                for key, (relation, wanted) in relations.items()
            ]
            written = write_index(self._indexes, numbers, bases, notes)
            part = Part(
                run=self._run.marker.run,
                writer=self._writer,
                epoch=self._order.epoch,
                step=self._order.step,
                seq=self._order.seq,
                base=stored.slot if stored is not None and (division.referred or below) else None,
                packs=tuple(named),
                index=written.index,
                leaves=written.refs,
            )
            made = self._run.write_part(part, written.leaves)
        except PerdureError:
            for each in refs:
                with suppress(PerdureError):  # the first error counts
                    self._run.store.delete(each.name)
            raise
        nbytes = sum(each.nbytes for each in refs)
        return WrittenPart(
            made, nbytes, bool(below), self._run.marker.run, tuple(self._entries), lies_in, frozenset(number_of)
        )

    def _divided(self, stored: Stored | None, base: Base | None) -> tuple[Division, CodedSave | None, str]:
        """What is written and what referred to; how it is coded, or else why it is not although it might be."""
        goal = self._order.coding
        if goal == "raw":
            return divide(self._entries, stored), None, ""
        if self._order.pinned:
            return divide(self._entries, stored), None, f"{goal}: raw, because the step is pinned"
        if not self._policy.worth_a_look(goal):
            why = f"{goal}: raw, because making it smaller takes longer than writing it"
            return divide(self._entries, stored), None, why + self._policy.told
        began = time.monotonic()
        why = "no full save is in memory to make a delta on"
        if base is not None:
            usable = base.within(stored)
            save = CodedSave(
                self._entries,
                self._indexes,
                policy=self._policy,
                goal=goal,
                base=base,
                usable=usable,
                why_full="",
            )
            division = divide(self._entries, stored, kept={each.pack.name for each in usable.values()})
            if save.base is not None and save.decide([*division.fresh, *division.apart]):
                self._policy.looked(time.monotonic() - began)
                return division, save, ""
            why = save.why_full if save.base is not None else "the run does not keep the base any more"
        division = divide(self._entries, stored)
        save = CodedSave(self._entries, self._indexes, policy=self._policy, goal=goal, why_full=why)
        save.decide([*division.fresh, *division.apart])
        self._policy.looked(time.monotonic() - began)
        return division, save, ""

    def _write_pack(self, pack: NewPack, number: int) -> PackRef:
        order, began = self._order, time.monotonic()
        ref = self._run.write_pack(
            pack.chunks, epoch=order.epoch, step=order.step, seq=order.seq, writer=self._writer, number=number
        )
        self._policy.wrote(ref.nbytes, time.monotonic() - began)
        return ref


def entries_of(packs: Sequence[tuple[RankIndex, memoryview]]) -> list[Entry]:
    """Every tensor in the sealed segments of a writer."""
    entries: list[Entry] = []
    for index, view in packs:
        for placed in packs_of(index):
            pack = view[placed.start : placed.stop]
            header = parse_header(lambda start, n, p=pack: p[start : start + n], pack.nbytes)  # type: ignore[misc]
            entries += [Entry(header, pack, entry) for entry in header.entries]
    return entries


def _new_packs(entries: Sequence[Entry], division: Division) -> Iterator[NewPack]:
    """The packs to write. One that is all fresh is written as it lies in memory.

    The bytes of each can be read as often as the store has to try.
    """
    fresh: dict[int, list[Entry]] = {}
    for each in division.fresh:
        fresh.setdefault(id(each.index), []).append(each)
    rest: list[Entry] = []
    for of_pack in fresh.values():
        if len(of_pack) == len(of_pack[0].index.entries):
            yield NewPack({each.entry.key: each.entry.nbytes for each in of_pack}, [of_pack[0].view])
        else:
            rest += of_pack
    for group in (rest, division.apart):
        first = 0
        for placed in place_packs([_item(each) for each in group]) if group else ():
            chosen = group[first : first + len(placed.plan.entries)]
            first += len(chosen)
            header = placed.plan.render_header(b"".join(each.digests for each in chosen))
            chunks = Anew(partial(placed.plan.chunks, header, [each.data for each in chosen]))
            yield NewPack({each.entry.key: each.entry.nbytes for each in chosen}, chunks)


def _item(each: Entry) -> PackItem:
    return PackItem(each.entry.key, each.entry.dtype, each.entry.shape, each.entry.nbytes)


def commit(run: Run, order: Order, parts: Sequence[PartRef]) -> Commit:
    """Create the slot. The parent is this epoch's last commit, else what training went on from."""
    head = run.head()
    parent = head.slot if head is not None and head.epoch == order.epoch else order.base
    if head is not None and parent is not None and parent > head.slot:
        parent = head.slot  # it was lost with the store, which came back from its copy
    return run.commit(
        epoch=order.epoch,
        parent=parent,
        step=order.step,
        parts=parts,
        meta=order.meta or {},
        metric=order.metric,
        pinned=order.pinned,
        session=order.session,
        seq=order.save,
        claim=order.claim,
    )


def withdraw(run: Run, ref: PartRef) -> None:
    """Delete a part and the packs written for it, which no commit names nor ever will; what cannot be deleted stays."""
    with suppress(PerdureError):
        part = run.read_part(ref)
        run.store.delete(ref.name)
        mine = _pack_prefix(ref)
        for pack in part.packs:
            if pack.name.startswith(mine):  # not those that it refers to
                run.store.delete(pack.name)


def _pack_prefix(ref: PartRef) -> str:
    """How the names of the packs begin that were written for a part."""
    return f"packs/{ref.name.removeprefix('parts/').removesuffix('.jsonl')}-"


def find_commit(run: Run, order: Order, *, after: int | None) -> Commit | None:
    """The commit of this save, if it was made: of this epoch and step, above slot ``after``."""
    found = None
    try:
        for each in run.chain():
            if each.epoch != order.epoch or (after is not None and each.slot <= after):
                break
            if each.step == order.step:
                found = each
    except IntegrityError:
        pass  # a damaged slot lies in between; what lies below it was there before
    return found


def await_parts(
    run: Run, order: Order, *, writers: Sequence[str], deadline: Deadline, heed: Callable[[], None] = lambda: None
) -> list[PartRef]:
    """Wait until every writer's part is in the store; `DeadlineExceeded` names those that are missing.

    ``heed`` is called now and then; what it raises ends the wait.
    """
    names = {w: part_name(epoch=order.epoch, step=order.step, seq=order.seq, writer=w) for w in writers}
    refs: dict[str, PartRef] = {}
    while True:
        for writer, name in names.items():
            if writer not in refs and (found := run.part_ref(name)) is not None:
                refs[writer] = found
        if len(refs) == len(names):
            return [refs[writer] for writer in writers]
        heed()
        deadline.check(", ".join(writer for writer in writers if writer not in refs))
        time.sleep(_POLL_S)


def await_commit(
    run: Run, order: Order, *, after: int | None, deadline: Deadline, heed: Callable[[], None] = lambda: None
) -> Commit:
    """Wait until the writer that commits has done so, above slot ``after``; for those that do not commit.

    ``heed`` is called now and then; what it raises ends the wait.
    """
    while True:
        try:
            heed()
            deadline.check("the commit of rank 0")
        except PerdureError:
            if (found := find_commit(run, order, after=after)) is not None:
                return found  # it was made before that
            raise
        if (found := find_commit(run, order, after=after)) is not None:
            return found
        time.sleep(_POLL_S)
