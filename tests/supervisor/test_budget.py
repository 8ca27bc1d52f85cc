"""The budget of restarts: only progress gives back, and a journal keeps it."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import CallError
from perdure.supervisor.budget import Budget, backoff_s


@given(st.integers(0, 5), st.lists(st.integers(0, 6) | st.none(), max_size=40))
def test_restarts_in_a_row_are_those_since_the_best_step(allowed: int, events: list[int | None]) -> None:
    budget, best, in_a_row, total = Budget(max_restarts=allowed), 0, 0, 0
    for event in events:
        if event is not None:
            if event > best:
                best, in_a_row = event, 0
            budget = budget.reached(event)
        elif in_a_row < allowed:
            budget, in_a_row, total = budget.spend(), in_a_row + 1, total + 1
        else:
            assert budget.refusal
            with pytest.raises(CallError):
                budget.spend()
        budget = msgspec.json.decode(msgspec.json.encode(budget), type=Budget)  # the controller was killed
        assert (budget.best_step, budget.n_in_a_row, budget.n_total) == (best, in_a_row, total)


def test_a_job_that_gets_on_is_restarted_for_ever_unless_somebody_bounds_it() -> None:
    free, bounded = Budget(max_restarts=1), Budget(max_restarts=1, max_total=3)
    for step in range(1, 500):
        free = free.reached(step).spend()
        if bounded.reached(step).refusal is None:
            bounded = bounded.reached(step).spend()
    assert free.n_total == 499
    assert bounded.n_total == 3
    assert bounded.reached(9999).refusal == "3 restarts have been made, and no more are allowed (max_total)"


@given(st.integers(1, 10**6), st.floats(0, 1))
def test_the_wait_grows_is_bounded_and_differs_between_jobs(n: int, chance: float) -> None:
    assert backoff_s(0, chance=chance) == 0
    assert backoff_s(n, chance=chance) <= backoff_s(n + 1, chance=chance) <= 45
    assert backoff_s(n, chance=0) < backoff_s(n, chance=1)


def test_numbers_below_zero_are_refused() -> None:
    for wrong in ({"max_restarts": -1}, {"max_restarts": 1, "max_total": -1}):
        with pytest.raises(CallError):
            Budget(**wrong)  # type: ignore[arg-type]
