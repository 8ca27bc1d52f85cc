"""Dead, frozen, dumb: who is, and who only seems so because the looking was late."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from looks import kinds, looked, nodes_of, sample

from perdure.watcher.columns import Columns
from perdure.watcher.liveness import deaths, frozen, in_kernel, out_of_memory, silent_nodes
from perdure.watcher.samples import NodeSample


def none_known(columns: Columns) -> np.ndarray[Any, np.dtype[np.bool_]]:
    return np.zeros(len(columns), bool)


def said(at: int, **what: Any) -> Any:
    return lambda rank, second: what if rank == at else {"step": 50 + second}


@pytest.mark.parametrize(
    ("how", "kind"),
    [
        ({"exit_signal": 9}, "killed"),
        ({"exit_signal": 15}, "told-to-end"),
        ({"exit_signal": 11}, "crashed"),
        ({"exit_signal": 6}, "crashed"),
        ({"exit_code": 1}, "raised"),
        ({"exit_code": 137}, "killed"),
        ({"exit_code": -11}, "crashed"),
        ({"state": "Z"}, "zombie"),
    ],
)
def test_how_a_rank_ended_is_read_from_its_code_or_signal(how: dict[str, Any], kind: str) -> None:
    columns, now_s = looked(4, 2, of=said(2, **how))
    (found,) = deaths(columns, none_known(columns), now_s)
    assert (found.kind, found.ranks, found.nodes) == (kind, (2,), ("b",))


def test_a_rank_that_is_done_is_not_dead() -> None:
    columns, now_s = looked(4, 2, of=said(2, exit_code=0))
    assert deaths(columns, none_known(columns), now_s) == []


def test_a_death_is_found_once() -> None:
    columns, now_s = looked(4, 2, of=said(2, exit_signal=9))
    assert deaths(columns, columns.ended_badly, now_s) == []


def test_who_was_killed_comes_before_those_who_raised_in_the_same_look() -> None:
    columns, now_s = looked(8, 2, of=lambda rank, _: {"exit_signal": 9} if rank == 5 else {"exit_code": 1})
    found = deaths(columns, none_known(columns), now_s)
    assert kinds(found) == ["killed", "raised"]
    assert found[1].ranks == ()  # which of them was first cannot be told


def test_a_job_that_somebody_ended_is_nobodys_fault() -> None:
    columns, now_s = looked(8, 2, of=lambda *_: {"exit_signal": 15})
    assert kinds(deaths(columns, none_known(columns), now_s)) == ["ended-together"]


@pytest.mark.parametrize("number", [1, 2])
def test_one_rank_that_is_interrupted_is_a_job_that_is(number: int) -> None:
    columns, now_s = looked(8, 2, of=said(3, exit_signal=number))
    assert [(e.kind, e.ranks) for e in deaths(columns, none_known(columns), now_s)] == [("ended-together", ())]


def test_whoever_was_told_to_end_was_so_perhaps_for_one_that_raised() -> None:
    columns, now_s = looked(8, 2, of=lambda rank, _: {5: {"exit_signal": 15}, 6: {"exit_code": 1}}.get(rank, {}))
    assert kinds(deaths(columns, none_known(columns), now_s)) == ["raised", "told-to-end"]


def test_a_stopped_rank_is_found_in_the_second_look_inside_a_collective_or_not() -> None:
    def stopped(rank: int, second: int) -> dict[str, Any]:
        return {"state": "T", "beat": 1} if rank == 1 else {"step": 50 + second}

    columns, _ = looked(4, 0, of=stopped)
    assert frozen(columns, 0.0) == []
    columns, now_s = looked(4, 1, of=stopped)
    assert [(e.kind, e.ranks) for e in frozen(columns, now_s)] == [("stopped", (1,))]


def test_a_traced_rank_is_told_apart() -> None:
    columns, now_s = looked(4, 2, of=said(3, state="t", beat=1))
    assert kinds(frozen(columns, now_s)) == ["traced"]


def test_a_rank_whose_probe_does_not_beat_is_silent_after_three_seconds() -> None:
    columns, now_s = looked(4, 2, of=said(0, beat=1))
    assert frozen(columns, now_s) == []
    columns, now_s = looked(4, 4, of=said(0, beat=1))
    assert [(e.kind, e.ranks) for e in frozen(columns, now_s)] == [("silent", (0,))]


def test_where_ranks_wait_for_processors_a_beat_may_be_late() -> None:
    columns, now_s = looked(4, 8, of=said(0, beat=1))
    assert frozen(columns, now_s, starved=["a"]) == []
    assert [e.kind for e in frozen(columns, now_s, starved=["b"])] == ["silent"]
    columns, now_s = looked(4, 13, of=said(0, beat=1))
    assert [e.kind for e in frozen(columns, now_s, starved=["a"])] == ["silent"]


def test_a_pause_of_some_seconds_of_a_node_or_of_the_whole_job_is_not_told() -> None:
    for still, whole in (((2, 3), False), (range(4), True)):
        columns, now_s = looked(4, 5, of=lambda rank, _, still=still: {"state": "T"} if rank in still else {})
        assert frozen(columns, now_s) == [], whole
    # One rank a node: none of the nodes has two that stand still, the job has.
    columns, now_s = looked(4, 9, of=lambda rank, _: {"state": "T"}, per_node=1)
    assert [(each.kind, each.ranks) for each in frozen(columns, now_s)] == [("paused-together", (0, 1, 2, 3))]
    columns, now_s = looked(4, 5, of=lambda rank, _: {"state": "T"} if rank else {}, per_node=1)
    assert {each.kind for each in frozen(columns, now_s)} == {"stopped"}


def test_all_ranks_of_a_node_that_stand_still_together_accuse_nobody() -> None:
    columns, now_s = looked(8, 8, of=lambda rank, second: {"beat": 1} if rank in (2, 3) else {"step": 50 + second})
    (found,) = frozen(columns, now_s)
    assert found.kind == "paused-together"


def test_one_late_look_proves_nobody_dumb() -> None:
    columns = Columns(nodes_of(4))
    for now_s in (0.0, 0.5, 5.0):
        columns.look([sample(rank, now_s, beat=1) for rank in range(4)], now_s)
    assert frozen(columns, 5.0) == []
    columns.look([sample(rank, 30.0, beat=1) for rank in range(4)], 30.0)
    assert columns.still_s.max() == 0.0


def test_a_rank_in_the_kernel_is_found_among_those_that_are_stuck() -> None:
    columns, now_s = looked(4, 3, of=said(1, state="D", wchan="nfs_wait"))
    stuck = none_known(columns)
    assert in_kernel(columns, stuck, now_s) == []
    stuck[:] = True
    (found,) = in_kernel(columns, stuck, now_s)
    assert found.ranks == (1,)
    assert "wchan nfs_wait" in found.raw


def test_a_node_is_silent_only_while_others_are_heard() -> None:
    columns, _ = looked(4, 2, of=lambda *_: {})
    assert silent_nodes(columns, {"a": 0.0, "b": 19.0}, 20.0)[0].nodes == ("a",)
    assert silent_nodes(columns, {"a": 0.0, "b": 0.0}, 20.0) == []
    assert silent_nodes(columns, {"a": 10.0, "b": 19.0}, 20.0) == []


def test_a_kernel_that_killed_for_memory_is_found_when_its_count_grows() -> None:
    nodes = [NodeSample(node="a", at_s=1.0, oom_kills=3), NodeSample(node="b", at_s=1.0, oom_kills=1)]
    assert [e.nodes for e in out_of_memory({"a": 2, "b": 1}, nodes, 1.0)] == [("a",)]
    assert out_of_memory({}, nodes, 1.0) == []
