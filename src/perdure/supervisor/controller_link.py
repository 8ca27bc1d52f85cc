"""A launcher's link to the controller of its job: find it, keep it, notice when it is dead and when it is only silent.

*Dead* means that its port refuses: nobody orders anything, and whoever comes next will ask what runs here. *Silent*
means that nothing is heard: it may well be alive and give this node's place to another.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from typing import Any, Final

from perdure.clock import SYSTEM, Clock, Deadline
from perdure.errors import PerdureError
from perdure.supervisor import messages as m
from perdure.wire import Address, NodeLink, connect_node

__all__ = ["ControllerLink"]

_CONNECT_S: Final = 0.5
_ANSWER_S: Final = 3.0
_MESSAGE_S: Final = 2.0
_RETRY_S: Final = 0.1


class ControllerLink:
    """One at a time. ``hello`` says what to introduce oneself with, ``addresses`` where a controller may be."""

    def __init__(
        self,
        *,
        job: str,
        secret: bytes,
        hello: Callable[[int], m.Hello],
        addresses: Callable[[], list[Address]],
        clock: Clock = SYSTEM,
    ) -> None:
        self._job, self._secret, self._hello, self._addresses, self._clock = job, secret, hello, addresses, clock
        self._link: NodeLink | None = None
        self._address: Address | None = None
        self._next_try_s = 0.0
        self.welcome: m.Welcome | None = None
        self.refused: m.Refused | None = None
        self.heard_s = self.lost_s = clock.monotonic()
        "When a sign of life came last; when the link was lost."
        self.dead = True
        "Whether nobody listens where the controller was."
        self.term = 0
        self.trouble = ""
        "Why there is no link, as far as is known."
        self.beat = m.Beat()
        "The last sign of life."

    @property
    def address(self) -> Address | None:
        """Where the controller is that it is linked with."""
        return self._address if self._link is not None else None

    @property
    def linked(self) -> bool:
        """Whether there is a controller."""
        return self._link is not None

    def fileno(self) -> int:
        """A descriptor to wait on; -1 while there is no link."""
        return -1 if self._link is None else self._link.fileno()

    def silent_s(self) -> float:
        """For how long nothing has been heard."""
        return self._clock.monotonic() - self.heard_s

    def lost_for_s(self) -> float:
        """For how long there has been no link; 0 while there is one."""
        return 0.0 if self._link is not None else self._clock.monotonic() - self.lost_s

    def poll(self) -> list[Any]:
        """Connect if there is no link and it is time to try; return what the controller has said."""
        if self._link is None:
            now = self._clock.monotonic()
            if now < self._next_try_s:
                return []
            self._next_try_s = now + _RETRY_S
            return self._connect()
        found = []
        try:
            while self._link.readable(0.0):
                message, _ = self._link.recv(Deadline.after(_MESSAGE_S, "the rest of a message"))
                self.heard_s = self._clock.monotonic()
                if isinstance(message, m.Beat):
                    self.beat = message
                else:
                    found.append(message)
        except (PerdureError, OSError):
            self.drop()
        return found

    def send(self, message: Any) -> bool:
        """Send ``message``; False if there is no link, or not any more."""
        if self._link is None:
            return False
        try:
            self._link.send(message, deadline=Deadline.after(_MESSAGE_S, "the controller to take a message"))
            return True
        except (PerdureError, OSError):
            self.drop()
            return False

    def drop(self) -> None:
        """Let the link go; `poll` connects again."""
        if self._link is not None:
            self._link.close()
            self._link = None
            self.lost_s = self._clock.monotonic()
            self._next_try_s = 0.0

    def _connect(self) -> list[Any]:
        dead = True
        for address in self._addresses():
            where = f"{address[0]}:{address[1]}"
            try:
                if not _listens(address):
                    self.trouble = self.trouble or f"nobody listens at {where}"
                    continue
                dead = False
                return self._introduce(address)
            except PerdureError:
                dead = False
                self.trouble = (
                    f"whoever listens at {where} closes the connection: it is no controller of job {self._job}, or the "
                    "token is another than its own (PERDURE_TOKEN, --token-file)"
                )
            except OSError as error:
                dead = False
                self.trouble = f"{where} cannot be reached: {error.strerror or error}"
        self.dead = dead
        return []

    def _introduce(self, address: Address) -> list[Any]:
        link = connect_node(
            address,
            name=self._job,
            secret=self._secret,
            deadline=Deadline.after(_CONNECT_S, "the controller"),
            type=m.Down,
            max_body_bytes=m.MAX_MESSAGE_BYTES,
        )
        try:
            deadline = Deadline.after(_ANSWER_S, "the controller to answer")
            link.send(self._hello(self.term), deadline=deadline)
            answer, _ = link.recv(deadline)
        except BaseException:
            link.close()
            raise
        if isinstance(answer, m.Refused):
            self.refused = answer
            link.close()
            return []
        if not isinstance(answer, m.Welcome) or answer.term < self.term:
            link.close()  # an older controller than one that was obeyed already
            return []
        self.welcome, self.term, self.refused, self.dead = answer, answer.term, None, False
        self._link, self._address = link, address
        self.heard_s = self._clock.monotonic()
        return [answer]


def _listens(address: Address) -> bool:
    """Whether somebody may listen at ``address``: False if the port refuses. Raises `OSError` if nothing is known."""
    try:
        socket.create_connection(address, timeout=_CONNECT_S).close()
        return True
    except OSError as error:
        if error.errno == errno.ECONNREFUSED:
            return False
        raise
