"""`perdure.load_into`: a committed step into live tensors, or into a model on the meta device, without a process group.

A model on the meta device has shapes and no memory. Memory is made for what a step has of it, filled in place, and put
into the model; so the state is in memory once, whatever else the load needs is within its budget.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from perdure.adapters.torch.framework import TorchFramework
from perdure.adapters.torch.load import at_step
from perdure.adapters.torch.modules import view_of
from perdure.adapters.torch.target import TensorSink
from perdure.adapters.torch.tensors import torch_dtype
from perdure.adapters.torch.tree import leaves
from perdure.adapters.torch.views import View
from perdure.checkpoint.asked import checked_bytes
from perdure.errors import CallError, IntegrityError
from perdure.events import Log, Notice
from perdure.layout import canonical_name
from perdure.state.alike import check_alike
from perdure.state.index import Catalog
from perdure.state.items import Held
from perdure.state.load import Match, load
from perdure.state.match import compare
from perdure.state.source import check_room
from perdure.state.step_index import read_catalog
from perdure.store import Commit, Run

__all__ = ["Loaded", "load_into"]

_BUDGET_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Loaded:
    """What `load_into` did.

    ``missing`` are names of the live state that the step does not have (they stay as they are), ``unexpected`` names
    that the step has under the same keys and the live state has not (they are not read). ``cast`` are tensors whose
    values were converted to the live dtype: name to ``(saved, live)``. ``on_meta`` are tensors of modules that are on
    the meta device still: those of ``missing``, and buffers that no state_dict holds.
    """

    step: int
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    cast: dict[str, tuple[str, str]]
    on_meta: tuple[str, ...]


def load_into(
    url: str | os.PathLike[str],
    tree: Mapping[str, Any],
    *,
    step: int | None = None,
    slot: int | None = None,
    strict: bool = True,
    cast: bool = False,
    budget_bytes: int = _BUDGET_BYTES,
) -> Loaded:
    """Fill what ``tree`` names (as it was saved: ``{"model": model}``) with a committed step; verified, in place.

    Only the keys of ``tree`` are read, so a run that also saved an optimizer loads into its model alone. Tensors of a
    module (or of a `View` of one) that are on the meta device get memory on the CPU; ties between them stay.
    ``strict`` makes names that are missing or unexpected an error; without it they are told in the answer. ``cast``
    converts tensors that were saved in another dtype (rounded to nearest); without it they are an error. A shape that
    differs always is one.
    ``budget_bytes`` is what may be used of memory beside the state; a tensor that is cast is there whole, as saved, for
    a moment.

    Every rank of a job may call it, each for itself; whole tensors alone can be filled. For sharded modules give them
    memory (``model.to_empty(device="cpu")``) and call `Checkpointer.restore`, which fills shards in place.

    Raises `CallError` for a ``tree`` that is empty or no dict, `StateMismatch` before anything is written where names,
    shapes or dtypes do not fit, else what `perdure.load` raises; the live state may be half written then.

    >>> import tempfile, torch, perdure
    >>> ckpt = perdure.Checkpointer(folder := tempfile.mkdtemp(), agent=False)
    >>> _ = ckpt.save(7, {"model": torch.nn.Linear(2, 2), "note": "hello"}).committed()
    >>> ckpt.close()
    >>> with torch.device("meta"):
    ...     model = torch.nn.Linear(2, 2)
    >>> perdure.load_into(folder, {"model": model}).step, model.weight.device.type
    (7, 'cpu')
    """
    given: Any = tree
    if not isinstance(given, Mapping):
        kind = type(given).__name__
        raise CallError(
            f'load_into needs a dict of names to what they were saved as, such as {{"model": model}}; this is a {kind}',
            type=kind,
        )
    if not tree:
        raise CallError('the dict is empty, so nothing would be filled; give it as it was saved: {"model": model}')
    checked_bytes("budget_bytes", budget_bytes)
    return at_step(
        url,
        lambda run, commit, log, moved: _fill(
            run, commit, tree, strict=strict, cast=cast, budget_bytes=budget_bytes, log=log, moved=moved
        ),
        step=step,
        slot=slot,
    )


def _fill(
    run: Run,
    commit: Commit,
    tree: Mapping[str, Any],
    *,
    strict: bool,
    cast: bool,
    budget_bytes: int,
    log: Log,
    moved: Callable[[int], None],
) -> Loaded:
    catalog, packs = read_catalog(run, commit.slot, rank=0, moved=moved)
    catalog = _under(catalog, tuple(tree))
    made = _give_memory(tree)
    try:
        target = TorchFramework().prepare(tree, catalog)
        items, keys = target.items(catalog, rank=0, world=1), target.value_keys()
        found = compare(catalog, items, keys, rank=0, world=1, anew=target.anew)
        found.refuse(strict=strict, cast=cast)

        def fill(matches: Sequence[Match]) -> None:
            done = load(catalog, matches, lambda pack: [packs[pack]], budget_bytes=budget_bytes, on_bytes=moved)
            for note in done.notes:
                log.emit(Notice(text=f"step {commit.step}: {note}"))

        for match in found.matches:
            check_room(match.saved, packs)
        check_alike(
            catalog, found.matches, target.alike, lambda pack: [packs[pack]], budget_bytes=budget_bytes, on_bytes=moved
        )
        fill([match for match in found.matches if match.item.name not in found.dtypes])
        for item, saved in ((match.item, match.saved) for match in found.matches if match.item.name in found.dtypes):
            whole = torch.empty(saved.shape, dtype=torch_dtype(saved.dtype))
            held = tuple(Held(part.box, part.memory) for part in TensorSink.of(item.name, whole).parts)
            fill([Match(replace(item, dtype=saved.dtype, held=held), saved)])
            target.convert(item.name, whole)
        target.finish(catalog, rank=0, world=1)
    except BaseException as error:
        for each in made:
            each.undo()
        if isinstance(error, IntegrityError):
            raise type(error)(
                f"{error}; what was to be filled may be half written: do not use it", **error.facts
            ) from error
        raise
    missing = set(found.missing)
    for each in made:
        if not missing.isdisjoint(each.names):
            each.undo()
    left = tuple(_on_meta(tree))
    return Loaded(commit.step, tuple(found.missing), tuple(found.unexpected), found.dtypes, left)


def _under(catalog: Catalog, keys: tuple[str, ...]) -> Catalog:
    """What the catalog has under ``keys`` of a tree."""

    def inside(name: str) -> bool:
        return any(name == key or name.startswith((f"{key}.", f"{key}#")) for key in keys)

    return replace(
        catalog,
        tensors={name: each for name, each in catalog.tensors.items() if inside(name)},
        local_tensors={key: each for key, each in catalog.local_tensors.items() if inside(key[1])},
        aliases={alias: name for alias, name in catalog.aliases.items() if inside(name)},
        values={key: each for key, each in catalog.values.items() if inside(key)},
        local_values={key: each for key, each in catalog.local_values.items() if inside(key[1])},
    )


@dataclass(frozen=True, slots=True)
class _Made:
    """A tensor that had no memory, in the table of a module; ``names`` are those of what it is in a checkpoint."""

    names: tuple[str, ...]
    table: dict[str, Any]
    key: str
    before: torch.Tensor

    def undo(self) -> None:
        self.table[self.key] = self.before


@dataclass(frozen=True, slots=True)
class _Entry:
    """A tensor in the table of a module, by its own name; ``saved`` says whether a state_dict holds it."""

    name: str
    table: dict[str, Any]
    key: str
    saved: bool

    @property
    def tensor(self) -> torch.Tensor:
        found: torch.Tensor = self.table[self.key]
        return found

    @property
    def on_meta(self) -> bool:
        return self.tensor.is_meta and not isinstance(self.tensor, DTensor)


def _entries(module: torch.nn.Module) -> Iterator[_Entry]:
    for prefix, each in module.named_modules():
        tables: tuple[dict[str, torch.Tensor | None], ...] = (each._parameters, each._buffers)
        for table in tables:
            for key, tensor in table.items():
                if tensor is not None:
                    saved = table is each._parameters or key not in each._non_persistent_buffers_set
                    yield _Entry(canonical_name(f"{prefix}.{key}" if prefix else key), table, key, saved)


def _modules(tree: Mapping[str, Any]) -> Iterator[tuple[str, View]]:
    for key, value in leaves(tree):
        view = view_of(value)
        if view is not None:
            yield key, view


def _on_meta(tree: Mapping[str, Any]) -> Iterator[str]:
    """The names of the tensors of modules that have no memory, as the modules themselves call them."""
    for key, view in _modules(tree):
        yield from (f"{key}.{entry.name}" for entry in _entries(view.module) if entry.on_meta)


def _give_memory(tree: Mapping[str, Any]) -> list[_Made]:
    """Put tensors with memory, not filled and not touched yet, in the place of those on the meta device."""
    made: list[_Made] = []
    real: dict[int, torch.Tensor] = {}  # what is one tensor stays one
    for at, view in _modules(tree):
        saved = [entry for entry in _entries(view.module) if entry.saved]
        empty = [entry for entry in saved if entry.on_meta]
        parts = view.parts(at, {entry.name: tuple(entry.tensor.shape) for entry in saved}) if empty else {}
        for entry in empty:
            before = entry.tensor
            if id(before) not in real:
                new = torch.empty_like(before, device="cpu")
                if isinstance(before, torch.nn.Parameter):
                    new = torch.nn.Parameter(new, requires_grad=before.requires_grad)
                new.__dict__.update(before.__dict__)
                real[id(before)] = new
            entry.table[entry.key] = real[id(before)]
            names = tuple(f"{at}.{part.name}" for part in parts[entry.name])
            made.append(_Made(names, entry.table, entry.key, before))
    return made
