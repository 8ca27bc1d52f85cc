"""Which steps are a process' first ones: by its own count, whoever looks and since when; else by what was seen."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from looks import group, nodes_of, sample

from perdure.progress import Phase, phase_deadlines
from perdure.progress.vitals import VitalsFile
from perdure.watcher.analyser import Analyser, Settings
from perdure.watcher.columns import Columns
from perdure.watcher.evidence import Stage, Verdict
from perdure.watcher.labels import Action
from perdure.watcher.patience import Patience
from perdure.watcher.reading import Reading
from perdure.watcher.samples import RankSample

STEP_S, FIRST_S = 8.0, 3600.0


class Seen:
    """One rank, as somebody sees it who begins to look now."""

    def __init__(self) -> None:
        self.columns, self.now_s = Columns({"a": [0]}), 0.0

    def look(self, **said: Any) -> bool:
        """Look a second later; whether the rank is in its first steps, or a phase for the first time."""
        self.now_s += 1.0
        self.columns.look([sample(0, self.now_s, **said)], self.now_s)
        return bool(self.columns.at_first[0])


def hung(own_steps: int | None, *, step: int | None = 40, seconds: int = 30, **said: Any) -> list[Verdict]:
    """What an analyser says that begins to look when rank 1 of four does not come to a collective."""
    analyser = Analyser(nodes_of(4), Settings(phase_deadlines=phase_deadlines(f"step={STEP_S:g}")))
    told: list[Verdict] = []
    for second in range(seconds):
        looks: list[RankSample] = []
        for rank in range(4):
            calls = group("world", 4, 399 if rank == 1 else 400, 399)
            usual = {"step": step, "own_steps": own_steps, "in_collective": rank != 1, "groups": (calls,)}
            looks.append(sample(rank, float(second), **{**usual, **said}))
        told += analyser.feed(looks, now_s=float(second))
    return told


def restarted(told: Iterable[Verdict]) -> list[tuple[int, ...]]:
    """The ranks for which the job was started again."""
    return [each.ranks for each in told if each.stage is Stage.VERDICT and each.action is Action.RESTART]


@pytest.mark.parametrize("own_steps", [2, 3, 40, 100_000])
def test_a_job_that_hangs_before_the_first_look_is_past_its_first_steps(own_steps: int) -> None:
    assert restarted(hung(own_steps)) == [(1,)]
    assert restarted(hung(own_steps, step=5000 + own_steps)) == [(1,)]  # one that was resumed
    assert restarted(hung(own_steps, phase="starting")) == [(1,)]  # whose beat has not told since


@pytest.mark.parametrize(
    "said",
    [{"own_steps": 0, "step": None}, {"own_steps": 1, "step": 1}, {"own_steps": 1, "step": 5001}, {"own_steps": None}],
)
def test_a_first_step_is_waited_for_whatever_its_number(said: dict[str, Any]) -> None:
    assert hung(**said, seconds=60) == []


def test_a_hang_in_the_second_in_which_a_rank_leaves_its_start_is_no_first_step() -> None:
    """Steps are told at once, the phase each second: the step at which it changes is not the first."""
    seen = Seen()
    assert seen.look(phase="starting", step=None, own_steps=0)
    assert not seen.look(phase="starting", step=9, own_steps=9)
    assert not seen.look(phase="forward", step=10, own_steps=10)
    assert not seen.look(phase="forward", step=10, own_steps=10)


def test_a_process_that_is_started_again_has_its_first_steps_again() -> None:
    seen = Seen()
    assert not seen.look(pid=1, step=5040, own_steps=40)
    assert seen.look(pid=2, step=None, own_steps=0, phase="restoring")
    assert seen.look(pid=2, step=None, own_steps=0)
    assert seen.look(pid=2, step=5031, own_steps=1)
    assert not seen.look(pid=2, step=5032, own_steps=2)


def test_a_process_that_restores_among_its_steps_has_no_first_step_again() -> None:
    seen = Seen()
    assert not seen.look(step=40, own_steps=40)
    seen.look(step=40, own_steps=40, phase="restoring")
    assert not seen.look(step=20, own_steps=40)


def test_calls_of_a_start_end_no_compilation_but_those_of_a_loop_without_steps_do() -> None:
    seen = Seen()
    first = [seen.look(step=None, own_steps=0, groups=(group("world", 2, min(calls, 5)),)) for calls in range(300)]
    assert all(first)
    first = [seen.look(step=None, own_steps=0, groups=(group("world", 2, calls),)) for calls in range(6, 40)]
    assert (first[0], first[-1]) == (True, False)
    assert seen.look(pid=7, step=None, own_steps=0, groups=(group("world", 2, 9),))


def test_of_who_counts_no_steps_of_its_own_those_that_were_seen_count() -> None:
    seen = Seen()
    first = [seen.look(phase="", step=step) for step in (700, 700, 701, 702, 703)]
    assert first == [True, True, True, False, False]


def test_a_step_is_allowed_what_it_is_by_the_count_of_its_process() -> None:
    said = phase_deadlines(f"step={STEP_S:g}")
    patience = Patience(said, suspect_s=6.0, own_phase_s=120.0, first_step_s=600.0)
    columns = Columns({"a": [0, 1]})
    columns.look([sample(0, 1.0, own_steps=1, step=1), sample(1, 1.0, own_steps=2, step=2)], 1.0)
    assert patience.allowed_s(columns).tolist() == [said[Phase.FORWARD].first_s, STEP_S] == [FIRST_S, STEP_S]
    assert patience.suspect_s(columns).tolist() == [600.0, STEP_S]


def test_no_gap_of_first_steps_is_learned_and_all_others_are() -> None:
    seen = Seen()
    for own_steps in (1, 1, 2):  # a step that has compiled
        seen.look(step=own_steps, own_steps=own_steps)
    assert seen.columns.gap_ended_s.tolist() != [1.0]
    for own_steps in (2, 3):
        seen.look(step=own_steps, own_steps=own_steps)
    assert seen.columns.gap_ended_s.tolist() == [1.0]


def test_a_record_tells_what_its_process_has_done(tmp_path: Path) -> None:
    folder = tmp_path / "records"
    folder.mkdir(mode=0o700)
    file = VitalsFile(folder, rank=0, world=1, stack_signal=0, main=1)
    reading = Reading(folder, node="a")

    def own_steps() -> int | None:
        (one,) = reading.look()
        return one.own_steps

    assert own_steps() is None
    file.beat(1, phase="starting", phase_since_ns=1, in_frames=False)
    assert own_steps() == 0
    file.step(5001, (0, 0, 0), (0, 0, 0, 0))
    assert own_steps() == 1
    file.step(5002, (9, 8, 1), (1, 9, 8, 1))
    assert own_steps() == 2
