"""A job's looks in, verdicts out: restarts that are faster than a judgement lose no death."""

from __future__ import annotations

from typing import Any

from looks import sample

from perdure.watcher.evidence import Stage, Verdict
from perdure.watcher.job_watch import JobWatch
from perdure.watcher.samples import NodeLook


def look(now_s: float, attempt: int, **of_rank_1: Any) -> NodeLook:
    ranks = [
        sample(rank, now_s, pid=100 * attempt + rank + 1, step=int(10 * now_s), **(of_rank_1 if rank == 1 else {}))
        for rank in range(2)
    ]
    return NodeLook(node="a", attempt=attempt, samples=tuple(ranks))


def test_who_died_is_told_also_if_the_ranks_are_started_again_at_once() -> None:
    watch, told = JobWatch(), list[Verdict]()
    for tenth in range(40):
        told += watch.feed([look(tenth / 10, 0)], now_s=tenth / 10)
    told += watch.feed([look(4.0, 0, exit_code=1)], now_s=4.0)
    assert told == []
    for tenth in range(43, 90):
        told += watch.feed([look(tenth / 10, 1)], now_s=tenth / 10)
    assert [(each.stage, each.ranks, each.incident) for each in told] == [
        (Stage.VERDICT, (1,), told[0].incident),
        (Stage.CLEARED, (1,), told[0].incident),
    ]
    assert watch.attempt == 1


def test_a_restart_without_a_death_is_followed_at_once_and_looks_before_it_are_left_out() -> None:
    watch = JobWatch()
    watch.feed([look(0.0, 0)], now_s=0.0)
    watch.feed([look(1.0, 1)], now_s=1.0)
    assert watch.attempt == 1
    for second in range(2, 6):
        assert watch.feed([look(float(second), 0, exit_signal=9), look(float(second), 1)], now_s=float(second)) == []
