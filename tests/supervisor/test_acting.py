"""The watcher names and the machine acts: once, only when it is sure, and never on what launchers have seen first."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from cluster import Cluster
from perdure.events import JobFailed, NodeCordoned, Notice, VerdictTold
from perdure.supervisor import vocabulary as v
from perdure.supervisor.config import Spec
from perdure.supervisor.job import State
from perdure.supervisor.verdict import Act, Evidence, Named, Past, judge


class Watched(Cluster):
    """A cluster whose facts are kept, and of which a watcher says things."""

    def __init__(self, n: int = 2, **fields: Any) -> None:
        self.facts: list[Any] = []
        self.ordered: list[v.Start] = []
        fields = {"min_nodes": 2, "max_nodes": 2, "watch": True} | fields
        super().__init__(Spec(name="job", command=("x",), **fields), n)
        self.pass_time(5.0)
        assert self.journal.state is State.EXECUTE
        self.handle(v.Watching(True))

    def handle(self, event: v.Event) -> None:
        if self.machine is not None:
            real = self.machine.handle

            def keeping(event: v.Event, now: float, *, wall: float = 0.0) -> list[v.Action]:
                actions = real(event, now, wall=wall)
                self.ordered += [action for action in actions if isinstance(action, v.Start)]
                self.facts += [action.fact for action in actions if isinstance(action, v.Say)]
                return actions

            self.machine.handle = keeping  # type: ignore[method-assign]
            super().handle(event)
            if self.machine is not None:
                self.machine.handle = real  # type: ignore[method-assign]

    def says(self, action: str = "restart", **fields: Any) -> None:
        given: dict[str, Any] = {
            "attempt": self.journal.attempt,
            "incident": f"r-{self.journal.attempt}.1",
            "stage": "verdict",
            "label": "transient.unknown",
            "owner": "transient",
            "confidence": 0.95,
            "sentence": "rank 3 on n1 is stopped",
            "ranks": (3,),
        }
        self.handle(v.Judged(action=action, **(given | fields)))  # type: ignore[arg-type]

    def notices(self) -> str:
        return "\n".join(fact.text for fact in self.facts if isinstance(fact, Notice))


def test_a_sure_verdict_ends_the_attempt_and_the_job_goes_on_under_its_name() -> None:
    job = Watched()
    job.says()
    job.pass_time(5.0)
    assert (job.journal.state, job.journal.attempt) == (State.EXECUTE, 1)
    assert "rank 3 on n1 is stopped (transient.unknown); starting all ranks again" in job.notices()
    assert [fact.incident for fact in job.facts if isinstance(fact, VerdictTold)] == ["r-0.1"]
    assert job.journal.budget.restarts == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"stage": "suspicion"},
        {"stage": "cleared"},
        {"confidence": 0.79},
        {"action": "warn"},
        {"attempt": 7},
        {"attempt": -1},
    ],
)
def test_what_is_not_sure_or_asks_for_nothing_or_is_of_another_attempt_is_only_told(fields: dict[str, Any]) -> None:
    job = Watched()
    job.says(**fields)
    job.pass_time(5.0)
    assert (job.journal.state, job.journal.attempt) == (State.EXECUTE, 0)
    assert sum(isinstance(fact, VerdictTold) for fact in job.facts) == 1


def test_nothing_is_acted_on_where_the_user_said_so() -> None:
    job = Watched(act_on_verdicts="none")
    job.says("evict", nodes=("n1",))
    job.pass_time(5.0)
    assert (job.journal.attempt, job.journal.acted) == (0, ())


def test_a_verdict_is_acted_on_once_also_by_the_next_controller() -> None:
    job = Watched()
    job.says()
    assert job.journal.state is State.VERIFY
    job.kill_controller()
    job.start_controller()
    job.says(attempt=0, incident="r-0.2")  # a watcher that was started again gives the same thing another name
    job.pass_time(60.0)
    assert (job.journal.attempt, len(job.journal.acted)) == (1, 1)
    job.says(attempt=0)
    job.pass_time(5.0)
    assert job.journal.attempt == 1


def test_a_verdict_that_was_journaled_and_not_acted_on_is_acted_on_by_the_next_controller() -> None:
    job = Watched()
    named = Named(attempt=0, incident="r-0.1", action="restart", label="l", sentence="s", rank=3, nodes=("n1",))
    job.journal = msgspec.structs.replace(job.journal, acted=(named,))
    job.kill_controller()
    job.start_controller()
    job.pass_time(60.0)
    assert job.journal.attempt == 1


def test_the_end_of_a_rank_is_for_launchers_and_the_watcher_adds_its_words() -> None:
    job = Watched()
    job.kill_rank(job.nodes["n1"], 1, code=None, signal=9)
    job.pass_time(0.5)
    job.says("stop_user", label="sw.user_code", sentence="rank 3 on n1 was ended")
    job.pass_time(5.0)
    assert (job.journal.state, job.journal.attempt) == (State.EXECUTE, 1)
    assert "killed from outside" in job.notices()
    assert job.journal.acted == ()


def test_a_job_that_ends_of_a_death_waits_a_moment_for_its_name() -> None:
    job = Watched(max_restarts=0)
    job.kill_rank(job.nodes["n1"], 1, code=1, signal=None)
    job.pass_time(1.5)
    assert job.journal.state is State.VERIFY
    job.says("stop_user", label="sw.user_code", sentence="rank 3 on n1 ended with exit code 1")
    job.pass_time(0.5)
    (failed,) = [fact for fact in job.facts if isinstance(fact, JobFailed)]
    assert "(watcher: sw.user_code, rank 3 on n1 ended with exit code 1)" in failed.reason


def test_a_job_that_nobody_names_ends_all_the_same_and_at_once_where_nobody_watches() -> None:
    for watched, seconds in ((True, 4.0), (False, 2.0)):
        job = Watched(max_restarts=0)
        job.handle(v.Watching(watched))
        job.kill_rank(job.nodes["n1"], 1, code=1, signal=None)
        job.pass_time(seconds)
        assert job.journal.state is State.FAILED


def test_a_node_that_is_at_fault_is_cordoned_and_a_spare_takes_its_place() -> None:
    job = Watched(4, spares=2)
    job.says("evict", label="hw.sdc", nodes=("n1",), ranks=())
    job.pass_time(10.0)
    assert [node.name for node in job.journal.places] == ["n0", "n2"]
    assert [fact.node for fact in job.facts if isinstance(fact, NodeCordoned)] == ["n1"]


def test_a_node_that_cannot_be_done_without_is_used_again_and_that_is_said() -> None:
    job = Watched()
    job.says("evict", label="hw.sdc", nodes=("n1",), ranks=())
    job.pass_time(10.0)
    assert [node.name for node in job.journal.places] == ["n0", "n1"]
    assert "node n1 should be replaced, and there is none to take its place" in job.notices()
    assert not job.journal.cordon.nodes


def test_an_eviction_goes_on_with_fewer_nodes_if_the_job_may() -> None:
    job = Watched(3, max_nodes=3)
    job.says("evict", label="hw.sdc", nodes=("n2",), ranks=())
    job.pass_time(20.0)
    assert [node.name for node in job.journal.places] == ["n0", "n1"]


def test_what_only_the_user_can_mend_ends_the_job_with_the_sentence() -> None:
    job = Watched()
    job.says("stop_user", label="sw.desync", sentence="rank 3 left out a collective")
    job.pass_time(5.0)
    assert (job.journal.state, job.exit_code) == (State.FAILED, 1)
    assert "rank 3 left out a collective (sw.desync)" in job.journal.reason


def test_a_roll_back_goes_before_the_bad_step_and_a_second_one_there_stops() -> None:
    job = Watched()
    job.step = 20
    job.progress()
    job.pass_time(1.0)
    job.says("rollback", label="train.nan", step=17)
    job.pass_time(5.0)
    assert (job.journal.attempt, job.journal.restore_before, job.journal.skip) == (1, 17, ())
    job.step = 40
    job.progress()  # steps with numbers that are not finite are steps: what came before is still remembered
    job.pass_time(1.0)
    job.says("evict", label="hw.sdc", nodes=("n1",), step=17)
    job.pass_time(5.0)
    assert job.journal.state is State.FAILED
    assert "the second time at the same step, and no batch may be skipped" in job.journal.reason


def test_a_roll_back_leaves_out_the_batch_where_that_is_allowed_and_helps_twice_at_most() -> None:
    job = Watched(skip_bad_batch=True)
    for attempt, step in enumerate((17, 18)):
        job.says("rollback", label="train.nan", step=step)
        job.pass_time(5.0)
        assert (job.journal.attempt, job.journal.skip[-1]) == (attempt + 1, (step, step))
    job.says("rollback", label="train.nan", step=99)
    job.pass_time(5.0)
    assert job.journal.state is State.FAILED
    assert "2 roll-backs did not help" in job.journal.reason


@pytest.mark.parametrize("attached", [True, False])
def test_a_roll_back_of_a_script_without_checkpoints_of_ours_says_that_it_begins_anew(attached: bool) -> None:
    job = Watched()
    if attached:
        job.step = 20
        job.progress()
        job.pass_time(1.0)
    job.says("rollback", label="train.nan", step=17)
    job.pass_time(5.0)
    assert (job.journal.state, job.journal.attempt) == (State.EXECUTE, 1)
    assert ("no checkpoint of perdure is known" in job.notices()) is not attached
    assert ("the job begins anew" in job.journal.reason) is not attached
    assert "roll back to before step 17" in job.notices()


def test_ranks_are_told_that_batches_may_come_to_be_left_out() -> None:
    for allowed in (True, False):
        job = Watched(skip_bad_batch=allowed)
        assert {start.may_skip for start in job.ordered} == {allowed}


def test_a_hang_named_twice_on_a_node_replaces_it_and_a_program_that_is_wrong_stands_above_it() -> None:
    named = Named(attempt=0, incident="1", action="restart", label="l", sentence="s", rank=3, nodes=("b",))
    first = judge(Evidence(named=named, n_nodes=2), Past(), allow_skip=False)
    again = judge(Evidence(named=named, n_nodes=2), Past().after(first), allow_skip=False)
    assert (first.act, again.act, again.nodes) == (Act.RESTART, Act.REPLACE, ("b",))
    alone = judge(Evidence(named=named), Past().after(first), allow_skip=False)
    assert alone.act is Act.RESTART


@pytest.mark.parametrize("suspects", [True, False])
def test_of_ranks_that_are_late_at_once_the_one_is_named_that_the_watcher_suspects(suspects: bool) -> None:
    job = Watched()
    if suspects:
        job.says("warn", stage="suspicion", confidence=0.4)
    for node in ("n0", "n1"):
        late = [v.LateFacts(local_rank=rank, phase="step", seconds=9.0, allowed_s=5.0) for rank in (0, 1)]
        job.handle(v.Late(node=node, attempt=0, ranks=tuple(late)))
    job.pass_time(10.0)
    assert job.journal.attempt == 1
    assert f"rank {3 if suspects else 0} on node n{1 if suspects else 0} hung" in job.notices()
