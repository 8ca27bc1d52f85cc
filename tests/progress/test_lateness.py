"""Who is late: healthy ranks never, a rank that stands still within what it may take and one look."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import CallError
from perdure.progress import Allowance, Late, Lateness, Phase, Snapshot, phase_deadlines

S = 1_000_000_000
QUICK = phase_deadlines("start=50,restore=50,step=10,first-step=30,save=40,evaluate=60,close=40")


def record(rank: int = 0, phase: Phase = Phase.FORWARD, *, since: float = 0.0, step: int = 5, deadline: float = 0.0,
           beat: int = 0, pid: int = 7) -> Snapshot:  # fmt: skip
    return Snapshot(rank, rank, pid, step, phase, int(since * S), int(deadline * S), beat, False)


class Watch:
    """A lateness that is looked at every ``look_s`` of a clock of its own."""

    def __init__(
        self, overrides: dict[Phase, Allowance] | None = None, *, look_s: float = 1.0, at: float = 0.0
    ) -> None:
        self.lateness = Lateness(overrides, look_s=look_s)
        self.look_s, self.at = look_s, at

    def look(self, records: Sequence[Snapshot], **facts: object) -> tuple[Late, ...]:
        late = self.lateness.look(records, int(self.at * S), **facts)  # type: ignore[arg-type]
        self.at += self.look_s
        return late

    def until(self, records: Sequence[Snapshot], seconds: float, **facts: object) -> tuple[Late, ...]:
        """Look at records that stand still for at most ``seconds``; return the first who are late."""
        end = self.at + seconds
        while self.at <= end:
            if late := self.look(records, **facts):
                return late
        return ()

    def warm(self, *ranks: int) -> None:
        """See some steps, so that the first ones are over."""
        for step in (0, 1, 2):
            self.look([record(rank, since=self.at, step=step) for rank in ranks or (0,)])


def test_a_rank_is_late_once_its_phase_took_longer_than_the_user_said() -> None:
    watch = Watch(QUICK)
    watch.warm()
    stuck = [record(since=watch.at)]
    assert watch.until(stuck, 10) == ()
    (late,) = watch.look(stuck)
    assert (late.rank, late.phase, late.allowed_s, late.suspect) == (0, Phase.FORWARD, 10.0, True)
    assert late.seconds_in_phase > 10


def test_the_first_step_of_an_attempt_may_compile() -> None:
    watch = Watch(QUICK)
    watch.look([record(phase=Phase.STARTING, step=0)])
    watch.look([record(phase=Phase.RESTORING, since=1, step=0)])
    first = [record(since=2, step=400)]  # what was restored
    assert watch.until(first, 29) == ()
    assert watch.until(first, 5)
    watch.lateness.begin_attempt()
    watch.warm()
    watch.lateness.begin_attempt()
    assert watch.until([record(pid=8, since=watch.at, step=400)], 25) == ()


def test_what_a_phase_was_seen_to_take_allows_ten_times_that() -> None:
    watch = Watch(look_s=10.0)
    watch.look([record(phase=Phase.EVALUATING)])
    watch.at = 10.0
    for at in range(0, 4000, 10):
        watch.at = float(at + 10)
        watch.look([record(phase=Phase.EVALUATING)])
    watch.look([record(since=watch.at)])
    again = [record(phase=Phase.EVALUATING, since=watch.at)]
    assert watch.until(again, 39_000) == ()
    assert watch.until(again, 2_000)


def test_a_compilation_teaches_nothing_of_later_steps() -> None:
    watch = Watch(look_s=2.0)
    slow = [record(step=0)]
    assert watch.until(slow, 3000) == ()
    for step in (1, 2, 3):
        watch.look([record(since=watch.at, step=step)])
    stuck = [record(since=watch.at, step=3)]
    (late,) = watch.until(stuck, 2000)
    assert late.allowed_s == 1800


def test_a_deadline_of_the_phases_own_wins() -> None:
    watch = Watch(QUICK)
    watch.warm()
    long = [record(phase=Phase.SAVING, since=watch.at, deadline=watch.at + 500)]
    assert watch.until(long, 500) == ()
    assert watch.until(long, 2)
    short = [record(since=watch.at, deadline=watch.at + 3)]
    assert watch.until(short, 3) == ()
    assert watch.until(short, 2)


@pytest.mark.parametrize("phase", [Phase.ABSENT, Phase.FINISHED])
def test_a_script_without_attach_and_a_rank_that_is_done_are_never_late(phase: Phase) -> None:
    watch = Watch(QUICK, look_s=5.0)
    assert watch.until([record(phase=phase)], 100_000) == ()


# --- who is suspected -------------------------------------------------------------------------------------------------


def test_of_ranks_that_wait_together_the_one_with_fewer_steps_is_suspected() -> None:
    watch = Watch(QUICK)
    watch.warm(0, 1, 2)
    late = watch.until([record(0, Phase.STEP), record(1, step=4, since=0.2), record(2, Phase.STEP)], 20)
    assert [(each.rank, each.suspect) for each in late] == [(1, True), (0, False), (2, False)]
    assert "behind" in late[0].why


@pytest.mark.parametrize(
    ("said", "allowed_s"), [("step=10", 20.0), ("step=40", 40.0), ("step=10,first-step=300", 300.0)]
)
def test_once_a_first_step_was_seen_that_of_a_later_attempt_is_measured_by_it(said: str, allowed_s: float) -> None:
    watch = Watch(phase_deadlines(said))
    for _ in range(3):  # the first step takes two seconds
        watch.look([record(since=0.0, step=0)])
    watch.look([record(since=watch.at - 1, step=1)])
    watch.lateness.begin_attempt()
    first = [record(since=watch.at, step=400, pid=8)]  # what was restored
    (late,) = watch.until(first, 1000)
    assert late.allowed_s == pytest.approx(allowed_s, abs=10.0)


def test_of_ranks_at_the_same_step_the_one_that_entered_its_phase_first_is_suspected() -> None:
    watch = Watch(QUICK)
    watch.warm(0, 1)
    began = watch.at
    late = watch.until([record(0, Phase.STEP, since=began), record(1, since=began - 2)], 8)
    late = watch.until([record(0, Phase.STEP, since=began), record(1, since=began - 2)], 8) or late
    late = watch.look([record(0, Phase.STEP, since=began), record(1, since=began - 2)])
    assert [(each.rank, each.suspect) for each in late] == [(1, True), (0, False)]


def test_of_ranks_that_are_alike_the_one_whose_beat_stands_is_suspected() -> None:
    watch = Watch(QUICK)
    watch.warm(0, 1)
    since = watch.at
    late: tuple[Late, ...] = ()
    for beat in range(14):
        late = watch.look([record(0, since=since, beat=beat), record(1, since=since, beat=3)])
    assert [(each.rank, each.suspect) for each in late] == [(1, True), (0, False)]
    assert "sign of life" in late[0].why


def test_a_stopped_process_is_the_suspect_even_if_it_is_not_late_itself() -> None:
    watch = Watch(QUICK)
    watch.warm(0, 1)
    since = watch.at
    late = watch.until([record(0, since=since), record(1, Phase.EVALUATING, since=since)], 20, stopped={1})
    assert [(each.rank, each.suspect) for each in late] == [(1, True), (0, False)]
    assert "state T" in late[0].why


def test_who_waits_for_an_evaluation_in_time_is_not_late() -> None:
    watch = Watch(QUICK)
    watch.warm(0, 1)
    since = watch.at
    waiting = [record(0, since=since), record(1, Phase.EVALUATING, since=since)]
    assert watch.until(waiting, 59) == ()
    assert watch.lateness.busy
    late = watch.until(waiting, 5)
    assert late[0].rank == 1 or late[1].rank == 1
    assert not watch.lateness.busy


def test_who_waits_for_another_node_is_not_late() -> None:
    watch = Watch(QUICK)
    watch.warm()
    waiting = [record(since=watch.at)]
    assert watch.until(waiting, 50, busy_elsewhere=True) == ()
    assert watch.until(waiting, 2)


# --- when the looking itself is late ----------------------------------------------------------------------------------


def test_a_machine_that_stood_still_accuses_nobody() -> None:
    watch = Watch(QUICK)
    watch.warm()
    stuck = [record(since=watch.at)]
    assert watch.until(stuck, 8) == ()
    watch.at += 3600
    assert watch.until(stuck, 9) == ()
    assert watch.until(stuck, 3)


def test_a_launcher_that_always_looks_late_still_sees_a_hang() -> None:
    watch = Watch(QUICK)
    watch.warm()
    stuck = [record(since=watch.at)]
    watch.look_s = 30.0
    assert watch.until(stuck, 300)


def test_a_record_between_two_stores_is_not_late() -> None:
    watch = Watch({**QUICK, Phase.STEP: Allowance(2.0, 2.0)}, look_s=0.1)
    watch.warm()
    began = watch.at
    assert watch.until([record(since=began)], 9) == ()
    assert watch.look([record(phase=Phase.STEP, since=began)]) == ()  # the phase is new, when it began is not yet
    assert watch.look([record(phase=Phase.STEP, since=watch.at - 0.1)]) == ()


# --- traces -----------------------------------------------------------------------------------------------------------

# What healthy phases take at most by default: the first one, later ones. Below what is allowed, above what is usual.
HEALTHY = {
    Phase.STARTING: (3000.0, 3000.0),
    Phase.RESTORING: (3000.0, 3000.0),
    Phase.FORWARD: (3000.0, 1500.0),  # compiles first, compiles again later, or evaluates without saying so
    Phase.STEP: (3000.0, 600.0),
    Phase.COPYING: (1500.0, 600.0),
    Phase.SAVING: (3000.0, 3000.0),
    Phase.EVALUATING: (7000.0, 7000.0),
    Phase.CLOSING: (3000.0, 3000.0),
}


@st.composite
def traces(draw: st.DrawFn) -> list[tuple[Phase, float, int]]:
    """The life of a healthy rank: phase, seconds, steps completed."""
    seen: set[Phase] = set()
    trace: list[tuple[Phase, float, int]] = []

    def add(phase: Phase, step: int) -> None:
        most = HEALTHY[phase][0 if phase not in seen else 1]
        seen.add(phase)
        trace.append((phase, draw(st.one_of(st.floats(0.01, 5.0), st.floats(0.01, most))), step))

    step = draw(st.integers(0, 1000))
    add(Phase.STARTING, 0)
    add(Phase.RESTORING, 0)
    for _ in range(draw(st.integers(1, 6))):
        add(Phase.FORWARD, step)
        add(Phase.STEP, step)
        step += 1
        for beside in draw(st.lists(st.sampled_from([Phase.COPYING, Phase.SAVING, Phase.EVALUATING]), max_size=2)):
            add(beside, step)
    add(Phase.CLOSING, step)
    return trace


@given(traces(), st.floats(4.0, 60.0), st.lists(st.tuples(st.integers(0, 400), st.floats(5.0, 5000.0)), max_size=3))
def test_no_healthy_rank_is_accused(
    trace: list[tuple[Phase, float, int]], look_s: float, pauses: list[tuple[int, float]]
) -> None:
    """Ranks that others wait for take their time; the launcher is now and then stopped for a while."""
    ends, at = [], 0.0
    for _, seconds, _ in trace:
        at += seconds
        ends.append(at)
    watch, looks, gaps = Watch(look_s=look_s), 0, dict(pauses)
    while watch.at < at:
        watch.at += gaps.get(looks, 0.0)
        looks += 1
        now = next((i for i, end in enumerate(ends) if watch.at < end), None)
        if now is None:
            break
        phase, seconds, step = trace[now]
        own = record(0, phase, since=ends[now] - seconds, step=step)
        assert watch.look([own]) == ()


@given(
    st.integers(2, 8),
    st.integers(0, 7),
    st.sampled_from([Phase.FORWARD, Phase.STEP]),
    st.floats(0.05, 4.0),
    st.floats(0.0, 1.0),
    st.booleans(),
)
def test_a_stopped_rank_is_named_within_what_it_may_take_and_one_look(
    world: int, who: int, phase: Phase, look_s: float, offset: float, known: bool
) -> None:
    """The others go on to the end of the step and wait there."""
    who %= world
    watch = Watch(QUICK, look_s=look_s)
    watch.warm(*range(world))
    began = watch.at - offset * look_s
    records = [record(rank, phase, since=began, step=5, beat=1) for rank in range(world)]
    records = [each if each.rank == who else replace(each, phase=Phase.STEP, step=5) for each in records]
    beat, found = 1, ()
    while not found:
        assert watch.at <= began + 10.0 + 2 * look_s, "too late"
        beat += 1
        now = [replace(each, beat=1 if each.rank == who else beat) for each in records]
        asked_at = watch.at
        found = watch.look(now, stopped={who} if known else ())  # type: ignore[assignment]
    assert asked_at - began > 10.0 - look_s
    assert [each.rank for each in found if each.suspect] == [who]


def test_what_a_user_says_of_phases() -> None:
    said = phase_deadlines(" step=60, save=900,evaluate=7 ")
    assert said[Phase.FORWARD] == said[Phase.STEP] == Allowance(3600.0, 60.0)
    assert said[Phase.SAVING] == said[Phase.COPYING] == Allowance(900.0, 900.0)
    assert said[Phase.EVALUATING] == Allowance(7.0, 7.0)
    assert phase_deadlines("") == {}
    assert phase_deadlines("first-step=9")[Phase.STEP] == Allowance(9.0, 1800.0, said_first=True)


@pytest.mark.parametrize(
    "wrong", ["step", "step=", "step=0", "step=-1", "step=nan", "step=inf", "walk=3", "step=1,step=2"]
)
def test_what_is_no_deadline_is_refused(wrong: str) -> None:
    with pytest.raises(CallError):
        phase_deadlines(wrong)
