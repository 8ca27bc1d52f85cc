"""Prove that the index of a commit is whole: every tensor is covered, every block claims an entry of a pack.

Theory. The parts are sorted by name, so one merge over all of them sees each tensor once, with the blocks of every
part, and nothing is kept of it but what it claims. A tensor that lies in a grid proves itself: the grid's blocks tile,
so it is enough that all parts name the same grid and together hold as many blocks as it has. So does one whole block.
Only what is cut otherwise is proved box by box, once for all tensors that are cut alike.

A claim is the hash, of 64 bits and keyed by the process, of what an entry must be: key, dtype, shape. Eight bytes an
entry are kept until the pack's header has been read, whatever the number of tensors.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby
from math import prod
from operator import attrgetter

from perdure.errors import IntegrityError
from perdure.layout import Box, first_gap, first_overlap
from perdure.state.geometry import Placed
from perdure.state.part_reader import PartReader
from perdure.store import PackEntry, Part

__all__ = ["Claims", "Fault", "Proof", "Proving", "claim_of", "named", "prove"]

_ORDER = attrgetter("name")


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with the index: a sentence, the part it is in (or all), the tensor it is about."""

    message: str
    file: str
    tensor: str | None = None


@dataclass(slots=True)
class Claims:
    """What the index wants of one pack: hashes of entries, and of the keys of frames."""

    entries: array[int] = field(default_factory=lambda: array("q"))
    frames: array[int] = field(default_factory=lambda: array("q"))


@dataclass(slots=True)
class Proof:
    """What `prove` found."""

    faults: list[Fault] = field(default_factory=list)
    claims: dict[str, Claims] = field(default_factory=dict)
    n_tensors: int = 0
    n_pieces: int = 0


@dataclass(frozen=True, slots=True)
class Proving:
    """A part to prove; ``damaged`` says of the first and last name of a leaf whether it cannot be read."""

    part: Part
    reader: PartReader
    damaged: Callable[[str, str], bool] = lambda first, last: False
    doubtful: Callable[[str], bool] = lambda name: False


def claim_of(entry: PackEntry) -> int:
    """The hash that a block which is this entry claims."""
    return hash((entry.key, (entry.dtype, entry.shape)))


def prove(parts: Sequence[Proving], *, whole: bool) -> Proof:
    """Prove the parts of a commit together; whatever is wrong is in ``faults``, and the rest is proved nevertheless.

    ``whole``: these are all of its parts. Without it only what the parts claim is found, not whether tensors are whole.
    """
    proof = Proof()
    if not parts:
        return proof
    if whole:
        _prove_ranks(parts, proof)
    others = _Aliases(parts, proof)
    streams = [_stream(each, each.reader.placed(_readable(each)), proof) for each in parts]
    for name, group in groupby(heapq.merge(*streams, key=_ORDER) if len(streams) > 1 else streams[0], key=_ORDER):
        pieces = list(group)
        proof.n_tensors += 1
        others.meet(name, proof)
        why = _uncovered(pieces)
        if why is not None and whole and not any(each.doubtful(name) for each in parts):
            proof.faults.append(Fault(f"tensor {name!r} is not whole: {why}", _files(parts), name))
    for each in parts:
        for local in _stream(each, each.reader.placed_locals(), proof):
            proof.n_tensors += 1
            why = _overlapping(local.geometry.boxes)  # a rank may hold, and so have saved, a part of it alone
            if why is not None:
                name = local.key_stem
                proof.faults.append(Fault(f"tensor {name!r} is saved twice in part: {why}", each.reader.file, name))
    if whole:
        others.end(parts, proof)
    _prove_values(parts, proof)
    return proof


def named(part: Proving, packs: dict[str, set[int]]) -> Iterator[tuple[str, str, str]]:
    """Name, key and pack of every block that makes one of the claims in ``packs`` (by pack)."""
    refs = part.part.packs
    for stream in (part.reader.placed(_readable(part)), part.reader.placed_locals()):
        for tensor in stream:
            stem = tensor.key_stem
            geometry = tensor.geometry
            for suffix, stored, number in zip(geometry.suffixes, geometry.stored, tensor.packs, strict=True):
                pack = refs[number if number >= 0 else -1 - number].name
                key = stem + suffix
                if pack in packs and (hash((key, stored)) if number >= 0 else hash(key)) in packs[pack]:
                    yield tensor.name, key, pack


def _stream(part: Proving, tensors: Iterator[Placed], proof: Proof) -> Iterator[Placed]:
    """The tensors of a part, their claims noted; ends, with a fault, at what no writer writes."""
    claims = [proof.claims.setdefault(ref.name, Claims()) for ref in part.part.packs]
    wanted = [each.entries for each in claims]
    try:
        for tensor in tensors:
            geometry, stem = tensor.geometry, tensor.key_stem
            proof.n_pieces += len(tensor.packs)
            for suffix, stored, number in zip(geometry.suffixes, geometry.stored, tensor.packs, strict=True):
                if number >= 0:
                    wanted[number].append(hash((stem + suffix, stored)))
                else:
                    claims[-1 - number].frames.append(hash(stem + suffix))
            yield tensor
    except IntegrityError as error:
        proof.faults.append(Fault(str(error), part.reader.file))


def _readable(part: Proving) -> Callable[[str, str], bool]:
    return lambda first, last: not part.damaged(first, last)


def _uncovered(pieces: Sequence[Placed]) -> str | None:
    """Why the blocks of all parts do not make the tensor."""
    first = pieces[0]
    if any((each.dtype, each.shape) != (first.dtype, first.shape) for each in pieces[1:]):
        return "its parts tell of different dtypes or shapes"
    grid = first.geometry.grid
    if grid is not None and all(each.geometry.grid == grid for each in pieces[1:]):
        there = sum(len(each.geometry.boxes) for each in pieces)
        return None if there == prod(grid.parts) else f"{there} of {prod(grid.parts)} blocks are there"
    if len(pieces) == 1:
        return _gap(first.shape, first.geometry.boxes)
    return _gap(first.shape, tuple(box for each in pieces for box in each.geometry.boxes))


@lru_cache(maxsize=4096)
def _gap(shape: tuple[int, ...], boxes: tuple[Box, ...]) -> str | None:
    whole = Box.whole(shape)
    if boxes == (whole,):
        return None
    overlap = _overlapping(boxes)
    if overlap is not None:
        return overlap
    full = [box for box in boxes if not box.empty]
    if sum(box.size for box in full) != whole.size:
        return f"no block holds {first_gap(whole, full)}"
    return None


def _overlapping(boxes: Sequence[Box]) -> str | None:
    full = [box for box in boxes if not box.empty]
    overlap = first_overlap(full)
    return None if overlap is None else f"the blocks {full[overlap[0]]} and {full[overlap[1]]} overlap"


def _prove_ranks(parts: Sequence[Proving], proof: Proof) -> None:
    first = parts[0].reader.index
    seen: set[int] = set()
    for each in parts:
        index = each.reader.index
        twice = seen.intersection(index.ranks)
        if index.world != first.world or index.layouts != first.layouts or twice:
            proof.faults.append(
                Fault(f"{each.reader.file} does not belong to the other parts of its commit", each.reader.file)
            )
        seen.update(index.ranks)
    if len(seen) != first.world:
        gone = next(rank for rank in range(first.world + 1) if rank not in seen)
        proof.faults.append(
            Fault(f"{len(seen)} of {first.world} ranks are in the parts; rank {gone} is not", _files(parts))
        )


def _prove_values(parts: Sequence[Proving], proof: Proof) -> None:
    seen: set[tuple[str, int | None]] = set()
    for each in parts:
        try:
            for key, rank, _ in each.reader.values():
                if (key, rank) in seen:
                    proof.faults.append(Fault(f"the value {key!r} is there twice", each.reader.file))
                seen.add((key, rank))
        except IntegrityError as error:
            proof.faults.append(Fault(str(error), each.reader.file))


class _Aliases:
    """Other names: each is of one tensor that is there, and is the name of no tensor."""

    def __init__(self, parts: Sequence[Proving], proof: Proof) -> None:
        self._names: dict[str, str] = {}
        for each in parts:
            try:
                for alias, name in each.reader.aliases():
                    if self._names.setdefault(alias, name) != name:
                        proof.faults.append(
                            Fault(f"{alias!r} is a name of two different tensors", each.reader.file, alias)
                        )
            except IntegrityError as error:
                proof.faults.append(Fault(str(error), each.reader.file))
        self._unmet = set(self._names.values())

    def meet(self, name: str, proof: Proof) -> None:
        self._unmet.discard(name)
        if name in self._names:
            proof.faults.append(Fault(f"{name!r} is a name of two different tensors", "the index", name))

    def end(self, parts: Sequence[Proving], proof: Proof) -> None:
        for name in sorted(self._unmet):
            if not any(each.doubtful(name) for each in parts):
                proof.faults.append(Fault(f"tensor {name!r} has another name, but is not there", _files(parts), name))


def _files(parts: Sequence[Proving]) -> str:
    return parts[0].reader.file if len(parts) == 1 else f"{parts[0].reader.file} and {len(parts) - 1} more"
