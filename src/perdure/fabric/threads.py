"""A fabric whose ranks are threads of one process: the twin that tests and examples run on.

All state is in one `_Hub` under one condition. A rank that returns or raises is gone: whoever waits for it, then or
later, is told at once instead of waiting for its deadline; what it sent before can still be received.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from perdure.clock import Deadline
from perdure.errors import DeadlineExceeded, LinkLost
from perdure.fabric.api import Bytes
from perdure.fabric.waiting import check_rank, gave_up, lost

__all__ = ["ThreadsFabric", "run"]

Result = TypeVar("Result")

# How often a waiting thread looks at its deadline's clock, which may be a fake one.
_GLANCE_S = 0.05


class _Hub:
    """What the ranks of one run share."""

    def __init__(self, world: int) -> None:
        self.world = world
        self.changed = threading.Condition()
        self.mail: dict[tuple[int, int], deque[bytes]] = {}
        self.gathers: dict[int, dict[int, bytes]] = {}
        self.taken: dict[int, int] = {}
        self.gone: dict[int, str] = {}

    def leave(self, rank: int, why: str) -> None:
        with self.changed:
            self.gone[rank] = why
            self.changed.notify_all()

    def wait(self, missing: Callable[[], list[int]], deadline: Deadline) -> None:
        """Wait, holding the condition, until nobody is missing."""
        while ranks := missing():
            absent = [rank for rank in ranks if rank in self.gone]
            if absent:
                raise lost(deadline, absent, self.gone[absent[0]])
            if deadline.passed():
                raise gave_up(deadline, ranks)
            self.changed.wait(min(deadline.left(), _GLANCE_S))


class ThreadsFabric:
    """The `Fabric` of one rank of `run`."""

    def __init__(self, rank: int, hub: _Hub) -> None:
        self._rank = rank
        self._hub = hub
        self._gathers = 0

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def world(self) -> int:
        return self._hub.world

    def all_gather(self, data: Bytes, *, deadline: Deadline) -> list[bytes]:
        hub, number = self._hub, self._gathers
        self._gathers += 1
        with hub.changed:
            given = hub.gathers.setdefault(number, {})
            given[self._rank] = bytes(data)
            hub.changed.notify_all()
            hub.wait(lambda: [rank for rank in range(hub.world) if rank not in given], deadline)
            hub.taken[number] = hub.taken.get(number, 0) + 1
            if hub.taken[number] == hub.world:
                del hub.gathers[number], hub.taken[number]
            return [given[rank] for rank in range(hub.world)]

    def send(self, to: int, data: Bytes) -> None:
        check_rank(to, self._hub.world)
        with self._hub.changed:
            self._hub.mail.setdefault((self._rank, to), deque()).append(bytes(data))
            self._hub.changed.notify_all()

    def recv(self, source: int, *, deadline: Deadline) -> bytes:
        check_rank(source, self._hub.world)
        with self._hub.changed:
            messages = self._hub.mail.setdefault((source, self._rank), deque())
            self._hub.wait(lambda: [] if messages else [source], deadline)
            return messages.popleft()


def run(world: int, work: Callable[[ThreadsFabric], Result], *, timeout_s: float = 60.0) -> list[Result]:
    """Run ``work`` as each of ``world`` ranks, each in a thread of its own; return their results in rank order.

    >>> run(3, lambda fabric: fabric.all_gather(b"%d" % fabric.rank, deadline=Deadline.after(5.0, "roll call")))[0]
    [b'0', b'1', b'2']

    If ranks raise, the others that wait for them get `LinkLost`, and the error of the first rank that failed of itself
    is raised here. Raises `DeadlineExceeded`, naming the ranks, if some are still at work after ``timeout_s``; their
    threads are daemons and are left behind.
    """
    hub = _Hub(world)
    results: dict[int, Result] = {}
    errors: list[Exception] = []

    def be(rank: int) -> None:
        try:
            results[rank] = work(ThreadsFabric(rank, hub))
        except Exception as error:  # not swallowed: raised by `run` below
            errors.append(error)
            hub.leave(rank, f"it failed with {type(error).__name__}: {error}")
        else:
            hub.leave(rank, "it has returned")

    threads = [threading.Thread(target=be, args=(rank,), name=f"rank {rank}", daemon=True) for rank in range(world)]
    deadline = Deadline.after(timeout_s, f"{world} ranks in threads")
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(deadline.left())
    # Before anything else: an error explains why others may still wait.
    if errors:
        raise next((error for error in errors if not isinstance(error, LinkLost | DeadlineExceeded)), errors[0])
    late = [rank for rank, thread in enumerate(threads) if thread.is_alive()]
    if late:
        raise gave_up(deadline, late)
    return [results[rank] for rank in range(world)]
