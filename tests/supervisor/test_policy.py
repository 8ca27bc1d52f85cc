"""What the launcher decides, without processes: the table, the budget, the early end, the back-off."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.errors import CallError, PerdureError, Superseded
from perdure.supervisor.config import RunConfig
from perdure.supervisor.policy import (
    Action,
    Asked,
    Event,
    Fail,
    KillTree,
    Policy,
    Progressed,
    RankEnded,
    Retry,
    StartAttempt,
    State,
    Stop,
    Succeed,
    Terminate,
    Tick,
    TreeGone,
)


def job(*, nproc: int = 2, max_restarts: int = 3) -> Policy:
    config = RunConfig(nproc=nproc, command=("x",), max_restarts=max_restarts, grace_s=120.0, stop_grace_s=0.5)
    policy = Policy(config, rng=random.Random(0))
    assert policy.begin() == [StartAttempt(0)]
    return policy


def fail(policy: Policy, *, now: float = 0.0, code: int = 1, tail: tuple[str, ...] = ()) -> list[Action]:
    """Rank 0 exits with ``code``, the other is terminated; return what follows the kill."""
    assert policy.handle(RankEnded(0, code=code), now) == []
    assert policy.handle(Tick(), now + 0.29) == []
    assert policy.handle(Tick(), now + 0.3) == [Terminate()]
    assert policy.handle(RankEnded(1, signal=15), now + 0.3) == [KillTree()]
    return policy.handle(TreeGone(tails={0: tail}), now)


def test_a_job_succeeds_when_every_rank_has_ended_well() -> None:
    policy = job()
    assert policy.handle(RankEnded(1, code=0), 1.0) == []
    assert policy.handle(RankEnded(0, code=0), 2.0) == [KillTree()]
    assert policy.handle(TreeGone(), 2.0) == [Succeed()]
    assert policy.state is State.DONE


@pytest.mark.parametrize("error", [CallError, Superseded])
def test_an_exit_code_that_asks_for_a_person_or_another_call_ends_the_job(error: type[PerdureError]) -> None:
    policy = job()
    policy.handle(Progressed(5), 0.0)
    (action,) = fail(policy, code=error.exit_code)
    assert isinstance(action, Fail)
    assert "a restart cannot help" in action.reason
    assert policy.state is State.DONE


def test_a_failure_stops_the_others_and_the_first_restart_is_immediate() -> None:
    policy = job()
    retry, start = fail(policy)
    assert isinstance(retry, Retry)
    assert (retry.cause.rank, retry.others, retry.delay_s) == (0, (), 0.0)
    assert start == StartAttempt(1)


def test_ranks_that_do_not_stop_are_killed_after_the_grace() -> None:
    policy = job()
    policy.handle(RankEnded(0, signal=9), 10.0)
    assert policy.handle(Tick(), 10.4) == []
    assert policy.handle(Tick(), 10.5) == [KillTree()]


def test_restarts_without_progress_wait_longer_and_then_end_the_job() -> None:
    policy = job(max_restarts=3)
    now, delays = 0.0, []
    for attempt in range(3):
        retry, *_ = fail(policy, now=now, code=attempt + 1)  # another failure each time
        assert isinstance(retry, Retry)
        delays.append(retry.delay_s)
        if retry.delay_s:
            assert policy.handle(Tick(), now + retry.delay_s * 0.99) == []
            assert policy.handle(Tick(), now + retry.delay_s) == [StartAttempt(attempt + 1)]
        now += 100.0
    assert delays[0] == 0.0
    assert 0.5 <= delays[1] <= 1.5
    assert 1.0 <= delays[2] <= 3.0
    (end,) = fail(policy, now=now, code=9)
    assert isinstance(end, Fail)
    assert end.reason == "3 restarts in a row brought no new step"


def test_a_new_step_resets_the_budget_and_an_old_one_does_not() -> None:
    policy = job(max_restarts=1)
    for step in (10, 20, 30):  # each attempt gets further
        policy.handle(Progressed(step), 0.0)
        assert StartAttempt in map(type, fail(policy))
    policy.handle(Progressed(30), 0.0)  # restored to 25, died at 30 again
    (end,) = fail(policy, code=2)
    assert isinstance(end, Fail)


def test_the_same_failure_twice_ends_the_job_early() -> None:
    policy = job(max_restarts=100)
    fail(policy, tail=("Traceback", "ValueError: bad shape at 0x7f12 (pid 431)"))
    (end,) = fail(policy, tail=("Traceback", "ValueError: bad shape at 0x7e99 (pid 502)"))
    assert isinstance(end, Fail)
    assert "the same way twice" in end.reason


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"code": 1, "tail": ("ValueError: x",)}, {"code": 1, "tail": ("KeyError: y",)}),
        ({"code": 1, "tail": ("ValueError: x",)}, {"code": 2, "tail": ("ValueError: x",)}),
        ({"code": 75, "tail": ("the store is away",)}, {"code": 75, "tail": ("the store is away",)}),
        ({"code": 1}, {"code": 1}),
    ],
    ids=["other words", "other code", "try again", "no words"],
)
def test_what_may_pass_is_tried_again(first: dict[str, object], second: dict[str, object]) -> None:
    policy = job()
    fail(policy, **first)  # type: ignore[arg-type]
    assert isinstance(fail(policy, **second)[0], Retry)  # type: ignore[arg-type]


def test_kills_from_outside_prove_nothing() -> None:
    policy = job(nproc=1)
    for _ in range(3):
        policy.handle(RankEnded(0, signal=9), 0.0)
        actions = policy.handle(TreeGone(), 0.0)
        assert isinstance(actions[0], Retry)
        policy.handle(Tick(), 1e9)


def test_a_rank_that_finished_and_then_aborts_is_excused() -> None:
    policy = job(nproc=2)
    assert policy.handle(RankEnded(0, signal=6, finished=True), 0.0) == []
    assert policy.handle(RankEnded(1, code=0), 0.0) == [KillTree()]
    assert policy.handle(TreeGone(), 0.0) == [Succeed()]
    assert job(nproc=2).handle(RankEnded(0, signal=6, finished=False), 0.0) == [Terminate()]
    assert job(nproc=2).handle(RankEnded(0, signal=9, finished=True), 0.0) == [Terminate()]
    policy = job(nproc=2)
    policy.handle(RankEnded(0, code=1, finished=True), 0.0)
    assert policy.state is State.SETTLING


def test_a_request_to_stop_lets_ranks_save_and_a_second_kills() -> None:
    policy = job()
    assert policy.handle(Asked(15), 0.0) == [Terminate()]
    assert policy.handle(Asked(15), 0.3) == []  # the same request, heard twice
    assert policy.handle(Tick(), 119.0) == []
    assert policy.handle(Asked(2), 119.5) == [KillTree()]
    assert policy.handle(TreeGone(killed=2), 119.6) == [Stop(15, killed=2)]


def test_a_request_to_stop_ends_with_the_grace() -> None:
    policy = job()
    policy.handle(Asked(2), 0.0)
    policy.handle(RankEnded(0, code=0), 60.0)
    assert policy.handle(Tick(), 120.0) == [KillTree()]
    assert policy.handle(TreeGone(killed=1), 120.0) == [Stop(2, killed=1)]


def test_when_a_rank_breaks_while_all_stop_the_others_get_ten_seconds() -> None:
    policy = job()
    policy.handle(Asked(15), 0.0)
    assert policy.handle(RankEnded(0, code=1), 5.0) == []
    assert policy.handle(Tick(), 14.9) == []
    assert policy.handle(Tick(), 15.0) == [KillTree()]


def test_a_request_to_stop_is_heard_in_every_state() -> None:
    stopping = job()
    stopping.handle(RankEnded(0, signal=11), 0.0)
    assert stopping.handle(Asked(15), 0.1) == []
    assert stopping.handle(Tick(), 0.5) == [KillTree()]
    assert stopping.handle(TreeGone(), 0.6) == [Stop(15)]
    waiting = job()
    fail(waiting)
    fail(waiting)
    assert waiting.state is State.WAITING
    assert waiting.handle(Asked(2), 0.1) == [Stop(2)]


def test_the_cause_is_the_rank_that_does_not_blame_a_peer() -> None:
    policy = job(nproc=3)
    policy.handle(RankEnded(2, code=1), 0.0)
    policy.handle(RankEnded(1, code=1), 0.2)
    assert policy.handle(Tick(), 0.3) == [Terminate()]
    policy.handle(RankEnded(0, signal=15), 0.1)
    lost, own = ("RuntimeError: Connection closed by peer [127.0.0.1]",), ("ValueError: loss is nan",)
    retry = policy.handle(TreeGone(tails={2: lost, 1: own}), 0.2)[0]
    assert isinstance(retry, Retry)
    assert retry.cause.rank == 1
    assert [death.rank for death in retry.others] == [2]


def test_processes_that_cannot_be_killed_end_the_job() -> None:
    policy = job()
    policy.handle(RankEnded(0, signal=9), 0.0)
    policy.handle(Tick(), 1.0)
    (end,) = policy.handle(TreeGone(left=(77,)), 2.0)
    assert isinstance(end, Fail)
    assert "77" in end.reason


@pytest.mark.parametrize(
    "bad", [{"nproc": 0}, {"nproc": 257}, {"command": ()}, {"max_restarts": -1}, {"grace_s": -1.0}]
)
def test_a_configuration_that_cannot_work_is_refused(bad: dict[str, object]) -> None:
    with pytest.raises(CallError):
        RunConfig(**({"nproc": 1, "command": ("x",)} | bad))  # type: ignore[arg-type]


events = st.one_of(
    st.builds(RankEnded, st.integers(0, 1), code=st.integers(0, 2)),
    st.builds(RankEnded, st.integers(0, 1), signal=st.sampled_from([6, 9, 15]), finished=st.booleans()),
    st.builds(Progressed, st.integers(0, 5)),
    st.builds(Asked, st.sampled_from([2, 15])),
    st.just(Tick()),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(events, st.floats(0, 50)), max_size=60))
def test_attempts_never_overlap_and_every_job_can_be_ended(script: list[tuple[Event, float]]) -> None:
    policy, now, running = job(), 0.0, True
    alive = {0, 1}

    def carry_out(actions: list[Action]) -> None:
        nonlocal running, alive
        for action in actions:
            if isinstance(action, StartAttempt):
                assert not running
                running, alive = True, {0, 1}
            elif isinstance(action, KillTree):
                assert running
                running, alive = False, set()
                carry_out(policy.handle(TreeGone(), now))

    for event, passed in script:
        now += passed
        if isinstance(event, RankEnded):
            if event.rank not in alive:
                continue
            alive.discard(event.rank)
        if policy.state is State.DONE:
            return
        carry_out(policy.handle(event, now))
    carry_out(policy.handle(Asked(15), now))
    carry_out(policy.handle(Tick(), now + 1000))
    carry_out(policy.handle(Tick(), now + 2000))
    assert policy.state is State.DONE
    assert not running
