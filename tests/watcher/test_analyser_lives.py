"""Hundreds of lives of jobs that exist in mind, each by its seed: who is named, what is done, how soon, how surely.

The confidences of the table were read off seeds from 1000 on; the lives here have others.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from job_in_mind import DEADLINE_S, FAULTS, HEALTHY, Outcome, live

from perdure.watcher.evidence import Stage, Verdict
from perdure.watcher.verdicts import judge

_FEW, _MANY = range(1), range(300, 312)
_DEAD = ("killed", "oom", "crashed", "raised", "stopped-inside", "stopped-outside")
_HUNG = ("loading", "io", "kernel", "work", "gil", "skipped-one", "skipped-all", "extra", "odd-shape")


def right(outcome: Outcome) -> bool:
    """Whether what was acted on last was right in label, rank and action."""
    truth, acted = outcome.truth, outcome.acted
    return truth is not None and acted is not None and outcome.right(acted) and acted.action in truth.actions


def at_most(share: float, times: Iterable[float | None]) -> float:
    """The time that ``share`` of all stay within; one that never came counts as infinite."""
    some = sorted(float("inf") if each is None else each for each in times)
    return some[min(len(some) - 1, int(share * len(some)))]


def each_row_once(outcome: Outcome) -> list[Verdict]:
    """The first verdict that each row of the table gave in each incident and stage."""
    found: dict[tuple[str, str, str], Verdict] = {}
    for each in outcome.told:
        ruling = judge(each.evidence)
        if ruling is not None and each.stage is not Stage.CLEARED:
            found.setdefault((each.incident, each.stage, ruling.row.name), each)
    return list(found.values())


@pytest.mark.parametrize("what", FAULTS)
def test_a_fault_is_found_named_and_acted_on(what: str) -> None:
    for seed in _FEW:
        outcome = live(seed, what)
        assert right(outcome), (seed, outcome.acted)
        assert not outcome.accused_node


@pytest.mark.parametrize("what", HEALTHY)
def test_nothing_is_done_about_a_healthy_job(what: str) -> None:
    for seed in _FEW:
        outcome = live(seed, what)
        assert outcome.acted is None, seed
        assert not outcome.accused_node
        if what == "debugger":
            assert all(each.nodes == () for each in outcome.told)
        else:
            assert outcome.warned == []


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_over_many_lives_the_numbers_that_were_asked_for_hold() -> None:
    faulty = [live(seed, what) for what in FAULTS for seed in _MANY]
    healthy = [live(seed, what) for what in HEALTHY for seed in _MANY]
    named = [each for each in faulty if each.acted is not None and each.acted.ranks]
    to_name = [each for each in faulty if each.truth is not None and each.truth.rank]
    hits = [each for each in to_name if each.acted is not None and each.acted.ranks == (each.job.culprit,)]
    assert len(hits) >= 0.95 * len(to_name), "recall"
    assert len(hits) >= 0.95 * len(named), "precision"
    assert sum(right(each) for each in faulty) >= 0.92 * len(faulty)
    assert sum(each.accused_node for each in (*faulty, *healthy)) <= 0.01 * len(faulty)
    assert not [each.job.what for each in healthy if each.acted is not None]
    warned = [each.job.what for each in healthy if each.warned and each.job.what != "debugger"]
    assert len(warned) <= len(healthy) / 60

    dead = [each.first_naming(of_stage=Stage.VERDICT) for each in faulty if each.job.what in _DEAD]
    assert at_most(0.95, dead) <= 3.0
    hung = [each for each in faulty if each.job.what in _HUNG]
    assert at_most(0.95, (each.first_naming() for each in hung)) <= 10.0
    acted = (each.first_naming(of_stage=Stage.VERDICT) for each in hung)
    assert at_most(0.95, acted) <= DEADLINE_S + 2.0 + 1.0  # a look may be a second old

    by_bucket: dict[float, list[bool]] = {}
    for outcome in (*faulty, *healthy):
        if outcome.job.what == "debugger":
            continue  # a warning that is right, though it is of no fault
        for verdict in each_row_once(outcome):
            by_bucket.setdefault(round(verdict.confidence, 1), []).append(outcome.right(verdict))
    for confidence, rights in by_bucket.items():
        if len(rights) >= 20:
            assert abs(sum(rights) / len(rights) - confidence) <= 0.15, (confidence, sum(rights), len(rights))
