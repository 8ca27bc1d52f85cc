"""Where all ranks of an attempt meet for the first time: one session name, the run's folder, the agent, the page.

Either all ranks use the agent or none does: a step that some hand to it and others write by themselves would never be
whole. Without an agent the ranks of the node still share a progress page, for the agreement on where to stop.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from perdure.checkpoint.config import Deadlines
from perdure.checkpoint.link import AgentLink
from perdure.checkpoint.messages import PROTOCOL, Hello
from perdure.clock import Deadline
from perdure.errors import AgentLost, CallError, PerdureError, ProtocolError, from_wire, to_wire
from perdure.events import Fact, Notice
from perdure.fabric import Fabric
from perdure.process.environ import Placement
from perdure.progress import Page
from perdure.store import Run

__all__ = ["Meeting", "Met"]


@dataclass(frozen=True, slots=True)
class Met:
    """What came of it. ``run`` is set on rank 0, ``page`` where there is more than one rank or an agent."""

    session: str
    run: Run | None
    link: AgentLink | None
    page: Page | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """What each rank brings along. ``start_agent`` is the command that starts the node's agent, None to do without."""

    url: str
    open_run: Callable[[], Run]
    fabric: Fabric
    placement: Placement
    start_agent: Sequence[str] | None
    deadlines: Deadlines
    on_message: Callable[[Any], None]
    on_lost: Callable[[AgentLost], None]
    tell: Callable[[Fact], None]

    def hold(self) -> Met:
        """Meet; every rank calls it. Raises alike on every rank."""
        place = self.placement
        if place.world != place.local_world:
            raise CallError("this release saves ranks of one node; ranks of several nodes need a later one")
        run: Run | None = None
        proposal: dict[str, Any] = {}
        if self.fabric.rank == 0:
            try:
                run = self.open_run()
                proposal = {"session": uuid.uuid4().hex, "run": run.marker.run}
            except PerdureError as error:
                proposal = {"error": to_wire(error)}
        said = self._gather(proposal, "all ranks to open the run")[0]
        if "error" in said:
            raise from_wire(said["error"])
        session: str = said["session"]
        link = None if self.start_agent is None else self._meet_agent(session, said["run"])
        page = link.page if link is not None else self._share_page()
        return Met(session, run, link, page)

    def _meet_agent(self, session: str, run_id: str) -> AgentLink | None:
        place = self.placement
        hello = Hello(
            protocol=PROTOCOL,
            role="rank",
            job=place.job,
            url=self.url,
            attempt=place.attempt_id if place.mark else session,  # else two attempts of one name would share a page
            session=session,
            run=run_id,
            rank=self.fabric.rank,
            world=self.fabric.world,
            local_rank=place.local_rank,
            local_world=place.local_world,
        )
        link, problem = None, None
        try:
            link = AgentLink.open(
                hello,
                start=self.start_agent,
                deadline=Deadline.after(self.deadlines.agent_s, "the node's agent to start"),
                on_message=self.on_message,
                on_lost=self.on_lost,
            )
        except PerdureError as error:
            problem = str(error)
        problems = [each for each in self._gather(problem, "all ranks to meet the node's agent") if each is not None]
        if not problems:
            return link
        if link is not None:
            link.close()
        self.tell(Notice(text=f"saving without an agent: {problems[0]}"))
        return None

    def _share_page(self) -> Page | None:
        """Let local rank 0 make a page and the others map it; None unless all of them could."""
        place = self.placement
        if self.fabric.world == 1:
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
