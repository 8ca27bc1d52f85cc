"""A job that becomes slow is told, a healthy one is not."""

from __future__ import annotations

import numpy as np
import pytest

from perdure.errors import CallError
from perdure.watcher.evidence import Evidence
from perdure.watcher.history import StepTimes


def steps(seed: int, count: int, noise: float) -> np.ndarray:
    """Step times of a healthy job: long steps, slow steps after evaluation, drift."""
    rng = np.random.default_rng(seed)
    times = 0.2 * (1 + noise * rng.standard_normal(count)) * (1 + 0.01 * np.arange(count) / 1e5)
    times[rng.random(count) < 1 / 400] *= 3
    times[::500] *= 1.5
    return times


def replay(watch: StepTimes, times: np.ndarray) -> list[Evidence]:
    return [e for step, t in enumerate(times.tolist()) if (e := watch.observe(step, t, at_s=float(step)))]


@pytest.mark.parametrize("noise", [0.007, 0.02])
def test_a_healthy_job_is_never_slow(noise: float) -> None:
    assert replay(StepTimes(), steps(1, 20_000, noise)) == []


@pytest.mark.parametrize(("noise", "slowdown", "middle"), [(0.007, 1.05, 6), (0.02, 1.05, 10), (0.02, 1.1, 6)])
def test_a_slowdown_is_told_within_ten_steps(noise: float, slowdown: float, middle: int) -> None:
    delays = []
    for seed in range(40):
        times = steps(seed + 50, 450, noise)
        times[350:] *= slowdown
        found = replay(StepTimes(), times)
        assert [e.kind for e in found] == ["slow_job"]
        delays.append((found[0].step or 0) - 349)
    assert min(delays) > 0
    assert np.median(delays) <= middle


def test_an_episode_has_one_beginning_and_one_end() -> None:
    times = steps(2, 1500, 0.01)
    times[500:700] *= 1.08
    times[1000:1100] *= 1.08
    assert [e.kind for e in replay(StepTimes(), times)] == ["slow_job", "slow_job_over"] * 2


def test_a_job_that_stays_slow_is_as_it_is_and_may_become_slower() -> None:
    times = steps(3, 3000, 0.01)
    times[500:] *= 1.08
    times[2500:] *= 1.08
    assert [e.kind for e in replay(StepTimes(), times)] == ["slow_job", "slow_job_lasts", "slow_job"]


def test_a_job_that_became_faster_is_measured_at_its_new_speed() -> None:
    times = steps(4, 1500, 0.01)
    times[500:1000] *= 0.8
    times[1000:] *= 0.86
    found = replay(StepTimes(), times)
    assert [(e.kind, 1000 <= (e.step or 0) < 1020) for e in found] == [("slow_job", True)]


def test_a_creeping_slowdown_is_told() -> None:
    assert "slow_job" in {e.kind for e in replay(StepTimes(), steps(5, 3000, 0.01) * np.linspace(1, 1.3, 3000))}


def test_one_long_step_is_nothing_and_neither_are_three() -> None:
    times = steps(6, 600, 0.01)
    times[[300, 400, 402, 404]] *= 20
    assert replay(StepTimes(), times) == []


def test_what_is_no_time_is_skipped() -> None:
    times = steps(7, 600, 0.01)
    times[::7] = np.nan
    times[1::7] = 0.0
    times[2::7] = -1.0
    times[3::7] = np.inf
    assert replay(StepTimes(), times) == []
    assert replay(StepTimes(), np.full(600, 0.1)) == []


def test_after_a_reset_the_past_does_not_count() -> None:
    watch = StepTimes()
    replay(watch, steps(8, 300, 0.01))
    watch.reset()
    assert watch.usual_s is None
    assert replay(watch, 2 * steps(9, 300, 0.01)) == []
    assert not watch.slow


def test_a_share_that_is_none_is_refused() -> None:
    with pytest.raises(CallError, match="as a share"):
        StepTimes(least=5)
