"""The budget of restarts: only progress gives back, and a journal keeps it."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from perdure.supervisor.budget import Budget, backoff_s


@given(st.integers(0, 5), st.lists(st.booleans(), max_size=40))
def test_restarts_in_a_row_are_those_since_the_last_progress(allowed: int, events: list[bool]) -> None:
    budget, in_a_row, total = Budget(), 0, 0
    for progress in events:
        if progress:
            budget, in_a_row = budget.progressed(), 0
        elif not budget.spent(allowed):
            budget, delay_s = budget.spend(chance=0.5)
            assert delay_s == backoff_s(in_a_row, chance=0.5)
            in_a_row, total = in_a_row + 1, total + 1
        budget = msgspec.json.decode(msgspec.json.encode(budget), type=Budget)  # the controller was killed
        assert (budget.restarts, budget.total) == (in_a_row, total)
        assert budget.spent(allowed) == (in_a_row == allowed)


def test_a_job_that_gets_on_is_restarted_for_ever() -> None:
    budget = Budget()
    for _ in range(500):
        assert not budget.spent(1)
        budget, delay_s = budget.progressed().spend(chance=0.5)
        assert delay_s == 0
        budget = budget.progressed()
    assert budget.total == 500


@given(st.integers(1, 10**6), st.floats(0, 1))
def test_the_wait_grows_is_bounded_and_differs_between_jobs(n: int, chance: float) -> None:
    assert backoff_s(0, chance=chance) == 0
    assert backoff_s(n, chance=chance) <= backoff_s(n + 1, chance=chance) <= 45
    assert backoff_s(n, chance=0) < backoff_s(n, chance=1)
