"""``torch.distributed.checkpoint`` loads out of a run: `StorageReader`.

What the catalog of a step says becomes DCP's metadata, so DCP plans as ever; what it plans to read is read by
`perdure.state.load`, which verifies every tile. A value is put into DCP's state dict as the object that it is: no
pickle is made for DCP to load.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.distributed.checkpoint import storage
from torch.distributed.checkpoint._traverse import set_element
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import (
    STORAGE_TYPES,
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.futures import Future

from perdure.adapters.torch.dcp_steps import step_of
from perdure.adapters.torch.dcp_writing import writing_to
from perdure.adapters.torch.nested import TensorRef, put_tensors_back, references
from perdure.adapters.torch.target import TensorSink
from perdure.adapters.torch.tensors import LocalBlock, dtype_name, held_now, torch_dtype, write_into
from perdure.checkpoint.config import Deadlines
from perdure.checkpoint.restoring import read_catalog
from perdure.checkpoint.stalls import unless_stalled
from perdure.errors import BlobMissing, CallError, IntegrityError, PerdureError, StateMismatch, TryAgain
from perdure.events import Log, Notice
from perdure.layout import Box
from perdure.state.index import Catalog, CatalogTensor
from perdure.state.items import Held, TensorItem
from perdure.state.load import Match, PackSource, load
from perdure.state.source import check_room
from perdure.state.values import decode_value
from perdure.store import Note, Run, StoreUrl, open_store
from perdure.store.branch import commit_of, newest

__all__ = ["StorageReader"]

_NEWER = 20  # times to look for a newer step because what was found was pruned meanwhile


class StorageReader(storage.StorageReader):
    """Lets ``dcp.load`` load a step of the run at ``url``, onto any mesh, with every byte verified.

    ``dcp.load(state_dict, storage_reader=perdure.dcp.StorageReader(url))``

    The step is the number at the end of ``checkpoint_id``, else ``step``, else the newest; ``slot`` means a commit by
    its number. The names are those of the run, dotted; of a value that is a dict or list (an optimizer's groups, saved
    by `perdure.Checkpointer`) its entries have names too. A tensor of another dtype than that saved is refused unless
    ``cast``. What is saved next in this process goes on from the step loaded. A store that gets no further for
    ``deadlines.stall_s`` is given up.

    Errors come inside DCP's ``CheckpointException``: those of perdure in its ``failures``, by rank.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        step: int | None = None,
        slot: int | None = None,
        cast: bool = False,
        deadlines: Deadlines | None = None,
    ) -> None:
        self._place = StoreUrl.parse(url)
        self._step, self._slot, self._cast = step, slot, cast
        self._deadlines = deadlines or Deadlines()
        self._found: tuple[str, int] | None = None
        self._catalog = Catalog(0, {})
        self._packs: dict[str, PackSource] = {}
        self._values: dict[str, Any] = {}

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether ``checkpoint_id`` says which step it is."""
        try:
            step_of(checkpoint_id)
        except CallError:
            return False
        return True

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """The next load is of the step that ``checkpoint_id`` says."""
        if checkpoint_id is not None:
            self._step = step_of(checkpoint_id)

    def latest(self) -> int | None:
        """The newest committed step, None if there is none yet; then there is nothing for ``dcp.load``."""

        def look(moved: Callable[[int], None]) -> int | None:
            try:
                found = newest(Run.open(open_store(self._place), create=False, tell=_tell))
            except BlobMissing:
                return None
            return None if found is None else found.step

        step: int | None = self._within(look, "the newest step")
        return step

    def read_metadata(self) -> Metadata:
        """On every rank: find the step and read its index.

        What goes wrong is raised by whoever looks at the answer: raised here, DCP would make an ``AssertionError`` of
        it, of which no one could tell a missing step from a store that is away.
        """
        try:
            return self._metadata()
        except PerdureError as error:
            return _Unread(error)

    def _metadata(self) -> Metadata:
        self._found, self._catalog, self._packs = self._within(lambda moved: self._open(), "the index of a step")
        entries: dict[str, STORAGE_TYPES] = {}
        for saved in self._catalog.tensors.values():
            for name in (saved.name, *saved.aliases):
                entries[name] = _metadata_of(saved)
        self._values = {}
        for key, value in self._catalog.values.items():
            for name, inner in _entries(key, decode_value(value, key=key)):
                if name not in entries and not isinstance(inner, TensorRef):
                    self._values[name] = inner
        entries.update((name, BytesStorageMetadata()) for name in self._values)
        return Metadata(entries, planner_data={name: (name,) for name in entries})

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Raise what kept `read_metadata` from reading."""
        if isinstance(metadata, _Unread):
            raise metadata.why

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """On every rank: say which commit was found."""
        return replace(plan, storage_data=self._found)

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """On the coordinator: all ranks must have found the same commit."""
        found = sorted({plan.storage_data for plan in plans})
        if len(found) > 1:
            raise TryAgain(
                f"a step was committed while ranks looked for the newest (slots {[slot for _, slot in found]}); load "
                "again, or name a step",
                slots=[slot for _, slot in found],
            )
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """On every rank: fill what DCP's plan asks for, verified."""
        values = [item for item in plan.items if item.type is LoadItemType.BYTE_IO]
        inner = {name for item in values for name in references(self._values[item.storage_index.fqn])}
        sinks = [self._sink(item, planner) for item in plan.items if item.type is LoadItemType.TENSOR]
        fresh = {name: _whole(self._tensor(name), self._packs) for name in inner}
        matches = [sink.match for sink in sinks]
        matches += [_match_of(self._tensor(name), TensorSink.of(name, each)) for name, each in fresh.items()]
        self._within(
            lambda moved: load(self._catalog, matches, lambda pack: [self._packs[pack]], on_bytes=moved),
            "reading tensors",
        )
        for sink in sinks:
            sink.write_back(planner)
        for item in values:
            value = put_tensors_back(self._values[item.storage_index.fqn], fresh.__getitem__)
            _give(planner, item.dest_index.fqn, value)
        assert self._found is not None, "the metadata was read"
        writing_to(self._place).went_on_from(*self._found)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _open(self) -> tuple[tuple[str, int], Catalog, dict[str, PackSource]]:
        run = Run.open(open_store(self._place), create=False, tell=_tell)
        for _ in range(_NEWER):
            commit = commit_of(run, step=self._step, slot=self._slot)
            try:
                return (commit.run, commit.slot), *read_catalog(run, commit.slot)
            except IntegrityError:
                if self._step is not None or self._slot is not None or not run.is_pruned(commit.slot):
                    raise  # else somebody has pruned what was the newest a moment ago
        raise BlobMissing(f"steps of {self._place} are pruned faster than they can be read; keep more of them")

    def _tensor(self, name: str) -> CatalogTensor:
        found = self._catalog.find(name)
        if found is None:
            raise StateMismatch(f"the saved state refers to the tensor {name}, which was not saved", missing=[name])
        return found

    def _sink(self, item: ReadItem, planner: LoadPlanner) -> _Sink:
        saved = self._tensor(item.storage_index.fqn)
        chunk = item.storage_index.offset or (0,) * len(saved.shape)
        lo = tuple(map(sum, zip(chunk, item.storage_offsets, strict=True)))
        box = Box(lo, tuple(map(sum, zip(lo, item.lengths, strict=True))))
        return _Sink.of(item, saved, box, planner.resolve_tensor(item).detach(), cast=self._cast)

    def _within(self, work: Callable[[Callable[[int], None]], Any], what: str) -> Any:
        return unless_stalled(work, stall_s=self._deadlines.stall_s, what=f"{what} of {self._place}")


class _Unread(Metadata):
    """Metadata that could not be read: whoever looks what is in it hears why."""

    def __init__(self, why: PerdureError) -> None:
        self.why = why

    @property
    def state_dict_metadata(self) -> Any:  # type: ignore[override]
        """Raises why it could not be read."""
        raise self.why


class _Sink:
    """A view of a live tensor, and the memory that is filled for it: its own, or a copy beside it."""

    def __init__(self, item: ReadItem, live: torch.Tensor, filled: torch.Tensor | None, match: Match) -> None:
        self.item, self.live, self.filled, self.match = item, live, filled, match

    @classmethod
    def of(cls, item: ReadItem, saved: CatalogTensor, box: Box, live: torch.Tensor, *, cast: bool) -> _Sink:
        """``live`` is to become ``box`` of ``saved``."""
        name, other = saved.name, dtype_name(live.dtype)
        if tuple(live.shape) != box.shape:
            raise StateMismatch(f"the planner gives {list(live.shape)} for {box} of {name}", shape=[name])
        if other != saved.dtype and not cast:
            raise StateMismatch(
                f"{name} is {other} here, {saved.dtype} in the checkpoint; load it as it was saved, or convert with "
                "StorageReader(url, cast=True)",
                dtype=[name],
            )
        target = live if other == saved.dtype else torch.empty(live.shape, dtype=torch_dtype(saved.dtype))
        held, in_place = held_now(LocalBlock(box, target))
        matched = Match(TensorItem(name, saved.dtype, saved.shape, (held,)), saved)
        return cls(item, live, None if in_place and target is live else held.memory.owner, matched)

    def write_back(self, planner: LoadPlanner) -> None:
        """What was filled beside the live tensor goes into it; DCP's planner hears that it is done."""
        if self.filled is not None:
            if self.filled.dtype == self.live.dtype:
                write_into(self.live, self.filled, name=self.match.saved.name)
            else:
                self.live.copy_(self.filled)
        planner.commit_tensor(self.item, self.live)


def _metadata_of(saved: CatalogTensor) -> TensorStorageMetadata:
    return TensorStorageMetadata(
        TensorProperties(dtype=torch_dtype(saved.dtype)),
        torch.Size(saved.shape),
        [ChunkStorageMetadata(torch.Size(piece.box.lo), torch.Size(piece.box.shape)) for piece in saved.pieces],
    )


def _entries(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """``value`` and what is inside it, by the names that DCP would flatten it to."""
    yield key, value
    if isinstance(value, dict):
        for name, each in value.items():
            yield from _entries(f"{key}.{name}", each)
    elif isinstance(value, list) and any(isinstance(each, dict | list | TensorRef) for each in value):
        for i, each in enumerate(value):
            yield from _entries(f"{key}.{i}", each)


def _whole(saved: CatalogTensor, packs: dict[str, PackSource]) -> torch.Tensor:
    check_room(saved, packs)
    return torch.empty(saved.shape, dtype=torch_dtype(saved.dtype))


def _match_of(saved: CatalogTensor, sink: TensorSink) -> Match:
    held = tuple(Held(part.box, part.memory) for part in sink.parts)
    return Match(TensorItem(saved.name, saved.dtype, saved.shape, held), saved)


def _give(planner: LoadPlanner, name: str, value: Any) -> None:
    """Put ``value`` where the planner would put what it unpickles."""
    own = type(planner).load_bytes
    if not isinstance(planner, DefaultLoadPlanner) or own is not DefaultLoadPlanner.load_bytes:
        raise CallError(
            f"the planner {type(planner).__name__} wants the value {name} as a pickle, which is not made; use "
            "DefaultLoadPlanner or a class of it that leaves load_bytes alone",
            key=name,
        )
    if planner.flatten_state_dict:
        set_element(planner.original_state_dict, planner.mappings[name], value)
    else:
        planner.state_dict[name] = value


def _tell(note: Note) -> None:
    Log().emit(Notice(text=note.message))
