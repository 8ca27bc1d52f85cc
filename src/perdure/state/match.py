"""Pair live tensors with saved ones: by name, scope, shape and dtype, before a byte is read.

All that does not fit is told at once, in one `StateMismatch`; nothing is written here.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from perdure.errors import StateMismatch
from perdure.state.index import Catalog, CatalogTensor
from perdure.state.items import TensorItem
from perdure.state.scopes import OnResize, rank_local_source

__all__ = ["Comparison", "Match", "compare", "match"]


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
    anew: Collection[str] = (),
) -> list[Match]:
    """Pair live tensors with saved ones; raise `StateMismatch` that lists every key that does not fit.

    ``value_keys`` are ``(key, local, on_resize)``. Names that are saved but not wanted are unexpected, names that are
    wanted but not saved are missing. With ``partial`` other ranks may want what this one does not: then nothing that is
    shared is unexpected here, and `perdure.state.claims` finds what no rank wants. What is rank-local under the keys
    ``anew`` begins anew in a world of another size: nothing that was saved there is unexpected then.
    """
    found = compare(catalog, items, value_keys, rank=rank, world=world, partial=partial, anew=anew)
    found.refuse()
    return found.matches


def compare(
    catalog: Catalog,
    items: Sequence[TensorItem],
    value_keys: Sequence[tuple[str, bool, OnResize]],
    *,
    rank: int,
    world: int,
    partial: bool = False,
    anew: Collection[str] = (),
) -> Comparison:
    """As `match`, but what does not fit is told and not raised."""
    found = Comparison()
    used: set[str] = set()
    for item in items:
        saved = _saved_for(catalog, item.name, item, rank, world)
        if saved is None:
            if _fresh(item.local, item.on_resize, catalog, world):
                used.add(item.name)
            else:
                found.missing.append(item.name)
            continue
        used.add(saved.name)
        for alias in item.aliases:
            other = _saved_for(catalog, alias, item, rank, world)
            if other is None:
                found.missing.append(alias)
            elif other.name != saved.name:
                used.add(other.name)
                found.others.append(f"{item.name} and {alias} are one tensor here but were saved as two")
        found.add(Match(item, saved))
    like = rank % max(catalog.world, 1)  # the saved rank whose local state this rank would take
    dropped = tuple(anew) if world != catalog.world else ()

    def told(name: str) -> bool:
        return not any(name == key or name.startswith(f"{key}.") for key in dropped)

    if not partial:
        found.unexpected += [name for name in catalog.tensors if name not in used]
    found.unexpected += [name for of, name in catalog.local_tensors if of == like and name not in used and told(name)]
    wanted = {(key, local) for key, local, _ in value_keys}
    for key, local, on_resize in value_keys:
        there = (like, key) in catalog.local_values if local else key in catalog.values
        if not there and not _fresh(local, on_resize, catalog, world):
            found.missing.append(key)
    if not partial:
        found.unexpected += [key for key in catalog.values if (key, False) not in wanted]
    local_keys = (key for of, key in catalog.local_values if of == like and told(key))
    found.unexpected += [key for key in local_keys if (key, True) not in wanted]
    return found


@dataclass(slots=True)
class Comparison:
    """What of saved and live state fits, and what does not.

    ``dtypes`` are tensors that have another dtype here, name to ``(saved, live)``; their matches are among ``matches``.
    ``others`` are sentences on what fits in no other list.
    """

    matches: list[Match] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    shape: list[str] = field(default_factory=list)
    shapes: list[str] = field(default_factory=list)
    dtypes: dict[str, tuple[str, str]] = field(default_factory=dict)
    others: list[str] = field(default_factory=list)

    def add(self, match: Match) -> None:
        """A live tensor that has a saved one."""
        self.matches.append(match)
        item, saved, name = match.item, match.saved, match.item.name
        if saved.shape != item.shape:
            self.shape.append(name)
            self.shapes.append(f"{name} has shape {list(item.shape)} here, {list(saved.shape)} in the checkpoint")
        elif saved.dtype != item.dtype:
            self.dtypes[name] = (saved.dtype, item.dtype)
        elif saved.rank is not None and {each.box for each in item.held} != {each.box for each in saved.pieces}:
            self.shape.append(name)
            self.shapes.append(f"{name} is rank-local, and this rank holds other parts of it than were saved")

    def refuse(self, *, strict: bool = True, cast: bool = False) -> None:
        """Raise `StateMismatch` if anything does not fit; ``strict`` counts names, ``cast`` lets dtypes differ."""
        missing, unexpected = (self.missing, self.unexpected) if strict else ([], [])
        dtypes = {} if cast else self.dtypes
        sentences = [f"in the checkpoint but not here: {_some(unexpected)}"] if unexpected else []
        sentences += [f"not in the checkpoint: {_some(missing)}"] if missing else []
        sentences += self.others + self.shapes
        sentences += [f"{name} is {live} here, {saved} in the checkpoint" for name, (saved, live) in dtypes.items()]
        if sentences:
            hint = ""
            if unexpected and not missing:
                hint = "; restore all that was saved, or read a part of it with perdure.load(url, names=[...])"
            raise StateMismatch(
                f"the checkpoint does not fit this state: {'; '.join(sentences[:8])}{hint}",
                missing=missing,
                unexpected=unexpected,
                shape=self.shape,
                dtype=list(dtypes),
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
