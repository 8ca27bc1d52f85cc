"""What ranks, launchers and the agent of their node say to each other, as strictly typed JSON messages.

A save is named by ``(session, seq)``: the session is one `Checkpointer` of one attempt (all its ranks share it), seq
counts its saves. Descriptors travel beside ``Granted`` (a segment to fill), ``Lent`` (segments to read) and ``Welcome``
(the progress page).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from perdure.state.index import RankIndex

__all__ = [
    "MAX_MESSAGE_BYTES",
    "PROTOCOL",
    "Abandon",
    "Adopt",
    "Adopted",
    "Beat",
    "Begin",
    "Borrow",
    "Bounds",
    "Carry",
    "Committed",
    "Complete",
    "Disband",
    "Failed",
    "Generation",
    "Generations",
    "Granted",
    "Hello",
    "Inquire",
    "Introduce",
    "Introduced",
    "Join",
    "Joined",
    "Lent",
    "Message",
    "Notify",
    "Packed",
    "Reached",
    "Release",
    "Sample",
    "Staged",
    "Terms",
    "Welcome",
]

PROTOCOL = "1"
MAX_MESSAGE_BYTES = 256 << 20
Role = Literal["rank", "launcher"]


class _Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type"):
    pass


class Bounds(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an agent may take: bytes of checkpoint memory, and bytes a second that it writes; None is no bound."""

    memory_bytes: Annotated[int, msgspec.Meta(ge=1)] | None = None
    drain_bytes_per_s: Annotated[float, msgspec.Meta(gt=0)] | None = None


class Hello(_Message, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="hello"):
    """The first message on a connection; another ``protocol`` is refused."""

    protocol: str
    role: Role
    job: str
    url: str = ""
    attempt: str = ""
    session: str = ""
    run: str = ""
    rank: int = 0
    world: int = 1
    local_rank: int = 0
    local_world: int = 1
    bounds: Bounds = Bounds()


class Welcome(_Message, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="welcome"):
    """The agent's answer; beside it, if ``page``, the descriptor of the attempt's progress page."""

    pid: int
    page: bool


class Begin(_Message, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="begin"):
    """A rank wants to stage ``nbytes`` of ``step``; answered by `Granted` once a segment is free, or `Failed`."""

    seq: int
    step: int
    nbytes: int
    plan_id: str
    durable: bool = True
    """whether it is to be committed; else it stays in memory until a newer one is there"""
    within_s: float | None = None
    """seconds after which the save fails, naming the ranks that have not staged"""


class Granted(_Message, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="granted"):
    """Fill ``segment``. ``offered`` are the segments whose descriptors are beside this message: new or remade ones."""

    seq: int
    segment: int
    offered: list[int]


class Sample(_Message, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="sample"):
    """The digest of one replicated piece as this rank holds it, to be compared between ranks."""

    tensor: str
    digest: str


class Carry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A save is to be carried to the store at ``url`` once it is committed.

    ``asked``: this very step; else the newest as it can be. ``keep`` are the rules of what stays there ("" everything),
    ``bytes_per_s`` bounds what is sent.
    """

    url: str
    asked: bool = False
    keep: str = ""
    bytes_per_s: float | None = None


class Terms(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a commit says of a save, beside its parts: the same on every rank and node."""

    claim: str | None = None
    """the token of the epoch"""
    meta: dict[str, Any] | None = None
    metric: float | None = None
    pinned: bool = False
    coding: str = "raw"
    """how tensors are stored (`perdure.state.coding`)"""
    keep: str = ""
    """the rules of what to keep once it is committed (`perdure.upkeep.keep`); "" keeps everything"""
    carry: Carry | None = None
    """where it is to be carried to then"""


class Staged(_Message, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="staged"):
    """The rank's pack is whole in its segment but for digests; what is needed to commit it comes along."""

    seq: int
    step: int
    epoch: int
    base_slot: int | None
    base_generation: int | None
    index: RankIndex
    samples: list[Sample]
    value_digests: dict[str, str]
    raw_nbytes: int
    terms: Terms

    @property
    def said(self) -> dict[str, str]:
        """What this rank says of all that it holds in common with others: name to digest."""
        return {sample.tensor: sample.digest for sample in self.samples} | self.value_digests


class Abandon(_Message, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="abandon"):
    """The rank could not stage; the save fails on every rank with this error."""

    seq: int
    error: dict[str, Any]


class Complete(_Message, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="complete"):
    """Every rank of the node has staged: the save is in memory."""

    seq: int
    generation: int


class Committed(_Message, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="committed"):
    """The save is durable under ``slot``."""

    seq: int
    slot: int
    raw_bytes: int
    stored_bytes: int
    seconds: float


class Failed(_Message, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="failed"):
    """The save failed, on every rank."""

    seq: int
    error: dict[str, Any]


class Notify(_Message, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="notify"):
    """What a person should know of the agent's work, such as older steps that could not be pruned. Nothing failed."""

    text: str


class Inquire(_Message, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="inquire"):
    """Which generations can be restored from memory?"""


class Packed(_Message, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="packed"):
    """One rank's sealed pack of a generation: the first ``nbytes`` of its segment; ``number`` counts packs."""

    number: int
    nbytes: int
    index: RankIndex
    headers: str = ""
    """between nodes: the digest of the headers of its packs, which hold those of all its tiles"""


class Generation(_Message, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="generation"):
    """A complete, digested generation in the agent's memory; ``ranks`` are those whose packs it holds."""

    id: int
    session: str
    seq: int
    step: int
    epoch: int
    world: int
    ranks: list[int]
    slot: int | None
    run: str = ""
    base_slot: int | None = None
    """the slot that its session went on from"""
    kept: list[int] = []
    """those of ``ranks`` whose packs this agent keeps for another node"""

    @property
    def own(self) -> list[int]:
        """Those of ``ranks`` that this agent can make durable."""
        return [rank for rank in self.ranks if rank not in self.kept]


class Generations(_Message, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="generations"):
    """The answer to `Inquire`, newest first."""

    found: list[Generation]


class Borrow(_Message, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="borrow"):
    """Lend me the segments of ``generation`` for reading."""

    generation: int


class Lent(_Message, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="lent"):
    """Packs of ``generation`` and, beside, their descriptors; several messages for many, no packs if it is gone."""

    generation: int
    packs: list[Packed]
    last: bool


class Adopt(_Message, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="adopt"):
    """The session goes on from ``generation``: see that it becomes durable, again if that had failed.

    All nodes of the session are told, each to write what ranks of its own agent saved, and what ``kept`` ranks saved
    whose node is gone. One that holds nothing of it takes part under a number that is nobody's.
    """

    generation: int
    session: str = ""
    seq: int = 0
    step: int = 0
    epoch: int = 0
    base_slot: int | None = None
    """the slot that the save follows, for nodes that hold nothing of their own"""
    kept: list[int] = []
    """ranks whose packs this agent keeps for another node, and is to make durable in its place"""


class Adopted(_Message, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="adopted"):
    """The adopted generation is durable under ``slot``, or could not be made so."""

    generation: int
    slot: int | None
    error: dict[str, Any] | None


class Reached(_Message, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="reached"):
    """The save has reached ``tier``; or it will not, with why.

    Of the tier "remote": its slot there, the bytes that were sent for it, and seconds since its commit. After an error
    it may yet arrive.
    """

    seq: int
    tier: str
    error: dict[str, Any] | None = None
    slot: int = 0
    nbytes: int = 0
    seconds: float = 0.0


class Join(_Message, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="join"):
    """The session has ranks on several nodes, of which this is number ``node``; answered by `Joined`, or `Failed`.

    Its agents know each other by ``secret`` (hexadecimal). ``host`` is the address by which other nodes reach this one,
    ``commit_s`` how many seconds a save may take to become durable, ``silent_s`` how long another agent may be silent.
    """

    node: int
    nodes: int
    secret: str
    host: str
    commit_s: float
    silent_s: float


class Joined(_Message, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="joined"):
    """The agent listens for other nodes at this port; or it can't, with why."""

    port: int
    error: dict[str, Any] | None = None


class Introduce(_Message, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="introduce"):
    """The agents of all nodes, in order: host and port; meet them within ``within_s``. Answered by `Introduced`."""

    addresses: list[tuple[str, int]]
    names: list[str]
    """what people call the nodes"""
    partner: int
    """the node that keeps a copy of what this one holds"""
    within_s: float


class Introduced(_Message, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="introduced"):
    """The agents have met, or why they have not."""

    error: dict[str, Any] | None = None


class Disband(_Message, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="disband"):
    """An agent of another node is gone: from here on no agent commits in this session, its ranks save by themselves."""

    error: dict[str, Any]


class Beat(_Message, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="beat"):
    """The agent is alive: said to ranks, whether there is anything else to say or not."""


class Release(_Message, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="release"):
    """The job is over: exit once everything is drained and nobody is connected, without waiting for the lease."""


Message = (
    Hello
    | Welcome
    | Begin
    | Granted
    | Staged
    | Abandon
    | Complete
    | Committed
    | Failed
    | Notify
    | Inquire
    | Generations
    | Borrow
    | Lent
    | Adopt
    | Adopted
    | Join
    | Joined
    | Introduce
    | Introduced
    | Disband
    | Reached
    | Beat
    | Release
)
