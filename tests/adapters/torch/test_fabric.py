"""The process group as a fabric: the contract of all fabrics, over gloo between processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch.distributed as dist

from perdure.adapters.torch.fabric import ProcessGroupFabric
from perdure.clock import Deadline
from perdure.errors import DeadlineExceeded, LinkLost
from perdure.fabric import Fabric
from perdure.testing.fabric import FabricContract

from . import gloo


class TestProcessGroupFabric(FabricContract):
    worlds = (2, 3)

    def run_ranks(self, world: int, work: Callable[[Fabric], Any]) -> list[Any]:
        return gloo.run(world, lambda: with_fabric(work))


def with_fabric(work: Callable[[Fabric], Any]) -> Any:
    fabric = ProcessGroupFabric()
    result = work(fabric)
    dist.barrier()  # what this rank sent lives in it until it is received
    return result


def soon(what: str) -> Deadline:
    return Deadline.after(30.0, what)


@pytest.mark.parametrize("tcp", [False, True])
def test_a_wait_in_vain_harms_nothing_that_follows(tcp: bool) -> None:
    def work(fabric: Fabric) -> list[Any]:
        found = []
        if fabric.rank == 0:
            with pytest.raises(DeadlineExceeded) as caught:
                fabric.recv(1, deadline=Deadline.after(0.1, "what is not sent"))
            found.append(caught.value.missing)
        fabric.all_gather(b"", deadline=soon("a start"))
        fabric.send(1 - fabric.rank, b"late" * 1000)
        found.append(fabric.recv(1 - fabric.rank, deadline=soon("a message")) == b"late" * 1000)
        return [*found, fabric.all_gather(b"%d" % fabric.rank, deadline=soon("an end"))]

    assert gloo.run(2, lambda: with_fabric(work), tcp=tcp) == [
        [[1], True, [b"0", b"1"]],
        [True, [b"0", b"1"]],
    ]


def test_who_comes_to_a_gather_that_others_have_left_is_told_and_does_not_wait() -> None:
    def work(fabric: Fabric) -> str:
        if fabric.rank == 0:
            with pytest.raises(DeadlineExceeded):
                fabric.all_gather(b"", deadline=Deadline.after(0.1, "the other"))
            fabric.send(1, b"I left")
            return "left"
        fabric.recv(0, deadline=soon("a word"))
        with pytest.raises(LinkLost) as caught:
            fabric.all_gather(b"", deadline=soon("the other"))
        return f"{caught.value}"

    left, told = gloo.run(2, lambda: with_fabric(work))
    assert left == "left"
    assert "rank 0" in told


def test_two_fabrics_of_one_job_do_not_hear_each_other() -> None:
    def work() -> list[Any]:
        one, other = ProcessGroupFabric(), ProcessGroupFabric()
        for fabric, text in ((one, b"one"), (other, b"other")):
            fabric.send(1 - fabric.rank, text)
        found = [each.recv(1 - each.rank, deadline=soon("a message")) for each in (other, one)]
        found += one.all_gather(b"1", deadline=soon("one")) + other.all_gather(b"2", deadline=soon("other"))
        if other.rank == 0:  # rank 1 has been at the first gather of `one`, which says nothing about `other`
            with pytest.raises(DeadlineExceeded) as caught:
                other.all_gather(b"", deadline=Deadline.after(0.1, "rank 1"))
            found.append(caught.value.missing)
        dist.barrier()
        return found

    assert gloo.run(2, work) == [
        [b"other", b"one", b"1", b"1", b"2", b"2", [1]],
        [b"other", b"one", b"1", b"1", b"2", b"2"],
    ]


def test_gathers_and_messages_leave_nothing_behind_in_torchs_store() -> None:
    def work(fabric: Fabric) -> int:
        store = dist.distributed_c10d._get_default_store()
        counts = []
        for _ in range(10):
            fabric.all_gather(b"x", deadline=soon("a gather"))
            fabric.send(1 - fabric.rank, b"y")
            fabric.recv(1 - fabric.rank, deadline=soon("a message"))
            counts.append(store.num_keys())
        return counts[-1] - counts[1]

    assert all(abs(more) <= 2 for more in gloo.run(2, lambda: with_fabric(work), tcp=True))
