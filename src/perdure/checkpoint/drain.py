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
from typing import TYPE_CHECKING, Any

from perdure.checkpoint.coded_packs import NewPack, coded_packs
from perdure.checkpoint.unchanged import Division, Entry, Lies, Stored, divide, remember
from perdure.clock import Deadline
from perdure.errors import BlobMissing, IntegrityError, PerdureError
from perdure.state.entries import BaseEntry, SourceEntry
from perdure.state.index import RankIndex
from perdure.state.manifest import write_index
from perdure.state.relations import Relation
from perdure.state.save import packs_of, place_packs
from perdure.store import Commit, PackItem, PackRef, Part, PartRef, Run, parse_header
from perdure.store.counted import Anew
from perdure.store.places import part_name

if TYPE_CHECKING:
    pass

__all__ = ["Order", "WrittenPart", "await_commit", "await_parts", "commit", "find_commit", "withdraw", "write_part"]

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
    """A part that is durable. ``nbytes`` were written to packs for it."""

    ref: PartRef
    nbytes: int
    _run: str
    _entries: tuple[Entry, ...]
    _lies_in: dict[str, Lies]

    def stored(self, slot: int) -> Stored:
        """What is to be remembered once it is committed in ``slot``; see `perdure.checkpoint.unchanged`."""
        return remember(self._run, slot, self._entries, self._lies_in)


def write_part(
    run: Run,
    order: Order,
    *,
    writer: str,
    packs: Sequence[tuple[RankIndex, memoryview]],
    stored: Stored | None = None,
) -> WrittenPart:
    """Store the sealed segments of ``writer``, each the whole of its view, and the part that names their packs.

    What is ``stored`` already and has not changed is referred to. After a failure the packs that were written are
    deleted again: no commit names them, and a full disk wants them.
    """
    if stored is not None and stored.run == run.marker.run and not run.is_pruned(stored.slot):
        try:
            written = _write_part(run, order, writer, packs, stored)
        except BlobMissing:
            pass  # somebody deleted what we would refer to: write it all
        else:
            # The part is there to be seen. Whoever prunes says so first and looks for parts then, so if the base is not
            # given up by now, its packs stay.
            if not run.is_pruned(stored.slot):
                return written
            withdraw(run, written.ref)
    return _write_part(run, order, writer, packs, None)


def _write_part(
    run: Run, order: Order, writer: str, packs: Sequence[tuple[RankIndex, memoryview]], stored: Stored | None
) -> WrittenPart:
    entries: list[Entry] = []
    for index, view in packs:
        for placed in packs_of(index):
            pack = view[placed.start : placed.stop]
            header = parse_header(lambda start, n, p=pack: p[start : start + n], pack.nbytes)  # type: ignore[misc]
            entries += [Entry(header, pack, entry) for entry in header.entries]
    division = divide(entries, stored)
    refs: list[PackRef] = []
    lies_in = {key: Lies(each.pack, each.nbytes, each.coded) for key, each in division.referred.items()}
    new = _new_packs(entries, division)
    if order.coding != "raw" and not order.pinned:
        new = coded_packs([*division.fresh, *division.apart], entries, [index for index, _ in packs])
    relations: dict[str, tuple[Relation, tuple[tuple[str, str], ...]]] = {}
    try:
        for number, made_pack in enumerate(new):
            ref = run.write_pack(
                made_pack.chunks, epoch=order.epoch, step=order.step, seq=order.seq, writer=writer, number=number
            )
            refs.append(ref)
            for key, nbytes in made_pack.keys.items():
                lies_in[key] = Lies(ref, nbytes, key in made_pack.coded, key in made_pack.bases)
            relations |= made_pack.bases
        named = sorted({at.pack.name: at.pack for at in lies_in.values()}.values(), key=lambda ref: ref.name)
        number_of = {ref.name: number for number, ref in enumerate(named)}
        numbers = {
            key: -1 - number_of[at.pack.name] if at.coded else number_of[at.pack.name] for key, at in lies_in.items()
        }
        bases = [
            BaseEntry(key, relation, tuple(SourceEntry(of, dtype, numbers[of]) for of, dtype in wanted))
            for key, (relation, wanted) in relations.items()
        ]
        written = write_index([each for each, _ in packs], numbers, bases)
        part = Part(
            run=run.marker.run,
            writer=writer,
            epoch=order.epoch,
            step=order.step,
            seq=order.seq,
            base=stored.slot if stored is not None and division.referred else None,
            packs=tuple(named),
            index=written.index,
            leaves=written.refs,
        )
        made = run.write_part(part, written.leaves)
    except PerdureError:
        for each in refs:
            with suppress(PerdureError):  # the first error counts
                run.store.delete(each.name)
        raise
    return WrittenPart(made, sum(each.nbytes for each in refs), run.marker.run, tuple(entries), lies_in)


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
        mine = ref.name.removeprefix("parts/").removesuffix(".jsonl")
        for pack in part.packs:
            if pack.name.startswith(f"packs/{mine}-"):  # not those that it refers to
                run.store.delete(pack.name)


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
