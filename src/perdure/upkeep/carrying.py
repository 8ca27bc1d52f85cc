"""Carry a step of a run to another store, so that what lies there is a run by itself: the same one.

Theory. The copy has the marker of the run and, byte for byte, its records: every epoch, and every slot up to the step
that is carried, so that slots have no gap, parents are there, and epochs never fall. Of the slots between that were not
carried the copy has what a prune leaves, ``pruned/<slot>``, made *before* the slot is: at no moment does it promise a
step that it has not. (Where a carry was cut in between, the next writer of that slot finds it given up, and takes the
next one: `perdure.store.lineage`.) So nothing in it is numbered anew, the names and digests of packs and parts are
those of the run, and either store can mend the other (`perdure.upkeep.repairing`).

The claims of epochs go first, so that whoever goes on from the copy claims a later one, and never gives a name to a
pack that lies there already. Then a step is carried in the order of a commit: the packs that are not there yet, each
tile verified on the way, then the parts, then the slots, its own the last. Whatever was cut off is done again and finds
what it had done: every write is of the same bytes under the same name. What is there already may not be durable yet
(who wrote it may have been killed before), so it is made so first; and once the parts are visible, the packs are looked
for again, because a prune that did not see the parts may have deleted one.

Both stores must be of one history. Histories part at a claim (`perdure.upkeep.histories`); each claim and each commit
has a random token. So they are one if the newest claim and the newest commit of the copy are the same here. If they are
not, somebody has trained on from the copy, and a writer of the older epoch must stop.

Of two who carry at once to the same copy, one may pass over the slot that the other is about to create. Each looks
after its own write for the other's: who passes over takes the tombstone away if the slot was created all the same, and
who creates the slot takes a tombstone for its failure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import xxhash

from perdure.errors import BlobCorrupt, BlobMissing, CallError, FormatRefused, IntegrityError, Superseded
from perdure.state.crew import work_off
from perdure.store import Commit, Epoch, PackRef, PartRef, Pruned, Run, Store, read_digested
from perdure.store.counted import Anew
from perdure.store.places import EPOCHS, MARKER, SLOTS, epoch_name, number_of, pruned_name, slot_name
from perdure.store.records import encode, read_record
from perdure.upkeep.blueprints import SPAN_BYTES, Stretch, tensors_of, top_of

__all__ = ["Carried", "carry", "catch_up", "check_history"]

_SMALL_BYTES = 1 << 20  # smaller stretches are read together
_TOGETHER_BYTES = 8 << 20
_AT_ONCE = 16  # small records on their way to a store far away
_MISSING = 1000  # slots that may be missing, each of which is asked for
_LOOKS = 3  # at packs that somebody deletes meanwhile


@dataclass(frozen=True, slots=True)
class Carried:
    """A step that the copy has: its slot, and the bytes of packs that were sent for it (0: all were there)."""

    slot: int
    step: int
    sent_nbytes: int


def carry(here: Run, there: Store, slot: int, *, pace: Callable[[int], None] = lambda nbytes: None) -> Carried:
    """Make the commit in ``slot`` a step of the copy in ``there`` too; again is no error. The slots rise.

    ``pace`` is called with the bytes of each chunk before it is sent, and may wait; with 0 for each small record, on
    any thread.

    Raises `BlobCorrupt` for what has rotted here (nothing of it is sent), `BlobMissing` for a step that was given up
    here or passed over there, `CallError` if ``there`` holds another run, `Superseded` if it was trained on apart;
    otherwise what a store raises: then try again.
    """
    commit = here.read_slot(slot)
    if here.is_pruned(slot):
        raise BlobMissing(f"step {commit.step} was pruned before it was carried to {there}", step=commit.step)
    far = _open_copy(here, there)
    check_history(here, far)
    known = _known(far, slot)
    if known is not None and far.is_pruned(slot):
        raise _passed_over(commit, far)
    if known == commit:
        far.make_durable(known)
        return Carried(slot, commit.step, 0)
    _copy_epochs(here, far)
    parts = [(ref, here.read_part(ref)) for ref in commit.parts]
    packs = list({pack.name: pack for _, part in parts for pack in part.packs}.values())
    sent = sum(_send_pack(here, there, pack, pace) for pack in packs)
    for ref, _ in parts:
        _put_same(there, ref.name, _whole_part(here, ref))
    for _ in range(_LOOKS):  # a prune that did not see these parts may have deleted what they name
        gone = [pack for pack in packs if there.size(pack.name) is None]
        if not gone:
            break
        sent += sum(_send_pack(here, there, pack, pace) for pack in gone)
    else:
        raise BlobMissing(f"packs of step {commit.step} are deleted in {there} as they are written; who prunes it?")
    if far.is_pruned(slot):
        raise _passed_over(commit, far)
    _copy_slots(here, far, below=slot, moved=lambda: pace(0))
    _put_same(there, slot_name(slot), encode(commit))
    if far.is_pruned(slot):
        raise _passed_over(commit, far)
    return Carried(slot, commit.step, sent)


def catch_up(here: Store, copy: Run) -> Run:
    """Bring ``here``, which was lost or is older, up to the history of its ``copy``; return the run that it holds.

    Only records are brought: steps that are not here count as given up here, so a restore takes them from the copy, and
    what is saved next follows them. The marker comes last: what was cut off is done again. Raises `Superseded` if
    ``here`` was trained on apart.
    """
    run = Run(here, copy.marker, copy.tell, copy.clock)
    if here.size(MARKER) is not None:
        run = Run.open(here, create=False, tell=copy.tell, clock=copy.clock)
        if run.marker.run != copy.marker.run:
            raise _another_run(copy, run)
    check_history(copy, run)
    top = copy.head()
    highest = top.slot if top is not None else 0
    _copy_epochs(copy, run)
    _copy_slots(copy, run, below=highest + 1)
    for slot in sorted(copy.pruned()):
        if slot > highest:  # of a carry that was cut off: that slot is no step there, so it must be none here
            run.give_up_slot(slot, step=None)
    _put_same(here, MARKER, encode(copy.marker))
    return run


def check_history(here: Run, copy: Run) -> None:
    """Raise `Superseded` unless all that ``copy`` has is of the history of the run ``here``."""
    claimed, newest = copy.newest_epoch(), here.newest_epoch()
    top = copy.head()
    if claimed > newest:
        raise _apart(here, copy, claimed, f"epoch {claimed} was claimed there and not here")
    if claimed and _differ(here.token_of, copy.token_of, claimed):
        raise _apart(here, copy, claimed, f"epoch {claimed} was claimed by another writer there")
    if top is None:
        return
    try:
        mine: Commit | None = here.read_slot(top.slot)
    except BlobMissing:
        mine = None
    except IntegrityError:  # what is damaged says nothing; its claim does
        if not _differ(here.token_of, lambda epoch: top.claim, top.epoch):
            return
        mine = None
    if mine != top:
        raise _apart(here, copy, top.epoch, f"slot {top.slot} (step {top.step}) is another one there, or not here")


def _differ(mine: Callable[[int], str | None], theirs: Callable[[int], str | None], epoch: int) -> bool:
    """Whether the claims of an epoch contradict each other; one that is gone or damaged does not."""
    try:
        one, other = mine(epoch), theirs(epoch)
    except IntegrityError:
        return False
    return one is not None and other is not None and one != other


def _apart(here: Run, copy: Run, epoch: int, why: str) -> Superseded:
    return Superseded(
        f"{copy.store} was trained on apart from {here.store} ({why}): nothing is carried from one to the other; give "
        "one of them a place of its own",
        epoch=here.newest_epoch(),
        newer=epoch,
    )


def _another_run(here: Run, copy: Run) -> CallError:
    return CallError(
        f"{copy.store} holds another run ({copy.marker.run[:8]}) than {here.store} ({here.marker.run[:8]}); give each "
        "run a place of its own"
    )


def _passed_over(commit: Commit, far: Run) -> BlobMissing:
    return BlobMissing(
        f"step {commit.step} was passed over in {far.store}: a newer one was carried there first", step=commit.step
    )


def _open_copy(here: Run, there: Store) -> Run:
    """The run in ``there``, begun as a copy if there is none."""
    if there.size(MARKER) is None and not there.names(SLOTS) and not there.names(EPOCHS):
        there.create(MARKER, encode(here.marker))
    far = Run.open(there, create=False, tell=here.tell, clock=here.clock)
    if far.marker.run != here.marker.run:
        raise _another_run(here, far)
    there.create(MARKER, encode(far.marker))  # refused, which makes it durable: see above
    return far


def _known(far: Run, slot: int) -> Commit | None:
    try:
        return far.read_slot(slot)
    except BlobMissing:
        return None


# --- packs and parts -----------------------------------------------------------------------------------------------


def _send_pack(here: Run, there: Store, ref: PackRef, pace: Callable[[int], None]) -> int:
    """See that a pack is in ``there``, durable; return the bytes that were sent for it."""
    if _is_there(there, ref):
        return 0
    index = here.open_pack(ref)
    chunks = Anew(partial(_verified, here.store, ref.name, [top_of(ref), *tensors_of(index)], pace))
    try:
        there.put(ref.name, chunks)
    except CallError:
        if not _is_there(there, ref):  # else somebody else who carries was faster
            raise
    return ref.nbytes


def _is_there(there: Store, ref: PackRef) -> bool:
    found = there.size(ref.name)
    if found == 0:  # left by the creation below
        there.delete(ref.name)
    if not found:
        return False
    if found != ref.nbytes:
        raise BlobCorrupt(
            f"{ref.name} has {found} bytes in {there}, not {ref.nbytes}; mend it with `perdure checkpoint repair`",
            file=ref.name,
        )
    # Whoever wrote it may have been killed before its name was durable; a creation that is refused makes it so.
    if there.create(ref.name, b""):
        there.delete(ref.name)  # it was deleted just now: there is none after all
        return False
    return True


def _verified(
    store: Store, name: str, stretches: Sequence[Stretch], pace: Callable[[int], None]
) -> Iterator[memoryview]:
    """The bytes of a pack from its beginning on, none before its digest was compared."""
    largest = max((min(each.tile_bytes, each.nbytes) for each in stretches), default=1)
    total = sum(each.nbytes for each in stretches)
    room = np.empty(max(min(total, SPAN_BYTES), largest, 1), np.uint8).data
    for group in _groups(stretches, room.nbytes):
        start, nbytes = group[0].start, sum(each.nbytes for each in group)
        view = room[:nbytes]
        if len(group) == 1 and group[0].n_tiles > 1:
            (one,) = group
            good = read_digested(store, name, start=start, nbytes=nbytes, into=view, tile_bytes=one.tile_bytes)
            bad = None if good == one.digests else one
        else:
            store.read(name, start=start, nbytes=nbytes, into=view)
            bad = next((each for each in group if not _is_good(view, start, each)), None)
        if bad is not None:
            raise BlobCorrupt(
                f"{name} has rotted in {store}: {bad.what} does not hash to its digest; it is not carried; mend it "
                "with `perdure checkpoint repair`, or save another step",
                file=name,
                tensor=bad.tensor,
            )
        pace(nbytes)
        yield view


def _is_good(view: memoryview, start: int, stretch: Stretch) -> bool:
    lo = stretch.start - start
    return xxhash.xxh3_128_digest(view[lo : lo + stretch.nbytes]) == stretch.digests


def _groups(stretches: Sequence[Stretch], room_nbytes: int) -> Iterator[list[Stretch]]:
    """Small neighbours together, large stretches in spans of whole tiles; each fits into the room."""
    near: list[Stretch] = []
    nbytes = 0
    for each in stretches:
        small = each.n_tiles == 1 and each.nbytes <= _SMALL_BYTES
        if near and (not small or nbytes + each.nbytes > min(room_nbytes, _TOGETHER_BYTES)):
            yield near
            near, nbytes = [], 0
        if small:
            near.append(each)
            nbytes += each.nbytes
            continue
        at_once = max(room_nbytes // each.tile_bytes, 1)
        for first in range(0, each.n_tiles, at_once):
            last = min(first + at_once, each.n_tiles)
            lo, hi = first * each.tile_bytes, min(last * each.tile_bytes, each.nbytes)
            digests = each.digests[16 * first : 16 * last]
            yield [Stretch(each.what, each.start + lo, hi - lo, each.tile_bytes, digests, each.tensor)]
    if near:
        yield near


def _whole_part(here: Run, ref: PartRef) -> bytes:
    """All bytes of a part, verified."""
    part = here.read_part(ref)
    top = bytes(here.store.read(ref.name, nbytes=ref.top_nbytes))
    return b"".join([top, *(here.read_leaf(ref, leaf) for leaf in part.leaves)])


def _put_same(there: Store, name: str, data: bytes) -> None:
    """See that ``name`` is there, durable, with these bytes."""
    if not there.create(name, data) and not (there.size(name) == len(data) and there.read(name) == data):
        raise BlobCorrupt(
            f"{name} in {there} is not the one that is carried; mend it with `perdure checkpoint repair`, or give each "
            "run a place of its own",
            file=name,
        )


# --- records -------------------------------------------------------------------------------------------------------


def _copy_epochs(source: Run, target: Run) -> None:
    """Give ``target`` the epochs of ``source``."""
    claims, claimed = _numbers(source, EPOCHS), _numbers(target, EPOCHS)
    # What was written last is written again: its writer may have been killed before it was durable.
    last = {max(claimed)} if claimed else set()
    _all_at_once(partial(_copy_epoch, source, target, epoch) for epoch in sorted(claims & last | claims - claimed))


def _copy_slots(source: Run, target: Run, *, below: int, moved: Callable[[], None] = lambda: None) -> None:
    """Give ``target`` the slots of ``source`` below ``below`` that it lacks, as given-up ones.

    A slot that cannot be read in ``source`` stays away, given up.
    """
    top = target.head()
    if top is not None:
        target.make_durable(top)  # its writer may have been killed before it was
    there, known = _numbers(target, SLOTS), _numbers(source, SLOTS)
    lacking = [slot for slot in range(1, below) if slot not in there]
    if len(known.union(lacking)) - len(known) > _MISSING:  # somebody may have planted the highest one
        raise FormatRefused(
            f"{len(known.union(lacking)) - len(known)} slots below {slot_name(below)} are not in {source.store}: copy "
            "them too, or remove those of another run",
            file=slot_name(below),
        )
    mine: set[int] = set()
    commits: dict[int, Commit | None] = {}

    def give_up(slot: int) -> None:
        moved()
        try:
            commits[slot] = source.read_slot(slot)
        except IntegrityError:
            commits[slot] = None
        found = commits[slot]
        made = Pruned(
            run=source.marker.run,
            slot=slot,
            step=None if found is None else found.step,
            created=source.clock.wall(),
        )
        if target.store.create(pruned_name(slot), encode(made)):
            mine.add(slot)

    def make(slot: int) -> None:
        moved()
        commit = commits[slot]
        if commit is None:
            return
        if not target.store.create(slot_name(slot), encode(commit)):
            _put_same(target.store, slot_name(slot), encode(commit))
            if slot in mine and all(target.store.size(part.name) == part.nbytes for part in commit.parts):
                target.store.delete(pruned_name(slot))  # somebody else has carried it, just now

    for first in range(0, len(lacking), _AT_ONCE):  # so few tombstones are there before their slots
        some = lacking[first : first + _AT_ONCE]
        _all_at_once(partial(give_up, slot) for slot in some)
        _all_at_once(partial(make, slot) for slot in some)


def _copy_epoch(source: Run, target: Run, epoch: int) -> None:
    try:
        claim = read_record(source.store, epoch_name(epoch), Epoch)
    except IntegrityError:
        return  # a commit of it has its token too
    _put_same(target.store, epoch_name(epoch), encode(claim))


def _numbers(run: Run, folder: str) -> set[int]:
    return {number for name in run.store.names(folder) if (number := number_of(name)) is not None}


def _all_at_once(jobs: Iterable[Callable[[], None]]) -> None:
    jobs = list(jobs)
    work_off(jobs, threads=min(_AT_ONCE, len(jobs) // 4 + 1))
