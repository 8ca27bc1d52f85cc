"""The fabric of a single process: a world of one rank, which can only talk to itself."""

from __future__ import annotations

from collections import deque

from perdure.clock import Deadline
from perdure.fabric.api import Bytes
from perdure.fabric.waiting import check_rank, gave_up

__all__ = ["SoloFabric"]


class SoloFabric:
    """A `Fabric` of one rank.

    >>> fabric = SoloFabric()
    >>> fabric.all_gather(b"me", deadline=Deadline.after(1.0, "a look around"))
    [b'me']
    """

    def __init__(self) -> None:
        self._messages: deque[bytes] = deque()

    @property
    def rank(self) -> int:
        return 0

    @property
    def world(self) -> int:
        return 1

    def all_gather(self, data: Bytes, *, deadline: Deadline) -> list[bytes]:
        return [bytes(data)]

    def send(self, to: int, data: Bytes) -> None:
        check_rank(to, 1)
        self._messages.append(bytes(data))

    def recv(self, source: int, *, deadline: Deadline) -> bytes:
        check_rank(source, 1)
        if not self._messages:
            # Nobody else could send, so there is no point in letting the deadline pass.
            raise gave_up(deadline, [0])
        return self._messages.popleft()
