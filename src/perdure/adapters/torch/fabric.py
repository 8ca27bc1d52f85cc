"""The process-group twin of `perdure.fabric`: ranks of a torch.distributed group of their own, over gloo.

A group of its own, so that no message of perdure can ever be taken for one of the training, and on the CPU whatever
the training uses. Only the calling thread uses it.

Theory. gloo cannot give a wait up: a receive that times out closes the connections to all ranks. So nobody waits in
gloo for a rank that may not come. Ranks say in torch's key-value store that they are there (to gather) or that they
have sent (a message), and wait in the store, which can be left at a deadline without harm; the bytes then go through
gloo between ranks that are known to be at it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

from perdure.clock import Deadline
from perdure.errors import LinkLost
from perdure.fabric.api import Bytes
from perdure.fabric.waiting import check_rank, gave_up, lost

__all__ = ["ProcessGroupFabric"]

_TAG = 7
_STORE_TIMEOUT_S = 30.0  # for what the store answers at once
_LEAST_S = 0.01  # a wait of no time at all is refused by the store


@dataclass(frozen=True, slots=True)
class _Sent:
    """A message that may not have been received yet: what gloo reads from must stay."""

    key: str
    work: dist.Work
    data: torch.Tensor


class ProcessGroupFabric:
    """Ranks of ``torch.distributed``; made by all of them together."""

    def __init__(self) -> None:
        self._group = dist.new_group(backend="gloo")
        self._rank = dist.get_rank()
        self._world = dist.get_world_size()
        # A connection of its own: a wait keeps others from using the same one.
        own = dist.distributed_c10d._get_default_store().clone()  # type: ignore[attr-defined]  # the stubs lack it
        own.set_timeout(timedelta(seconds=_STORE_TIMEOUT_S))
        self._store = PrefixStore(f"perdure/{self._group.group_name}", own)
        self._gathers = 0
        self._own: deque[bytes] = deque()
        self._sending: deque[_Sent] = deque()
        self._sent_to = [0] * self._world
        self._received_from = [0] * self._world

    @property
    def rank(self) -> int:
        """This rank."""
        return self._rank

    @property
    def world(self) -> int:
        """How many ranks there are."""
        return self._world

    def all_gather(self, data: Bytes, *, deadline: Deadline) -> list[bytes]:
        """Every rank's ``data``, in rank order. After it fails on a rank, it fails on those that come later too."""
        self._gathers += 1
        mine = _tensor(data)
        sizes = self._meet(mine.numel(), deadline)
        longest = max(sizes)
        if longest == 0:
            return [b""] * self._world
        padded = torch.zeros(longest, dtype=torch.uint8)
        padded[: mine.numel()] = mine
        out = [torch.empty(longest, dtype=torch.uint8) for _ in range(self._world)]
        everyone = list(range(self._world))
        self._finish(dist.all_gather(out, padded, group=self._group, async_op=True), deadline, everyone)
        return [each[:size].numpy().tobytes() for each, size in zip(out, sizes, strict=True)]

    def send(self, to: int, data: Bytes) -> None:
        """Hand ``data`` over to rank ``to``."""
        check_rank(to, self._world)
        if to == self._rank:
            self._own.append(bytes(data))
            return
        mine = _tensor(data)
        key = f"mail/{self._rank}/{to}/{self._sent_to[to]}"
        self._sent_to[to] += 1
        try:
            while self._sending and not self._store.check([self._sending[0].key]):
                self._sending.popleft()
            if mine.numel():
                work = dist.isend(mine, to, group=self._group, tag=_TAG)
                assert work is not None
                self._sending.append(_Sent(key, work, mine))
            self._store.set(key, str(mine.numel()))
        except RuntimeError as error:
            raise LinkLost(f"nothing can be sent to rank {to}: {error}", missing=[to]) from error

    def recv(self, source: int, *, deadline: Deadline) -> bytes:
        """The next message of rank ``source``."""
        check_rank(source, self._world)
        if source == self._rank:
            if not self._own:
                raise gave_up(deadline, [source])
            return self._own.popleft()
        key = f"mail/{source}/{self._rank}/{self._received_from[source]}"
        if not self._await([key], deadline):
            raise gave_up(deadline, [source])
        self._received_from[source] += 1
        data = torch.empty(int(self._store.get(key)), dtype=torch.uint8)
        if data.numel():
            self._finish(dist.irecv(data, source, group=self._group, tag=_TAG), deadline, [source])
        self._store.delete_key(key)
        return data.numpy().tobytes()

    def _meet(self, nbytes: int, deadline: Deadline) -> list[int]:
        """Wait until all ranks have come to this gather; how many bytes each brings."""
        number = self._gathers
        came = [f"gather/{number}/{rank}" for rank in range(self._world)]
        left = f"gather/{number}/left"
        try:
            self._store.set(came[self._rank], str(nbytes))
            if self._store.check([left]):
                gone = int(self._store.get(left))
                raise lost(deadline, [gone], "it came, and left at its deadline")
            if not self._await(came, deadline):
                self._store.set(left, str(self._rank))
                raise gave_up(deadline, [rank for rank, key in enumerate(came) if not self._store.check([key])])
            sizes = [int(size) for size in self._store.multi_get(came)]
            if number > 1:  # everybody has come here, so nobody looks at the gather before any more
                self._store.delete_key(f"gather/{number - 1}/{self._rank}")
        except RuntimeError as error:
            raise lost(deadline, [0], f"torch's store is gone: {error}") from error
        return sizes

    def _await(self, keys: list[str], deadline: Deadline) -> bool:
        """Whether all ``keys`` were set before the deadline."""
        try:
            self._store.wait(keys, timedelta(seconds=max(deadline.left(), _LEAST_S)))
        except RuntimeError as error:  # of a kind that differs between torch's stores
            if isinstance(error, dist.DistStoreError) or deadline.passed():
                return False
            raise lost(deadline, [0], f"torch's store is gone: {error}") from error
        return True

    def _finish(self, work: dist.Work | None, deadline: Deadline, ranks: list[int]) -> None:
        assert work is not None
        try:
            work.wait(timedelta(seconds=max(deadline.left(), _STORE_TIMEOUT_S)))
        except RuntimeError as error:
            raise lost(deadline, ranks, str(error)) from error


def _tensor(data: Bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if len(data) else torch.empty(0, dtype=torch.uint8)
