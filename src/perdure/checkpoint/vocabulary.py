"""The nouns of the agent's controller: who is connected, what is kept, and what is to be done. See `generations`."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from perdure.checkpoint.messages import Begin, Staged, Terms
from perdure.errors import PerdureError

__all__ = [
    "Action",
    "Broken",
    "Client",
    "Copy",
    "Digest",
    "Drain",
    "Drained",
    "Exit",
    "Fostered",
    "Generation",
    "Grant",
    "Phase",
    "Tell",
]


class Phase(Enum):
    """Where a generation is in its life."""

    FILLING = "filling"
    COMPLETE = "complete"
    DRAINING = "draining"
    DURABLE = "durable"
    UNDRAINED = "undrained"
    HELD = "held"


@dataclass(frozen=True, slots=True)
class Client:
    """One connection: a rank of a session, or a launcher (``local_rank`` is ``None``)."""

    id: int
    session: str = ""
    run: str = ""
    rank: int = 0
    world: int = 1
    local_rank: int | None = None
    local_world: int = 1


@dataclass(frozen=True, slots=True)
class Fostered:
    """What an agent makes durable of a save for nodes that are gone: the packs of ``ranks`` that it keeps for them.

    ``said`` and ``raw_nbytes`` are those of the ranks. ``epoch``, ``base`` and ``terms`` count where no rank of the
    node saved anything itself; ``terms`` are None where nothing is kept either, and come from another node then.
    """

    epoch: int
    base: int | None
    ranks: tuple[int, ...] = ()
    said: tuple[tuple[int, dict[str, str]], ...] = ()
    raw_nbytes: int = 0
    terms: Terms | None = None


@dataclass(slots=True)
class Generation:
    """One save; ``lanes`` maps each local rank to the segment that it fills."""

    id: int
    session: str
    seq: int
    step: int
    world: int
    local_world: int
    plan_id: str
    durable: bool = True
    within_s: float | None = None
    phase: Phase = Phase.FILLING
    since: float | None = None
    lanes: dict[int, int] = field(default_factory=dict)
    staged: dict[int, Staged] = field(default_factory=dict)
    sealed: dict[int, int] = field(default_factory=dict)
    """bytes of each local rank's pack, once it is digested"""
    digested: bool = False
    slot: int | None = None
    adopter: int | None = None
    new_epoch: int | None = None
    new_claim: str | None = None
    run: str = ""
    copying: bool = False
    """whether it is being sent to another node"""
    by: str = ""
    """the session whose nodes make it durable: that which made it, or that which went on from it"""
    fostered: Fostered | None = None
    """what is made durable with it for other nodes, once a session has gone on from it"""

    @property
    def name(self) -> tuple[str, int]:
        """What it is called on every node."""
        return self.session, self.seq

    @property
    def whole(self) -> bool:
        """Whether every rank of the node has staged."""
        return self.phase is not Phase.FILLING

    @property
    def at_rest(self) -> bool:
        """Whether no thread reads its segments any more."""
        return self.phase in (Phase.DURABLE, Phase.UNDRAINED, Phase.HELD) and not self.copying

    @property
    def epoch(self) -> int:
        """The epoch to commit it under: that of its session, or of the session that has adopted it."""
        if self.new_epoch is not None:
            return self.new_epoch
        return self.lead.epoch if self.fostered is None or self.staged else self.fostered.epoch

    @property
    def claim(self) -> str | None:
        """The token of that epoch; None where it is not known here."""
        if self.new_epoch is not None:
            return self.new_claim
        return None if self.terms is None else self.terms.claim

    @property
    def lead(self) -> Staged:
        """What the lowest rank staged: epoch, base and meta are the same on all."""
        return self.staged[min(self.staged)]

    @property
    def terms(self) -> Terms | None:
        """What its commit is to say; None if no node here knows."""
        if self.staged:
            return self.lead.terms
        return None if self.fostered is None else self.fostered.terms

    @property
    def said(self) -> tuple[tuple[int, dict[str, str]], ...]:
        """What its ranks say of all that ranks hold in common."""
        own = tuple((each.index.rank, each.said) for _, each in sorted(self.staged.items()))
        return own if self.fostered is None else (*own, *self.fostered.said)

    @property
    def raw_nbytes(self) -> int:
        """The bytes of the tensors that this node makes durable."""
        own = sum(staged.raw_nbytes for staged in self.staged.values())
        return own if self.fostered is None else own + self.fostered.raw_nbytes


@dataclass(frozen=True, slots=True)
class Grant:
    """Let ``client`` fill ``segment`` with what it asked for; make it if it is not there or too small.

    ``spare`` will be wanted next, if nothing comes in between.
    """

    client: int
    segment: int
    begin: Begin
    spare: int | None = None


@dataclass(frozen=True, slots=True)
class Tell:
    """Send ``message`` to ``client``."""

    client: int
    message: Any


@dataclass(frozen=True, slots=True)
class Digest:
    """Hash the tiles of ``generation`` and write its packs' headers."""

    generation: Generation


@dataclass(frozen=True, slots=True)
class Drain:
    """Write ``generation`` and commit it; ``base`` is the slot that its session went on from.

    ``on`` is a generation that is durable and stays in memory, for a delta to be made on.
    """

    generation: Generation
    base: int | None
    on: Generation | None = None


@dataclass(frozen=True, slots=True)
class Drained:
    """A generation that is durable; ``stored_nbytes`` were written to packs for it, on all nodes.

    ``keep`` says that deltas may be made on it, so that it should stay in memory; False that no base should. None
    leaves the base as it is.
    """

    slot: int
    raw_nbytes: int
    stored_nbytes: int
    seconds: float
    keep: bool | None = None


@dataclass(frozen=True, slots=True)
class Copy:
    """Send ``generation`` to the node that keeps a copy."""

    generation: Generation


@dataclass(frozen=True, slots=True)
class Broken:
    """A save has failed on this node before it was whole: tell the other nodes of its session.

    ``of`` is the session that made it, where a later one was to make it durable.
    """

    session: str
    seq: int
    error: PerdureError
    of: str = ""


@dataclass(frozen=True, slots=True)
class Exit:
    """Nobody needs the agent any more."""


Action = Grant | Tell | Digest | Copy | Drain | Broken | Exit
