"""The process-group twin of `perdure.fabric`: ranks of a torch.distributed group of their own, over gloo.

A group of its own, so that no message of perdure can ever be taken for one of the training, and on the CPU whatever
the training uses. Only the calling thread uses it.
"""

from __future__ import annotations

from collections import deque
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

from perdure.clock import Deadline
from perdure.fabric.api import Bytes
from perdure.fabric.waiting import check_rank, gave_up, lost

__all__ = ["ProcessGroupFabric"]

_TAG = 7


class ProcessGroupFabric:
    """Ranks of ``torch.distributed``; made by all of them together. Gathers are two rounds: sizes, then bytes.

    Who has come to a gather is noted in torch's own store, so that a deadline can name who has not.
    """

    def __init__(self) -> None:
        self._group = dist.new_group(backend="gloo")
        self._rank = dist.get_rank()
        self._world = dist.get_world_size()
        self._store = PrefixStore("perdure", dist.distributed_c10d._get_default_store())
        self._gathers = 0
        self._own: deque[bytes] = deque()
        self._sending: list[tuple[dist.Work, torch.Tensor]] = []

    @property
    def rank(self) -> int:
        """This rank."""
        return self._rank

    @property
    def world(self) -> int:
        """How many ranks there are."""
        return self._world

    def all_gather(self, data: Bytes, *, deadline: Deadline) -> list[bytes]:
        """Every rank's ``data``, in rank order."""
        self._gathers += 1
        self._store.set(self._came(self._rank), "1")
        mine = _tensor(data)
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self._world)]
        group = self._group
        self._wait(dist.all_gather(sizes, torch.tensor([mine.numel()]), group=group, async_op=True), deadline)
        longest = max(1, *(int(size) for size in sizes))
        padded = torch.zeros(longest, dtype=torch.uint8)
        padded[: mine.numel()] = mine
        out = [torch.empty(longest, dtype=torch.uint8) for _ in range(self._world)]
        self._wait(dist.all_gather(out, padded, group=group, async_op=True), deadline)
        return [each[: int(size)].numpy().tobytes() for each, size in zip(out, sizes, strict=True)]

    def send(self, to: int, data: Bytes) -> None:
        """Hand ``data`` over to rank ``to``."""
        check_rank(to, self._world)
        if to == self._rank:
            self._own.append(bytes(data))
            return
        self._sending = [(work, tensor) for work, tensor in self._sending if not work.is_completed()]
        mine = _tensor(data)
        for each in (torch.tensor([mine.numel()]), mine)[: 2 if mine.numel() else 1]:
            work = dist.isend(each, to, group=self._group, tag=_TAG)
            assert work is not None
            self._sending.append((work, each))

    def recv(self, source: int, *, deadline: Deadline) -> bytes:
        """The next message of rank ``source``."""
        check_rank(source, self._world)
        if source == self._rank:
            if not self._own:
                raise gave_up(deadline, [source])
            return self._own.popleft()
        size = torch.zeros(1, dtype=torch.int64)
        self._wait(dist.irecv(size, source, group=self._group, tag=_TAG), deadline, missing=[source])
        data = torch.empty(int(size), dtype=torch.uint8)
        if data.numel():
            self._wait(dist.irecv(data, source, group=self._group, tag=_TAG), deadline, missing=[source])
        return data.numpy().tobytes()

    def _wait(self, work: dist.Work | None, deadline: Deadline, missing: list[int] | None = None) -> None:
        assert work is not None
        try:
            work.wait(timedelta(seconds=max(deadline.left(), 0.001)))
        except RuntimeError as error:
            who = missing if missing is not None else self._missing()
            if deadline.passed():
                raise gave_up(deadline, who) from error
            raise lost(deadline, who, str(error)) from error

    def _came(self, rank: int) -> str:
        return f"gather/{self._gathers}/{rank}"

    def _missing(self) -> list[int]:
        try:
            return [rank for rank in range(self._world) if not self._store.check([self._came(rank)])]
        except RuntimeError:  # the store itself is gone, and with it the rank that hosts it
            return [0]


def _tensor(data: Bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if len(data) else torch.empty(0, dtype=torch.uint8)
