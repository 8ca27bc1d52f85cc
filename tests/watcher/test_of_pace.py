"""Who is slow, from looks at ranks as they come: which times are compared, and what a neighbour explains."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from looks import nodes_of, sample

from perdure.watcher.analyser import Analyser
from perdure.watcher.evidence import Evidence, Verdict
from perdure.watcher.of_pace import OfPace
from perdure.watcher.samples import Looks, NodeSample, RankSample

Said = Callable[[int, int], dict[str, Any]]


def looks_of(
    n_ranks: int, seconds: int, work_s: Callable[[int, int], float], *, seed: int = 0, said: Said = lambda *_: {}
) -> list[list[RankSample]]:
    """A look each second at ranks of two a node; a step takes as long as the slowest rank's work, and a twentieth."""
    rng = np.random.default_rng(seed)
    found = []
    for second in range(seconds):
        times = {rank: work_s(rank, second) * float(rng.normal(1.0, 0.01)) for rank in range(n_ranks)}
        step_s = 1.05 * max(times.values())
        look = []
        for rank in range(n_ranks):
            usual: dict[str, Any] = {"step": second + 1, "compute_s": times[rank], "step_s": step_s}
            look.append(sample(rank, float(second), **{**usual, **said(rank, second)}))
        found.append(look)
    return found


def fed(
    looks: list[list[RankSample]], machine: Callable[[str, int], dict[str, Any]] = lambda *_: {}
) -> list[tuple[int, Evidence]]:
    """All that was found, with the second of its look."""
    pace, found = OfPace(), []
    for second, look in enumerate(looks):
        nodes = [
            NodeSample(node=node, at_s=float(second), cpus=8, **{"cpu_wait": 0.01, **machine(node, second)})
            for node in sorted({each.node for each in look})
        ]
        found += [(second, e) for e in pace.feed(Looks(samples=look, nodes=nodes), now_s=float(second))]
    return found


def even(rank: int, second: int) -> float:
    return 0.9


def slow(rank: int, second: int) -> float:
    return 0.9 * (1.1 if rank == 5 and second >= 60 else 1.0)


@pytest.mark.parametrize("n_ranks", [8, 64])
@pytest.mark.parametrize(("slower", "within"), [(1.1, 8), (1.05, 20)])
@pytest.mark.parametrize("seed", range(3))
def test_a_rank_that_becomes_slower_is_found_soon(n_ranks: int, slower: float, within: int, seed: int) -> None:
    looks = looks_of(n_ranks, 90, lambda rank, second: 0.9 * (slower if rank == 5 and second >= 60 else 1.0), seed=seed)
    found = fed(looks)
    assert {(each.kind, each.ranks, each.nodes) for _, each in found} == {("slow_rank", (5,), ("c",))}
    assert found[0][0] < 60 + within
    if slower == 1.1:
        assert [second for second, _ in found] == list(range(found[0][0], 90))  # at every look while it holds


def test_two_ranks_are_enough_and_fast_steps_must_be_slow_for_six_seconds() -> None:
    def said(rank: int, second: int) -> dict[str, Any]:
        return {"step": 20 * second + 1, "compute_s": 0.045 * (1.3 if rank and second >= 60 else 1), "step_s": 0.06}

    found = fed(looks_of(2, 90, even, said=said))
    assert {(each.kind, each.ranks) for _, each in found} == {("slow_rank", (1,))}
    assert 66 <= found[0][0] < 80


@pytest.mark.parametrize("seed", range(10))
def test_equal_ranks_accuse_nobody(seed: int) -> None:
    assert fed(looks_of(8, 400, even, seed=seed)) == []


def test_ranks_that_are_looked_at_by_turns_are_compared_all_the_same() -> None:
    looks = looks_of(8, 90, slow)
    halves = [[each for each in look if each.rank % 2 == odd] for look in looks for odd in (0, 1)]
    found = fed(halves)
    assert {(each.kind, each.ranks) for _, each in found} == {("slow_rank", (5,))}


def test_saves_and_evaluations_of_one_rank_are_not_compared() -> None:
    def said(rank: int, second: int) -> dict[str, Any]:
        at = second % 6
        busy = rank == 0 and at in (3, 4)
        return {
            "step": second - (at in (3, 4)) * (at - 2) + 1,
            "compute_s": 3.0 if rank == 0 and at == 5 else 0.9,
            "phase": "evaluating" if busy else "forward",
        }

    assert fed(looks_of(4, 240, even, said=said)) == []


def test_the_first_steps_may_take_long_and_a_restart_forgets() -> None:
    def compiling(rank: int, second: int) -> float:
        return 30.0 if rank == 1 and second < 3 else 0.9

    assert fed(looks_of(4, 60, compiling)) == []
    pace = OfPace()
    for second, look in enumerate(looks_of(8, 75, slow)):
        found = list(pace.feed(Looks(samples=look), now_s=float(second)))
    assert found
    pace.restarted(1)
    assert not list(pace.feed(Looks(samples=look), now_s=80.0))


def test_an_end_is_told_by_silence() -> None:
    found = fed(looks_of(8, 140, lambda rank, second: 0.9 * (1.1 if rank == 5 and 60 <= second < 90 else 1.0)))
    assert 88 < found[-1][0] < 130


def test_a_job_that_becomes_slow_is_told_after_ten_seconds_unless_a_rank_is() -> None:
    found = fed(looks_of(4, 160, lambda rank, second: 0.9 * (1.2 if second >= 100 else 1.0)))
    assert {(each.kind, each.ranks) for _, each in found} == {("slow_job", ())}
    assert 110 <= found[0][0] < 125
    found = fed(looks_of(4, 160, lambda rank, second: 0.9 * (1.2 if rank == 1 and second >= 100 else 1.0)))
    assert {each.kind for _, each in found} == {"slow_rank"}


HOG = {"cpu_wait": 0.3, "foreign_cpu": (("hog (pid 9)", 2.0),)}


def test_what_a_neighbour_takes_is_its_fault_and_not_the_machines() -> None:
    def machine(node: str, second: int) -> dict[str, Any]:
        return HOG if node == "c" and second >= 58 else {}

    found = fed(looks_of(8, 90, lambda rank, second: 0.9 * (1.3 if rank == 5 and second >= 60 else 1.0)), machine)
    assert {(each.kind, each.label, each.ranks, each.nodes) for _, each in found} == {
        ("contention", "sw.contention", (), ("c",))
    }
    assert "take 2.0 processors" in found[-1][1].sentence


def test_a_slow_rank_is_no_neighbours_fault_if_nobody_waits_or_another_node_does() -> None:
    for machine in (
        lambda node, second: {"foreign_cpu": (("idler", 2.0),)},
        lambda node, second: HOG if node == "a" else {},
    ):
        found = fed(looks_of(8, 80, slow), machine)
        assert {each.kind for _, each in found} == {"slow_rank"}


def test_ranks_that_fight_with_their_own_helpers_accuse_nobody() -> None:
    def work_s(rank: int, second: int) -> float:
        return 0.9 * (1.3 if rank == 5 and second >= 60 else 1.0)

    assert fed(looks_of(8, 90, work_s), lambda node, second: {"cpu_wait": 0.3}) == []


def test_the_verdict_names_the_node_and_warns() -> None:
    analyser = Analyser(nodes_of(8), detectors=(OfPace(),))
    told: list[Verdict] = []
    for second, look in enumerate(looks_of(8, 80, slow)):
        told += analyser.feed(look, now_s=float(second))
    ((label, action, nodes),) = [(each.label.value, each.action.value, each.nodes) for each in told]
    assert (label, action, nodes) == ("hw.straggler", "warn", ("c",))


def _rough_life(seed: int) -> set[str]:
    """What is found in four minutes of a healthy job with noise, long steps, and saves that nobody tells of."""
    rng = np.random.default_rng(seed)
    n_ranks, step_s, noise = (2, 4, 8, 16)[seed % 4], (0.02, 0.1, 0.7, 1.5)[seed // 4 % 4], (0.01, 0.03, 0.05)[seed % 3]
    pace, found = OfPace(), set()
    skew = rng.normal(1, 0.01, n_ranks)
    clock_s, step, count, passed_s, work_s = 0.0, 0, 0, 0.0, np.zeros(n_ranks)
    for look in range(500):
        now_s = (look + 1) * 0.5
        while clock_s < now_s:
            own = 0.8 * step_s * skew * rng.normal(1, 0.1) * rng.normal(1, noise, n_ranks)
            own *= np.where(rng.random(n_ranks) < 1 / 400, 3.0, 1.0) * (3.0 if rng.random() < 1 / 400 else 1.0)
            own[0] += 4.0 * (rng.random() < step_s / 30)  # a save about each half minute
            took_s = float(own.max()) + 0.2 * step_s
            clock_s, step, count = clock_s + took_s, step + 1, count + 1
            passed_s, work_s = passed_s + took_s, work_s + own
        over = max(1, count)
        times = [(float(work_s[rank]) / over or step_s, passed_s / over or step_s) for rank in range(n_ranks)]
        seen = [
            sample(rank, now_s, step=step, compute_s=own_s, step_s=all_s) for rank, (own_s, all_s) in enumerate(times)
        ]
        if count:
            count, passed_s, work_s = 0, 0.0, np.zeros(n_ranks)
        found |= {each.kind for each in pace.feed(Looks(samples=seen), now_s=now_s)}
    return found


@pytest.mark.slow
def test_of_sixty_rough_lives_at_most_one_has_a_warning() -> None:
    warned = {seed: found for seed in range(60) if (found := _rough_life(seed))}
    assert len(warned) <= 1, warned
