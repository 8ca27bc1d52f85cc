"""Who the others wait for: pictures of jobs that stand still, and whom each of them names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from looks import group, kinds, looked

from perdure.watcher.collectives import outside_by_stacks, who_waits
from perdure.watcher.columns import Columns, Mask
from perdure.watcher.evidence import Evidence
from perdure.watcher.samples import Stack

STACKS = Path(__file__).resolve().parents[3] / "shared" / "data" / "watch" / "stacks"


def everybody(columns: Columns) -> Mask:
    return np.ones(len(columns), bool)


def found_in(n_ranks: int, picture: dict[int, dict[str, Any]], **usual: Any) -> list[Evidence]:
    """Stand still for eight seconds in a picture: what differs from the usual, by rank."""
    columns, now_s = looked(n_ranks, 8, of=lambda rank, _: {**usual, **picture.get(rank, {})})
    return who_waits(columns, everybody(columns), now_s)


def waiting(*groups: Any) -> dict[str, Any]:
    return {"in_collective": True, "groups": groups}


def working(*groups: Any) -> dict[str, Any]:
    return {"in_collective": False, "groups": groups}


def test_the_rank_that_is_one_number_behind_is_named() -> None:
    picture = {rank: waiting(group("world", 4, 1201, 1200)) for rank in range(4)}
    picture[2] = working(group("world", 4, 1200))
    (found,) = found_in(4, picture)
    assert (found.kind, found.ranks, found.nodes) == ("behind", (2,), ("b",))


def test_who_waits_for_one_who_waits_for_another_is_not_the_cause() -> None:
    # 0 and 1 wait in dp for 2, which waits in tp for 3; 3 works.
    picture = {
        0: waiting(group("dp", 3, 8, 7)),
        1: waiting(group("dp", 3, 8, 7)),
        2: waiting(group("dp", 3, 7), group("tp", 2, 4, 3)),
        3: working(group("tp", 2, 3)),
    }
    (found,) = found_in(4, picture)
    assert (found.kind, found.ranks) == ("behind", (3,))


def test_ranks_of_different_groups_are_not_compared() -> None:
    # Numbers of the first stage are far beyond those of the second, by right.
    picture = {rank: waiting(group("stage-0", 2, 900, 899)) for rank in (0, 1)}
    picture |= {2: waiting(group("stage-1", 2, 11, 10)), 3: working(group("stage-1", 2, 10))}
    (found,) = found_in(4, picture)
    assert found.ranks == (3,)


def test_a_group_of_another_size_is_another_group() -> None:
    picture = {rank: waiting(group("world", 3, 5, 4)) for rank in range(3)}
    picture[3] = working(group("world", 4, 2)) | {"finished": True}  # it left when the job became smaller
    assert kinds(found_in(4, picture)) == ["all-waiting"]


def test_a_rank_that_has_called_nothing_yet_is_behind_if_the_group_is_everybodys() -> None:
    picture = {rank: waiting(group("world", 4, 1, 0)) for rank in range(3)}
    picture[3] = {"in_collective": False, "groups": ()}
    (found,) = found_in(4, picture)
    assert found.ranks == (3,)


def test_a_rank_whose_steps_run_ahead_of_its_numbers_has_skipped() -> None:
    picture = {rank: waiting(group("world", 4, 301, 300)) | {"step": 299} for rank in range(4)}
    picture[2] = working(group("world", 4, 300)) | {"step": 599}
    assert [(e.kind, e.ranks) for e in found_in(4, picture)] == [("skipped", (2,))]


def test_a_rank_that_has_skipped_and_is_done_with_exit_code_0_is_named() -> None:
    picture = {rank: waiting(group("world", 4, 600, 599)) | {"step": 599} for rank in range(4)}
    picture[2] = working(group("world", 4, 599)) | {"step": 600, "exit_code": 0}
    assert [(e.kind, e.ranks) for e in found_in(4, picture)] == [("skipped", (2,))]


def test_a_rank_that_has_skipped_and_soon_waits_itself_is_named_by_its_steps() -> None:
    picture = {rank: waiting(group("world", 4, 9, 8), group(f"tp{rank // 2}", 2, 8)) for rank in range(4)}
    picture[2] = waiting(group("world", 4, 8), group("tp1", 2, 9, 8)) | {"step": 51}
    assert [(e.kind, e.ranks) for e in found_in(4, picture)] == [("skipped", (2,))]


def test_a_rank_that_waits_for_more_than_the_others_called_is_the_odd_one() -> None:
    picture = {rank: working(group("world", 4, 600)) | {"exit_code": 0, "step": 600} for rank in range(4)}
    picture[1] = waiting(group("world", 4, 601, 600)) | {"step": 600}
    assert [(e.kind, e.ranks) for e in found_in(4, picture)] == [("extra", (1,))]


@pytest.mark.parametrize("odd", [{"shape": "[7] float32"}, {"op": "broadcast"}])
def test_the_odd_shape_or_operation_of_four_is_named(odd: dict[str, str]) -> None:
    picture = {rank: waiting(group("world", 4, 9, 8, shape="[64] float32")) for rank in range(4)}
    picture[3] = waiting(group("world", 4, 9, 8, **{"shape": "[64] float32", **odd}))
    assert [(e.kind, e.ranks) for e in found_in(4, picture)] == [("odd-call", (3,))]


def test_gathers_may_have_different_shapes() -> None:
    picture = {rank: waiting(group("world", 4, 9, 8, op="all_gather", shape=f"[{rank}]")) for rank in range(4)}
    assert kinds(found_in(4, picture)) == ["all-waiting"]


def test_an_odd_call_is_named_although_its_peers_were_served_and_went_on() -> None:
    metrics = {"op": "all_reduce", "shape": "[2] float32"}
    picture = {rank: waiting(group("world", 4, 97, 96), group("metrics", 4, 9, 9, **metrics)) for rank in range(4)}
    picture[1] = waiting(group("world", 4, 96, 96), group("metrics", 4, 9, 8, **{**metrics, "shape": "[7] float32"}))
    assert [(e.kind, e.ranks) for e in found_in(4, picture)] == [("odd-call", (1,))]
    picture[1] = waiting(group("world", 4, 96, 96), group("metrics", 4, 9, 8, **metrics))
    assert [(e.kind, e.ranks) for e in found_in(4, picture)] == [("behind", (1,))]


def test_in_a_group_of_two_groups_like_it_say_who_is_odd() -> None:
    picture = {rank: waiting(group(f"dp{rank // 2}", 2, 9, 8, shape="[64]")) for rank in range(6)}
    picture[3] = waiting(group("dp1", 2, 9, 8, shape="[65]"))
    assert [(e.kind, e.ranks) for e in found_in(6, picture)] == [("odd-call", (3,))]


def test_two_alone_that_differ_accuse_nobody() -> None:
    picture = {rank: waiting(group("world", 2, 9, 8, shape=f"[{rank}]")) for rank in range(2)}
    assert [(e.kind, e.ranks) for e in found_in(2, picture)] == [("crossed", ())]


def test_a_circle_of_two_groups_accuses_nobody() -> None:
    picture = {
        0: waiting(group("x", 2, 5, 4), group("y", 2, 4)),
        1: waiting(group("x", 2, 4), group("y", 2, 5, 4)),
    }
    assert [(e.kind, e.ranks) for e in found_in(2, picture)] == [("crossed", ())]


def test_equal_numbers_and_everybody_inside_accuse_nobody() -> None:
    picture = {rank: waiting(group("world", 4, 9, 8)) for rank in range(4)}
    assert [(e.kind, e.ranks) for e in found_in(4, picture)] == [("all-waiting", ())]


def test_equal_numbers_and_one_outside_name_it() -> None:
    picture = {rank: waiting(group("world", 4, 9, 8)) for rank in range(4)}
    picture[1] = working(group("world", 4, 9, 8))
    assert [(e.kind, e.ranks) for e in found_in(4, picture)] == [("outside", (1,))]


def test_nobody_is_named_while_a_node_that_may_be_the_cause_is_not_heard() -> None:
    picture = {rank: waiting(group("world", 4, 9, 8)) for rank in range(4)}
    picture[2] = working(group("world", 4, 8))
    columns, now_s = looked(4, 8, of=lambda rank, _: picture[rank])
    columns.heard_s[2] = now_s - 10.0
    assert who_waits(columns, everybody(columns), now_s) == []


def test_a_rank_that_has_just_called_is_on_its_way() -> None:
    def on_its_way(rank: int, second: int) -> dict[str, Any]:
        return waiting(group("world", 4, 99, 98)) if rank != 2 else working(group("world", 4, 80 + second))

    columns, now_s = looked(4, 8, of=on_its_way)
    assert who_waits(columns, everybody(columns), now_s) == []


def test_a_rank_that_was_done_before_all_others_failed_is_named() -> None:
    picture: dict[int, dict[str, Any]] = {rank: {"exit_code": 1} for rank in range(4)}
    picture[2] = {"exit_code": 0}
    assert [(e.kind, e.ranks) for e in found_in(4, picture)] == [("left-early", (2,))]


@pytest.mark.parametrize("inside", [True, False])
def test_of_two_ranks_one_left_early_only_if_the_other_was_waiting(inside: bool) -> None:
    picture: dict[int, dict[str, Any]] = {0: {"exit_code": 0}, 1: {"exit_code": 1, "in_collective": inside}}
    assert [(e.kind, e.ranks) for e in found_in(2, picture)] == ([("left-early", (0,))] if inside else [])


def test_a_rank_that_failed_before_a_collective_in_which_the_others_stood_failed_first() -> None:
    def failing(rank: int, second: int) -> dict[str, Any]:
        if rank == 2:
            return working(group("world", 4, 8)) | ({"exit_code": 1} if second > 5 else {})
        return waiting(group("world", 4, 9, 8)) | ({"exit_code": 1} if second > 6 else {})

    columns, now_s = looked(4, 8, of=failing)
    assert [(e.kind, e.ranks) for e in who_waits(columns, everybody(columns), now_s)] == [("died-before", (2,))]


def test_without_any_numbers_a_job_that_stands_still_accuses_nobody() -> None:
    assert [(e.kind, e.ranks) for e in found_in(4, {})] == [("no-progress", ())]


def test_in_stacks_of_a_real_hang_the_rank_outside_is_found() -> None:
    if not STACKS.is_dir():
        pytest.skip(f"there are no recorded stacks in {STACKS}")
    for path in STACKS.glob("*.json"):
        told = json.loads(path.read_text())
        stacks = [
            Stack(rank=each["rank"], node=each["node"], at_s=0.0, frames=tuple(each["frames"]), how="py-spy")
            for each in told["ranks"]
        ]
        (found,) = outside_by_stacks(stacks, 0.0)
        assert list(found.ranks) == told["truth"]["culprit_ranks"]


def test_a_rank_that_has_not_told_what_it_calls_is_not_odd_and_is_waited_for() -> None:
    picture = {rank: waiting(group("world", 3, 9, 8, shape="[64]")) for rank in range(3)}
    picture[1] = waiting(group("world", 3, 9, 8, op=""))
    assert kinds(found_in(3, picture)) == ["all-waiting"]
    picture[2] = waiting(group("world", 3, 9, 8, shape="[7]"))
    columns, now_s = looked(3, 6, of=lambda rank, _: picture[rank])
    assert who_waits(columns, everybody(columns), now_s) == []
    assert kinds(found_in(3, picture)) == ["crossed"]
