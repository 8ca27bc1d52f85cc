"""Plan the moves that lead from one layout to another.

Pure: two layouts in, a `Plan` out; no bytes, no sockets. `perdure.fabric` carries a plan out.
Used by checkpoint (load on another mesh), serving (change TP x PP) and exchange.

For every wanted box the nearest holder is taken: the rank itself, else the least ``distance``, and among equals the one
that has been given the fewest bytes to send so far. This is greedy, and deterministic: every rank that calls `reshard`
with the same layouts gets the same plan, so a plan need not be sent around.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from heapq import heapify, heappop, heappush
from operator import itemgetter

from perdure.errors import NotCovered, StateMismatch
from perdure.layout.box import Box
from perdure.layout.layout import Layout, Piece, TensorLayout
from perdure.plan.plan import Move, Plan
from perdure.plan.sources import Fragment, Holders, sources_of

__all__ = ["Distance", "reshard"]

Distance = Callable[[int, int], int]
"""``distance(source_rank, dest_rank)``: how far; less is nearer. It must answer the same on every rank, always."""


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
    return _reshard(have, want, distance)


@lru_cache(maxsize=8)
def _reshard(have: Layout, want: Layout, distance: Distance | None) -> Plan:
    load: dict[int, int] = {}
    moves: list[Move] = []
    # By name: layouts that are equal give equal plans, in whatever order their tensors were entered.
    for name, tensor in sorted(want.items(), key=itemgetter(0)):
        held = have.get(name)
        if held is None:
            raise _not_covered(name, tensor.whole)
        _refuse_mismatch(name, held, tensor)
        if held == tensor:
            moves.extend(_move(name, piece.box, piece, piece, tensor) for piece in held.pieces if not piece.box.empty)
            continue
        sources = sources_of(held, tensor)
        for piece, fragments, gap in zip(tensor.pieces, sources.fragments, sources.gaps, strict=True):
            if gap is not None:
                raise _not_covered(name, gap)
            nearness = _Nearness(piece.rank, distance, load)
            chosen: Iterable[tuple[Box, Piece]]
            if sources.disjoint:
                chosen = ((part.box, nearness.best(part.holders)) for part in fragments)
            else:
                chosen = _from_overlapping(fragments, piece.box, nearness)
            for box, source in chosen:
                move = _move(name, box, source, piece, tensor)
                moves.append(move)
                if not move.local:
                    load[source.rank] = load.get(source.rank, 0) + move.nbytes
    return Plan(tuple(moves))


class _Nearness:
    """How good a source is for the rank ``dest`` just now: less is better. Loads change as moves are planned."""

    __slots__ = ("_dest", "_distance", "_load")

    def __init__(self, dest: int, distance: Distance | None, load: dict[int, int]) -> None:
        self._dest = dest
        self._distance = distance
        self._load = load

    def __call__(self, source: int) -> tuple[int, int, int]:
        if source == self._dest:
            return (-1, 0, source)
        far = 1 if self._distance is None else max(self._distance(source, self._dest), 0)
        return (far, self._load.get(source, 0), source)

    def best(self, holders: Holders) -> Piece:
        # Nobody is nearer than the rank itself, so its replicas elsewhere need not be looked at.
        own = holders.get(self._dest)
        return own if own is not None else holders[min(holders, key=self)]


def _from_overlapping(fragments: tuple[Fragment, ...], wanted: Box, nearness: _Nearness) -> Iterator[tuple[Box, Piece]]:
    """Take from the best candidate what is still missing, then from the next; loads are looked at again each time."""
    candidates = [(nearness(rank), position, rank) for position, part in enumerate(fragments) for rank in part.holders]
    heapify(candidates)
    missing = [] if wanted.empty else [wanted]
    while missing:
        score, position, rank = heappop(candidates)
        now = nearness(rank)
        if now != score:
            heappush(candidates, (now, position, rank))
            continue
        fragment = fragments[position]
        for box in [box & fragment.box for box in missing if box.touches(fragment.box)]:
            yield box, fragment.holders[rank]
        missing = [rest for box in missing for rest in box.minus(fragment.box)]


def _move(name: str, box: Box, source: Piece, dest: Piece, tensor: TensorLayout) -> Move:
    return Move(name, box, source, dest, box.size * tensor.element_bytes)


def _refuse_mismatch(name: str, have: TensorLayout, want: TensorLayout) -> None:
    for what, held, wanted in (("shape", have.shape, want.shape), ("dtype", have.dtype, want.dtype)):
        if held != wanted:
            raise StateMismatch(f"tensor {name!r} has {what} {held}, but {wanted} is wanted", **{what: [name]})


def _not_covered(name: str, box: Box) -> NotCovered:
    return NotCovered(f"no rank holds {box} of tensor {name!r}; use another copy", tensor=name, box=box.as_json())
