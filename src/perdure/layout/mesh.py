"""A mesh: ranks arranged along named axes.

``axis`` is always the mesh's and ``dim`` the tensor's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from perdure.errors import LayoutError

__all__ = ["Mesh"]


@dataclass(frozen=True, slots=True)
class Mesh:
    """Ranks ``0 .. world-1`` along named axes, row-major: the last axis counts fastest.

    >>> mesh = Mesh((("dp", 2), ("tp", 4)))
    >>> mesh.world, mesh.coordinates(6), mesh.rank((1, 2)), mesh.group(6, "dp")
    (8, (1, 2), 6, (2, 6))

    Raises `LayoutError` if two axes share a name or an axis has no rank.
    """

    axes: tuple[tuple[str, int], ...]

    def __post_init__(self) -> None:
        if len(set(self.names)) != len(self.axes):
            raise LayoutError(f"the axes of a mesh need different names, not {self.names}")
        for name, size in self.axes:
            if size < 1:
                raise LayoutError(f"axis {name!r} of a mesh needs at least one rank, not {size}", axis=name)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the axes, slowest first."""
        return tuple(name for name, _ in self.axes)

    @property
    def world(self) -> int:
        """How many ranks the mesh has; 1 without axes."""
        return prod(size for _, size in self.axes)

    def position(self, axis: str) -> int:
        """Which of the axes ``axis`` is, counted from the slowest; raises `LayoutError` if there is none."""
        for position, (name, _) in enumerate(self.axes):
            if name == axis:
                return position
        raise LayoutError(f"the mesh has no axis {axis!r}; its axes are {', '.join(self.names) or 'none'}", axis=axis)

    def size(self, axis: str) -> int:
        """How many ranks lie along ``axis``."""
        return self.axes[self.position(axis)][1]

    def coordinates(self, rank: int) -> tuple[int, ...]:
        """Where ``rank`` is along each axis."""
        if not 0 <= rank < self.world:
            raise LayoutError(f"rank {rank} is not in a mesh of {self.world}", rank=rank)
        found: list[int] = []
        for _, size in reversed(self.axes):
            rank, coordinate = divmod(rank, size)
            found.append(coordinate)
        return tuple(reversed(found))

    def coordinate(self, rank: int, axis: str) -> int:
        """Where ``rank`` is along ``axis``."""
        return self.coordinates(rank)[self.position(axis)]

    def rank(self, coordinates: Sequence[int]) -> int:
        """The rank at ``coordinates`` (one an axis)."""
        rank = 0
        for (name, size), coordinate in zip(self.axes, coordinates, strict=True):
            if not 0 <= coordinate < size:
                raise LayoutError(f"axis {name!r} has {size} ranks, there is no coordinate {coordinate}", axis=name)
            rank = rank * size + coordinate
        return rank

    def group(self, rank: int, axis: str) -> tuple[int, ...]:
        """The ranks that differ from ``rank`` along ``axis`` only, itself among them."""
        position = self.position(axis)
        here = self.coordinates(rank)
        return tuple(self.rank((*here[:position], other, *here[position + 1 :])) for other in range(self.size(axis)))
