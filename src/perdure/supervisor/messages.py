"""What launchers, controllers and people's tools say to each other, as strictly typed JSON messages.

The events and orders of `perdure.supervisor.vocabulary` travel as they are; here is what goes around them. The first
message of a connection is ``Hello``, the answer is ``Welcome`` or ``Refused``. Both ends give a sign of life at least
every ``beat_s``.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from perdure.supervisor.config import Spec
from perdure.supervisor.job import Job, NodeFacts, State
from perdure.supervisor.vocabulary import (
    Acknowledge,
    Asked,
    Drain,
    Examine,
    Examined,
    Holding,
    Kill,
    Late,
    Mute,
    Over,
    Progressed,
    RankEnded,
    Start,
    Terminate,
    Uncordon,
)
from perdure.supervisor.watching import MAX_LOOK_BYTES

__all__ = [
    "MAX_MESSAGE_BYTES",
    "PROTOCOL",
    "Beat",
    "Done",
    "Down",
    "Hello",
    "Look",
    "Memo",
    "Moment",
    "NodeView",
    "RankView",
    "Refused",
    "Release",
    "Report",
    "Shown",
    "Tell",
    "Told",
    "Up",
    "View",
    "Wanted",
    "Watched",
    "Welcome",
    "Where",
    "WhereAnswer",
]

PROTOCOL = "2"
MAX_MESSAGE_BYTES = 16 << 20


class _Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type"):
    pass


class Hello(_Message, frozen=True, kw_only=True, tag="hello"):
    """The first message. ``node`` of a launcher; a tool of a person has none."""

    protocol: str
    job: str
    term: int = 0
    "The highest term that has been seen."
    node: NodeFacts | None = None
    holding: Holding = Holding()
    listens: bool = False
    "Whether it wants to be told every fact as it happens,"
    told: int = 0
    "of which it has been told up to this number."


class Welcome(_Message, frozen=True, kw_only=True, tag="welcome"):
    """The controller takes whoever said hello."""

    term: int
    run: str
    beat_s: float
    lease_s: float
    orphan_s: float


class Refused(_Message, frozen=True, kw_only=True, tag="refused"):
    """The controller does not; ``sentence`` says why. ``over`` if the job is."""

    sentence: str
    exit_code: int = 64


class RankView(msgspec.Struct, frozen=True, kw_only=True):
    """A rank as its launcher sees it."""

    local_rank: int
    pid: int = 0
    step: int = 0
    phase: str = ""
    phase_s: float = 0.0
    ended: str = ""


class Report(_Message, frozen=True, kw_only=True, tag="report"):
    """A launcher's sign of life, and what its ranks do."""

    attempt: int = -1
    ranks: tuple[RankView, ...] = ()
    standby: str = ""
    "Whether interpreters wait to be forked: ``ready``, ``warming`` or ``off``."
    busy: bool = False
    "Whether a rank is in a phase of its own that others may wait for, and in time."


class Watched(_Message, frozen=True, kw_only=True, tag="watched"):
    """What the eye of a node has seen (`perdure.supervisor.watching`); for the judge, and for nobody else to read."""

    look: Annotated[bytes, msgspec.Meta(max_length=MAX_LOOK_BYTES)]


class Wanted(_Message, frozen=True, tag="wanted"):
    """The stacks of these ranks would help."""

    ranks: tuple[int, ...]


class Beat(_Message, frozen=True, kw_only=True, tag="beat"):
    """The controller's sign of life; ``busy`` if a rank of another node is (`Report.busy`)."""

    busy: bool = False
    wall_s: float = 0.0
    "What its clock says, in seconds since 1970."


class Memo(_Message, frozen=True, kw_only=True, tag="memo"):
    """The job as it was just journaled: with it any node can start another controller."""

    number: int
    "Which one it is of its term."
    job: Job
    spec: Spec
    roster: tuple[NodeFacts, ...]
    "The nodes that may choose another controller, in the order in which they do."


class Release(_Message, frozen=True, kw_only=True, tag="release"):
    """The job is over: end with ``exit_code``."""

    exit_code: int


class Tell(_Message, frozen=True, kw_only=True, tag="tell"):
    """A fact, for people; ``number`` is its number in the journal."""

    number: int
    sentence: str
    lines: tuple[str, ...] = ()


class Look(_Message, frozen=True, kw_only=True, tag="look"):
    """Show me the job; with the facts after number ``since``, and with its ``moments`` if those are wanted."""

    since: int = 0
    history: bool = False


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """A node as the controller sees it."""

    facts: NodeFacts
    place: int | None = None
    base: int = 0
    standing: str = ""
    "``runs``, ``spare``, ``lost``, ``cordoned``, ``draining``, ``drained``; without a controller nobody knows."
    heard_s: float = 0.0
    "Seconds since it was last heard."
    ranks: tuple[RankView, ...] = ()
    standby: str = ""


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the journal: fact number ``number`` happened at ``at`` (seconds since 1970)."""

    number: int
    at: float
    kind: str
    sentence: str
    fields: str
    "The fact as JSON."


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """At ``at`` (seconds since 1970) the job was in ``state``, with so many completed steps."""

    at: float
    state: State
    attempt: int
    step: int


class View(msgspec.Struct, frozen=True, kw_only=True):
    """The job as it is now."""

    job: Job
    spec: Spec
    nodes: tuple[NodeView, ...]
    facts: tuple[Told, ...]
    began_at: float
    now_at: float
    address: tuple[str, int] = ("", 0)
    moments: tuple[Moment, ...] = ()
    "What the journal says of the run, in order."


class Shown(_Message, frozen=True, kw_only=True, tag="shown"):
    """The answer to `Look`."""

    view: View


class Done(_Message, frozen=True, kw_only=True, tag="done"):
    """The answer to a person's order; ``error`` if it was refused."""

    error: str = ""


class Where(_Message, frozen=True, kw_only=True, tag="where"):
    """One launcher asks another: have you a controller?"""

    term: int


class WhereAnswer(_Message, frozen=True, kw_only=True, tag="where-answer"):
    """``address`` of the controller that this launcher is linked with, if it is; and its newest memo."""

    term: int
    address: tuple[str, int] | None = None
    memo: Memo | None = None


Up = (
    Hello
    | Report
    | RankEnded
    | Over
    | Progressed
    | Late
    | Examined
    | Asked
    | Drain
    | Uncordon
    | Mute
    | Acknowledge
    | Watched
    | Look
)
Down = Welcome | Refused | Beat | Memo | Start | Terminate | Kill | Examine | Wanted | Release | Tell | Shown | Done
