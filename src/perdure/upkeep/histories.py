"""How far a copy of a run is of the same history as the run here.

Theory. Two copies of a run may be trained on apart. Each writer claims an epoch before it commits, and the record of
that claim has a random token, which every commit repeats: so histories part at a claim, and from there on all that one
of them has is foreign to the other, be its names, steps and run the same. A copy is *ours up to* the first epoch at
which anything that can be read here contradicts it: the claim, a commit of the same slot, a part or pack of a commit
that it has and we have lost. Nothing but what is below that epoch may be taken from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import xxhash

from perdure.errors import IntegrityError, StorageError
from perdure.store import Commit, PackRef, PartRef, Store, parse_header
from perdure.store.pack import HEADER_LIMIT_BYTES
from perdure.store.places import PARTS, epoch_name, slot_name, written_by
from perdure.store.records import Part, decode
from perdure.upkeep.blueprints import bad_tiles, room_for, tensors_of, top_of
from perdure.upkeep.ledger import Ledger

__all__ = ["Parting", "has_top", "parting_of", "parts_here"]

_HEAD_BYTES = 8


@dataclass(frozen=True, slots=True)
class Parting:
    """From ``epoch`` on the copy is another training: ``file`` here is whole and not what the copy says it is."""

    epoch: int
    file: str


def parting_of(mine: Ledger, copy: Ledger) -> Parting | None:
    """Where ``copy`` parts from the run here; None if nothing here contradicts it. Reads both, writes nothing."""
    found = list(_of_records(mine, copy))
    nearest = min(found, key=lambda each: each.epoch, default=None)
    parts: dict[str, Part] | None = None
    for slot, commit in sorted(copy.commits.items()):
        if nearest is not None and commit.epoch >= nearest.epoch:
            break  # epochs never fall as slots rise
        if slot in mine.commits:
            continue
        parts = parts_here(mine) if parts is None else parts
        file = _contradiction(mine, copy, commit, parts)
        if file is not None:
            return Parting(commit.epoch, file)
    return nearest


def _of_records(mine: Ledger, copy: Ledger) -> Iterator[Parting]:
    for number in mine.epochs.keys() & copy.epochs.keys():
        if mine.epochs[number].token != copy.epochs[number].token:
            yield Parting(number, epoch_name(number))
    for commit in copy.commits.values():
        claimed = mine.epochs.get(commit.epoch)
        if claimed is not None and claimed.token != commit.claim and mine.commits.get(commit.slot) != commit:
            yield Parting(commit.epoch, epoch_name(commit.epoch))
    claims = {commit.epoch: commit for commit in copy.commits.values()}
    for slot, commit in mine.commits.items():
        other, taken = copy.epochs.get(commit.epoch), claims.get(commit.epoch)
        if (other is not None and other.token != commit.claim) or (taken is not None and taken.claim != commit.claim):
            yield Parting(commit.epoch, slot_name(slot))
        same = copy.commits.get(slot)
        if same is not None and same != commit:
            yield Parting(min(commit.epoch, same.epoch), slot_name(slot))


def _contradiction(mine: Ledger, copy: Ledger, commit: Commit, parts: dict[str, Part]) -> str | None:
    """The part or pack of a commit that we have lost which is whole here, and not what the copy says."""
    named = {pack.name: pack for part in parts.values() for pack in part.packs}
    for ref in commit.parts:
        if ref.name in parts:
            if not has_top(mine.store, ref):
                return ref.name
            continue
        theirs = _part_of(copy, ref)
        for pack in theirs.packs if theirs is not None else ():
            known = named.get(pack.name)
            if (known is not None and known != pack) or (known is None and _is_another(mine.store, pack)):
                return pack.name
    return None


def parts_here(mine: Ledger) -> dict[str, Part]:
    """The parts here whose record is whole by itself, of this run."""
    run = mine.opened()
    found: dict[str, Part] = {}
    for name in mine.store.names(PARTS):
        if written_by(name) is None:
            continue
        try:
            ref = run.part_ref(name)
            if ref is not None:
                found[name] = run.read_part(ref)
        except (IntegrityError, StorageError):
            continue
    return found


def _part_of(copy: Ledger, ref: PartRef) -> Part | None:
    if not has_top(copy.store, ref):
        return None
    try:
        return decode(copy.store.read(ref.name, nbytes=ref.top_nbytes), Part, file=ref.name)
    except (IntegrityError, StorageError):
        return None


def has_top(store: Store, ref: PartRef | PackRef) -> bool:
    """Whether a part or pack has the record or header that ``ref`` says."""
    top = top_of(ref)
    try:
        return xxhash.xxh3_128_digest(store.read(ref.name, nbytes=top.nbytes)) == top.digests
    except (IntegrityError, StorageError):
        return False


def _is_another(store: Store, ref: PackRef) -> bool:
    """Whether the pack here is whole by its own header and digests, and another one than ``ref``."""
    if has_top(store, ref):
        return False
    try:
        nbytes = store.size(ref.name)
        if nbytes is None or nbytes < _HEAD_BYTES:
            return False
        header_nbytes = _HEAD_BYTES + int.from_bytes(store.read(ref.name, nbytes=_HEAD_BYTES), "little")
        if header_nbytes > min(nbytes, HEADER_LIMIT_BYTES):
            return False
        raw = bytes(store.read(ref.name, nbytes=header_nbytes))
        index = parse_header(lambda start, n: raw[start : start + n], nbytes, file=ref.name)
    except (IntegrityError, StorageError):
        return False
    stretches = tensors_of(index)
    return not any(bad_tiles(store, ref.name, stretches, room=room_for(stretches)))
