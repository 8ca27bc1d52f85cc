"""A person's tool asks about jobs: the controller of a job if it has one, else the journal that it left.

Where a controller is: on this machine the job's folder says so and has the token (`JobFolder`); on another it is given,
with the token. One connection a question, so that nothing has to be kept.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from perdure.clock import SYSTEM, Clock, Deadline
from perdure.errors import CallError, DeadlineExceeded, LinkLost, NeedsPerson, PerdureError, ProtocolError
from perdure.supervisor import messages as m
from perdure.supervisor.folder import JobFolder, boot_id, jobs_in
from perdure.supervisor.job import State
from perdure.supervisor.journal import Journal
from perdure.supervisor.viewing import kept_view
from perdure.supervisor.vocabulary import Acknowledge, Asked, Drain, Mute, Uncordon
from perdure.wire import Address, NodeLink, connect_node

__all__ = ["Asker", "Seen", "askers_in"]

_CONNECT_S: Final = 2.0
_ANSWER_S: Final = 5.0
_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True)
class Seen:
    """A job as it is, or as its journal has it."""

    view: m.View
    live: bool
    "Whether its controller has said this just now."
    note: str = ""
    "Why it is not live, for people."


class Asker:
    """Asks about one job. Either ``folder`` (the job is, or was, on this machine) or ``address`` and ``secret``."""

    def __init__(
        self,
        name: str,
        *,
        folder: JobFolder | None = None,
        address: Address | None = None,
        secret: bytes | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        self.name = name
        self._folder, self._address, self._secret, self._clock = folder, address, secret, clock
        self._run = ""
        self._facts: tuple[m.Told, ...] = ()
        self._kept_view: tuple[object, m.View] | None = None  # a console looks every second, at many that are over

    def look(self, *, history: bool = True) -> Seen:
        """Return the job with all its facts, and with its moments if ``history``.

        Raises `CallError` if there is no such job, `NeedsPerson` if the token is not its own, `LinkLost` if there is
        neither a controller nor a journal.
        """
        since = self._facts[-1].number if self._facts else 0
        try:
            answer = self._ask(m.Look(since=since, history=history), m.Shown)
        except (LinkLost, DeadlineExceeded) as error:
            return self._kept(str(error), history=history)
        return Seen(self._whole(answer.view, since), live=True)

    def order(self, message: Asked | Drain | Uncordon | Mute | Acknowledge) -> None:
        """Give the controller an order. Raises `CallError` if it refuses or the job is over, `LinkLost` if there is no
        controller.
        """
        try:
            done = self._ask(message, m.Done)
        except LinkLost as error:
            if (ended := self._ended()) is not None:
                raise CallError(f"job {self.name} is over: {ended.value}", job=self.name) from error
            raise
        if done.error:
            raise CallError(done.error, job=self.name)

    def listening(self) -> bool:
        """Whether the job has a controller that answers."""
        try:
            self._connect().close()
        except PerdureError:
            return False
        return True

    def _whole(self, view: m.View, since: int) -> m.View:
        """``view`` with the facts up to number ``since``, which are known already if it is the same run."""
        known = [told for told in self._facts if told.number <= since] if view.job.run == self._run else []
        self._run, self._facts = view.job.run, (*known, *view.facts)
        return msgspec.structs.replace(view, facts=self._facts)

    def _ask(self, message: Any, answer: type[Any]) -> Any:
        link = self._connect()
        deadline = Deadline.after(_ANSWER_S, f"the controller of job {self.name} to answer", clock=self._clock)
        try:
            link.send(message, deadline=deadline)
            while True:
                found, _ = link.recv(deadline)
                if isinstance(found, answer):
                    return found
                if not isinstance(found, m.Tell | m.Beat | m.Memo | m.Release):
                    raise ProtocolError(f"the controller answered {type(found).__name__} to {type(message).__name__}")
        finally:
            link.close()

    def _connect(self) -> NodeLink:
        address, secret = self._door()
        _knock(address, self.name)
        deadline = Deadline.after(_ANSWER_S, f"the controller of job {self.name} to answer", clock=self._clock)
        link: NodeLink | None = None
        try:
            link = connect_node(
                address,
                name=self.name,
                secret=secret,
                deadline=deadline,
                type=m.Down,
                max_body_bytes=m.MAX_MESSAGE_BYTES,
            )
            link.send(m.Hello(protocol=m.PROTOCOL, job=self.name), deadline=deadline)
            welcome, _ = link.recv(deadline)
        except BaseException as error:
            if link is not None:
                link.close()
            if self._address is None or not isinstance(error, LinkLost):
                raise
            raise NeedsPerson(
                f"who listens at {address[0]}:{address[1]} does not take us for a tool of job {self.name}: see that "
                "the name and the token are those of the job"
            ) from error
        if isinstance(welcome, m.Refused):
            link.close()
            raise CallError(welcome.sentence, job=self.name)
        return link

    def _door(self) -> tuple[Address, bytes]:
        if self._address is not None and self._secret is not None:
            return self._address, self._secret
        assert self._folder is not None
        where = self._folder.where()
        if where is None:
            raise LinkLost(f"job {self.name} has no controller")
        if where.host in _LOOPBACK and where.machine != boot_id():
            raise LinkLost(f"the controller of job {self.name} is on another machine, or was before this one restarted")
        return (where.host, where.port), self._folder.token()

    def _kept(self, why: str, *, history: bool) -> Seen:
        """The job as its journal has it."""
        if self._folder is None:
            raise LinkLost(f"{why}; where its journal is, perdure job shows the job without a controller")
        if not self._folder.journal.exists():
            raise CallError(f"there is no job {self.name} here ({self._folder.path})", job=self.name)
        as_it_is = _written(self._folder.journal)
        if self._kept_view is None or self._kept_view[0] != (as_it_is, history):
            self._kept_view = ((as_it_is, history), self._read(self._folder.journal, history=history))
        view = self._kept_view[1]
        if view.job.state.final:
            return Seen(view, live=False, note=f"the job is over: {view.job.state.value}")
        return Seen(view, live=False, note=f"{why}; this is what its journal has. Start it again to go on")

    def _ended(self) -> State | None:
        """How the job ended, if it is known here to be over."""
        if self._folder is None or not self._folder.journal.exists():
            return None
        journal = Journal(self._folder.journal, write=False)
        try:
            kept = journal.newest()
        finally:
            journal.close()
        return kept.job.state if kept is not None and kept.job.state.final else None

    def _read(self, path: Path, *, history: bool) -> m.View:
        journal = Journal(path, write=False)
        try:
            kept = journal.newest()
            if kept is None:
                raise CallError(f"job {self.name} has not begun yet", job=self.name)
            moments = journal.moments(kept.job.run)
            return kept_view(kept, journal.facts(kept.job.run), moments if history else (), until=moments[-1].at)
        finally:
            journal.close()


def _written(journal: Path) -> tuple[tuple[int, int] | None, ...]:
    """What changes when the journal does."""
    found: list[tuple[int, int] | None] = []
    for path in (journal, journal.with_name(journal.name + "-wal")):
        try:
            facts = os.stat(path)
            found.append((facts.st_mtime_ns, facts.st_size))
        except FileNotFoundError:
            found.append(None)
    return tuple(found)


def _knock(address: Address, job: str) -> None:
    """Raise `LinkLost` if nobody listens at ``address``."""
    try:
        socket.create_connection(address, timeout=_CONNECT_S).close()
    except OSError as error:
        raise LinkLost(
            f"the controller of job {job} is not there: {address[0]}:{address[1]} says {error.strerror or error}"
        ) from error


def askers_in(home: Path) -> list[Asker]:
    """One for each job that has a folder below ``home``."""
    return [Asker(name, folder=JobFolder(home, name)) for name in jobs_in(home)]
