"""The agents of the nodes of one session: how they hear of parts, failures, and of the commit that node 0 makes.

Theory. Each agent writes the part of its node and says so to the agent of node 0, which waits for all of them, commits,
and tells them the slot. A failure anywhere goes to node 0 and from there to all, so that nobody waits for a part that
will not come. If a connection of the council breaks, the council is *lost*: then no agent commits any more in this
session, the ranks of all nodes are told that they have no agent, and save by themselves, as they do when the agent of a
single node dies. Both ends of a connection give signs of life (`config.BEAT_S`); one that gives none for ``silent_s``
is gone, whether it was stopped, hangs, or its network lets nothing through.

Each connection is served by a thread of its own (`admit`, `follow`); the drain thread calls `gather` and `conclude`, or
`report`; the agent's loop calls `broke`. Every wait has a deadline that names the nodes that are missing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from perdure.checkpoint.blame import another_save
from perdure.checkpoint.config import BEAT_S
from perdure.checkpoint.messages import MAX_MESSAGE_BYTES, PROTOCOL, Reached
from perdure.checkpoint.peer_messages import (
    Ask,
    Beat,
    Broke,
    Carried,
    Copied,
    Lost,
    Made,
    Member,
    PartSaid,
    PeerMessage,
    SaveName,
    StopFirm,
    StopLook,
    StopSeen,
    StopWanted,
    Undone,
)
from perdure.checkpoint.stopping import Stopping
from perdure.clock import Deadline
from perdure.errors import AgentLost, LinkLost, PerdureError, ProtocolError, from_wire, to_wire
from perdure.wire import Address, NodeLink, connect_node

__all__ = ["Council", "CouncilHost"]

_KEPT = 64  # saves whose end is remembered, for those that come late
_SEND_S = 60.0
_ASK_S = 1.0  # between questions whether what is awaited will ever come


@dataclass(slots=True)
class _Save:
    parts: dict[int, PartSaid] = field(default_factory=dict)
    slot: int | None = None
    error: PerdureError | None = None
    heard: bool = False
    """whether the error is of another node, and names it"""


class CouncilHost(Protocol):
    """What a council tells its agent; on any thread."""

    def broken(self, name: SaveName, error: PerdureError) -> None:
        """A save has failed on another node."""
        ...

    def asked(self, name: SaveName, step: int) -> None:
        """Another node waits for this node's part of a save, which may never come."""
        ...

    def copied(self, name: SaveName, error: PerdureError | None) -> None:
        """The packs of every node lie on another one too; or why they do not."""
        ...

    def carried(self, name: SaveName, said: Reached) -> None:
        """What became of a save on its way to the store far away, by node 0's word."""
        ...

    def lost(self, error: AgentLost) -> None:
        """The council is lost; called once."""
        ...

    def look(self, proposed: int) -> int:
        """Write ``proposed`` into the progress page and give the largest step that a rank has published then."""
        ...

    def firm(self, step: int) -> None:
        """All ranks stop at ``step``."""
        ...


class Council:
    """One session, as the agent of node ``node`` of ``nodes`` sees it."""

    def __init__(
        self,
        *,
        session: str,
        secret: bytes,
        url: str,
        node: int,
        nodes: int,
        commit_s: float,
        silent_s: float,
        host: CouncilHost,
    ) -> None:
        self.session, self.secret, self.url, self.node, self.nodes = session, secret, url, node, nodes
        self.commit_s, self.silent_s = commit_s, silent_s
        self._host = host
        self._stopping = Stopping(
            members=lambda: list(self._links),
            send=self._send,
            look=host.look,
            firm=host.firm,
            lost=lambda: self._lost,
            label=self.label,
        )
        self._copies: dict[SaveName, set[int]] = {}
        self.partner: Address | None = None
        """the agent that keeps copies of what this one holds"""
        self.partner_node = -1
        """its node"""
        self.names: Sequence[str] = ()
        """what people call the nodes, if that is known"""
        self._links: dict[int, NodeLink] = {}  # node -> its link; of those that follow, that of node 0
        self._sending = [threading.Lock() for _ in range(nodes)]
        self._beating: threading.Thread | None = None
        self._changed = threading.Condition()
        self._saves: dict[SaveName, _Save] = {}
        self._lost: AgentLost | None = None
        self._closed = False

    @property
    def leads(self) -> bool:
        """Whether this agent commits."""
        return self.node == 0

    def label(self, node: int) -> str:
        """What to call a node in a sentence."""
        return f"node {node} ({self.names[node]})" if node < len(self.names) else f"node {node}"

    @property
    def lost(self) -> bool:
        """Whether the council is lost, or has been left."""
        return self._lost is not None or self._closed

    def close(self) -> None:
        """The agent leaves; those that are connected hear of it."""
        with self._changed:
            self._closed = True
            links = list(self._links.values())
            self._changed.notify_all()
        for link in links:
            link.shutdown()

    # --- meeting -----------------------------------------------------------------------------------------------------

    def meet(self, addresses: Sequence[Address], partner: int, deadline: Deadline) -> None:
        """Connect to node 0, or, as node 0, wait until all others have connected. Raises what prevents it."""
        self.partner, self.partner_node = addresses[partner], partner
        if not self.leads:
            link = connect_node(
                addresses[0],
                name=self.session,
                secret=self.secret,
                deadline=deadline,
                type=PeerMessage,
                max_body_bytes=MAX_MESSAGE_BYTES,
            )
            link.send(Member(protocol=PROTOCOL, url=self.url, node=self.node), deadline=deadline)
            self._links[0] = link
            self._begin_to_beat()
            threading.Thread(target=self._serve, args=(0, link), name="council", daemon=True).start()
            return
        with self._changed:
            while len(self._links) < self.nodes - 1:
                missing = sorted(set(range(1, self.nodes)) - self._links.keys())
                deadline.check(f"the agents of {', '.join(map(self.label, missing))}")
                self._changed.wait(min(0.5, deadline.left()))

    def admit(self, member: Member, link: NodeLink) -> None:
        """Serve the connection of another node's agent, on its thread, until it ends."""
        fits = self.leads and 0 < member.node < self.nodes and member.url == self.url and member.protocol == PROTOCOL
        if not fits:
            raise ProtocolError(f"node {member.node} is no member of this session, or has another release of perdure")
        with self._changed:
            if member.node in self._links:
                raise ProtocolError(f"node {member.node} is a member of this session already")
            self._links[member.node] = link
            self._changed.notify_all()
            self._begin_to_beat()
        self._serve(member.node, link)

    def _serve(self, node: int, link: NodeLink) -> None:
        slice_s, silent_s = min(1.0, self.silent_s / 4), 0.0
        try:
            while True:
                if not link.readable(slice_s):  # counted in slices: this process may itself have been stopped meanwhile
                    silent_s += slice_s
                    if silent_s >= self.silent_s:
                        raise LinkLost(f"it has given no sign of life for {self.silent_s:g} s: stopped, or cut off")
                    continue
                silent_s = 0.0
                message, nbytes = link.recv(Deadline.after(_SEND_S, "the rest of a message of another node"))
                if nbytes:
                    raise ProtocolError("a message of a council has no bytes behind it")
                self._hear(node, message)
        except Exception as error:  # also a bug must not leave others waiting for a council that nobody hears
            self._lose(node, from_wire(to_wire(error)))
        finally:
            link.close()

    def _hear(self, node: int, message: object) -> None:
        match message:
            case PartSaid() if self.leads:
                with self._changed:
                    save = self._save(message.save)
                    save.parts[node] = message
                    told = self._told(message.save, save)
                    self._changed.notify_all()
                if told is not None:
                    self._send(node, told)
            case Broke() if self.leads:
                theirs = from_wire(message.error)
                self.broke(message.save, type(theirs)(f"{self.label(node)}: {theirs}", **theirs.facts), heard=True)
            case Ask():
                with self._changed:
                    told = self._told(message.save, self._save(message.save)) if self.leads else None
                if told is not None:
                    self._send(node, told)
                else:
                    self._host.asked(message.save, message.step)
            case Copied():
                why = None if message.error is None else from_wire(message.error)
                if self.leads:
                    self._count_copy(node, message.save, why)
                else:
                    self._host.copied(message.save, why)
            case Carried() if not self.leads:
                self._host.carried(message.save, message.said)
            case StopWanted() if self.leads:
                self.stop_wanted()
            case StopLook() if not self.leads:
                found = self._host.look(message.proposed)
                self._send(node, StopSeen(proposed=message.proposed, step=found))
            case StopSeen() if self.leads:
                self._stopping.seen(node, proposed=message.proposed, step=message.step)
            case StopFirm() if not self.leads:
                self._host.firm(message.step)
            case Beat():
                pass
            case Lost() if not self.leads:
                self._lose(node, from_wire(message.error))
            case Made():
                self._end(message.save, slot=message.slot, error=None)
            case Undone():
                error = from_wire(message.error)
                error.facts["final"] = message.final
                self._end(message.save, slot=None, error=error)
                self._host.broken(message.save, error)
            case _:
                raise ProtocolError(f"node {node} sent a {type(message).__name__}, which is not for this one")

    def _lose(self, node: int, why: PerdureError) -> None:
        with self._changed:
            if self._closed or self._lost is not None:
                return
            self._lost = AgentLost(f"the agent of {self.label(node)} is gone ({why})", node=node)
            if isinstance(why, AgentLost):  # node 0 says which one
                self._lost = why
            members = [each for each in self._links if each != node] if self.leads else []
            self._changed.notify_all()
        self._host.lost(self._lost)
        for member in members:
            self._send(member, Lost(error=to_wire(self._lost)))

    # --- signs of life -----------------------------------------------------------------------------------------------

    def _begin_to_beat(self) -> None:
        if self._beating is None:
            self._beating = threading.Thread(target=self._beat_forever, name="beat", daemon=True)
            self._beating.start()

    def _beat_forever(self) -> None:
        beat = Beat()
        while not self.lost:
            with self._changed:
                links = list(self._links.items())
            for node, link in links:
                # Whoever sends just now shows life enough; and none waits for a node that does not read.
                if self._sending[node].acquire(blocking=False):
                    try:
                        if link.writable():
                            link.send(beat, deadline=Deadline.after(BEAT_S, f"node {node} to read a message"))
                    except PerdureError:
                        link.shutdown()
                    finally:
                        self._sending[node].release()
            time.sleep(BEAT_S)

    # --- the node that commits ---------------------------------------------------------------------------------------

    def gather(self, name: SaveName, step: int, deadline: Deadline) -> list[PartSaid]:
        """Wait for the parts of all other nodes, in order; raises what failed on one of them."""
        ask, missing = Ask(save=name, step=step), list[int]()
        while True:
            for node in missing:
                self._send(node, ask)
            with self._changed:
                save = self._save(name)
                if self._lost is not None:
                    raise self._lost
                if save.error is not None:
                    raise save.error
                for node, part in save.parts.items():
                    if part.step != step:
                        raise another_save(step, part.step, seq=name[1], rank=part.said[0][0] if part.said else node)
                if len(save.parts) == self.nodes - 1:
                    return [save.parts[node] for node in sorted(save.parts)]
                missing = sorted(set(range(1, self.nodes)) - save.parts.keys())
                deadline.check(", ".join(f"the part of {self.label(node)}" for node in missing))
                if self._changed.wait(min(_ASK_S, deadline.left())):
                    missing = []  # there is news: look first

    def conclude(self, name: SaveName, *, slot: int | None = None, error: PerdureError | None = None) -> None:
        """Tell all nodes how the save ended; of an ``error`` the fact ``final`` counts."""
        self._end(name, slot=slot, error=error)
        self._tell_all(name)

    # --- the others --------------------------------------------------------------------------------------------------

    def report(self, part: PartSaid, deadline: Deadline) -> int:
        """Say that this node's part is there, and wait for the slot. Raises what failed."""
        message: PartSaid | Ask = part
        while True:
            self._send(0, message)
            with self._changed:
                save = self._save(part.save)
                if save.slot is not None:
                    return save.slot
                if save.error is not None:
                    raise save.error
                if self._lost is not None:
                    raise self._lost
                deadline.check(f"the commit of {self.label(0)}")
                self._changed.wait(min(_ASK_S, deadline.left()))
            message = Ask(save=part.save, step=part.step)

    # --- all ---------------------------------------------------------------------------------------------------------

    def broke(self, name: SaveName, error: PerdureError, *, heard: bool = False) -> None:
        """The save has failed on this node, or another told so: tell all."""
        if not self.leads:
            self._send(0, Broke(save=name, error=to_wire(error)))
            return
        error.facts.setdefault("final", True)  # this node commits only what has not failed
        if self._end(name, slot=None, error=error, heard=heard):
            self._tell_all(name)
            if heard:
                self._host.broken(name, error)

    def copied(self, name: SaveName, error: PerdureError | None) -> None:
        """This node's packs lie on another one too, or could not be brought there."""
        if self.leads:
            self._count_copy(0, name, error)
        else:
            self._send(0, Copied(save=name, error=None if error is None else to_wire(error)))

    def carried(self, name: SaveName, said: Reached) -> None:
        """Node 0: tell all what became of a save on its way to the store far away."""
        for node in list(self._links):
            self._send(node, Carried(save=name, said=said))

    def _count_copy(self, node: int, name: SaveName, error: PerdureError | None) -> None:
        with self._changed:
            done = self._copies.setdefault(name, set())
            if error is None:  # a node that has failed is never counted: then no word of success comes after it
                done.add(node)
            while len(self._copies) > _KEPT:
                del self._copies[next(iter(self._copies))]
            members = list(self._links)
            if error is None and len(done) < self.nodes:
                return
        told = Copied(save=name, error=None if error is None else to_wire(error))
        for member in members:
            self._send(member, told)
        self._host.copied(name, error)

    # --- where all stop ----------------------------------------------------------------------------------------------

    def stop_wanted(self) -> None:
        """A rank was asked to stop: agree on a step that lies ahead of all (`stopping`), on a thread."""
        if not self.leads:
            self._send(0, StopWanted())
            return
        self._stopping.wanted()

    def _end(self, name: SaveName, *, slot: int | None, error: PerdureError | None, heard: bool = False) -> bool:
        with self._changed:
            save = self._save(name)
            first = save.slot is None and save.error is None
            if first:
                save.slot, save.error, save.heard = slot, error, heard
            self._changed.notify_all()
            return first

    def _save(self, name: SaveName) -> _Save:
        found = self._saves.setdefault(name, _Save())
        while len(self._saves) > _KEPT:
            del self._saves[next(iter(self._saves))]
        return found

    def _told(self, name: SaveName, save: _Save) -> Made | Undone | None:
        if save.slot is not None:
            return Made(save=name, slot=save.slot)
        if save.error is not None:
            error = save.error
            if not save.heard:  # it is this node's own
                error = type(error)(f"{self.label(self.node)}: {error}", **error.facts)
            return Undone(save=name, error=to_wire(error), final=bool(save.error.facts.get("final")))
        return None

    def _tell_all(self, name: SaveName) -> None:
        with self._changed:
            told = self._told(name, self._save(name))
            members = list(self._links)
        for node in members if told is not None else ():
            self._send(node, told)

    def _send(self, node: int, message: object) -> None:
        link = self._links.get(node)
        if link is None:
            return
        try:
            with self._sending[node]:
                link.send(message, deadline=Deadline.after(_SEND_S, f"node {node} to read a message"))
        except PerdureError:  # half a message may be out: the thread that reads from this link hears of its end
            link.shutdown()
