"""Carry a plan out: every move made, in rounds that keep staging memory bounded.

Every rank makes the same plan and the same rounds from the same layouts, so the only things on the wire are the bytes
themselves: one message for each pair of ranks that have moves in a round, the moves' boxes row-major, in plan order.
A rank that fails still sends, to everyone who awaits it in that round, a message that says so; then all agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perdure.clock import Deadline
from perdure.errors import CallError, ProtocolError
from perdure.fabric.agree import agree
from perdure.fabric.api import Fabric
from perdure.layout.view import view
from perdure.plan.plan import Move, Plan
from perdure.plan.rounds import rounds

__all__ = ["Arrays", "carry_out"]

Arrays = Mapping[str, NDArray[Any]]
"""Tensor name to the rank's own array, in which `Piece.place` says where each of its pieces lies."""

_DATA = b"d"
_FAILED = b"f"


def carry_out(
    plan: Plan,
    fabric: Fabric,
    have_arrays: Arrays,
    want_arrays: Arrays,
    *,
    deadline: Deadline,
    budget_bytes: int = 64 << 20,
) -> None:
    """Make every move of ``plan``. Every rank of ``fabric`` calls it, with the same plan and budget.

    ``have_arrays`` and ``want_arrays`` hold this rank's own tensors by name; those of one tensor must not share memory
    unless they are the same array at the same places. Dtypes that NumPy lacks travel as unsigned integers of the same
    width. Besides the arrays a rank needs at most three times ``budget_bytes``, for what it sends and what it receives.

    After a failure the wanted arrays hold some moves and not others; what they had is lost, and the same call can be
    made again.

    Raises, on every rank:
        CallError: an array is missing, too small or of another width, or the plan names a rank that is not there.
        DeadlineExceeded, LinkLost: a rank did not answer in time.
    """
    outcome: Exception | None = None
    try:
        _check(plan, fabric, have_arrays, want_arrays)
        steps = rounds(plan, budget_bytes=budget_bytes)
    except Exception as error:  # not swallowed: `agree` raises it on every rank
        outcome, steps = error, ()
    agree(fabric, outcome, deadline=deadline)
    for step in steps:
        try:
            outcome = None
            _carry_round(step, fabric, have_arrays, want_arrays, deadline)
        except Exception as error:  # not swallowed: `agree` raises it on every rank
            outcome = error
        agree(fabric, outcome, deadline=deadline)


def _carry_round(step: Plan, fabric: Fabric, have: Arrays, want: Arrays, deadline: Deadline) -> None:
    me = fabric.rank
    outgoing: dict[int, list[Move]] = {}
    incoming: dict[int, list[Move]] = {}
    for move in step.moves:
        if move.source.rank == me and move.dest.rank != me:
            outgoing.setdefault(move.dest.rank, []).append(move)
        elif move.dest.rank == me and move.source.rank != me:
            incoming.setdefault(move.source.rank, []).append(move)
    failure = _send(fabric, outgoing, have)
    try:
        if failure is None:
            for move in step.moves:
                if move.local and move.dest.rank == me:
                    _target(want, move)[...] = view(have[move.name], move.source, move.box)
    except Exception as error:  # not swallowed: raised below, once what others sent is taken off the links
        failure = error
    # Every message is taken, whatever failed, so that a later use of the fabric starts on clean links.
    for rank, moves in incoming.items():
        message = fabric.recv(rank, deadline=deadline)
        try:
            _unpack(rank, message, moves, want)
        except Exception as error:  # not swallowed: raised below
            failure = failure or error
    if failure is not None:
        raise failure


def _send(fabric: Fabric, outgoing: Mapping[int, list[Move]], have: Arrays) -> Exception | None:
    """Send each rank its moves, or the news that there are none to come."""
    failure: Exception | None = None
    for rank, moves in outgoing.items():
        message = _FAILED
        if failure is None:
            try:
                message = b"".join([*(view(have[move.name], move.source, move.box).tobytes() for move in moves), _DATA])
            except Exception as error:  # not swallowed: the caller raises it, once all who wait are told
                failure = error
        fabric.send(rank, message)
    return failure


def _unpack(rank: int, message: bytes, moves: list[Move], want: Arrays) -> None:
    if message == _FAILED:
        return  # the sender says why when all agree; a second error here would hide the first
    if message[-1:] != _DATA or len(message) - 1 != sum(move.nbytes for move in moves):
        raise ProtocolError(f"rank {rank} sent {len(message)} bytes where its plan has others", rank=rank)
    at = 0
    for move in moves:
        target = _target(want, move)
        target[...] = np.frombuffer(message, dtype=target.dtype, count=move.box.size, offset=at).reshape(target.shape)
        at += move.nbytes


def _target(want: Arrays, move: Move) -> NDArray[Any]:
    return view(want[move.name], move.dest, move.box)


def _check(plan: Plan, fabric: Fabric, have: Arrays, want: Arrays) -> None:
    for move in plan.moves:
        for piece, arrays, what in ((move.source, have, "held"), (move.dest, want, "wanted")):
            if piece.rank >= fabric.world:
                raise CallError(f"the plan needs rank {piece.rank}, the fabric has {fabric.world}", rank=piece.rank)
            if piece.rank != fabric.rank:
                continue
            own = arrays.get(move.name)
            if own is None:
                raise CallError(f"no array for the {what} tensor {move.name!r} was given", tensor=move.name)
            big_enough = own.ndim == piece.place.ndim and all(map(int.__le__, piece.place.hi, own.shape))
            if not big_enough or own.itemsize * move.box.size != move.nbytes:
                raise CallError(
                    f"the array of the {what} tensor {move.name!r} is {own.dtype}{list(own.shape)}: its piece lies at"
                    f" {piece.place} in elements of {move.nbytes // move.box.size} bytes",
                    tensor=move.name,
                )
