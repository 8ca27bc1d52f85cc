"""The catalog of a step from the indexes of its parts: all of it, or what some names need."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import prod

from perdure.errors import FormatRefused, fault_in
from perdure.state.index import Catalog, CatalogTensor, Joining
from perdure.state.part_reader import PartReader
from perdure.state.stored import StoredBase
from perdure.store import LeafRef

__all__ = ["Patterns", "catalog_of"]

_GLOB = re.compile(r"[*?\[]")


def catalog_of(
    readers: Iterable[PartReader], *, wanted: Sequence[str] | None = None, rank: int | None = None
) -> Catalog:
    """The catalog of a step from all of its parts; ``wanted`` (patterns of names, with ``*``) reads what fits alone.

    A tensor of one rank is also called ``name@rank3``. Without ``wanted`` values come along, with it they do not.
    ``rank`` leaves out what is of one rank alone, but for that whose state rank ``rank`` may take
    (`perdure.state.scopes`). ``readers`` are taken one after another, so they may come as they are read.
    Raises `FormatRefused` where parts contradict each other or a rank is in none of them.
    """
    joining = Joining()
    chosen = None if wanted is None else Patterns(wanted)
    sizes: dict[str, int] = {}
    met: list[PartReader] = []
    for reader in readers:
        met.append(reader)
        with _told(reader.file):
            joining.ranks(reader.file, reader.index.world, reader.index.ranks)
            _join(joining, reader, chosen, sizes, None if rank is None else rank % reader.index.world)
    every = f"{met[0].file} and {len(met) - 1} more" if len(met) > 1 else "".join(r.file for r in met)
    with _told(every):
        catalog = joining.done()
        for name, size in sizes.items():
            if size != prod(catalog.tensors[name].shape):
                raise FormatRefused(
                    f"the blocks of {name!r} hold {size} elements of {prod(catalog.tensors[name].shape)}", tensor=name
                )
    return replace(catalog, base_of=lambda key: _base_of(met, key))


def _base_of(readers: Sequence[PartReader], key: str) -> StoredBase | None:
    """Keys are unique in a step, so at most one part says anything."""
    return next((found for reader in readers if (found := reader.base(key)) is not None), None)


def _join(
    joining: Joining, reader: PartReader, chosen: Patterns | None, sizes: dict[str, int], rank: int | None
) -> None:
    """Tell what a part says; ``sizes`` counts the elements that there are of each tensor.

    Of what is of one rank alone that of ``rank`` counts, or of all ranks without it.
    """
    others: dict[str, list[str]] = {}
    for alias, name in reader.aliases():
        others.setdefault(name, []).append(alias)

    def enter(tensor: CatalogTensor, size: int) -> None:
        sizes[tensor.name] = sizes.get(tensor.name, 0) + size
        joining.tensor(replace(tensor, aliases=tuple(others.pop(tensor.name, ()))))

    if chosen is None:
        for placed in reader.placed():
            sizes[placed.name] = sizes.get(placed.name, 0) + placed.geometry.size
            joining.segment(
                placed.name, placed.dtype, placed.shape, others.pop(placed.name, ()), reader.segment(placed)
            )
        if others:
            raise FormatRefused(f"{min(others)!r} has other names, but is not there")
        for local in reader.locals(of=rank):
            joining.tensor(local)
        for key, owner, value in reader.values():
            if rank is None or owner is None or owner == rank:
                joining.value(key, owner, value)
        return
    meant = {name for name, aliases in others.items() if any(chosen.fit(alias) for alias in aliases)}
    for name in sorted(meant | chosen.literal):
        found = reader.tensor(name)
        if found is not None:
            enter(found, sum(piece.box.size for piece in found.pieces))
        elif name in meant:
            raise FormatRefused(f"{name!r} has other names, but is not there")
    for tensor, size in reader.sized(chosen.may_hold) if chosen.globs else ():
        if chosen.fit(tensor.name) and tensor.name not in meant | chosen.literal:
            enter(tensor, size)
    for local in reader.locals():
        if chosen.fit(f"{local.name}@rank{local.rank}"):
            joining.tensor(local)


@contextmanager
def _told(file: str) -> Iterator[None]:
    """Let a refusal that names no file leave as one of ``file``."""
    try:
        yield
    except FormatRefused as error:
        if "file" in error.facts:
            raise
        raise FormatRefused(
            f"{file} is refused: {fault_in(error)}; use another copy or an older step", **error.facts, file=file
        ) from error


class Patterns:
    """Names and patterns with ``*``, ``?`` and ``[...]``, and which leaves they can have entries in.

    A name fits itself, whatever letters it has: ``a[1]`` is the tensor of that name, and any ``a1``.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self._given = tuple(patterns)
        self._exact = frozenset(patterns)
        self.literal = {each for each in patterns if not _GLOB.search(each)}
        self.globs = [each for each in patterns if _GLOB.search(each)]
        self._fronts = [_GLOB.split(each, maxsplit=1)[0] for each in self.globs]

    def fit(self, name: str) -> bool:
        """Whether ``name`` is one of the names or matches one of the patterns."""
        return name in self._exact or any(fnmatch.fnmatchcase(name, each) for each in self.globs)

    def unmet(self, names: Iterable[str]) -> str | None:
        """The first pattern that none of ``names`` fits; None if each has one. ``*`` asks for whatever there is."""
        there = frozenset(names)
        for each in self._given:
            if each != "*" and each not in there and not any(fnmatch.fnmatchcase(name, each) for name in there):
                return each
        return None

    def needs(self, leaf: LeafRef) -> bool:
        """Whether a leaf is looked at for them."""
        if leaf.kind == "tensors":
            return self.may_hold(leaf.first, leaf.last) or any(leaf.first <= each <= leaf.last for each in self.literal)
        return leaf.kind in ("locals", "aliases")

    def may_hold(self, first: str, last: str) -> bool:
        """Whether a pattern may fit a name from ``first`` to ``last``."""
        return any(first[: len(front)] <= front and last >= front for front in self._fronts)
