"""Plans carried out on real arrays, and what all ranks learn when one fails."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.clock import Deadline
from perdure.errors import Bug, CallError, DeadlineExceeded, ProtocolError
from perdure.fabric import Arrays, SoloFabric, carry_out
from perdure.fabric.threads import ThreadsFabric, run
from perdure.layout import Box, Cut, Even, Layout, Mesh, Piece, TensorLayout, cut_tensor, flat_layout
from perdure.plan import reshard
from perdure.testing.layouts import layouts, own_arrays, shapes, wholes_of

WORLD = 3
MESH = Mesh((("tp", WORLD),))
ROWS = Layout({"w": cut_tensor((6, 6), mesh=MESH, cuts=[Cut("tp", 0, Even())], dtype="float32")})
COLUMNS = Layout({"w": cut_tensor((6, 6), mesh=MESH, cuts=[Cut("tp", 1, Even())], dtype="float32")})


def soon(seconds: float = 30.0) -> Deadline:
    return Deadline.after(seconds, "the plan")


def check_carried(have: Layout, want: Layout, budget_bytes: int) -> None:
    plan = reshard(have, want)
    wholes = wholes_of(have)

    def work(fabric: ThreadsFabric) -> dict[str, np.ndarray]:
        mine = own_arrays(want, fabric.rank)
        carry_out(
            plan,
            fabric,
            own_arrays(have, fabric.rank, wholes=wholes),
            mine,
            deadline=soon(),
            budget_bytes=budget_bytes,
        )
        return mine

    for rank, found in enumerate(run(WORLD, work)):
        expected = own_arrays(want, rank, wholes=wholes)
        assert found.keys() == expected.keys()
        for name, array in expected.items():
            np.testing.assert_array_equal(found[name], array)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Layout, Layout]:
    forms = {f"t{number}": draw(shapes()) for number in range(2)}
    return draw(layouts(forms, world=WORLD, extra_boxes=1)), draw(layouts(forms, world=WORLD))


@given(pairs(), st.sampled_from([4, 36, 1 << 20]))
@settings(max_examples=50, deadline=None)
def test_real_arrays_end_up_right_under_any_layouts_and_budget(pair: tuple[Layout, Layout], budget: int) -> None:
    check_carried(*pair, budget)


def test_flat_buffers_become_shards_and_back() -> None:
    forms = {"a": (6, 6), "b": (5,), "c": ()}
    flat = flat_layout(forms, bounds=[(0, 14), (14, 28), (28, 42)], dtype="int32")
    cuts = [Cut("tp", 0, Even())]
    shards = Layout(
        {name: cut_tensor(s, mesh=MESH, cuts=cuts if s else [], dtype="int32") for name, s in forms.items()}
    )
    check_carried(flat, shards, 1 << 20)
    check_carried(shards, flat, 16)


def test_nan_payloads_and_negative_zeros_arrive_bit_for_bit() -> None:
    bits = np.array([0x7FC00001, 0xFFC12345, 0x80000000, 0x7F800001], dtype=np.uint32)
    here, there = (Layout({"w": TensorLayout((4,), (Piece.alone(r, Box((0,), (4,))),), "float32")}) for r in (0, 1))
    plan = reshard(here, there)

    def work(fabric: ThreadsFabric) -> bytes:
        want = np.zeros(4, dtype=np.float32)
        have = bits.view(np.float32)
        if fabric.rank == 0:
            carry_out(plan, fabric, {"w": have}, {}, deadline=soon())
        else:
            carry_out(plan, fabric, {}, {"w": want}, deadline=soon())
        return want.tobytes()

    assert run(2, work)[1] == bits.tobytes()


class Failing(np.ndarray):
    """An array that cannot be read."""

    def tobytes(self, order: object = None) -> bytes:
        raise OSError("the device is gone")


def test_a_rank_that_fails_in_the_middle_is_named_on_every_rank_at_once() -> None:
    plan = reshard(ROWS, COLUMNS)

    def work(fabric: ThreadsFabric) -> tuple[str, int]:
        have = np.zeros((2, 6), dtype=np.float32)
        arrays: Arrays = {"w": have.view(Failing) if fabric.rank == 1 else have}
        with pytest.raises(Bug) as caught:
            carry_out(plan, fabric, arrays, own_arrays(COLUMNS, fabric.rank), deadline=soon())
        # The links are clean: the same call goes through now.
        carry_out(plan, fabric, {"w": have + fabric.rank}, own_arrays(COLUMNS, fabric.rank), deadline=soon())
        return str(caught.value), caught.value.rank

    assert run(WORLD, work) == [("rank 1: OSError: the device is gone", 1)] * WORLD


def test_arrays_that_do_not_fit_are_refused_on_every_rank_before_anything_moves() -> None:
    plan = reshard(ROWS, COLUMNS)
    faults: list[tuple[Arrays, str]] = [
        ({}, "no array"),
        ({"w": np.zeros((2, 6), dtype=np.float64)}, "float64"),
        ({"w": np.zeros((1, 6), dtype=np.float32)}, r"\[1, 6\]"),
        ({"w": np.zeros(12, dtype=np.float32)}, r"\[12\]"),
    ]
    for bad, sentence in faults:

        def work(fabric: ThreadsFabric, bad: Arrays = bad, sentence: str = sentence) -> bool:
            good: Arrays = {"w": np.ones((2, 6), dtype=np.float32)}
            mine = own_arrays(COLUMNS, fabric.rank)
            with pytest.raises(CallError, match=f"rank 2: .*{sentence}"):
                carry_out(plan, fabric, bad if fabric.rank == 2 else good, mine, deadline=soon())
            return not mine["w"].any()

        assert all(run(WORLD, work))


def test_a_plan_for_more_ranks_than_there_are_is_refused() -> None:
    with pytest.raises(CallError, match="the plan needs rank 1"):
        carry_out(reshard(ROWS, COLUMNS), SoloFabric(), own_arrays(ROWS, 0), own_arrays(COLUMNS, 0), deadline=soon())


def test_a_rank_that_stays_away_is_named_at_the_deadline() -> None:
    plan = reshard(ROWS, COLUMNS)

    def work(fabric: ThreadsFabric) -> list[int]:
        if fabric.rank == 2:
            for other in (0, 1):
                fabric.recv(other, deadline=soon())
            return []
        with pytest.raises(DeadlineExceeded) as caught:
            carry_out(plan, fabric, own_arrays(ROWS, fabric.rank), own_arrays(COLUMNS, fabric.rank), deadline=soon(0.3))
        fabric.send(2, b"go")
        missing: list[int] = caught.value.missing
        return missing

    assert run(WORLD, work) == [[2], [2], []]


def test_a_message_of_another_length_is_a_protocol_error() -> None:
    plan = reshard(ROWS, COLUMNS)

    def work(fabric: ThreadsFabric) -> None:
        if fabric.rank == 0:
            fabric.send(1, b"stale")
        carry_out(plan, fabric, own_arrays(ROWS, fabric.rank), own_arrays(COLUMNS, fabric.rank), deadline=soon())

    with pytest.raises(ProtocolError, match="rank 1: rank 0 sent 5 bytes"):
        run(WORLD, work)
