"""What runs out is told in time, what only goes up and down is not; clocks that jump are told."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from perdure.errors import CallError
from perdure.watcher.evidence import Evidence
from perdure.watcher.slopes import ClockWatch, FillWatch

GB = 1e9


def replay(free: Callable[[float], float], until_s: float, *, every_s: float = 5.0) -> list[Evidence]:
    watch = FillWatch("memory_full_soon", "memory of n1", node="n1")
    times = np.arange(0, until_s, every_s).tolist()
    return [e for t in times if (e := watch.observe(free=free(t), total=64 * GB, at_s=t))]


@pytest.mark.parametrize("minutes", [8, 30, 300])
@pytest.mark.parametrize("seed", range(3))
def test_a_leak_is_told_before_it_is_too_late(minutes: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    end = minutes * 60.0
    found = replay(lambda t: 60 * GB * (1 - t / end) + rng.normal(0, 0.1 * GB), end - 120, every_s=10)
    assert [e.kind for e in found] == ["memory_full_soon"]
    assert found[0].nodes == ("n1",)
    assert 120 < end - found[0].at_s < 900


@pytest.mark.parametrize("seed", range(3))
def test_memory_that_comes_back_is_no_leak(seed: int) -> None:
    rng = np.random.default_rng(seed)
    phase = rng.uniform(0, 120)
    saw = lambda t: 50 * GB - 30 * GB * (((t + phase) % 120) / 120) + rng.normal(0, 0.2 * GB)  # noqa: E731
    assert replay(saw, 7200) == []


def test_noise_and_a_start_that_fills_half_are_nothing() -> None:
    rng = np.random.default_rng(1)
    assert replay(lambda t: 3 * GB + rng.normal(0, 0.1 * GB), 7200) == []
    assert replay(lambda t: 60 * GB - min(t, 60) / 60 * 35 * GB, 3600) == []


def test_what_is_full_is_told_at_once_and_the_end_as_well() -> None:
    found = replay(lambda t: 0.0 if 100 <= t < 200 else 30 * GB, 2000)
    assert [e.kind for e in found] == ["memory_full_soon", "memory_full_soon_over"]
    assert found[0].at_s == 100


def test_an_alarm_is_not_repeated_and_comes_again_after_its_end() -> None:
    def free(t: float) -> float:
        return 60 * GB - 20e6 * (t % 2800) if t < 5600 else 60 * GB

    assert [e.kind for e in replay(free, 8000)] == ["memory_full_soon", "memory_full_soon_over"] * 2


def test_rates_of_sampling_do_not_matter_and_nonsense_is_skipped() -> None:
    ends = [replay(lambda t: 60 * GB - 20e6 * t, 3000, every_s=every)[0].at_s for every in (0.5, 1.0, 10.0)]
    assert max(ends) - min(ends) < 30
    watch = FillWatch("disk_full_soon", "/data")
    assert watch.observe(free=math.nan, total=1.0, at_s=0.0) is None
    assert watch.observe(free=1.0, total=0.0, at_s=0.0) is None
    assert watch.observe(free=1.0, total=1.0, at_s=9.0) is None
    assert watch.observe(free=1.0, total=1.0, at_s=3.0) is None
    with pytest.raises(CallError, match="positive"):
        FillWatch("disk_full_soon", "/data", horizon_s=0)


@pytest.mark.parametrize("jump_s", [-3600.0, -1.0, 1.0, 60.0])
def test_a_jump_of_the_clock_is_told_once(jump_s: float) -> None:
    watch = ClockWatch("n1")
    found = [e for t in range(100) if (e := watch.observe(wall_s=1e9 + t + jump_s * (t >= 50), at_s=float(t)))]
    assert [(e.kind, e.at_s, e.nodes) for e in found] == [("clock_jump", 50.0, ("n1",))]


def test_slewing_jitter_and_a_reboot_are_no_jumps() -> None:
    rng = np.random.default_rng(2)
    watch = ClockWatch("n1")
    for t in range(0, 100_000, 100):
        assert watch.observe(wall_s=1e9 + t * (1 + 4e-4) + rng.normal(0, 0.01), at_s=float(t)) is None
    assert watch.observe(wall_s=math.nan, at_s=1e6) is None
    assert watch.observe(wall_s=2e9, at_s=5.0) is None
    watch.reset()
    assert watch.observe(wall_s=3e9, at_s=6.0) is None
