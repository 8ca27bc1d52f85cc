"""A resume is judged by the losses that the program prints, whose steps are its own."""

from __future__ import annotations

import numpy as np
import pytest

from perdure.watcher.evidence import Evidence
from perdure.watcher.labels import Label
from perdure.watcher.of_resume import OfResume
from perdure.watcher.samples import LogLine, Looks


def printed(watch: OfResume, first: int, losses: list[float], *, rank: int = 0, every: int = 5) -> list[Evidence]:
    found: list[Evidence] = []
    for number, loss in enumerate(losses):
        line = LogLine(text=f"step {first + every * number} loss {loss:.4f} lr 0.02", at_s=1.0, rank=rank)
        found = list(watch.feed(Looks(lines=[line]), now_s=1.0))
    return found


def usual(n: int, *, at: float = 0.4, seed: int = 0) -> list[float]:
    return np.random.default_rng(seed).normal(at, at / 10, n).tolist()


@pytest.mark.parametrize("seed", range(20))
def test_a_resume_from_the_state_that_was_left_is_well(seed: int) -> None:
    watch = OfResume()
    assert printed(watch, 0, usual(40, seed=seed)) == []
    watch.restarted(1)
    assert printed(watch, 200, usual(40, seed=100 + seed)) == []


def test_one_from_another_state_is_bad_until_the_loss_is_where_it_was() -> None:
    watch = OfResume()
    printed(watch, 0, usual(40))
    watch.restarted(1)
    (found,) = printed(watch, 200, usual(8, at=1.6, seed=1))
    assert (found.kind, found.label) == ("bad_resume", Label.BAD_RESUME)
    assert printed(watch, 240, usual(60, seed=2)) == []


def test_steps_that_go_back_within_an_attempt_and_a_fresh_start_are_no_resume() -> None:
    watch = OfResume()
    watch.restarted(1)
    assert printed(watch, 0, [9.0 / (n + 1) for n in range(40)]) == []
    assert printed(watch, 0, usual(8, at=9.0)) == []
    watch.restarted(2)
    assert printed(watch, 0, [9.0, 4.5, 3.0, 2.2]) == []  # from the beginning: nothing was done before its step 0


def test_losses_of_other_ranks_are_not_mixed_in() -> None:
    watch = OfResume()
    printed(watch, 0, usual(40))
    watch.restarted(1)
    assert printed(watch, 200, usual(8, at=9.0), rank=1) == []
