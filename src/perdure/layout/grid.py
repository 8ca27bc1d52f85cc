"""From a mesh and cuts to the pieces of a tensor.

Cuts apply in order; each cuts what the earlier ones left of its dim. Axes that no cut names hold replicas.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from perdure.errors import LayoutError
from perdure.layout.box import Box
from perdure.layout.cut import Cut, Span
from perdure.layout.layout import Piece, TensorLayout
from perdure.layout.mesh import Mesh

__all__ = ["cut_tensor", "pieces_at"]


def cut_tensor(shape: Sequence[int], *, mesh: Mesh, cuts: Sequence[Cut], dtype: str) -> TensorLayout:
    """The layout of a tensor of ``shape`` that ``cuts`` spread over ``mesh``.

    >>> from perdure.layout.cut import Even
    >>> mesh = Mesh((("dp", 2), ("tp", 2)))
    >>> fsdp_tp = cut_tensor((8,), mesh=mesh, cuts=[Cut("tp", 0, Even()), Cut("dp", 0, Even())], dtype="float32")
    >>> [str(piece.box) for piece in fsdp_tp.pieces]
    ['[0:2]', '[4:6]', '[2:4]', '[6:8]']

    Raises `LayoutError` if a cut names an axis or dim that is not there, or does not fit its extent.
    """
    pieces = [piece for rank in range(mesh.world) for piece in pieces_at(shape, mesh=mesh, cuts=cuts, rank=rank)]
    return TensorLayout(tuple(shape), tuple(pieces), dtype)


def pieces_at(shape: Sequence[int], *, mesh: Mesh, cuts: Sequence[Cut], rank: int) -> tuple[Piece, ...]:
    """The pieces that ``rank`` of ``mesh`` holds, at their places in its own tensor; one empty piece if it has none."""
    here = mesh.coordinates(rank)
    axes = [cut.axis for cut in cuts]
    if len(set(axes)) != len(axes):
        raise LayoutError(f"an axis can cut a tensor once; the cuts name {', '.join(axes)}")
    held: list[tuple[Span, ...]] = [((0, extent),) for extent in shape]
    for cut in cuts:
        if not 0 <= cut.dim < len(shape):
            raise LayoutError(f"there is no dim {cut.dim} to cut in a tensor of shape {list(shape)}", dim=cut.dim)
        extent = sum(stop - start for start, stop in held[cut.dim])
        chosen = cut.rule.spans(extent, mesh.size(cut.axis))[here[mesh.position(cut.axis)]]
        held[cut.dim] = _select(held[cut.dim], chosen)
    dims = [_placed(spans) for spans in held]
    return tuple(
        Piece(
            rank,
            Box(tuple(span[0] for span, _ in corner), tuple(span[1] for span, _ in corner)),
            Box(tuple(at for _, at in corner), tuple(at + span[1] - span[0] for span, at in corner)),
        )
        for corner in product(*dims)
    )


def _select(held: tuple[Span, ...], chosen: tuple[Span, ...]) -> tuple[Span, ...]:
    """The spans of the whole dim that ``chosen`` spans of the part ``held`` are."""
    found: list[Span] = []
    for start, stop in chosen:
        passed = 0
        for low, high in held:
            a, b = max(start - passed, 0), min(stop - passed, high - low)
            if a < b:
                found.append((low + a, low + b))
            passed += high - low
    return tuple(found) or ((held[-1][1], held[-1][1]),)


def _placed(spans: tuple[Span, ...]) -> list[tuple[Span, int]]:
    placed: list[tuple[Span, int]] = []
    at = 0
    for start, stop in spans:
        placed.append(((start, stop), at))
        at += stop - start
    return placed
