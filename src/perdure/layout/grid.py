"""From a mesh and cuts to the pieces of a tensor.

Cuts apply in order; each cuts what the earlier ones left of its dim. Axes that no cut names hold replicas.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perdure.layout.cut import Cut
from perdure.layout.cut_pattern import cut_pattern
from perdure.layout.layout import TensorLayout
from perdure.layout.mesh import Mesh
from perdure.layout.pattern import Pieces
from perdure.layout.piece import Piece

__all__ = ["cut_tensor", "pieces_at"]


def cut_tensor(
    shape: Sequence[int], *, mesh: Mesh, cuts: Sequence[Cut], dtype: str, at: Mapping[str, int] | None = None
) -> TensorLayout:
    """The layout of a tensor of ``shape`` that ``cuts`` spread over ``mesh``.

    ``at`` gives the coordinates along some axes where alone the tensor is: its pipeline stage, say. No piece is made
    before it is asked for, and tensors that lie alike share what is worked out.

    >>> from perdure.layout.cut import Even
    >>> mesh = Mesh((("dp", 2), ("tp", 2)))
    >>> fsdp_tp = cut_tensor((8,), mesh=mesh, cuts=[Cut("tp", 0, Even()), Cut("dp", 0, Even())], dtype="float32")
    >>> [str(piece.box) for piece in fsdp_tp.pieces]
    ['[0:2]', '[4:6]', '[2:4]', '[6:8]']
    >>> [piece.rank for piece in cut_tensor((8,), mesh=mesh, cuts=[], dtype="float32", at={"dp": 1}).pieces]
    [2, 3]

    Raises `LayoutError` if a cut or ``at`` names an axis, dim or coordinate that is not there, or a cut does not fit
    its extent.
    """
    at = at or {}
    for axis in at:
        mesh.position(axis)
    pattern = cut_pattern(tuple(shape), mesh, tuple(cuts), frozenset(at))
    first = mesh.rank([at.get(axis, 0) for axis in mesh.names])
    return TensorLayout(tuple(shape), Pieces(pattern, first), dtype)


def pieces_at(shape: Sequence[int], *, mesh: Mesh, cuts: Sequence[Cut], rank: int) -> tuple[Piece, ...]:
    """The pieces that ``rank`` of ``mesh`` holds, at their places in its own tensor; one empty piece if it has none."""
    mesh.coordinates(rank)
    return cut_pattern(tuple(shape), mesh, tuple(cuts), frozenset()).of_rank(rank)
