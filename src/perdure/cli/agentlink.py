"""How a launcher meets the agents of its job: the agent is of the checkpoint system, the launcher of the supervisor."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from perdure.checkpoint.link import socket_prefix
from perdure.checkpoint.messages import MAX_MESSAGE_BYTES, PROTOCOL, Hello, Message, Release
from perdure.clock import Deadline
from perdure.errors import PerdureError
from perdure.process.runtime_dir import runtime_dir
from perdure.progress import Page
from perdure.wire import Link, connect

__all__ = ["JobAgents", "connect_job"]

_POLL_S = 0.25
_HELLO_S = 0.5  # the launcher must notice deaths meanwhile; a busy agent is asked again


class JobAgents:
    """Connections to the agents that ranks of ``job`` started; while one is open its agent's lease does not run."""

    def __init__(self, job: str) -> None:
        self._job = job
        self._attempt = ""
        self._links: dict[Path, Link] = {}
        self._page: Page | None = None
        self._next_poll = 0.0

    def begin_attempt(self, attempt: str) -> None:
        """A new attempt starts: its page is not there yet."""
        self._attempt = attempt
        self._turn(None)
        self._next_poll = 0.0

    def page(self) -> Page | None:
        """The progress page of the current attempt, once an agent has one."""
        return self._page

    def poll(self) -> None:
        """Look for agents that ranks have started; cheap, and at most every quarter of a second."""
        now = time.monotonic()
        if now < self._next_poll:
            return
        self._next_poll = now + _POLL_S
        for path in runtime_dir().glob(f"{socket_prefix(self._job)}*.sock"):
            if path not in self._links or self._page is None:
                self._meet(path)
        for path, link in list(self._links.items()):
            try:
                link.feed()
            except PerdureError:
                link.close()
                del self._links[path]

    def release(self) -> None:
        """The job is over: agents may leave once they have drained."""
        for link in self._links.values():
            with contextlib.suppress(PerdureError):  # gone already, which is what is wanted
                link.send(Release(), deadline=Deadline.after(1.0, "the agent to hear that the job is over"))
            link.close()
        self._links.clear()
        self._turn(None)

    def _meet(self, path: Path) -> None:
        try:
            link = connect(path, deadline=Deadline(0.0, "the agent"), type=Message, max_body_bytes=MAX_MESSAGE_BYTES)
        except PerdureError:
            return  # a name that a dead agent left, or one that serves somebody else
        try:
            deadline = Deadline.after(_HELLO_S, "the agent to answer the launcher")
            link.send(
                Hello(protocol=PROTOCOL, role="launcher", job=self._job, attempt=self._attempt), deadline=deadline
            )
            welcome, fds = link.recv(deadline)
        except PerdureError:
            link.close()
            return
        if welcome.page:
            self._turn(Page.attach(fds[0]))
        old = self._links.pop(path, None)
        if old is not None:
            old.close()
        self._links[path] = link

    def _turn(self, page: Page | None) -> None:
        if self._page is not None:
            self._page.close()
        self._page = page


def connect_job(job: str) -> JobAgents:
    """The agents of ``job``, none of which need exist yet."""
    return JobAgents(job)
