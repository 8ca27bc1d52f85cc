"""Saved tensors that are one tensor where they are restored: their values are compared before anything is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from perdure.errors import StateMismatch
from perdure.layout import Box
from perdure.state.index import Catalog, StoredPiece
from perdure.state.items import Held, Memory
from perdure.state.load import load
from perdure.state.match import Match
from perdure.state.source import PackSource

__all__ = ["check_alike", "not_alike"]


def check_alike(
    catalog: Catalog,
    matches: Sequence[Match],
    alike: Mapping[str, str],
    sources: Callable[[str], Sequence[PackSource]],
    *,
    budget_bytes: int,
    nearer: Callable[[StoredPiece], tuple[PackSource, ...]] = lambda piece: (),
    on_bytes: Callable[[int], None] | None = None,
) -> None:
    """Read what ``alike`` names (name to the name that it must be the same as) into memory of its own, and compare.

    These are counts of steps and options, a few bytes each. Raises `StateMismatch` for the first that differs, else
    what `perdure.state.load.load` does.
    """
    by_name = {match.item.name: match for match in matches}
    pairs = [(name, other) for name, other in alike.items() if name in by_name and other in by_name]
    read: dict[str, bytearray] = {}
    into: list[Match] = []
    for name in dict.fromkeys(name for pair in pairs for name in pair):
        item, saved = by_name[name].item, by_name[name].saved
        read[name] = bytearray(saved.nbytes)
        owner = np.frombuffer(read[name], np.uint8)
        memory = Memory(owner.ctypes.data if saved.nbytes else 0, saved.nbytes, owner)
        held = (Held(Box((0,) * len(saved.shape), saved.shape), memory),)
        into.append(Match(replace(item, dtype=saved.dtype, held=held, aliases=()), saved))
    if into:
        load(catalog, into, sources, budget_bytes=budget_bytes, nearer=nearer, on_bytes=on_bytes)
    for name, other in pairs:
        if by_name[name].saved.dtype == by_name[other].saved.dtype and read[name] != read[other]:
            raise not_alike(name, other)


def not_alike(name: str, other: str) -> StateMismatch:
    """The error for two saved tensors that differ, and would be one here."""
    return StateMismatch(
        f"{name} was saved with another value than {other}, but the two are one tensor here; restore them into a "
        "model and an optimizer that keep the two apart",
        shape=[name],
    )
