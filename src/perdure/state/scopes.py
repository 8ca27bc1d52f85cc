"""Say whose a value is: every rank's alike (replicated), cut over the ranks (sharded), or one rank's own (rank-local).

Tensors that carry a placement are sharded or replicated by it; plain tensors and values are replicated, and perdure
checks that the ranks agree. What differs from rank to rank by intent is wrapped in `RankLocal`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from perdure.errors import CallError

__all__ = ["Among", "OnResize", "RankLocal", "Scope", "rank_local_source"]

Scope = Literal["shared", "rank-local"]
OnResize = Literal["modulo", "fresh", "error"]


class Among(NamedTuple):
    """Which ranks hold a name that not every rank must hold.

    The ranks of ``stage`` (from 0) of the ``of`` stages of ``entry``, all of them; with ``shared`` those of other
    stages may hold it too. With ``of`` 0 any ranks, as long as what they hold together is whole.
    """

    entry: str = ""
    stage: int = 0
    of: int = 0
    shared: bool = False


@dataclass(frozen=True, slots=True)
class RankLocal:
    """State of one rank alone: ``{"rng": perdure.RankLocal(rng)}``.

    ``on_resize`` says what a rank gets when the world has another size than at the save: ``"modulo"`` the state of
    saved rank ``rank % saved_world``, ``"fresh"`` nothing (the live value stays), ``"error"`` a `CallError`.
    """

    value: Any
    on_resize: OnResize = "modulo"


def rank_local_source(rule: OnResize, *, rank: int, world: int, saved_world: int, key: str) -> int | None:
    """Return the saved rank whose state ``rank`` takes, or ``None`` when it keeps what it has.

    >>> rank_local_source("modulo", rank=5, world=8, saved_world=4, key="rng")
    1
    """
    if world == saved_world:
        return rank
    if rule == "modulo":
        return rank % saved_world
    if rule == "fresh":
        return None
    raise CallError(
        f"{key} is rank-local and was saved by {saved_world} ranks; it cannot be given to {world} "
        "(choose on_resize='modulo' or 'fresh')",
        key=key,
    )
