"""Pair live tensors with saved ones: by name, scope, shape and dtype, before a byte is read.

All that does not fit is told at once, in one `StateMismatch`; nothing is written here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from perdure.errors import StateMismatch
from perdure.state.index import Catalog, CatalogTensor
from perdure.state.items import TensorItem
from perdure.state.scopes import OnResize, rank_local_source

__all__ = ["Match", "match"]


@dataclass(frozen=True, slots=True)
class Match:
    """A live tensor and what was saved for it."""

    item: TensorItem
    saved: CatalogTensor


def match(
    catalog: Catalog,
    items: Sequence[TensorItem],
    value_keys: Sequence[tuple[str, bool, OnResize]],
    *,
    rank: int,
    world: int,
    partial: bool = False,
) -> list[Match]:
    """Pair live tensors with saved ones; raise `StateMismatch` that lists every key that does not fit.

    ``value_keys`` are ``(key, local, on_resize)``. Names that are saved but not wanted are unexpected, names that are
    wanted but not saved are missing. With ``partial`` other ranks may want what this one does not: then nothing that is
    shared is unexpected here, and `perdure.state.claims` finds what no rank wants.
    """
    found: list[Match] = []
    misfits = _Misfits()
    used: set[str] = set()
    for item in items:
        saved = _saved_for(catalog, item.name, item, rank, world)
        if saved is None:
            if _fresh(item.local, item.on_resize, catalog, world):
                used.add(item.name)
            else:
                misfits.missing.append(item.name)
            continue
        used.add(saved.name)
        for alias in item.aliases:
            other = _saved_for(catalog, alias, item, rank, world)
            if other is None:
                misfits.missing.append(alias)
            elif other.name != saved.name:
                used.add(other.name)
                misfits.sentences.append(f"{item.name} and {alias} are one tensor here but were saved as two")
        misfits.compare(item, saved)
        found.append(Match(item, saved))
    like = rank % max(catalog.world, 1)  # the saved rank whose local state this rank would take
    if not partial:
        misfits.unexpected += [name for name in catalog.tensors if name not in used]
    misfits.unexpected += [name for of, name in catalog.local_tensors if of == like and name not in used]
    wanted = {(key, local) for key, local, _ in value_keys}
    for key, local, on_resize in value_keys:
        there = (like, key) in catalog.local_values if local else key in catalog.values
        if not there and not _fresh(local, on_resize, catalog, world):
            misfits.missing.append(key)
    if not partial:
        misfits.unexpected += [key for key in catalog.values if (key, False) not in wanted]
    misfits.unexpected += [key for of, key in catalog.local_values if of == like and (key, True) not in wanted]
    misfits.refuse()
    return found


@dataclass(slots=True)
class _Misfits:
    """What of saved and live state does not fit."""

    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    shape: list[str] = field(default_factory=list)
    dtype: list[str] = field(default_factory=list)
    sentences: list[str] = field(default_factory=list)

    def compare(self, item: TensorItem, saved: CatalogTensor) -> None:
        name = item.name
        if saved.shape != item.shape:
            self.shape.append(name)
            self.sentences.append(f"{name} has shape {list(item.shape)} here, {list(saved.shape)} in the checkpoint")
        elif saved.dtype != item.dtype:
            self.dtype.append(name)
            self.sentences.append(f"{name} is {item.dtype} here, {saved.dtype} in the checkpoint")
        elif saved.rank is not None and {each.box for each in item.held} != {each.box for each in saved.pieces}:
            self.shape.append(name)
            self.sentences.append(f"{name} is rank-local, and this rank holds other parts of it than were saved")

    def refuse(self) -> None:
        sentences = list(self.sentences)
        if self.missing:
            sentences.insert(0, f"not in the checkpoint: {_some(self.missing)}")
        if self.unexpected:
            sentences.insert(0, f"in the checkpoint but not here: {_some(self.unexpected)}")
        if sentences:
            hint = ""
            if self.unexpected and not self.missing:
                hint = "; restore all that was saved, or read a part of it with perdure.load(url, names=[...])"
            raise StateMismatch(
                f"the checkpoint does not fit this state: {'; '.join(sentences[:8])}{hint}",
                missing=self.missing,
                unexpected=self.unexpected,
                shape=self.shape,
                dtype=self.dtype,
            )


def _saved_for(catalog: Catalog, name: str, item: TensorItem, rank: int, world: int) -> CatalogTensor | None:
    """What was saved as ``name``, for the scope of ``item``."""
    if not item.local:
        return catalog.find(name)
    source = rank_local_source(item.on_resize, rank=rank, world=world, saved_world=catalog.world, key=name)
    return None if source is None else catalog.find_local(source, name)


def _fresh(local: bool, on_resize: OnResize, catalog: Catalog, world: int) -> bool:
    """Whether the live state stays as it is because the world has another size."""
    return local and on_resize == "fresh" and world != catalog.world


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:6])
    return shown if len(names) <= 6 else f"{shown} and {len(names) - 6} more"
