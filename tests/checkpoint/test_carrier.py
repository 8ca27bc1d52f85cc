"""The carrier's queue: what goes first, what gives way, what is tried again, what is told."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from perdure.checkpoint.carrier import Arrived, Carrier, CarryOrder
from perdure.checkpoint.generations import Machine
from perdure.checkpoint.messages import Carry
from perdure.checkpoint.vocabulary import Exit
from perdure.errors import LinkLost, PerdureError
from perdure.layout import Box, Layout, Piece, TensorLayout
from perdure.store import Ram, Run
from perdure.store.branch import standing
from perdure.store.faults import Fail, Faults, Rule
from perdure.testing.ranks import random_bytes
from perdure.testing.runs import save_step

LAYOUT = Layout({"w": TensorLayout((10, 10), (Piece.alone(0, Box((0, 0), (10, 10))),), "float32")})


class Gated(Faults):
    """Packs wait until the gate is open."""

    def __init__(self, *rules: Rule) -> None:
        super().__init__(Ram(), rules)
        self.gate, self.met = threading.Event(), threading.Event()

    def put(self, name, chunks):  # type: ignore[no-untyped-def]
        self.met.set()
        assert self.gate.wait(20.0)
        super().put(name, chunks)


class Heard:
    """What a host hears."""

    def __init__(self) -> None:
        self.ends: list[tuple[int, Arrived | PerdureError]] = []
        self.texts: list[str] = []

    def carried(self, order: CarryOrder, result: Arrived | PerdureError) -> None:
        self.ends.append((order.step, result))

    def prunes_copy(self, order: CarryOrder) -> bool:
        return True

    def told(self, order: CarryOrder, text: str) -> None:
        self.texts.append(text)

    @property
    def arrived(self) -> list[int]:
        return [step for step, result in self.ends if isinstance(result, Arrived)]

    def failed(self, step: int) -> list[str]:
        return [str(result) for at, result in self.ends if at == step and isinstance(result, PerdureError)]


class Bench:
    def __init__(self, *rules: Rule) -> None:
        self.here = Ram()
        run = Run.open(self.here, create=True)
        run.claim_epoch("test")
        for step in range(1, 30):
            save_step(run, step, LAYOUT, {"w": random_bytes("float32", (10, 10), step)}, world=1)
        self.far, self.heard = Gated(*rules), Heard()
        self.carrier = Carrier(self.here, host=self.heard, open_store=lambda url: self.far)

    def order(self, slot: int, *, asked: bool = False, keep: str = "") -> None:
        carry = Carry(url="s3://far", asked=asked, keep=keep)
        self.carrier.submit(CarryOrder(carry, ("s", slot), slot, slot, time.monotonic()))

    def settle(self) -> list[CarryOrder]:
        self.far.gate.set()
        return self.carrier.end(within_s=20.0)

    @property
    def steps(self) -> list[int]:
        return [commit.step for commit in standing(Run.open(self.far.store, create=False))][::-1]


@pytest.fixture
def bench() -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(*rules: Rule) -> Bench:
        made.append(Bench(*rules))
        return made[-1]

    yield make
    for each in made:
        each.far.gate.set()


def test_what_nobody_asked_for_gives_way_to_the_newest_and_what_was_asked_for_stays(
    bench: Callable[..., Bench],
) -> None:
    one = bench()
    one.order(1)
    assert one.far.met.wait(20.0)
    assert one.carrier.busy
    one.order(2)
    one.order(3, asked=True)
    one.order(4)
    one.order(5)
    assert one.carrier.spared() == {1, 3, 5}
    assert one.settle() == []
    assert (one.heard.arrived, one.steps) == ([1, 3, 5], [1, 3, 5])
    assert "step 2 was passed over" in one.heard.failed(2)[0]
    assert "step 4 was passed over" in one.heard.failed(4)[0]
    assert not one.carrier.busy


def test_what_fails_for_now_is_told_once_and_tried_again_with_the_next_commit(bench: Callable[..., Bench]) -> None:
    one = bench(Rule("names", Fail(LinkLost("the server is away")), times=3))
    one.far.gate.set()
    one.order(1, asked=True)
    await_that(lambda: len(one.heard.failed(1)) == 1)
    await_that(lambda: not one.carrier.busy)  # nobody waits for a server that is away
    one.carrier.nudge()
    await_that(lambda: len(one.heard.failed(1)) == 2)
    one.order(2, asked=True)
    await_that(lambda: len(one.heard.failed(2)) == 1)
    one.order(3, asked=True)
    assert one.settle() == []
    assert (one.heard.arrived, one.steps) == ([1, 2, 3], [1, 2, 3])
    assert len(one.heard.texts) == 1
    assert "tried again after the next save" in one.heard.texts[0]


def test_an_order_that_failed_and_was_not_asked_for_gives_way_too(bench: Callable[..., Bench]) -> None:
    one = bench(Rule("names", Fail(LinkLost("away"))))
    one.far.gate.set()
    one.order(1)
    await_that(lambda: bool(one.heard.failed(1)))
    one.order(2)
    assert one.settle() == []
    assert one.steps == [2]


def test_what_waits_for_a_copy_that_is_away_is_bounded_and_so_is_what_retention_spares(
    bench: Callable[..., Bench],
) -> None:
    one = bench(Rule("names", Fail(LinkLost("away")), times=25))
    one.far.gate.set()
    for slot in range(1, 26):
        one.order(slot, asked=True)
        await_that(lambda slot=slot: bool(one.heard.failed(slot)))
    assert len(one.carrier.spared()) <= 3
    assert "passed over" in one.heard.failed(1)[-1]
    one.order(26, asked=True)
    assert one.settle() == []
    assert one.steps == list(range(11, 27))


def test_what_can_never_come_is_told_and_holds_nothing_up(bench: Callable[..., Bench]) -> None:
    one = bench()
    run = Run.open(one.here, create=False)
    run.give_up_slot(1, step=1)
    one.order(1, asked=True)
    one.order(2, asked=True)
    assert one.settle() == []
    assert "was pruned before it was carried" in one.heard.failed(1)[0]
    assert one.steps == [2]


def test_the_copy_is_pruned_after_each_arrival(bench: Callable[..., Bench]) -> None:
    one = bench()
    one.far.gate.set()
    for slot in (1, 2, 3):
        one.order(slot, asked=True, keep="last=2")
    assert one.settle() == []
    assert one.steps == [2, 3]


def test_an_end_does_not_wait_longer_than_it_may_and_says_what_is_left(bench: Callable[..., Bench]) -> None:
    one = bench()
    one.order(1)
    assert one.far.met.wait(20.0)
    assert [order.step for order in one.carrier.end(within_s=0.05)] == [1]


def test_an_agent_stays_until_what_is_carried_has_arrived_unless_it_is_told_to_leave() -> None:
    machine = Machine(lease_s=60.0, now=0.0)
    machine.carrying = lambda: True
    assert machine.tick(1000.0) == []
    machine.released()
    assert machine.tick(1000.0) == []
    machine.carrying = lambda: False
    assert machine.tick(1000.0) == [Exit()]
    machine.carrying = lambda: True
    machine.told_to_leave()
    assert machine.tick(1000.0) == [Exit()]


def await_that(done: Callable[[], bool]) -> None:
    give_up = time.monotonic() + 20
    while not done():
        assert time.monotonic() < give_up
        time.sleep(0.005)
