"""What can happen to a job, and what a controller can order: the events and actions of `perdure.supervisor.machine`."""

from __future__ import annotations

from typing import Literal

import msgspec

from perdure.events import Fact
from perdure.supervisor.job import NodeFacts

__all__ = [
    "Acknowledge",
    "Action",
    "Asked",
    "Drain",
    "Event",
    "Examine",
    "Examined",
    "Finish",
    "Holding",
    "Joined",
    "Judged",
    "Kill",
    "Late",
    "LateFacts",
    "Left",
    "Mute",
    "Over",
    "Progressed",
    "RankEnded",
    "Say",
    "Start",
    "Terminate",
    "Tick",
    "Uncordon",
    "Watching",
]


class _Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type"):
    """Launchers and controllers send these to each other as they are."""


class RankEnded(_Message, frozen=True, kw_only=True, tag="rank-ended"):
    """The process of a rank is dead. ``finished`` if its phase said so before; ``tail`` is the end of its stderr."""

    node: str
    attempt: int
    local_rank: int
    code: int | None = None
    signal: int | None = None
    finished: bool = False
    step: int | None = None
    tail: tuple[str, ...] = ()
    out_of_memory: bool = False
    "Whether the kernel has killed a process of the node's job because memory ran out."


class Over(_Message, frozen=True, kw_only=True, tag="over"):
    """No process of the attempt is left on the node, but for ``left``, which cannot be killed.

    ``tails`` are the ends of its ranks' stderr, by local rank, now that all of it has been read.
    """

    node: str
    attempt: int
    killed: int = 0
    left: tuple[int, ...] = ()
    tails: tuple[tuple[str, ...], ...] = ()
    seconds: float = 0.0
    port: int = 0
    "A fresh port, kept for rank 0 of the next attempt."


class Holding(msgspec.Struct, frozen=True, kw_only=True):
    """What a launcher that joins (again) has of the job: the last attempt that it knows, -1 if none."""

    attempt: int = -1
    ended: tuple[RankEnded, ...] = ()
    over: Over | None = None


class Joined(msgspec.Struct, frozen=True):
    """A launcher is there, for the first time or again."""

    node: NodeFacts
    holding: Holding = Holding()


class Left(msgspec.Struct, frozen=True):
    """A launcher's link is closed, or nothing has been heard of it since ``heard_s`` (monotonic); or it is known to be
    dead, because it ran on the controller's own machine.
    """

    node: str
    how: Literal["closed", "silent", "dead"]
    heard_s: float


class Progressed(_Message, frozen=True, tag="progressed"):
    """The furthest rank of the attempt on a node has completed ``step``."""

    node: str
    attempt: int
    step: int


class LateFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A rank that has been in its phase for longer than it may; ``suspect`` if others may wait for it."""

    local_rank: int
    phase: str
    seconds: float
    allowed_s: float
    step: int | None = None
    suspect: bool = True
    why: str = ""


class Late(_Message, frozen=True, kw_only=True, tag="late"):
    """Ranks of a node do not get on; the likeliest to be at fault first."""

    node: str
    attempt: int
    ranks: tuple[LateFacts, ...]


class Examined(_Message, frozen=True, kw_only=True, tag="examined"):
    """What the checks of a round found on a node: a sentence each for what is bad."""

    node: str
    round: int
    bad: tuple[str, ...] = ()
    peers: tuple[str, ...] = ()
    "The nodes of its group, if the round compares nodes."
    seconds: float | None = None
    "How long its group took, if the round compares nodes."


class Asked(_Message, frozen=True, tag="asked"):
    """Somebody wants the job to stop: a launcher got the signal, or a person said so."""

    signal: int
    by: str = ""


class Drain(_Message, frozen=True, tag="drain"):
    """A node is to be left without losing a step."""

    node: str
    by: str = ""


class Uncordon(_Message, frozen=True, tag="uncordon"):
    """A person says that a node may be used again."""

    node: str


class Mute(_Message, frozen=True, kw_only=True, tag="mute"):
    """A person wants to be told nothing of what agrees with all that is given, for ``for_s`` seconds (None: ever)."""

    label: str = ""
    node: str = ""
    rank: int | None = None
    for_s: float | None = None


class Acknowledge(_Message, frozen=True, tag="acknowledge"):
    """A person knows of an incident."""

    incident: str


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """The watcher says what is wrong in ``attempt``, in its own words for label, owner and action.

    An incident keeps its name, which no other of the job has, while it goes from ``suspicion`` to ``verdict`` and
    ``cleared``; each change comes as one of these.
    """

    attempt: int
    incident: str
    stage: Literal["suspicion", "verdict", "cleared"]
    label: str
    owner: str
    action: Literal["restart", "evict", "rollback", "stop_user", "warn"]
    confidence: float
    sentence: str
    ranks: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    step: int | None = None


class Watching(msgspec.Struct, frozen=True):
    """The watcher answers, or does not any more."""

    on: bool


class Tick(msgspec.Struct, frozen=True):
    """Time has passed."""


class Start(_Message, frozen=True, kw_only=True, tag="start"):
    """Start the ranks of a node."""

    node: str
    attempt: int
    place: int
    n_places: int
    base: int
    "Its first global rank."
    world: int
    master_addr: str
    master_port: int
    resume_must: bool = False
    restore_before: int | None = None
    skip: tuple[tuple[int, int], ...] = ()
    may_skip: bool = False


class Terminate(_Message, frozen=True, tag="terminate"):
    """Send SIGTERM to each rank of the attempt on a node, once."""

    node: str
    attempt: int
    failed: bool = False
    "Whether the attempt has failed: no rank can save any more, and one that is expendable is killed."


class Kill(_Message, frozen=True, tag="kill"):
    """End everything of the attempt on a node, reap it, and report `Over`."""

    node: str
    attempt: int


class Examine(_Message, frozen=True, kw_only=True, tag="examine"):
    """Run the checks ``names`` on a node, or the pair check with ``group``; report `Examined`."""

    node: str
    round: int
    names: tuple[str, ...] = ()
    group: tuple[NodeFacts, ...] = ()
    within_s: float = 60.0


class Say(msgspec.Struct, frozen=True):
    """Tell people and the event log."""

    fact: Fact
    lines: tuple[str, ...] = ()
    "More for people: the last words of a rank."


class Finish(msgspec.Struct, frozen=True):
    """The job is over: launchers end with ``exit_code``."""

    exit_code: int


Event = (
    Joined
    | Left
    | RankEnded
    | Over
    | Progressed
    | Late
    | Examined
    | Asked
    | Drain
    | Uncordon
    | Judged
    | Watching
    | Tick
)
Action = Start | Terminate | Kill | Examine | Say | Finish
