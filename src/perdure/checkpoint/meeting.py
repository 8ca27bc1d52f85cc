"""Where all ranks of an attempt meet for the first time: one session name, the run's folder, the agent, the page.

Either all ranks use the agent or none does: a step that some hand to it and others write by themselves would never be
whole. Without an agent the ranks of the node still share a progress page, for the agreement on where to stop.
"""

from __future__ import annotations

import os
import platform
import secrets
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from perdure.checkpoint.config import Deadlines
from perdure.checkpoint.link import AgentLink
from perdure.checkpoint.messages import PROTOCOL, Bounds, Hello, Join
from perdure.checkpoint.partners import partners
from perdure.clock import Deadline
from perdure.errors import AgentLost, PerdureError, ProtocolError, from_wire, to_wire
from perdure.events import Fact, Notice
from perdure.fabric import Fabric
from perdure.process.environ import Placement
from perdure.progress import Page
from perdure.store import Run
from perdure.wire import Address, own_address

__all__ = ["Meeting", "Met", "Peers"]


@dataclass(frozen=True, slots=True)
class Met:
    """What came of it. ``run`` is set on rank 0, ``page`` where there is more than one rank or an agent.

    ``placement`` counts nodes and the ranks on each as they were found to be, whatever the launcher called them.
    """

    session: str
    run: Run | None
    link: AgentLink | None
    page: Page | None
    placement: Placement
    peers: Peers | None = None


@dataclass(frozen=True, slots=True)
class Peers:
    """How the agents of all nodes of a session are reached, in the order of nodes; ``names`` are for people."""

    session: str
    secret: bytes
    addresses: tuple[Address, ...]
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """What each rank brings along. ``start_agent`` is the command that starts the node's agent, None to do without."""

    url: str
    open_run: Callable[[], Run]
    fabric: Fabric
    placement: Placement
    start_agent: Sequence[str] | None
    bounds: Bounds
    deadlines: Deadlines
    on_message: Callable[[Any], None]
    on_lost: Callable[[AgentLost], None]
    tell: Callable[[Fact], None]

    def hold(self) -> Met:
        """Meet; every rank calls it. Raises alike on every rank."""
        run: Run | None = None
        proposal: dict[str, Any] = {
            "node": self.placement.node_id,
            "name": self.placement.node_name or platform.node(),
            "domain": self.placement.failure_domain,
        }
        if self.fabric.rank == 0:
            try:
                run = self.open_run()
                proposal |= {"session": uuid.uuid4().hex, "run": run.marker.run, "secret": secrets.token_hex(32)}
            except PerdureError as error:
                proposal |= {"error": to_wire(error)}
        told = self._gather(proposal, "all ranks to open the run")
        said = told[0]
        if "error" in said:
            raise from_wire(said["error"])
        session: str = said["session"]
        nodes = _grouped([each["node"] for each in told])
        place = _placed(self.placement, nodes, self.fabric.rank)
        link, peers = None, None
        if self.start_agent is not None:
            link = self._meet_agent(place, session, said["run"])
            if link is not None and len(nodes) > 1:
                domains = [told[ranks[0]]["domain"] for ranks in nodes]
                every = partners(domains)
                partner = every[place.node]
                if any(domains[node] == domains[each] for node, each in enumerate(every)):
                    text = "copies of some nodes stay in their own failure domain (PERDURE_DOMAIN): no other has room"
                    self.tell(Notice(text=text))
                names = [told[ranks[0]]["name"] for ranks in nodes]
                link, addresses = self._meet_nodes(place, link, names, said["secret"], partner)
                peers = Peers(session, bytes.fromhex(said["secret"]), addresses, tuple(names))
        page = link.page if link is not None else self._share_page(place, len(nodes))
        return Met(session, run, link, page, place, peers if link is not None else None)

    def _meet_agent(self, place: Placement, session: str, run_id: str) -> AgentLink | None:
        hello = Hello(
            protocol=PROTOCOL,
            role="rank",
            job=place.agent_job,
            url=self.url,
            attempt=place.attempt_id if place.mark else session,  # else two attempts of one name would share a page
            session=session,
            run=run_id,
            rank=self.fabric.rank,
            world=self.fabric.world,
            local_rank=place.local_rank,
            local_world=place.local_world,
            bounds=self.bounds,
        )
        link, problem = None, None
        try:
            link = AgentLink.open(
                hello,
                start=self.start_agent,
                deadline=Deadline.after(self.deadlines.agent_s, "the node's agent to start"),
                silent_s=self.deadlines.silent_s,
                on_message=self.on_message,
                on_lost=self.on_lost,
            )
        except PerdureError as error:
            problem = str(error)
        return self._all_or_none(link, problem)

    def _all_or_none(self, link: AgentLink | None, problem: str | None) -> AgentLink | None:
        """The link, if no rank has a problem with its own."""
        problems = [each for each in self._gather(problem, "all ranks to meet the node's agent") if each is not None]
        if not problems:
            return link
        if link is not None:
            link.close()
        self.tell(Notice(text=f"saving without an agent: {problems[0]}"))
        return None

    def _meet_nodes(
        self, place: Placement, link: AgentLink, names: Sequence[str], secret: str, partner: int
    ) -> tuple[AgentLink | None, tuple[Address, ...]]:
        """Let the agents of all nodes meet; local rank 0 of each node speaks with its own."""
        problem: str | None = None
        mine: Address | None = None
        speaks = place.local_rank == 0
        within_s = self.deadlines.agent_s
        try:
            if speaks:
                host = own_address(place.master_addr)
                join = Join(
                    node=place.node,
                    nodes=len(names),
                    secret=secret,
                    host=host,
                    commit_s=self.deadlines.commit_s,
                    silent_s=self.deadlines.silent_s,
                )
                mine = (host, link.join(join, Deadline.after(within_s, "the node's agent to listen")))
        except PerdureError as error:
            problem = str(error)
        told = self._gather([place.node, mine], "all ranks to tell their agents' addresses")
        found: dict[int, Address] = {node: (str(at[0]), int(at[1])) for node, at in told if at is not None}
        addresses = tuple(found[node] for node in sorted(found))
        try:
            if speaks and problem is None and len(addresses) == len(names):
                deadline = Deadline.after(within_s, "the agents of all nodes to meet")
                link.introduce(addresses, names, partner, deadline)
        except PerdureError as error:
            problem = str(error)
        return self._all_or_none(link, problem), addresses

    def _share_page(self, place: Placement, nodes: int) -> Page | None:
        """Let local rank 0 make a page and the others map it; None unless all of them could."""
        if self.fabric.world == 1 or nodes > 1:  # of several nodes none can stop alone
            return None
        page: Page | None = Page.create(place.local_world) if place.local_rank == 0 else None
        made = self._gather(None if page is None else [os.getpid(), page.fd], "all ranks to share a page")
        pid, fd = next(each for each in made if each is not None)
        if page is None:
            try:
                page = Page.attach(os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR | os.O_CLOEXEC))
            except (OSError, ProtocolError):
                page = None  # another user, or no /proc: then each rank stops as it is told, alone
        return page if all(self._gather(page is not None, "all ranks to share a page")) else None

    def _gather(self, value: Any, what: str) -> list[Any]:
        told = self.fabric.all_gather(msgspec.json.encode(value), deadline=Deadline.after(self.deadlines.agree_s, what))
        return [msgspec.json.decode(each) for each in told]


def _grouped(node_ids: Sequence[str]) -> list[list[int]]:
    """The ranks of each node, by the identities that ranks give of their nodes; nodes in the order of their first
    ranks.

    >>> _grouped(["b", "b", "a", "b"])
    [[0, 1, 3], [2]]
    """
    found: dict[str, list[int]] = {}
    for rank, node in enumerate(node_ids):
        found.setdefault(node, []).append(rank)
    return list(found.values())


def _placed(placement: Placement, nodes: Sequence[Sequence[int]], rank: int) -> Placement:
    node = next(number for number, ranks in enumerate(nodes) if rank in ranks)
    return replace(placement, node=node, local_rank=nodes[node].index(rank), local_world=len(nodes[node]))
