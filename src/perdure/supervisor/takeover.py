"""Another controller, when the node of the first one is gone.

Launchers answer each other at a *door*: have you a controller, and what is the newest memo that you know? A launcher
that has lost its controller for longer than the lease asks all of the roster. If somebody has one, it goes there. If
more than half of the roster (itself included) have none, the first of those in the roster starts one, from the newest
memo among them, with the next term. So two halves that cannot hear each other never both have one; and the old
controller, should it still run, starts no attempt with less than half of the roster (`perdure.supervisor.machine`).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from perdure.clock import Deadline
from perdure.errors import PerdureError
from perdure.supervisor.messages import MAX_MESSAGE_BYTES, Memo, Where, WhereAnswer
from perdure.wire import Address, accept_node, connect_node, listen_node

__all__ = ["Choice", "Door", "Succession", "Survey", "decide"]

_ASK_S: Final = 1.0
_GREET_S: Final = 2.0


class Door:
    """Where a launcher answers others. ``answer`` may be set from any thread; a thread of its own serves."""

    def __init__(self, host: str, *, job: str, secret: bytes) -> None:
        self._job, self._secret = job, secret
        self._listener = listen_node(host)
        self.answer = WhereAnswer(term=0)
        threading.Thread(target=self._serve, name="perdure-door", daemon=True).start()

    @property
    def port(self) -> int:
        """The port at which it listens."""
        return int(self._listener.getsockname()[1])

    def close(self) -> None:
        """No more answers."""
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return  # closed
            try:
                deadline = Deadline.after(_GREET_S, "a launcher's question")
                with accept_node(
                    sock, self._secret_of, deadline=deadline, type=Where, max_body_bytes=MAX_MESSAGE_BYTES
                ) as link:
                    link.recv(deadline)
                    link.send(self.answer, deadline=deadline)
            except (PerdureError, OSError):
                sock.close()  # not of this job, or gone

    def _secret_of(self, name: str) -> bytes | None:
        return self._secret if name == self._job else None


class Survey:
    """Asks the doors of ``roster`` (name to door), on threads of its own; `answers` is complete once it is `over`."""

    def __init__(self, roster: Mapping[str, Address], *, job: str, secret: bytes, term: int) -> None:
        self.answers: dict[str, WhereAnswer] = {}
        self._threads = [
            threading.Thread(target=self._ask, args=(name, door, job, secret, term), name="perdure-survey", daemon=True)
            for name, door in roster.items()
        ]
        for thread in self._threads:
            thread.start()

    @property
    def over(self) -> bool:
        """Whether all have answered, or will not."""
        return not any(thread.is_alive() for thread in self._threads)

    def _ask(self, name: str, door: Address, job: str, secret: bytes, term: int) -> None:
        try:
            deadline = Deadline.after(_ASK_S, f"an answer of node {name}")
            with connect_node(
                door, name=job, secret=secret, deadline=deadline, type=WhereAnswer, max_body_bytes=MAX_MESSAGE_BYTES
            ) as link:
                link.send(Where(term=term), deadline=deadline)
                answer, _ = link.recv(deadline)
                self.answers[name] = answer
        except (PerdureError, OSError):
            pass  # it cannot be reached, which is an answer too


@dataclass(frozen=True, slots=True)
class Choice:
    """Go to the controller at ``address``, or start one from ``memo``, or (neither) ask again later."""

    address: Address | None = None
    memo: Memo | None = None


def decide(me: str, roster: Sequence[str], answers: Mapping[str, WhereAnswer], mine: Memo) -> Choice:
    """Return what launcher ``me``, which has no controller and knows the memo ``mine``, does after a survey.

    ``answers`` are those of the others of ``roster`` that could be reached.
    """
    linked = [answer for answer in answers.values() if answer.address is not None and answer.term >= mine.job.term]
    if linked:
        return Choice(address=max(linked, key=lambda answer: answer.term).address)
    without = [name for name in roster if name == me or name in answers]
    if 2 * len(without) <= len(roster) or without[0] != me:
        return Choice()
    memos = [mine, *(answer.memo for answer in answers.values() if answer.memo is not None)]
    return Choice(memo=max(memos, key=lambda memo: (memo.job.term, memo.number)))


class Succession:
    """What one launcher does for the next controller: it answers at its door, and asks the others when its own is lost.

    ``memo`` is the newest that its controller has sent.
    """

    def __init__(self, me: str, host: str, *, job: str, secret: bytes) -> None:
        self._me, self._job, self._secret = me, job, secret
        self._door = Door(host, job=job, secret=secret)
        self._survey: Survey | None = None
        self.memo: Memo | None = None

    @property
    def port(self) -> int:
        """The port of its door."""
        return self._door.port

    def look(self, *, term: int, address: Address | None, lost: bool) -> Choice:
        """Tell who asks of ``term`` and ``address``, the controller's if there is one; say what is to be done about
        one that is ``lost`` for longer than the lease. To be called again and again: the others are asked meanwhile.
        """
        memo = self.memo
        self._door.answer = WhereAnswer(term=term, address=address, memo=memo)
        if not lost or memo is None:
            self._survey = None
            return Choice()
        if self._survey is None:
            others = {node.name: node.door for node in memo.roster if node.door[1] and node.name != self._me}
            self._survey = Survey(others, job=self._job, secret=self._secret, term=term)
        if not self._survey.over:
            return Choice()
        answers, self._survey = self._survey.answers, None
        return decide(self._me, [node.name for node in memo.roster], answers, memo)

    def close(self) -> None:
        """Answer nobody any more."""
        self._door.close()
