"""How the twins of a fabric say that a wait was in vain, and refuse ranks that are not there."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.clock import Deadline
from perdure.errors import CallError, DeadlineExceeded, LinkLost

__all__ = ["check_rank", "gave_up", "lost"]


def gave_up(deadline: Deadline, missing: Sequence[int]) -> DeadlineExceeded:
    """The error for a wait that ran past its deadline while the ranks ``missing`` were awaited."""
    return DeadlineExceeded(
        f"gave up waiting for {deadline.what}; still missing: {_named(missing)}",
        what=deadline.what,
        missing=list(missing),
    )


def lost(deadline: Deadline, missing: Sequence[int], why: str) -> LinkLost:
    """The error for a wait for the ranks ``missing`` that can never end, because of ``why``."""
    return LinkLost(
        f"{deadline.what} cannot go on without {_named(missing)}: {why}", what=deadline.what, missing=list(missing)
    )


def check_rank(rank: int, world: int) -> None:
    """Raise `CallError` unless ``rank`` is one of ``world``."""
    if not 0 <= rank < world:
        raise CallError(f"there is no rank {rank} in a world of {world}", rank=rank, world=world)


def _named(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) != 1 else ''} {', '.join(map(str, ranks))}"
