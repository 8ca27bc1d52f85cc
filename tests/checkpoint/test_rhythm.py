"""When a loop saves, and how far."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Any

import pytest

from conftest import Place, await_that
from perdure.checkpoint.rhythm import Rhythm, daly_s
from perdure.checkpoint.saved import Outcome, Saved
from perdure.errors import CallError

Digests = Mapping[tuple[int, int], str]


def rhythm(every: Any = 4, memory_every: int | None = None, **more: Any) -> Rhythm:
    options = {"between_failures_s": 1e5, "agree": lambda mine: mine, "tell": lambda text: None} | more
    return Rhythm(every, memory_every, **options)


def test_numbers_of_steps() -> None:
    both = rhythm(6, 2)
    assert [both.due(step) for step in range(1, 8)] == [None, "memory", None, "memory", None, "disk", None]


@pytest.mark.parametrize("every", [0, -1, 1.5, True, "never"])
def test_what_is_no_interval(every: Any) -> None:
    with pytest.raises(CallError, match="whole number"):
        rhythm(every)
    if every != "never":
        with pytest.raises(CallError, match="whole number"):
            rhythm(1, every)
    with pytest.raises(CallError, match="failures"):
        rhythm(between_failures_s=0.0)


def test_daly_grows_with_both_and_stays_below_the_mean_time() -> None:
    assert daly_s(1.0, 1e4) < daly_s(2.0, 1e4) < daly_s(2.0, 1e5)
    assert daly_s(0.0, 1e4) == 0.0
    assert all(daly_s(cost, 100.0) <= 100.0 for cost in (1.0, 10.0, 100.0, 1000.0))


class Loop:
    """Steps of ``step_s`` on a clock of its own, saves that block ``cost_s`` and are durable after ``durable_s``."""

    def __init__(self, *, step_s: float, cost_s: float, durable_s: float, rank: int = 0) -> None:
        self.now, self.step_s, self.cost_s, self.durable_s = 0.0, step_s, cost_s, durable_s
        self.said: list[str] = []
        self.saved: list[int] = []

    def run(self, steps: int, **more: Any) -> Loop:
        auto = rhythm("auto", clock=lambda: self.now, tell=self.said.append, **more)
        for step in range(1, steps + 1):
            self.now += self.step_s
            if auto.due(step) == "disk":
                made = Saved(step, step, stage_s=1.0, commit_s=1.0)
                made.blocked_s = self.cost_s
                made.note_committed(Outcome(1, 1, 1, self.durable_s))
                auto.saved(made)
                self.saved.append(step)
                self.now += self.cost_s
        return self


def test_auto_measures_first_and_then_keeps_dalys_interval() -> None:
    loop = Loop(step_s=0.5, cost_s=0.1, durable_s=2.0).run(2000)
    assert loop.saved[0] == 10
    gaps = [b - a for a, b in zip(loop.saved[1:], loop.saved[2:], strict=False)]
    wanted = daly_s(0.1, 1e5) / 0.5
    assert gaps
    assert all(abs(gap - wanted) <= 0.05 * wanted for gap in gaps)
    assert len(loop.said) == 1
    assert f"every {gaps[0]} steps" in loop.said[0]


def test_auto_never_saves_before_the_last_save_is_durable() -> None:
    loop = Loop(step_s=1.0, cost_s=1e-6, durable_s=300.0).run(2000)
    gaps = [b - a for a, b in zip(loop.saved[1:], loop.saved[2:], strict=False)]
    assert min(gaps) >= 300


def test_all_ranks_do_what_rank_0_says() -> None:
    said: list[list[Any]] = []
    first = Loop(step_s=0.5, cost_s=0.1, durable_s=1.0).run(900, agree=lambda mine: (said.append(mine), mine)[1])
    words = iter(said)
    other = Loop(step_s=0.7, cost_s=0.4, durable_s=2.0).run(900, agree=lambda mine: next(words))
    assert other.saved == first.saved


def test_saves_to_memory_outlive_the_ranks_and_become_durable_when_training_goes_on(
    place: Place, undisturbed: Digests
) -> None:
    ranks = place.start("--steps", "12", "--every", "6", "--memory-every", "1", "--fault", "forward@10")
    assert ranks.wait_for([1]) == [-signal.SIGKILL]
    ranks.kill_all()
    assert place.steps() == [6]
    again = place.train("--steps", "12", "--every", "6", "--memory-every", "1")
    assert again.began_at() == [10, 10], again.text()
    assert again.digests().items() <= undisturbed.items(), again.text()
    assert place.steps() == [6, 10, 12]


def test_what_memory_alone_held_is_written_when_nobody_comes_back(place: Place, undisturbed: Digests) -> None:
    more = ("--steps", "12", "--every", "6", "--memory-every", "1")
    ranks = place.start(*more, "--fault", "forward@10", PERDURE_LEASE_S="2")
    assert ranks.wait_for([1]) == [-signal.SIGKILL]
    ranks.kill_all()
    await_that(lambda: not place.agent_pids(), "the agent to leave", within_s=30)
    assert place.steps() == [6, 10]
    again = place.train(*more)
    assert again.began_at() == [10, 10], again.text()
    assert again.digests().items() <= undisturbed.items(), again.text()


def test_saves_to_memory_without_an_agent_are_refused_at_once(place: Place) -> None:
    ranks = place.start("--steps", "6", "--every", "6", "--memory-every", "1", "--no-agent")
    assert all(code > 0 for code in ranks.wait())
    assert "memory_every=1 needs the node's agent" in ranks.out(0)
    assert not place.run_dir.exists()


def test_an_agent_that_dies_takes_saves_to_memory_with_it_and_no_others(place: Place, undisturbed: Digests) -> None:
    more = ("--steps", "12", "--every", "6", "--memory-every", "1", "--hold", f"4:{place.folder}/on")
    ranks = place.start(*more)
    ranks.await_line("^D 4 ", ranks=(0, 1))
    place.kill_agent()
    ranks.await_line("lost the agent", ranks=(0, 1))
    (place.folder / "on").touch()
    assert ranks.wait() == [0, 0], ranks.text()
    assert ranks.digests().items() <= undisturbed.items()
    assert [said for said in ranks.said(0) if said.startswith("saves to memory alone end here")], ranks.text()
    assert place.steps() == [6, 12]


def test_auto_in_a_real_loop(place: Place, undisturbed: Digests) -> None:
    ranks = place.train("--steps", "12", "--every", "auto")
    assert ranks.digests().items() <= undisturbed.items(), ranks.text()
    assert place.steps() == [10, 12]
    assert any("from here on a save every" in said for said in ranks.said(0)), ranks.text()
