"""An agent's side of sessions that have several nodes: their councils, copies of and for others, their readers.

What threads of this module find out goes to the agent's loop through ``report``, as actions; what the loop asks for is
done on threads, because another node may be slow.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from msgspec.structs import replace

from perdure.checkpoint.council import Council
from perdure.checkpoint.generations import Machine
from perdure.checkpoint.memory_packs import headers_digest
from perdure.checkpoint.messages import (
    MAX_MESSAGE_BYTES,
    PROTOCOL,
    Adopt,
    Disband,
    Introduce,
    Introduced,
    Join,
    Joined,
    Notify,
    Packed,
    Reached,
)
from perdure.checkpoint.messages import Generation as GenerationFacts
from perdure.checkpoint.peer_messages import Deposit, Member, PeerMessage, Reader, SaveName
from perdure.checkpoint.peer_packs import serve_packs
from perdure.checkpoint.peer_server import PeerServer
from perdure.checkpoint.vocabulary import Action, Broken, Client, Copy, Fostered, Generation, Tell
from perdure.checkpoint.wards import Wards, give
from perdure.clock import Deadline
from perdure.errors import AgentLost, LinkLost, PerdureError, ProtocolError, from_wire, to_wire
from perdure.progress import Page, look
from perdure.shm import Segment
from perdure.state.index import RankIndex
from perdure.wire import NodeLink, connect_node

__all__ = ["Nodes"]

_CONNECT_S = 30.0


class Nodes:
    """Made by the agent: ``packs`` and ``facts`` are of its generations, ``make`` gives memory for others' copies."""

    def __init__(
        self,
        *,
        url: str,
        machine: Machine,
        packs: Callable[[Generation], Sequence[tuple[RankIndex, memoryview]]],
        facts: Callable[[Generation], GenerationFacts],
        report: Callable[[Callable[[], list[Action]]], None],
        make: Callable[[int], Segment],
        page: Callable[[], Page | None],
    ) -> None:
        self._url, self._packs, self._facts = url, packs, facts
        self._page, self.report, self.machine = page, report, machine
        self._councils: dict[str, Council] = {}
        self._disbanding: dict[str, AgentLost] = {}
        self._server = PeerServer(self._secret_of, self._serve)
        self._wards = Wards(make)
        self._copies: queue.SimpleQueue[Copy | None] = queue.SimpleQueue()
        self._copier: threading.Thread | None = None
        self._giving: tuple[str, NodeLink] | None = None  # the session whose copy is under way, and its link

    def council(self, session: str) -> Council | None:
        """The nodes of a session; None if it has one only."""
        return self._councils.get(session)

    def close(self) -> None:
        """The agent leaves."""
        self._copies.put(None)
        for council in list(self._councils.values()):
            council.close()
        self._server.close()

    # --- meeting -----------------------------------------------------------------------------------------------------

    def join(self, client: Client, join: Join) -> list[Action]:
        """A rank says that its session has several nodes."""
        session = client.session
        try:
            port = self._server.listen(join.host)
        except LinkLost as error:
            return [Tell(client.id, Joined(port=0, error=to_wire(error)))]
        self._councils[session] = Council(
            session=session,
            secret=bytes.fromhex(join.secret),
            url=self._url,
            node=join.node,
            nodes=join.nodes,
            commit_s=join.commit_s,
            silent_s=join.silent_s,
            host=_Session(self, session),
        )
        return [Tell(client.id, Joined(port=port))]

    def introduce(self, client: Client, message: Introduce) -> None:
        """Meet the agents of the other nodes, on a thread."""
        council = self._councils.get(client.session)
        if council is None or not 0 <= message.partner < len(message.addresses) == council.nodes:
            raise ProtocolError("a session joins before its agents are introduced, all of them")
        council.names = message.names

        def meet() -> None:
            error = None
            try:
                deadline = Deadline.after(message.within_s, "the agents of all nodes to meet")
                council.meet(message.addresses, message.partner, deadline)
            except Exception as why:  # a bug too must be answered
                error = to_wire(why)
            self.report(lambda: self._met(client, error))

        threading.Thread(target=meet, name="meet", daemon=True).start()

    def _met(self, client: Client, error: dict[str, object] | None) -> list[Action]:
        if error is None:
            self.machine.partnered.add(client.session)
        return [Tell(client.id, Introduced(error=error))]

    def tick(self) -> list[Action]:
        """Tell the ranks of sessions that have lost a node's agent, once this one has let go of their saves.

        Forget sessions that are over; let those stop whose ranks were asked to.
        """
        for session, council in list(self._councils.items()):
            if not self.machine.knows(session):
                del self._councils[session]
                council.close()
            elif self._wants_to_stop(session):
                council.stop_wanted()
        return [action for session, error in list(self._disbanding.items()) for action in self.disband(session, error)]

    def disband(self, session: str, error: AgentLost) -> list[Action]:
        self.machine.disbanded(session)
        giving = self._giving
        if giving is not None and giving[0] == session:
            giving[1].shutdown()  # the partner may be who is gone; nobody counts on the copy any more
        if self.machine.turns.drains_for(session):
            self._disbanding[session] = error
            return []
        self._disbanding.pop(session, None)
        message = Disband(error=to_wire(error))
        return [Tell(c.id, message) for c in self.machine.sessions.ranks_of(session)]

    def broken(self, broken: Broken) -> None:
        """A save has failed on this node: tell the others, on a thread."""
        council = self._councils.get(broken.session)
        if council is not None:
            name = (broken.of or broken.session, broken.seq)
            threading.Thread(target=council.broke, args=(name, broken.error), name="broke", daemon=True).start()

    # --- stopping ----------------------------------------------------------------------------------------------------

    def page_of(self, session: str) -> Page | None:
        """The progress page of the ranks of ``session``, if it is the newest."""
        return self._page() if self.machine.sessions.has(session) else None

    def _wants_to_stop(self, session: str) -> bool:
        page = self.page_of(session)
        return page is not None and page.firm == 0 and any(record.term for record in page.records())

    # --- copies ------------------------------------------------------------------------------------------------------

    def copy(self, copy: Copy) -> None:
        """Send a generation to the partner, after those before it."""
        if self._copier is None:
            self._copier = threading.Thread(target=self._copy_forever, name="copy", daemon=True)
            self._copier.start()
        self._copies.put(copy)

    def _copy_forever(self) -> None:
        while (copy := self._copies.get()) is not None:
            generation, error = copy.generation, None
            council = self._councils.get(generation.session)
            try:
                if council is not None:
                    self._give(generation, council)
            except Exception as why:  # also a bug must reach whoever waits, not end the thread
                theirs = from_wire(to_wire(why))
                where = ""
                if council is not None:
                    mine, partner = council.label(council.node), council.label(council.partner_node)
                    where = f"{mine} has no copy on its partner, {partner}: "
                error = type(theirs)(f"{where}{theirs}", **theirs.facts)
            if council is not None:
                council.copied(generation.name, error)
            self.report(lambda g=generation: self.machine.copied(g))  # type: ignore[misc]

    def _give(self, generation: Generation, council: Council) -> None:
        assert council.partner is not None
        packs = self._packs(generation)
        deposit = Deposit(
            protocol=PROTOCOL,
            url=self._url,
            node=council.node,
            facts=self._facts(generation),
            packs=_announced(packs),
            terms=generation.lead.terms,
            said=[said for _, said in generation.said],
            raw_nbytes=[each.raw_nbytes for _, each in sorted(generation.staged.items())],
        )
        link = connect_node(
            council.partner,
            name=council.session,
            secret=council.secret,
            deadline=Deadline.after(_CONNECT_S, "the partner node"),
            type=PeerMessage,
            max_body_bytes=MAX_MESSAGE_BYTES,
        )
        self._giving = (council.session, link)
        try:
            with link:
                if not council.lost:
                    give(link, deposit, lambda number: packs[number][1])
        finally:
            self._giving = None

    def tell_copied(self, name: SaveName, error: PerdureError | None) -> list[Action]:
        session, seq = name
        message = Reached(seq=seq, tier="peer", error=None if error is None else to_wire(error))
        return [Tell(each.id, message) for each in self.machine.sessions.ranks_of(session)]

    def tell_carried(self, name: SaveName, said: Reached | Notify) -> list[Action]:
        session, _ = name
        return [Tell(each.id, said) for each in self.machine.sessions.ranks_of(session)]

    def with_kept(self, own: list[GenerationFacts]) -> list[GenerationFacts]:
        """What can be restored from this agent: its own generations, and what it keeps for others."""
        found = {(each.session, each.seq): each for each in own}
        for ward in self._wards:
            mine = found.get(ward.save)
            base = replace(ward.facts, id=ward.id, ranks=[], kept=[]) if mine is None else mine
            more = [rank for rank in ward.facts.ranks if rank not in base.ranks]
            found[ward.save] = replace(base, ranks=sorted([*base.ranks, *more]), kept=sorted([*base.kept, *more]))
        return list(found.values())

    def kept(self, which: SaveName | int) -> list[tuple[Packed, Segment]]:
        """The packs that are kept for others of a save, named or by the id that `with_kept` gave it."""
        wards = list(self._wards)
        if isinstance(which, int):
            which = next((ward.save for ward in wards if ward.id == which), ("", 0))
        return [each for ward in wards if ward.save == which for each in ward.packs]

    # --- what a later session goes on from ---------------------------------------------------------------------------

    def adopt(self, client: Client, message: Adopt) -> list[Action]:
        """A session goes on from a save: make it durable, with what is kept of it for nodes that are gone."""
        if not message.session:
            return self.machine.adopted(client, message)
        try:
            packs = self._wards.adopt((message.session, message.seq), message.kept)
        except PerdureError as error:
            return self.machine.not_adopted(client, message, error)
        fostered = Fostered(
            epoch=message.epoch,
            base=message.base_slot,
            ranks=tuple(each.packed.index.rank for each in packs),
            said=tuple((each.packed.index.rank, each.said) for each in packs),
            raw_nbytes=sum(each.raw_nbytes for each in packs),
            terms=packs[0].terms if packs else None,
        )
        return self.machine.adopted(client, message, fostered)

    def fostered(self, generation: Generation) -> list[tuple[RankIndex, memoryview]]:
        """The packs that are to be made durable with a generation, for nodes that are gone."""
        if generation.fostered is None:
            return []
        packs = self._wards.adopt(generation.name, generation.fostered.ranks)
        return [(each.packed.index, each.view) for each in packs]

    def let_go(self, generation: Generation) -> None:
        """A generation is durable: what was kept for it need not be any more."""
        if generation.fostered is not None:
            self._wards.let_go(generation.name)

    # --- connections of other nodes ----------------------------------------------------------------------------------

    def _serve(self, link: NodeLink, first: object) -> None:
        council = self._councils.get(link.name)
        match first:
            case Member() if council is not None:
                council.admit(first, link)
            case Reader() if (first.protocol, first.url) == (PROTOCOL, self._url):
                serve_packs(link, self._held(first.save))
            case Deposit() if (first.protocol, first.url) == (PROTOCOL, self._url):
                with suppress(LinkLost):  # the giver is gone, and hears of it
                    self._wards.take(link, first)
            case _:
                raise ProtocolError(f"a connection of another node does not begin with a {type(first).__name__}")

    def _held(self, save: SaveName) -> list[tuple[Packed, memoryview]]:
        """The packs of a save that can be restored from here."""
        own = next((each for each in list(self.machine.generations) if each.name == save), None)
        packs: list[tuple[RankIndex, memoryview]] = []
        if own is not None and own.staged and own.whole and own.digested:
            with suppress(KeyError):  # it was given up just now
                packs += self._packs(own)
        packs += [(packed.index, view) for ward in self._wards.of(save) for packed, view in ward.views()]
        return list(zip(_announced(packs), [view for _, view in packs], strict=True))

    def _secret_of(self, session: str) -> bytes | None:
        council = self._councils.get(session)
        return None if council is None else council.secret


@dataclass(frozen=True, slots=True)
class _Session:
    """What the council of a session tells."""

    nodes: Nodes
    session: str

    def broken(self, name: SaveName, error: PerdureError) -> None:
        self.nodes.report(lambda: self.nodes.machine.broken(*name, error))

    def asked(self, name: SaveName, step: int) -> None:
        self.nodes.report(lambda: self.nodes.machine.asked(*name, step, by=self.session))

    def copied(self, name: SaveName, error: PerdureError | None) -> None:
        self.nodes.report(lambda: self.nodes.tell_copied(name, error))

    def carried(self, name: SaveName, said: Reached) -> None:
        self.nodes.report(lambda: self.nodes.tell_carried(name, said))

    def lost(self, error: AgentLost) -> None:
        self.nodes.report(lambda: self.nodes.disband(self.session, error))

    def look(self, proposed: int) -> int:
        page = self.nodes.page_of(self.session)
        return 0 if page is None else look(page, proposed)

    def firm(self, step: int) -> None:
        page = self.nodes.page_of(self.session)
        if page is not None:
            page.firm = step


def _announced(packs: Sequence[tuple[RankIndex, memoryview]]) -> list[Packed]:
    """What authenticated messages say of packs before their bytes come."""
    return [
        Packed(number=number, nbytes=view.nbytes, index=index, headers=headers_digest(index, view))
        for number, (index, view) in enumerate(packs)
    ]
