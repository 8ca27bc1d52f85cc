"""What can happen to a job, and what the launcher can do: the events and actions of `perdure.supervisor.policy`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from perdure.supervisor.causes import Death

__all__ = [
    "Action",
    "Asked",
    "Event",
    "Fail",
    "KillTree",
    "Progressed",
    "RankEnded",
    "Retry",
    "StartAttempt",
    "Stop",
    "Succeed",
    "Terminate",
    "Tick",
    "TreeGone",
]


@dataclass(frozen=True, slots=True)
class RankEnded:
    """A rank's process is dead; ``finished`` if its phase said so before."""

    rank: int
    code: int | None = None
    signal: int | None = None
    finished: bool = False


@dataclass(frozen=True, slots=True)
class Progressed:
    """The furthest rank of the attempt has completed ``step``."""

    step: int


@dataclass(frozen=True, slots=True)
class Asked:
    """The launcher got SIGTERM, SIGINT or SIGHUP."""

    signal: int


@dataclass(frozen=True, slots=True)
class TreeGone:
    """KillTree is done. ``tails`` maps rank to the end of its stderr; ``left`` are processes that cannot be killed."""

    tails: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    killed: int = 0
    left: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


@dataclass(frozen=True, slots=True)
class StartAttempt:
    """Start all ranks, as attempt ``attempt``."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Terminate:
    """Send SIGTERM to every rank that still runs, once."""


@dataclass(frozen=True, slots=True)
class KillTree:
    """End everything of the attempt, reap it, and report `TreeGone`."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Tell the person that the attempt failed by ``cause``, with ``others`` behind it, and that another starts in
    ``delay_s``.
    """

    cause: Death
    others: tuple[Death, ...]
    delay_s: float


@dataclass(frozen=True, slots=True)
class Succeed:
    """The job is done."""


@dataclass(frozen=True, slots=True)
class Fail:
    """The job is given up, for ``reason``."""

    reason: str
    cause: Death | None = None
    others: tuple[Death, ...] = ()


@dataclass(frozen=True, slots=True)
class Stop:
    """The job has stopped as it was asked to by ``signal``; ``killed`` processes did not stop by themselves."""

    signal: int
    killed: int = 0


Event = RankEnded | Progressed | Asked | TreeGone | Tick
Action = StartAttempt | Terminate | KillTree | Retry | Succeed | Fail | Stop
