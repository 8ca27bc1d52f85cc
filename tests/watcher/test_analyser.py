"""The analyser as whoever drives it sees it: what it tells, what it asks for, and when it keeps silent."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from looks import gists, group, nodes_of, sample

from perdure.errors import CallError
from perdure.progress import phase_deadlines
from perdure.watcher.analyser import Analyser, Settings
from perdure.watcher.evidence import Evidence, Stage, Verdict
from perdure.watcher.explaining import explain
from perdure.watcher.labels import Action, Label
from perdure.watcher.samples import LogLine, Looks, NodeSample, RankSample, Stack

SETTINGS = Settings(phase_deadlines=phase_deadlines("step=30,first-step=100,evaluate=200"))
LOADING = ("torch/utils/data/dataloader.py:1133 _try_get_data", "train.py:31 batch")
INSIDE = ("torch/distributed/distributed_c10d.py:2501 all_reduce", "train.py:40 step")


class Job:
    """Four ranks on two nodes, at one step a second, in a hand that can make them do anything."""

    def __init__(self, n_ranks: int = 4, **more: Any) -> None:
        self.n, self.now_s, self.step = n_ranks, 0.0, 0
        self.analyser = Analyser(nodes_of(n_ranks), SETTINGS, **more)
        self.told: list[Verdict] = []
        self.live(1, phase="starting", groups=())
        self.live(40)

    def of(self, rank: int, **said: Any) -> RankSample:
        usual = {"step": self.step, "groups": (group("world", self.n, self.step),), "in_collective": False}
        return sample(rank, self.now_s, **{**usual, **said})

    def live(
        self, seconds: int, only: dict[int, dict[str, Any]] | None = None, *, go_on: bool = True, **said: Any
    ) -> list[Verdict]:
        """Let seconds pass; ``said`` of all ranks, ``only`` of some. Returns what was told meanwhile."""
        told = []
        for _ in range(seconds):
            self.now_s += 1.0
            self.step += go_on
            looks = [self.of(rank, **{**said, **(only or {}).get(rank, {})}) for rank in range(self.n)]
            told += self.analyser.feed(looks, now_s=self.now_s + 9e5)
        self.told += told
        return told

    def hang(self, seconds: int, culprit: int | None = 2, **culprits: Any) -> list[Verdict]:
        """All but the culprit wait in a collective."""
        inside = {"in_collective": True, "groups": (group("world", self.n, self.step + 1, self.step),)}
        only = {rank: inside for rank in range(self.n) if rank != culprit}
        if culprit is not None:
            only[culprit] = culprits
        return self.live(seconds, only, go_on=False)


def test_a_healthy_job_is_told_nothing() -> None:
    assert Job().told == []


def test_a_hang_is_suspected_in_ten_seconds_and_acted_on_after_the_deadline_of_its_phase() -> None:
    job = Job()
    (suspicion,) = job.hang(10)
    assert gists([suspicion]) == [("suspicion", "transient.unknown", "restart", (2,))]
    assert job.hang(18) == []
    (verdict,) = job.hang(5)
    assert (verdict.stage, verdict.incident) == (Stage.VERDICT, suspicion.incident)


def test_stacks_are_asked_for_and_say_what_the_rank_does() -> None:
    job = Job()
    assert job.analyser.wants_stacks() == ()
    job.hang(10)
    wanted = job.analyser.wants_stacks()
    assert wanted[0] == 2
    assert job.analyser.wants_stacks() == ()  # not again so soon
    stacks = [Stack(rank=r, node="b", at_s=1.0, frames=LOADING if r == 2 else INSIDE) for r in wanted]
    job.analyser.feed([], stacks=stacks, now_s=job.now_s + 9e5)
    told = job.hang(1)
    assert [each.label for each in job.analyser.open] == [Label.DATALOADER], told


def test_a_rank_in_state_t_is_not_asked_for_a_stack() -> None:
    job = Job()
    job.hang(10, state="T", beat=1)
    assert 2 not in job.analyser.wants_stacks()


def test_a_rank_frozen_inside_a_collective_is_named_by_its_state_in_three_seconds() -> None:
    job = Job()
    inside = {"in_collective": True, "groups": (group("world", 4, job.step + 1, job.step),)}
    told = job.live(3, {1: {"state": "T", "beat": 1}}, go_on=False, **inside)
    assert gists(told) == [("verdict", "transient.unknown", "warn", (1,))]
    assert told[0].nodes == ()
    acted = job.live(32, {1: {"state": "T", "beat": 1}}, go_on=False, **inside)
    assert gists(acted) == [("verdict", "transient.unknown", "restart", (1,))]


def test_an_evaluation_for_which_others_wait_is_no_hang() -> None:
    job = Job()
    assert job.hang(100, culprit=0, phase="evaluating") == []
    assert job.live(20) == []


def test_what_was_waited_for_a_busy_rank_does_not_count_when_it_comes_back() -> None:
    job = Job()
    job.hang(100, culprit=0, phase="evaluating")
    assert job.hang(3, culprit=0) == []


def test_a_pause_of_whoever_looks_accuses_nobody() -> None:
    job = Job()
    job.now_s += 60.0
    assert job.live(30) == []


def test_a_first_step_that_compiles_is_no_hang() -> None:
    job = Job()
    job.analyser.restarted(1)
    job.step = 0
    job.live(2, go_on=False, phase="starting", groups=())
    assert job.live(90, go_on=False, phase="forward", groups=(group("world", 4, 0),), pid=77) == []


def test_after_a_restart_old_incidents_are_cleared_and_new_ones_found() -> None:
    job = Job()
    job.live(3, {3: {"exit_signal": 9}}, go_on=False)
    assert gists(job.told) == [("verdict", "transient.unknown", "restart", (3,))]
    job.analyser.restarted(1, nodes_of(4))
    again = job.live(20, pid=500)
    assert [each.stage for each in again] == [Stage.CLEARED]
    job.live(3, {0: {"exit_signal": 9, "pid": 500}}, go_on=False, pid=500)
    assert job.told[-1].ranks == (0,)
    assert job.told[-1].incident == "1.1"
    assert job.told[-1].action is Action.RESTART


def test_the_same_node_twice_is_replaced_also_by_the_next_analyser() -> None:
    job = Job(8)
    job.live(3, {5: {"exit_signal": 9}}, go_on=False)
    after = Job(8, past=job.analyser.past)
    after.live(3, {4: {"exit_signal": 9}}, go_on=False)
    assert gists(after.told) == [("verdict", "hw.suspect", "evict", (4,))]
    assert after.told[0].nodes == ("c",)


def test_ranks_that_join_are_taken_in_and_those_that_are_done_leave() -> None:
    job = Job()
    job.n = 6
    assert job.live(20, {4: {"pid": 1}, 5: {"pid": 1}}) == []
    job.n = 4
    bye = [job.of(rank, finished=True, exit_code=0) for rank in (4, 5)]
    job.analyser.feed(bye, now_s=job.now_s + 9e5)
    assert job.live(20) == []
    assert job.hang(10)[0].ranks == (2,)


def test_a_clock_that_jumps_changes_nothing() -> None:
    job = Job()
    for second in range(20):
        job.now_s += 1.0
        job.step += 1
        nodes = [NodeSample(node="a", at_s=job.now_s, wall_s=1e9 + (3600.0 if second > 5 else 0.0))]
        assert job.analyser.feed([job.of(rank) for rank in range(4)], nodes, now_s=job.now_s + 9e5) == []


def test_a_detector_that_is_plugged_in_is_asked_at_every_look_and_its_evidence_judged() -> None:
    class Slow:
        lines = 0
        attempts: list[int] = []  # noqa: RUF012

        def feed(self, looks: Looks, *, now_s: float) -> Iterable[Evidence]:
            self.lines += len(looks.lines)
            if looks.lines:
                yield Evidence(kind="slow-rank", at_s=now_s, ranks=(1,), nodes=("a",), sentence="rank 1 is slow")

        def restarted(self, attempt: int) -> None:
            self.attempts.append(attempt)

    slow = Slow()
    analyser = Analyser(nodes_of(4), detectors=(slow,))
    (told,) = analyser.feed([], lines=[LogLine(text="x", at_s=0.0)], now_s=1.0)
    assert (told.label, told.nodes, told.action) == (Label.STRAGGLER, ("a",), Action.WARN)
    analyser.restarted(3)
    assert (slow.lines, slow.attempts) == (1, [3])


def test_mute_and_acknowledge_reach_the_incidents() -> None:
    job = Job()
    job.analyser.mute(rank=2)
    assert job.hang(10) == []
    with pytest.raises(CallError):
        job.analyser.acknowledge("7.7")


def test_the_reasoning_of_an_incident_can_be_read() -> None:
    job = Job()
    job.hang(45)
    text = explain(job.told)
    for part in (
        job.told[0].incident,
        "rank 2 on b",
        "row `behind`",
        "number 41 in group world",
        "in-loading",
        "suspicion",
    ):
        assert part in text
    with pytest.raises(CallError):
        explain([])


def test_a_node_of_which_nothing_is_heard_is_suspected_and_after_a_minute_replaced() -> None:
    job = Job(8)
    told = []
    inside = {"in_collective": True, "groups": (group("world", 8, job.step + 1, job.step),)}
    for _ in range(70):
        job.now_s += 1.0
        told += job.analyser.feed(
            [job.of(rank, **inside) for rank in range(8) if rank // 2 != 2], now_s=job.now_s + 9e5
        )
    first, last = told[0], told[-1]
    assert (first.stage, first.nodes, first.label) == (Stage.SUSPICION, ("c",), Label.HOST)
    assert (last.stage, last.nodes, last.action) == (Stage.VERDICT, ("c",), Action.EVICT)
    assert {each.incident for each in told} == {first.incident}


def test_a_rank_that_says_it_loads_data_needs_no_stack() -> None:
    job = Job()
    told = job.hang(10, phase="loading")
    assert gists(told) == [("suspicion", "sw.dataloader", "restart", (2,))]


def test_ranks_that_are_gone_without_a_word_at_the_end_of_a_job_are_not_acted_on() -> None:
    job = Job()
    told = job.live(3, {1: {"state": "X"}}) + job.live(200, state="X", go_on=False)
    assert all(each.stage is not Stage.VERDICT for each in told)
