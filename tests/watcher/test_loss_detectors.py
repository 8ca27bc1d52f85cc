"""What the loss tells: spikes, divergence, bad resumes, silence; real curves with restarts beside made ones."""

from __future__ import annotations

import csv
import gzip
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

from perdure.watcher.evidence import Evidence
from perdure.watcher.labels import Label
from perdure.watcher.loss import LossWatch, MetricWatch

DATA = Path(__file__).resolve().parents[3] / "shared/data/watch"
real = pytest.mark.skipif(not DATA.is_dir(), reason=f"the real curves are not in {DATA}")


def curve(seed: int, count: int, *, noise: float = 0.02) -> np.ndarray:
    """A loss that falls as real ones do, with tails heavier than Gaussian."""
    rng = np.random.default_rng(seed)
    return 2.2 + 9 * np.arange(1, count + 1) ** -0.5 + noise * rng.standard_t(6, count) / 1.22


def replay(watch: LossWatch, losses: np.ndarray, first: int = 1) -> list[Evidence]:
    return [e for step, x in enumerate(losses.tolist(), first) for e in watch.observe(step, x, at_s=float(step))]


def kinds(found: list[Evidence]) -> list[str]:
    return [e.kind for e in found]


@pytest.mark.parametrize("seed", range(4))
def test_a_healthy_curve_says_nothing(seed: int) -> None:
    assert replay(LossWatch(), curve(seed, 4000)) == []


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("length", [1, 4, 30])
def test_a_spike_that_comes_back_is_told_as_recovered(seed: int, length: int) -> None:
    losses = curve(seed, 2500)
    losses[2000 : 2000 + length] += np.linspace(1.5, 0.8, length)
    found = replay(LossWatch(), losses)
    assert [(e.kind, e.label) for e in found] == [
        ("loss_spike", None),
        ("loss_spike_recovered", Label.SPIKE_RECOVERED),
    ]
    assert found[0].step == 2001
    assert (found[1].step or 0) < 2001 + length + 30


@pytest.mark.parametrize("seed", range(4))
def test_a_rise_that_stays_is_divergence_and_is_told_once(seed: int) -> None:
    losses = curve(seed, 4000)
    losses[2000:3000] += 2
    found = replay(LossWatch(), losses)
    assert kinds(found) == ["loss_spike", "loss_diverged", "loss_recovered"]
    assert (found[1].label, found[1].step) == (Label.DIVERGENCE, 2101)


@pytest.mark.parametrize("steps", [200, 2000])
def test_a_slow_rise_is_divergence_as_well(steps: int) -> None:
    losses = curve(1, 6000)
    losses[3000:] += np.minimum(np.arange(3000) / steps, 3)
    assert kinds(replay(LossWatch(), losses))[:2] == ["loss_spike", "loss_diverged"]


def test_a_loss_that_is_not_finite_is_told_at_once_and_once() -> None:
    losses = curve(2, 1000)
    losses[500:510] = math.nan
    losses[700] = math.inf
    found = replay(LossWatch(), losses)
    assert kinds(found) == ["loss_not_finite", "loss_finite_again"] * 2
    assert [e.step for e in found] == [501, 511, 701, 702]
    assert found[0].label is Label.NAN


def test_the_first_losses_may_spike_already() -> None:
    assert kinds(replay(LossWatch(), np.array([2.2, 2.22, 2.6, 5.1, 3.5]))) == ["loss_spike"]
    assert replay(LossWatch(), np.array([math.nan])) != []
    assert replay(LossWatch(), np.array([5.0])) == []


def test_a_constant_loss_and_one_of_zero_are_no_trouble() -> None:
    assert replay(LossWatch(), np.full(1000, 2.5)) == []
    assert replay(LossWatch(), np.zeros(1000)) == []


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("told", [True, False], ids=["told", "seen"])
@pytest.mark.parametrize(("shift", "bad"), [(0.0, False), (0.3, True), (8.0, True)])
def test_replayed_steps_are_compared_one_by_one(seed: int, told: bool, shift: float, bad: bool) -> None:
    losses = curve(seed, 3000)
    watch = LossWatch()
    replay(watch, losses)
    if told:
        watch.restored(2500)
    again = losses[2500:] + np.random.default_rng(seed).normal(0, 0.005, 500) + shift
    found = replay(watch, again, 2501)
    assert (kinds(found)[:1] == ["bad_resume"]) == bad
    assert all((e.step or 0) <= 2508 for e in found if e.kind == "bad_resume")
    assert len(found) == bad


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("shift", "bad"), [(0.0, False), (0.2, True), (6.0, True)])
def test_new_steps_after_a_restore_are_compared_with_those_before(seed: int, shift: float, bad: bool) -> None:
    losses = curve(seed, 3000)
    losses[2500:] += shift
    watch = LossWatch()
    replay(watch, losses[:2500])
    watch.restored(2500)
    found = replay(watch, losses[2500:], 2501)
    assert kinds(found) == ["bad_resume"] * bad
    assert all((e.step or 0) <= 2508 for e in found)


def test_other_data_after_a_restore_is_no_bad_resume() -> None:
    watch = LossWatch()
    replay(watch, curve(1, 3000))
    assert replay(watch, curve(2, 3000)[2500:], 2501) == []


def test_a_bad_resume_is_over_when_the_loss_is_back() -> None:
    losses = curve(3, 3000)
    losses[2000:] += 3 * np.exp(-np.arange(1000) / 50)
    watch = LossWatch()
    replay(watch, losses[:2000])
    watch.restored(2000)
    assert kinds(replay(watch, losses[2000:], 2001)) == ["bad_resume", "bad_resume_over"]


def test_a_restore_without_a_past_says_nothing() -> None:
    watch = LossWatch()
    watch.restored(500)
    assert replay(watch, curve(4, 1000)[500:], 501) == []


def test_sparse_and_missing_steps_are_fine() -> None:
    watch = LossWatch()
    losses = curve(5, 5000)
    losses[4000:4001] += 2
    found = [e for step in range(0, 5000, 10) for e in watch.observe(step, float(losses[step]), at_s=0.0)]
    assert kinds(found) == ["loss_spike", "loss_spike_recovered"]


def test_a_metric_is_lost_once_and_back_once() -> None:
    watch = MetricWatch("loss")
    reports = [*range(0, 100, 5), *range(400, 500, 5)]
    found = [e for step in range(500) if (e := watch.observe(step, reported=step in reports, at_s=0.0))]
    assert [(e.kind, e.step) for e in found] == [("metric_lost", 146), ("metric_back", 400)]


def test_a_metric_that_never_was_is_not_lost_and_restarts_do_not_count() -> None:
    never = MetricWatch("loss")
    assert not any(never.observe(step, reported=False, at_s=0.0) for step in range(500))
    watch = MetricWatch("loss")
    for step in range(0, 100, 5):
        assert watch.observe(step, reported=True, at_s=0.0) is None
    assert watch.observe(40, reported=False, at_s=0.0) is None
    watch.reset()
    assert watch.observe(300, reported=False, at_s=0.0) is None


def read(name: str) -> tuple[np.ndarray, np.ndarray]:
    with gzip.open(DATA / f"pythia_loss/{name}.csv.gz", "rt") as file:
        rows = list(csv.reader(file))[1:]
    return np.array([int(row[0]) for row in rows]), np.array([float(row[1]) for row in rows])


@real
def test_the_bad_resume_of_a_real_run_is_found_and_its_healthy_ones_are_not() -> None:
    labels = json.loads((DATA / "pythia_loss/labels.json").read_text())
    event = next(e for run in labels["runs"].values() for e in run["events"] if e["kind"] == "bad_resume")
    watch = LossWatch()
    paths = (DATA / "pythia_loss").glob(f"{event['segment'].split('_')[0]}_*.csv.gz")
    segments = [read(path.name[: -len(".csv.gz")]) for path in paths]
    segments.sort(key=lambda segment: int(segment[0][0]))
    found = []
    for steps, losses in segments:
        watch.restored(int(steps[0]) - 1)
        rows = slice(None) if len(steps) <= 2000 else np.r_[0:1000, len(steps) - 1000 : len(steps)]
        for step, loss in zip(steps[rows].tolist(), losses[rows].tolist(), strict=True):
            found += watch.observe(step, loss, at_s=0.0)
    resumes = [e for e in found if e.kind == "bad_resume"]
    assert [e.step for e in resumes] == [event["step"]]


@real
def test_a_real_spike_from_a_log_recovers() -> None:
    watch = LossWatch()
    found = []
    for line in (DATA / "bloom_spike_31214.log").read_text().splitlines():
        step, loss = re.search(r"iteration\s+(\d+)/", line), re.search(r"lm loss: (\S+)", line)
        if step and loss:
            found += watch.observe(int(step[1]), float(loss[1]), at_s=0.0)
    assert kinds(found) == ["loss_spike", "loss_spike_recovered"]


@pytest.mark.parametrize("fresh", [True, False])
def test_a_resume_is_judged_while_the_loss_still_falls(fresh: bool) -> None:
    for seed in range(20):
        dice, watch = np.random.default_rng(seed), LossWatch()

        def loss(step: int, dice: np.random.Generator = dice) -> float:
            return float((0.25 + 0.75 * np.exp(-step / 60)) * dice.lognormal(0, 0.05))

        for step in range(90):
            assert watch.observe(step, loss(step), at_s=0.0) == ()
        watch.restored(89)
        told = [e.kind for at in range(60) for e in watch.observe(90 + at, loss(at if fresh else 90 + at), at_s=0.0)]
        assert ("bad_resume" in told) is fresh
