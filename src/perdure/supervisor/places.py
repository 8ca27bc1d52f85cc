"""Choose which nodes have a place in the next attempt. Pure.

A node keeps its place, because its ranks' neighbours and the memory that its agent keeps are there; a hole is filled by
the next node that has none; only if there are not enough do places close up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

__all__ = ["choose"]


class _Named(Protocol):
    @property
    def name(self) -> str: ...


Node = TypeVar("Node", bound=_Named)


def choose(
    *, before: Sequence[str], usable: Sequence[Node], fewest: int, most: int, hurry: bool
) -> tuple[Node, ...] | None:
    """Return the nodes of the next attempt, by place; None while more should be waited for.

    ``before`` are the names that had the places last time, none for the first attempt; ``usable`` are those that may
    have one, the next in line first. All of the places before (at first: ``most``) are filled, or, in a ``hurry``, at
    least ``fewest``.
    """
    by_name = {node.name: node for node in usable}
    idle = [node for node in usable if node.name not in before]
    chosen: list[Node] = []
    for name in before:
        if name in by_name:
            chosen.append(by_name[name])
        elif idle:
            chosen.append(idle.pop(0))
    full = len(before) or most
    while len(chosen) < most and idle:  # it grows back to what was asked for
        chosen.append(idle.pop(0))
    chosen = chosen[:most]
    if len(chosen) >= min(full, most) or (hurry and len(chosen) >= fewest):
        return tuple(chosen)
    return None
