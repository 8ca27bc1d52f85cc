"""Whose numbers the recorder's are: groups that end and come again under the same names, in one process and forked."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

from perdure.adapters.torch.probe_recorder import STILL_S, Recorder

from . import gloo


def begin() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


def reduce(times: int, group: dist.ProcessGroup | None = None) -> None:
    for _ in range(times):
        dist.all_reduce(torch.ones(2), group=group)


def told(recorder: Recorder) -> dict[str, tuple[int, int]]:
    recorder.groups()
    time.sleep(0.2)  # the recorder counts on threads of its own, a moment after a collective has returned
    recorder.groups()
    recorder._moved -= STILL_S
    return {each.group: (each.enqueued, each.completed) for each in recorder.groups()}


def recorder() -> Recorder:
    found = Recorder.there()
    assert found is not None
    return found


def alone(work: Callable[[], object]) -> object:
    """Do it in a process that has no group, forked from one that may have had some."""

    def be() -> object:
        dist.destroy_process_group()
        return work()

    def be_and_end() -> object:
        result = be()
        begin()  # for the farewell of `gloo.run`
        return result

    return gloo.run(1, be_and_end)[0]


def test_a_group_that_comes_again_under_its_name_starts_anew() -> None:
    def work() -> list[dict[str, tuple[int, int]]]:
        mine = recorder()
        found = []
        for times in (5, 0, 4, 6):
            begin()
            reduce(times)
            found.append(told(mine))
            dist.destroy_process_group()
            found.append(told(mine))
        return found

    assert alone(work) == [{"0": (5, 5)}, {}, {}, {}, {"0": (4, 4)}, {}, {"0": (6, 6)}, {}]


def test_a_group_that_came_again_between_two_looks_is_not_the_old_one() -> None:
    def work() -> list[dict[str, tuple[int, int]]]:
        mine = recorder()
        begin()
        reduce(5)
        found = [told(mine)]
        for times in (3, 0):
            dist.destroy_process_group()
            begin()
            reduce(times)
            found.append(told(mine))
        reduce(2)
        found.append(told(mine))
        dist.destroy_process_group()
        return found

    assert alone(work) == [{"0": (5, 5)}, {"0": (3, 3)}, {}, {"0": (2, 2)}]


def test_a_recorder_that_starts_late_finds_the_groups_that_there_are() -> None:
    def work() -> dict[str, tuple[int, int]]:
        for times in (30, 3):
            begin()
            first, second = dist.new_group([0]), dist.new_group([0], group_desc="second")
            reduce(times)
            reduce(times + 1, second)
            reduce(times + 2, first)
            if times == 30:
                dist.destroy_process_group()
        found = told(recorder())
        dist.destroy_process_group()
        return found

    assert alone(work) == {"0": (3, 3), "1": (5, 5), "2": (4, 4)}


def test_one_group_of_many_ends_and_others_keep_their_numbers() -> None:
    def work() -> list[dict[str, tuple[int, int]]]:
        begin()
        mine = recorder()
        groups = [dist.new_group([0]) for _ in range(4)]
        for times, group in enumerate(groups, start=1):
            reduce(times, group)
        found = [told(mine)]
        dist.destroy_process_group(groups[1])
        later = dist.new_group([0])
        reduce(7, later)
        reduce(1, groups[3])
        found.append(told(mine))
        dist.destroy_process_group()
        return found

    first, then = alone(work)  # type: ignore[misc]
    assert first == {"1": (1, 1), "2": (2, 2), "3": (3, 3), "4": (4, 4)}
    assert then == {"1": (1, 1), "3": (3, 3), "4": (5, 5), "5": (7, 7)}


def test_a_rank_that_was_forked_from_a_process_with_groups_tells_its_own() -> None:
    def work() -> dict[str, tuple[int, int]]:
        begin()
        reduce(9)
        told(recorder())
        dist.destroy_process_group()
        found = gloo.run(2, in_a_child)
        assert found[0] == found[1]
        return found[0]  # type: ignore[no-any-return]

    def in_a_child() -> dict[str, tuple[int, int]]:
        mine = recorder()
        both = dist.new_group([0, 1])
        reduce(2)
        reduce(4, both)
        return told(mine)

    assert alone(work) == {"0": (2, 2), "1": (4, 4)}


def test_a_group_whose_key_is_not_known_is_told_by_its_own_count(monkeypatch: pytest.MonkeyPatch) -> None:
    def work() -> dict[str, tuple[int, int]]:
        begin()
        mine = recorder()
        monkeypatch.setattr(mine, "_ask", lambda: 1e9)
        reduce(3)
        found = told(mine)
        dist.destroy_process_group()
        return found

    assert alone(work) == {"0": (3, 3)}


def test_no_group_that_ended_is_kept_alive() -> None:
    def work() -> bool:
        begin()
        mine = recorder()
        group = weakref.ref(dist.new_group([0]))
        reduce(1, group())
        told(mine)
        dist.destroy_process_group(group())
        gc.collect()
        gone = group() is None
        dist.destroy_process_group()
        return gone

    assert alone(work) is True


def test_groups_of_a_mesh_are_told_apart() -> None:
    def work() -> dict[str, tuple[int, int]]:
        mine = recorder()
        mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards"))
        for _ in range(3):
            dist.all_reduce(torch.ones(1), group=mesh.get_group("replicas"))
        for _ in range(5):
            dist.all_reduce(torch.ones(1), group=mesh.get_group("shards"))
        counts = told(mine)
        names = [mesh.get_group(name).group_name for name in ("replicas", "shards")]
        return {name: counts[each] for name, each in zip(("replicas", "shards"), names, strict=True)}

    assert gloo.run(4, work) == [{"replicas": (3, 3), "shards": (5, 5)}] * 4
