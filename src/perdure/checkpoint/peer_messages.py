"""What the agents of different nodes, and ranks that read from another node's agent, say to each other.

A session's secret is known to its ranks and, by them, to their agents (`perdure.wire.node_link`). A save is named by
the session that made it and its count there, also where a later session makes it durable.
"""

from __future__ import annotations

from typing import Any

import msgspec

from perdure.checkpoint.messages import Generation, Packed, Reached, Terms
from perdure.store import PartRef

__all__ = [
    "Ask",
    "Beat",
    "Broke",
    "Bytes",
    "Carried",
    "Copied",
    "Deposit",
    "Fetch",
    "Fetched",
    "Held",
    "Kept",
    "Lost",
    "Made",
    "Member",
    "PartSaid",
    "PeerMessage",
    "Reader",
    "SaveName",
    "StopFirm",
    "StopLook",
    "StopSeen",
    "StopWanted",
    "Undone",
]

SaveName = tuple[str, int]
"""session, seq"""


class _Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type"):
    pass


class Member(_Message, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="member"):
    """The first message of an agent to the one of node 0: it belongs to the session, as node number ``node``."""

    protocol: str
    url: str
    node: int


class PartSaid(_Message, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="part"):
    """The node's part of a save is durable; what its ranks say of all that ranks hold in common comes along.

    Of a save that a later session makes durable a node may hold nothing: then it has no part. ``terms`` come along for
    the case that this is the node that commits.
    """

    save: SaveName
    step: int
    ref: PartRef | None
    said: tuple[tuple[int, dict[str, str]], ...]
    raw_nbytes: int
    stored_nbytes: int
    terms: Terms | None = None


class Broke(_Message, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="broke"):
    """The save has failed on this node, and so it has for all."""

    save: SaveName
    error: dict[str, Any]


class Ask(_Message, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="ask"):
    """What became of this node's part, or of the commit? Answered only if it will never come, or is there already."""

    save: SaveName
    step: int


class Made(_Message, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="made"):
    """The save is durable under ``slot``."""

    save: SaveName
    slot: int


class Undone(_Message, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="undone"):
    """The save has failed. ``final``: no commit was tried, so what was written for it may be deleted."""

    save: SaveName
    error: dict[str, Any]
    final: bool


class Copied(_Message, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="copied"):
    """To node 0: this node's packs of the save lie in the memory of another one too, or why not.

    From node 0: all do.
    """

    save: SaveName
    error: dict[str, Any] | None = None


class Beat(_Message, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="beat"):
    """I am alive. Said by each agent to those that it is connected to, whether it has anything to say or not."""


class Lost(_Message, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="lost"):
    """From node 0: the agent of another node is gone, and with it the council."""

    error: dict[str, Any]


class Carried(_Message, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="carried"):
    """From node 0, which carries: what became of a save on its way to the store far away."""

    save: SaveName
    said: Reached


class StopWanted(_Message, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="stop-wanted"):
    """A rank of this node was asked to stop: let all agree on a step (`perdure.progress.stop`)."""


class StopLook(_Message, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="stop-look"):
    """Node 0 proposes a step (0: nothing yet); answered by `StopSeen` with the same step."""

    proposed: int


class StopSeen(_Message, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="stop-seen"):
    """The largest step that a rank of this node had published once ``proposed`` was written."""

    proposed: int
    step: int


class StopFirm(_Message, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="stop-firm"):
    """All stop at ``step``."""

    step: int


class Deposit(_Message, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="deposit"):
    """The first message of an agent that wants its packs of a save to be kept here too. A `Bytes` for each follows.

    What is needed to make them durable without that agent comes along: ``said`` and ``raw_nbytes`` of each pack.
    """

    protocol: str
    url: str
    node: int
    facts: Generation
    packs: list[Packed]
    terms: Terms
    said: list[dict[str, str]]
    raw_nbytes: list[int]


class Bytes(_Message, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="bytes"):
    """The sealed pack ``number`` of a deposit comes behind this."""

    number: int


class Kept(_Message, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="kept"):
    """The deposit is whole, verified and kept; or why it is not."""

    error: dict[str, Any] | None = None


class Reader(_Message, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="reader"):
    """The first message of a rank that reads what another node's agent holds of a save; answered by `Held`."""

    protocol: str
    url: str
    save: SaveName


class Held(_Message, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="held"):
    """The packs that are held, one rank's each; none if the save is gone."""

    packs: list[Packed]


class Fetch(_Message, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="fetch"):
    """Send ``nbytes`` bytes of pack ``number`` from byte ``start`` on; answered by `Fetched`, the bytes behind it."""

    number: int
    start: int
    nbytes: int


class Fetched(_Message, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="fetched"):
    """The bytes that were asked for come behind this."""


PeerMessage = (
    Member
    | PartSaid
    | Ask
    | Broke
    | Made
    | Undone
    | Copied
    | Beat
    | Lost
    | Carried
    | StopWanted
    | StopLook
    | StopSeen
    | StopFirm
    | Deposit
    | Bytes
    | Kept
    | Reader
    | Held
    | Fetch
    | Fetched
)
