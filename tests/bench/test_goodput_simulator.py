"""The simulator of `bench/goodput.py` agrees with what can be calculated, and its terms are all of the time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from goodput import DAYS, LLAMA_3, NODES, mean_ledger
from interruptions import DAY_S, Cause, Ledger, Plant, daly_s, simulate

CALM = Plant(
    nodes=100,
    spares=2,
    repair_s=3600.0,
    interval_s=300.0,
    stall_s=3.0,
    lag_s=0.0,
    death_noticed_s=0.0,
    node_noticed_s=0.0,
    hang_noticed_s=0.0,
    restart_s=0.0,
)


def deaths(a_day: float, **facts: bool) -> Cause:
    return Cause("death", a_day, 1.0, CALM.nodes, **{"takes_node": False, **facts})


def run(plant: Plant, *causes: Cause, days: float = 50.0, runs: int = 4) -> Ledger:
    return mean_ledger(plant, causes, days=days, runs=runs, seed=1)


def test_the_causes_are_those_that_were_published() -> None:
    assert sum(cause.count for cause in LLAMA_3 if not cause.planned) == 419
    assert sum(cause.count for cause in LLAMA_3) == 466
    assert {(cause.days, cause.nodes) for cause in LLAMA_3} == {(DAYS, NODES)}


def test_without_failures_checkpoints_alone_cost_time() -> None:
    assert run(CALM).effective == pytest.approx(300 / 303, rel=1e-4)


@given(
    st.integers(0, 3),
    st.floats(0, 1e6),
    st.floats(1, 1e4),
    st.floats(0, 1e3),
    st.floats(0, 1e4),
    st.floats(0, 1e3),
    st.floats(0, 1e4),
    st.integers(0, 2**32),
)
def test_the_terms_are_all_of_the_time(
    spares: int, repair: float, interval: float, stall: float, lag: float, noticed: float, restart: float, seed: int
) -> None:
    plant = Plant(
        nodes=100,
        spares=spares,
        repair_s=repair,
        interval_s=interval,
        stall_s=stall,
        lag_s=lag,
        death_noticed_s=noticed,
        node_noticed_s=noticed,
        hang_noticed_s=2 * noticed,
        restart_s=restart,
    )
    causes = [deaths(20), deaths(20, takes_node=True), deaths(5, hangs=True), deaths(2, planned=True)]
    ledger = simulate(plant, causes, days=3.0, rng=np.random.default_rng(seed))
    assert ledger.total == pytest.approx(3.0 * DAY_S, rel=1e-9)
    assert min(ledger.useful, ledger.lost, ledger.stalls, ledger.detection, ledger.restart, ledger.waiting) >= 0


def test_each_failure_loses_half_an_interval_and_costs_detection_and_restart() -> None:
    plant = replace(CALM, interval_s=100.0, stall_s=0.0, death_noticed_s=5.0, restart_s=20.0)
    ledger = run(plant, deaths(10), days=400.0)
    each = ledger.interruptions
    assert each == pytest.approx(10 * 400, rel=0.05)
    assert ledger.lost / each == pytest.approx(50.0, rel=0.05)
    assert ledger.detection / each == pytest.approx(5.0, rel=0.01)
    assert ledger.restart / each == pytest.approx(20.0, rel=0.01)


def test_a_checkpoint_that_is_on_its_way_is_lost_too() -> None:
    late = run(replace(CALM, interval_s=100.0, stall_s=0.0, lag_s=40.0), deaths(10), days=400.0)
    assert late.lost / late.interruptions == pytest.approx(90.0, rel=0.05)


def test_a_planned_stop_loses_nothing() -> None:
    ledger = run(CALM, deaths(10, planned=True))
    assert ledger.lost == 0.0
    assert ledger.interruptions > 0


def test_hangs_are_noticed_later_than_deaths() -> None:
    plant = replace(CALM, death_noticed_s=1.0, hang_noticed_s=100.0)
    hung = run(plant, deaths(5, hangs=True))
    assert hung.detection / hung.interruptions == pytest.approx(100.0, rel=0.05)


def test_with_too_few_spares_the_job_waits_for_repair_as_a_queue_does() -> None:
    plant = replace(CALM, repair_s=3600.0)
    none = run(replace(plant, spares=0), deaths(4, takes_node=True), days=400.0)
    # each failure stops the job for the whole repair, and another one meanwhile (rate 4 a day) prolongs it hardly
    assert none.waiting / none.total == pytest.approx(4 * 3600 / DAY_S, rel=0.25)
    assert run(replace(plant, spares=8), deaths(4, takes_node=True), days=400.0).waiting == 0.0


def test_the_best_interval_is_near_youngs_and_dalys() -> None:
    plant, a_day = replace(CALM, stall_s=4.0), 40.0
    best = daly_s(stall_s=4.0, between_s=DAY_S / a_day)
    shares = {
        factor: run(replace(plant, interval_s=factor * best), deaths(a_day), days=500.0).effective
        for factor in (0.25, 0.5, 0.7, 1.0, 1.4, 2.0, 4.0)
    }
    assert max(shares, key=lambda factor: shares[factor]) in (0.7, 1.0, 1.4)
    waste = 1 - shares[1.0]
    assert waste == pytest.approx((2 * 4.0 / (DAY_S / a_day)) ** 0.5, rel=0.1)  # sqrt(2 stall / MTBF)


def test_the_same_seed_gives_the_same_run() -> None:
    assert run(CALM, deaths(10)) == run(CALM, deaths(10))
    assert run(CALM, deaths(10)) != mean_ledger(CALM, [deaths(10)], days=50.0, runs=4, seed=2)
