"""Plan the moves that lead from one layout to another.

Pure: two layouts in, a `Plan` out; no bytes, no sockets. `perdure.fabric` carries a plan out.
Used by checkpoint (load on another mesh), serving (change TP x PP) and exchange.

For every wanted box the nearest holder is taken: the rank itself, else the least ``distance``, and among equals the one
that has been given the fewest bytes to send so far. This is greedy, and deterministic: every rank that calls `reshard`
with the same layouts gets the same plan, so a plan need not be sent around.

What can serve what follows from the patterns of two layouts (`perdure.plan.sources`) and is worked out once for all
tensors that lie alike. A rank's own part, ``reshard(have, want.of_rank(rank))``, looks at what touches its boxes alone,
and is small: its moves are a tuple. A plan for many pieces keeps them in columns (`perdure.plan.moves`).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from operator import itemgetter

from perdure.errors import NotCovered, StateMismatch
from perdure.layout.box import Box
from perdure.layout.layout import Layout, TensorLayout
from perdure.layout.pattern import Pattern, Pieces
from perdure.layout.piece import Piece
from perdure.plan.choice import Choice, Distance
from perdure.plan.columns import chosen, chosen_columns, columns_of
from perdure.plan.move import Move
from perdure.plan.moves import Moves, Table
from perdure.plan.plan import Plan
from perdure.plan.sources import Sources, sources_of

__all__ = ["Distance", "reshard"]

_FEW = 4096  # wanted pieces, up to which moves are written out at once


def reshard(have: Layout, want: Layout, *, distance: Distance | None = None) -> Plan:
    """Plan the moves after which every rank holds what ``want`` gives it.

    ``have`` may be partial, replicated, irregular and overlapping; ``want`` may name some of its tensors only, and any
    boxes of them. Without ``distance`` all other ranks are equally far. Recent plans are kept, by value.

    >>> from perdure.layout import Cut, Even, Mesh, cut_tensor
    >>> mesh = Mesh((("tp", 2),))
    >>> rows = Layout({"w": cut_tensor((4, 4), mesh=mesh, cuts=[Cut("tp", 0, Even())], dtype="float32")})
    >>> columns = Layout({"w": cut_tensor((4, 4), mesh=mesh, cuts=[Cut("tp", 1, Even())], dtype="float32")})
    >>> for move in reshard(rows, columns).moves:
    ...     print(move)
    w[0:2, 0:2] 0->0 (16 bytes)
    w[2:4, 0:2] 1->0 (16 bytes)
    w[0:2, 2:4] 0->1 (16 bytes)
    w[2:4, 2:4] 1->1 (16 bytes)

    Raises:
        NotCovered: nobody holds a part of a wanted box (facts ``tensor``, ``box``); find another copy of it.
        StateMismatch: a tensor has another shape or dtype in ``want`` than in ``have``.
    """
    return _reshard(Layout({name: have[name] for name in want if name in have}), want, distance)


@lru_cache(maxsize=8)
def _reshard(have: Layout, want: Layout, distance: Distance | None) -> Plan:
    choice = Choice(distance)
    moves: list[Move] = []
    tables: list[Table] = []
    few = sum(len(tensor.pieces) for tensor in want.values()) <= _FEW
    # By name: layouts that are equal give equal plans, in whatever order their tensors were entered.
    for name, tensor in sorted(want.items(), key=itemgetter(0)):
        held = have.get(name)
        if held is None:
            raise _not_covered(name, tensor.whole)
        _refuse_mismatch(name, held, tensor)
        columns = None if few else columns_of(held, tensor, choice)
        if columns is not None:
            tables.append(Table(name, held, tensor, columns))
            continue
        sources = sources_of(held.placed.pattern, tensor.placed.pattern)
        if sources.gap is not None:
            raise _not_covered(name, sources.gap)
        if few:
            moves += _written_out(name, held, tensor, sources, choice)
        else:
            tables.append(Table(name, held, tensor, chosen_columns(held, tensor, sources, choice)))
    return Plan(tuple(moves)) if few else Plan(Moves(tables))


def _written_out(name: str, have: TensorLayout, want: TensorLayout, sources: Sources, choice: Choice) -> Iterator[Move]:
    width = want.element_bytes
    if sources.sole:
        for box, source, dest in _sole(have.placed.pattern, have.placed.first, want.placed.pattern, want.placed.first):
            choice.take(source.rank, dest.rank, box.size * width)
            yield Move(name, box, source, dest, box.size * width)
        return
    for piece in want.pieces:
        for box, holding, rank in chosen(piece, sources, have.placed.first, width, choice):
            yield Move(name, box, have.placed.piece(rank, holding.box), piece, box.size * width)


@lru_cache(maxsize=1024)
def _sole(have: Pattern, have_first: int, want: Pattern, want_first: int) -> tuple[tuple[Box, Piece, Piece], ...]:
    """Box, source and destination of the moves between patterns that leave no choice."""
    held, sources = Pieces(have, have_first), sources_of(have, want)
    return tuple(
        (part.box, held.piece(have_first + part.holding.ranks[0], part.holding.box), piece)
        for piece in Pieces(want, want_first)
        if not piece.box.empty
        for part in sources.fragments[piece.box]
    )


def _refuse_mismatch(name: str, have: TensorLayout, want: TensorLayout) -> None:
    for what, held, wanted in (("shape", have.shape, want.shape), ("dtype", have.dtype, want.dtype)):
        if held != wanted:
            raise StateMismatch(f"tensor {name!r} has {what} {held}, but {wanted} is wanted", **{what: [name]})


def _not_covered(name: str, box: Box) -> NotCovered:
    return NotCovered(f"no rank holds {box} of tensor {name!r}; use another copy", tensor=name, box=box.as_json())
