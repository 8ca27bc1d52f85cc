"""All ranks learn of every rank's outcome, so that an error reaches every rank that waits.

Plain JSON between ranks, never a pickle.
"""

from __future__ import annotations

import json
from typing import Any

from perdure.clock import Deadline
from perdure.errors import DeadlineExceeded, LinkLost, PerdureError, ProtocolError, from_wire, to_wire
from perdure.fabric.api import Fabric

__all__ = ["agree", "all_gather_json"]


def agree(fabric: Fabric, outcome: Exception | None, *, deadline: Deadline) -> None:
    """Return if every rank passed None; else raise the error of the first rank that failed, on every rank.

    Every rank calls it at the same point, with the error that stopped it or None. The error keeps its class and facts;
    its message starts with the rank, and fact ``rank`` names it. An exception from outside the tree becomes a `Bug`.
    `DeadlineExceeded` and `LinkLost` give way to any other error: they mostly follow from it.

    Raises `DeadlineExceeded` or `LinkLost` if a rank does not answer; a rank that has an error of its own then raises
    that one.
    """
    try:
        outcomes = all_gather_json(fabric, None if outcome is None else to_wire(outcome), deadline=deadline)
    except PerdureError as unheard:
        if outcome is None:
            raise
        raise _named(to_wire(outcome), fabric.rank) from unheard
    failed = [(rank, _named(told, rank)) for rank, told in enumerate(outcomes) if told is not None]
    if failed:
        causes = [(rank, error) for rank, error in failed if not isinstance(error, DeadlineExceeded | LinkLost)]
        rank, error = (causes or failed)[0]
        raise error from (outcome if rank == fabric.rank else None)


def all_gather_json(fabric: Fabric, value: Any, *, deadline: Deadline) -> list[Any]:
    """What each rank gave, in rank order, for values that JSON can hold; what it cannot is sent as its ``str``.

    Raises `ProtocolError` if a rank sent something else.
    """
    found: list[Any] = []
    for rank, data in enumerate(fabric.all_gather(json.dumps(value, default=str).encode(), deadline=deadline)):
        try:
            found.append(json.loads(data))
        except ValueError as error:
            raise ProtocolError(f"rank {rank} sent {len(data)} bytes that are not JSON", rank=rank) from error
    return found


def _named(told: Any, rank: int) -> PerdureError:
    if not isinstance(told, dict):
        return ProtocolError(f"rank {rank} sent an outcome that is not an error", rank=rank)
    facts = told.get("facts")
    named = {"rank": rank, **(facts if isinstance(facts, dict) else {})}
    return from_wire({**told, "message": f"rank {rank}: {told.get('message')}", "facts": named})
