"""What every `Fabric` must do, as a test class to inherit from.

A twin's own test is ``class TestMyFabric(FabricContract)`` with `FabricContract.run_ranks` filled in.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

from perdure.clock import Deadline
from perdure.errors import CallError, DeadlineExceeded, LayoutError, LinkLost, PerdureError
from perdure.fabric.agree import agree, all_gather_json
from perdure.fabric.api import Fabric
from perdure.fabric.carry import carry_out
from perdure.layout import Cut, Even, Layout, Mesh, cut_tensor
from perdure.plan import reshard

__all__ = ["FabricContract"]

WAIT_S = 30.0
"""For waits that should be met: long, so that a busy machine fails no test."""

VAIN_S = 0.3
"""For waits that should not be met."""


class FabricContract(ABC):
    """Tests that pass on every fabric; a subclass gives `run_ranks`, and ``worlds`` if it cannot have these sizes."""

    worlds: tuple[int, ...] = (1, 2, 4)

    @abstractmethod
    def run_ranks(self, world: int, work: Callable[[Fabric], Any]) -> list[Any]:
        """Run ``work`` once as each of ``world`` ranks, at the same time; return what they return, in rank order.

        Results are plain values (ints, strings, bytes, lists). If a rank raises, raise its error here.
        """

    def test_each_rank_knows_itself_and_the_world(self) -> None:
        for world in self.worlds:
            found = self.run_ranks(world, lambda fabric: [fabric.rank, fabric.world])
            assert found == [[rank, world] for rank in range(world)]

    def test_all_gather_brings_everyone_what_everyone_gave_in_rank_order(self) -> None:
        def work(fabric: Fabric) -> list[bytes]:
            return fabric.all_gather(b"%d" % fabric.rank * (fabric.rank * 1000), deadline=_soon("all_gather"))

        for world in self.worlds:
            given = [b"%d" % rank * (rank * 1000) for rank in range(world)]
            assert self.run_ranks(world, work) == [given] * world

    def test_all_gathers_of_nothing_and_of_something_do_not_mix(self) -> None:
        def work(fabric: Fabric) -> list[list[bytes]]:
            return [fabric.all_gather(b"x" * turn, deadline=_soon("all_gather")) for turn in range(5)]

        for world in self.worlds:
            assert self.run_ranks(world, work) == [[[b"x" * turn] * world for turn in range(5)]] * world

    def test_messages_arrive_whole_in_order_and_by_sender(self) -> None:
        sizes = (0, 1, 7, 8, 9, 1000, 300_000)

        def work(fabric: Fabric) -> bool:
            for to in range(fabric.world):
                for size in sizes:
                    fabric.send(to, bytes([fabric.rank]) * size)
            return all(
                fabric.recv(source, deadline=_soon("a message")) == bytes([source]) * size
                for source in reversed(range(fabric.world))
                for size in sizes
            )

        for world in self.worlds:
            assert all(self.run_ranks(world, work))

    def test_what_was_sent_may_be_changed_at_once(self) -> None:
        def work(fabric: Fabric) -> bytes:
            data = bytearray(b"before")
            fabric.send((fabric.rank + 1) % fabric.world, memoryview(data))
            data[:] = b"after!"
            return fabric.recv((fabric.rank - 1) % fabric.world, deadline=_soon("a message"))

        for world in self.worlds:
            assert self.run_ranks(world, work) == [b"before"] * world

    def test_messages_and_all_gathers_do_not_mix(self) -> None:
        def work(fabric: Fabric) -> list[bytes]:
            fabric.send((fabric.rank + 1) % fabric.world, b"message")
            gathered = fabric.all_gather(b"gathered", deadline=_soon("all_gather"))
            return [fabric.recv((fabric.rank - 1) % fabric.world, deadline=_soon("a message")), gathered[-1]]

        for world in self.worlds:
            assert self.run_ranks(world, work) == [[b"message", b"gathered"]] * world

    def test_a_rank_that_is_not_there_is_refused(self) -> None:
        def work(fabric: Fabric) -> list[str]:
            return [
                _kind_of(lambda: fabric.send(fabric.world, b"")),
                _kind_of(lambda: fabric.recv(-1, deadline=_soon("a message"))),
            ]

        assert self.run_ranks(self.worlds[0], work) == [[CallError.kind] * 2] * self.worlds[0]

    def test_a_message_that_never_comes_ends_at_its_deadline_and_names_its_sender(self) -> None:
        def work(fabric: Fabric) -> list[Any]:
            last = fabric.world - 1
            found: list[Any] = []
            if fabric.rank == 0:
                try:
                    fabric.recv(last, deadline=Deadline.after(VAIN_S, "a message that is not sent"))
                except DeadlineExceeded as error:
                    found = error.missing
            fabric.all_gather(b"", deadline=_soon("the end of the test"))
            return found

        for world in self.worlds:
            assert self.run_ranks(world, work)[0] == [world - 1]

    def test_an_all_gather_without_a_rank_ends_at_its_deadline_and_names_it(self) -> None:
        def work(fabric: Fabric) -> list[Any]:
            if fabric.rank == fabric.world - 1:
                # Alive, silent, and gone only after the others have given up.
                for source in range(fabric.world - 1):
                    fabric.recv(source, deadline=_soon("leave to go"))
                return []
            found: list[Any] = []
            try:
                fabric.all_gather(b"", deadline=Deadline.after(VAIN_S, "a rank that stays away"))
            except DeadlineExceeded as error:
                found = error.missing
            fabric.send(fabric.world - 1, b"go")
            return found

        for world in self.worlds:
            if world > 1:
                assert self.run_ranks(world, work)[: world - 1] == [[world - 1]] * (world - 1)

    def test_an_error_of_one_rank_reaches_every_rank(self) -> None:
        def work(fabric: Fabric) -> list[Any]:
            bad = fabric.rank == fabric.world - 1
            outcome = LayoutError("it does not fit", tensor="w") if bad else None
            agree(fabric, None, deadline=_soon("agreement"))
            try:
                agree(fabric, outcome, deadline=_soon("agreement"))
            except LayoutError as error:
                return [str(error), error.tensor, error.rank]
            return []

        for world in self.worlds:
            told = [f"rank {world - 1}: it does not fit", "w", world - 1]
            assert self.run_ranks(world, work) == [told] * world

    def test_the_cause_is_raised_and_not_the_wait_that_follows_from_it(self) -> None:
        def work(fabric: Fabric) -> str:
            outcome = CallError("the cause") if fabric.rank == fabric.world - 1 else LinkLost("the consequence")
            return _kind_of(lambda: agree(fabric, outcome, deadline=_soon("agreement")))

        for world in self.worlds:
            assert self.run_ranks(world, work) == [CallError.kind] * world

    def test_json_values_are_gathered(self) -> None:
        def work(fabric: Fabric) -> list[Any]:
            return all_gather_json(fabric, {"rank": fabric.rank}, deadline=_soon("values"))

        for world in self.worlds:
            assert self.run_ranks(world, work) == [[{"rank": rank} for rank in range(world)]] * world

    def test_a_plan_is_carried_out(self) -> None:
        whole = np.arange(12 * 10, dtype=np.int32).reshape(12, 10)

        def work(fabric: Fabric) -> bool:
            mesh = Mesh((("tp", fabric.world),))
            rows, columns = (
                Layout({"w": cut_tensor(whole.shape, mesh=mesh, cuts=[Cut("tp", dim, Even())], dtype="int32")})
                for dim in (0, 1)
            )
            (source,), (dest,) = rows["w"].of_rank(fabric.rank), columns["w"].of_rank(fabric.rank)
            have = whole[source.box.within(rows["w"].whole)].copy()
            want = np.full(dest.box.shape, -1, dtype=np.int32)
            plan = reshard(rows, columns)
            carry_out(plan, fabric, {"w": have}, {"w": want}, deadline=_soon("the plan"), budget_bytes=64)
            return bool((want == whole[dest.box.within(columns["w"].whole)]).all())

        for world in self.worlds:
            assert all(self.run_ranks(world, work))


def _soon(what: str) -> Deadline:
    return Deadline.after(WAIT_S, what)


def _kind_of(act: Callable[[], object]) -> str:
    try:
        act()
    except PerdureError as error:
        return error.kind
    return ""
