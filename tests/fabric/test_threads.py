"""Ranks as threads: the contract, and what happens when some leave."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from perdure.clock import Deadline
from perdure.errors import DeadlineExceeded, LayoutError, LinkLost
from perdure.fabric import Fabric
from perdure.fabric.threads import ThreadsFabric, run
from perdure.testing.fabric import FabricContract


class TestThreadsFabric(FabricContract):
    worlds = (1, 2, 5)

    def run_ranks(self, world: int, work: Callable[[Fabric], Any]) -> list[Any]:
        return run(world, work)


def later() -> Deadline:
    return Deadline.after(30.0, "the test")


def test_the_error_of_a_rank_is_raised_and_frees_those_that_wait_for_it() -> None:
    freed: list[LinkLost] = []

    def work(fabric: ThreadsFabric) -> None:
        if fabric.rank == 2:
            raise LayoutError("rank 2 gives up")
        try:
            fabric.all_gather(b"", deadline=later())
        except LinkLost as error:
            freed.append(error)
            raise

    with pytest.raises(LayoutError, match="gives up"):
        run(3, work)
    assert [error.missing for error in freed] == [[2], [2]]
    assert "gives up" in str(freed[0])


def test_what_a_rank_sent_before_it_left_can_still_be_received() -> None:
    def work(fabric: ThreadsFabric) -> list[bytes]:
        if fabric.rank == 0:
            fabric.send(1, b"last words")
            return []
        last = fabric.recv(0, deadline=later())
        with pytest.raises(LinkLost, match="returned"):
            fabric.recv(0, deadline=later())
        return [last]

    assert run(2, work) == [[], [b"last words"]]


def test_ranks_that_do_not_end_are_named() -> None:
    def work(fabric: ThreadsFabric) -> None:
        if fabric.rank == 1:
            fabric.recv(1, deadline=Deadline.after(5.0, "nothing"))

    with pytest.raises(DeadlineExceeded) as caught:
        run(2, work, timeout_s=0.2)
    assert caught.value.missing == [1]
