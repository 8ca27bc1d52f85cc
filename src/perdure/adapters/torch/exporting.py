"""Write a committed step in another format: a Hugging Face safetensors folder, or a folder of DCP.

Tensors come through `perdure.load`, verified, a few hundred megabytes at a time, so the memory that an export needs is
that, or the largest tensor. A folder that has something in it is refused: nothing is ever written over.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import torch

from perdure.adapters.torch.hf_files import INDEX, SINGLE
from perdure.adapters.torch.load import load
from perdure.adapters.torch.nested import references
from perdure.adapters.torch.tensors import dtype_name
from perdure.checkpoint.restoring import read_catalog
from perdure.errors import CallError, NeedsPerson
from perdure.state.catalogs import Patterns
from perdure.state.index import CatalogTensor
from perdure.state.values import decode_value
from perdure.store import Disk, Run, open_store
from perdure.store.branch import commit_of
from perdure.store.refusals import explained
from perdure.store.safetensors import StoredAs, code_of, write_header

__all__ = ["SHARD_BYTES", "Exported", "Selection", "Source", "Tell", "Wanted", "export_hf", "new_folder", "select"]

SHARD_BYTES = 5_000_000_000
_BATCH_BYTES = 256 << 20
Tell = Callable[[int, str], None]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A tensor to be written as ``name``; ``aliases`` are the other names that it would have there."""

    name: str
    saved: CatalogTensor
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Selection:
    """What of a step is to be written, and what of it is left out, in sentences."""

    tensors: tuple[Wanted, ...]
    values: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors."""
        return sum(wanted.saved.nbytes for wanted in self.tensors)


@dataclass(frozen=True, slots=True)
class Exported:
    """What an export wrote."""

    step: int
    n_tensors: int
    nbytes: int
    files: tuple[str, ...]
    notes: tuple[str, ...]


class Source:
    """One committed step of a run, the newest by default; ``slot`` names a commit on whichever branch it is."""

    def __init__(self, url: str | os.PathLike[str], *, step: int | None = None, slot: int | None = None) -> None:
        self.url = os.fspath(url)
        self._run = Run.open(open_store(url), create=False, tell=lambda note: None)
        self._asked = slot
        self.step, self._slot = self._find(step)
        self.catalog = read_catalog(self._run, self._slot)[0]

    def _find(self, step: int | None) -> tuple[int, int]:
        commit = commit_of(self._run, step=step, slot=self._asked)
        return commit.step, commit.slot

    def read(self, tensors: Sequence[Wanted]) -> Iterator[tuple[Wanted, torch.Tensor]]:
        """Each tensor, whole and verified, in that order. Each is the caller's own; few are in memory at a time."""
        for batch in _batches(tensors):
            names = [glob.escape(each.saved.name) for each in batch]
            found = load(self.url, names=names, step=self.step, slot=self._asked)
            for each in batch:
                tensor = found.pop(each.saved.name)
                if tuple(tensor.shape) != each.saved.shape or dtype_name(tensor.dtype) != each.saved.dtype:
                    raise self._changed()
                yield each, tensor
        self.check_unchanged()

    def check_unchanged(self) -> None:
        """Raise `NeedsPerson` if the step is not the one any more that the export began with."""
        if self._find(self.step) != (self.step, self._slot):
            raise self._changed()

    def _changed(self) -> NeedsPerson:
        return NeedsPerson(f"step {self.step} of {self.url} was saved anew during the export; export it again")


def _batches(tensors: Sequence[Wanted]) -> Iterator[list[Wanted]]:
    """The tensors in their order, in groups of some hundred megabytes; no group has one tensor under two names."""
    batch: list[Wanted] = []
    names: set[str] = set()
    nbytes = 0
    for each in tensors:
        if batch and (nbytes + each.saved.nbytes > _BATCH_BYTES or each.saved.name in names):
            yield batch
            batch, names, nbytes = [], set(), 0
        batch.append(each)
        names.add(each.saved.name)
        nbytes += each.saved.nbytes
    if batch:
        yield batch


def select(source: Source, *, names: Sequence[str] | None, strip: str | None, values: bool) -> Selection:
    """The tensors that match any of ``names``, called without the prefix ``strip``; with ``values``, those too.

    Without ``names``, and without ``values``, what a model has: ``model.*``, called without ``model.``. A tensor with
    several names is written once, under the first of them that is wanted. Raises `CallError` when nothing matches.
    """
    catalog = source.catalog
    if names is None and not values:
        names = ["model.*"]
        strip = "model." if strip is None else strip
    patterns = Patterns(["*"] if names is None else names)
    every = [name for tensor in catalog.tensors.values() for name in (tensor.name, *tensor.aliases)]
    every += list(catalog.values) if values else []
    unmet = patterns.unmet(every)
    if unmet is not None:
        tops = sorted({name.partition(".")[0] for name in every})
        raise CallError(
            f"nothing in step {source.step} is called {unmet!r}; choose with --names; names begin with "
            f"{', '.join(tops[:8])}"
        )

    tensors = []
    for tensor in catalog.tensors.values():
        mine = [name for name in (tensor.name, *tensor.aliases) if patterns.fit(name)]
        if mine:
            first, *others = (_stripped(name, strip) for name in mine)
            tensors.append(Wanted(first, tensor, tuple(others)))
    taken = [name for each in tensors for name in (each.name, *each.aliases)]
    twice = next((name for name in taken if taken.count(name) > 1), None) if len(set(taken)) < len(taken) else None
    if twice is not None:
        raise CallError(f"two tensors would both be called {twice!r}; do not strip {strip!r}", tensor=twice)
    kept, notes = _values(source, patterns) if values else ({}, [])
    if catalog.local_tensors or catalog.local_values:
        notes.append("what each rank keeps for itself (RankLocal) has no place there and is left out")
    return Selection(tuple(tensors), kept, tuple(notes))


def _stripped(name: str, strip: str | None) -> str:
    if strip is None:
        return name
    if not name.startswith(strip) or name == strip:
        raise CallError(f"{name} does not begin with {strip!r}; choose with --names what does, or strip nothing")
    return name[len(strip) :]


def _values(source: Source, patterns: Patterns) -> tuple[dict[str, Any], list[str]]:
    kept, left = {}, []
    for key, encoded in source.catalog.values.items():
        value = decode_value(encoded, key=key)
        if not patterns.fit(key):
            continue
        if references(value):
            left.append(key)
        else:
            kept[key] = value
    names = ", ".join(left)
    return kept, [f"values that refer to tensors are left out, their tensors are not: {names}"] if left else []


def new_folder(path: str | os.PathLike[str]) -> str:
    """Make the folder ``path``, or take an empty one; raise `CallError` if there is something in it."""
    folder = os.path.realpath(path)
    with explained(folder, "make"):
        try:
            os.makedirs(folder, exist_ok=True)
        except FileExistsError:
            raise CallError(f"{folder} is a file; give a new folder", file=folder) from None
        if os.listdir(folder):
            raise CallError(f"{folder} is not empty; an export never writes over anything, give a new folder")
    return folder


def export_hf(
    source: Source,
    selection: Selection,
    folder: str | os.PathLike[str],
    *,
    shard_bytes: int = SHARD_BYTES,
    as_bytes: bool = False,
    tell: Tell = lambda nbytes, name: None,
) -> Exported:
    """Write the tensors as safetensors in shards of about ``shard_bytes``, and the index last: then all is there.

    Dtypes that safetensors lacks are a `CallError`; with ``as_bytes`` they are written as bytes, which only perdure
    reads back. ``tell`` hears of the bytes that were written and of what comes next.
    """
    if shard_bytes <= 0:
        raise CallError(f"shards of {shard_bytes} bytes hold nothing")
    lacking = [each for each in selection.tensors if code_of(each.saved.dtype) is None]
    if lacking and not as_bytes:
        raise CallError(
            f"safetensors has no {lacking[0].saved.dtype}, the dtype of {lacking[0].name}; leave it out with --names, "
            "or write its bytes with --as-bytes, which only perdure reads back",
            tensor=lacking[0].name,
        )
    store = Disk(new_folder(folder))
    shards = _shards(selection.tensors, shard_bytes)
    weight_map: dict[str, str] = {}
    files: list[str] = []
    done = 0
    for number, shard in enumerate(shards):
        file = SINGLE if len(shards) == 1 else f"model-{number + 1:05}-of-{len(shards):05}.safetensors"

        def chunks(shard: Sequence[Wanted] = shard) -> Iterator[Any]:
            nonlocal done
            by_name = {each.name: each for each in shard}
            stored = [StoredAs(e.name, e.saved.dtype, e.saved.shape, e.saved.nbytes) for e in shard]
            header, ordered = write_header(stored, {"format": "pt"})
            yield header
            for wanted, tensor in source.read([by_name[each.key] for each in ordered]):
                tell(done, wanted.name)
                if tensor.numel():
                    yield tensor.reshape(-1).view(torch.uint8).numpy()
                done += wanted.saved.nbytes

        store.put(file, chunks())
        files.append(file)
        weight_map |= {each.name: file for each in shard}
    metadata: dict[str, Any] = {"total_size": selection.nbytes}
    aliases = {alias: each.name for each in selection.tensors for alias in each.aliases}
    if aliases:
        metadata["perdure_aliases"] = aliases
    index = msgspec.json.format(msgspec.json.encode({"metadata": metadata, "weight_map": weight_map}), indent=2)
    store.put(INDEX, [index])
    tell(done, "done")
    notes = list(selection.notes)
    if lacking:
        notes.append(f"written as bytes, for perdure alone: {', '.join(each.name for each in lacking[:8])}")
    return Exported(source.step, len(selection.tensors), selection.nbytes, (*files, INDEX), tuple(notes))


def _shards(tensors: Sequence[Wanted], shard_bytes: int) -> list[list[Wanted]]:
    """The tensors in the order of their names, cut where the next one would not fit; one alone may be larger."""
    shards: list[list[Wanted]] = [[]]
    room = shard_bytes
    for each in sorted(tensors, key=lambda wanted: wanted.name):
        if shards[-1] and each.saved.nbytes > room:
            shards.append([])
            room = shard_bytes
        shards[-1].append(each)
        room -= each.saved.nbytes
    return shards
