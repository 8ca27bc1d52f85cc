"""Where a run's time went: the spans tile it, repeated and lost time is not progress, restarts have their causes."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.events import (
    AttemptStarted,
    Fact,
    NodeDrained,
    NodeLost,
    RankDied,
    RankLate,
    StepsBegan,
)
from perdure.supervisor.goodput import CAUSES, USES, account_of, spans_of
from perdure.supervisor.job import State
from perdure.supervisor.messages import Moment, Told


def told(*facts: tuple[float, Fact]) -> list[Told]:
    return [
        Told(
            number=i,
            at=at,
            kind=msgspec.to_builtins(fact)["kind"],
            sentence=str(fact),
            fields=msgspec.json.encode(fact).decode(),
        )
        for i, (at, fact) in enumerate(facts, start=1)
    ]


def moments(*rows: tuple[float, str, int, int]) -> list[Moment]:
    return [Moment(at=at, state=State(state), attempt=attempt, step=step) for at, state, attempt, step in rows]


# Attempt 0 does 40 new steps and hangs, attempt 1 does 31 to 40 again and then 20 new ones.
RUN = moments(
    (100, "start", -1, 0),
    (110, "warm-up", -1, 0),
    (115, "execute", 0, 0),
    (135, "execute", 0, 1),
    (175, "execute", 0, 40),
    (205, "verify", 0, 40),
    (206, "recover", 0, 40),
    (210, "warm-up", 0, 40),
    (211, "execute", 1, 40),
    (231, "execute", 1, 41),
    (250, "execute", 1, 59),
    (251, "verify", 1, 60),
    (252, "succeeded", 1, 60),
)
FACTS = told(
    (115, AttemptStarted(attempt=0, world=4)),
    (135, StepsBegan(attempt=0, step=1, before=0)),
    (205, RankLate(rank=1, node="a", phase="forward", seconds=30, allowed_s=10)),
    (205, RankDied(rank=1, attempt=0, signal=9)),
    (211, AttemptStarted(attempt=1, world=4)),
    (221, StepsBegan(attempt=1, step=31, before=40)),
)


def test_every_second_of_a_run_has_one_use() -> None:
    uses = [(span.use, span.seconds) for span in spans_of(RUN, FACTS, now_at=9999.0)]
    assert uses == [
        ("start", 10),
        ("warm-up", 5),
        ("launch", 20),
        ("progress", 40),
        ("stall", 30),
        ("verify", 1),
        ("recover", 4),
        ("warm-up", 1),
        ("launch", 10),
        ("repeat", 10),
        ("progress", 20),
        ("verify", 1),
    ]
    account = account_of(RUN, FACTS, now_at=9999.0)
    assert account.wall_s == 152
    assert account.goodput == 60 / 152
    assert account.steps == 60
    assert account.restarts == dict.fromkeys(CAUSES, 0) | {"rank late": 1}


def test_steps_that_are_under_way_count_until_they_take_too_long() -> None:
    run, facts = RUN[:5], FACTS[:2]  # 40 steps in 40 s, the last one at 175
    assert account_of(run, facts, now_at=180.0).seconds["stall"] == 0
    assert account_of(run, facts, now_at=180.0).seconds["progress"] == 45
    assert account_of(run, facts, now_at=300.0).seconds["stall"] == 125


def test_an_attempt_that_only_repeats_makes_no_progress() -> None:
    run = [*RUN[:9], *moments((251, "verify", 1, 40), (252, "failed", 1, 40))]
    account = account_of(run, FACTS, now_at=252.0)
    assert account.seconds["repeat"] == 30
    assert account.seconds["progress"] == 40


def test_goodput_is_unknown_where_ranks_tell_no_steps() -> None:
    run = moments((0, "start", -1, 0), (1, "execute", 0, 0), (9, "verify", 0, 0), (10, "succeeded", 0, 0))
    account = account_of(run, told((1, AttemptStarted(attempt=0, world=1))), now_at=10.0)
    assert account.goodput is None
    assert account.seconds["launch"] == 8
    assert account_of([], [], now_at=10.0).goodput is None


@pytest.mark.parametrize(
    ("facts", "cause"),
    [
        ([RankDied(rank=0, attempt=0, signal=9)], "rank failed"),
        ([RankDied(rank=0, attempt=0, signal=6, excused="it had finished before")], "other"),
        ([RankDied(rank=0, attempt=0, code=1), NodeLost(node="a", ranks=2)], "node lost"),
        ([NodeDrained(node="a", step=7)], "drained"),
        ([], "other"),
    ],
)
def test_a_restart_is_counted_under_what_ended_the_attempt_before(facts: list[Fact], cause: str) -> None:
    start = [AttemptStarted(attempt=n, world=2) for n in (0, 1)]
    story = told(*((float(i), fact) for i, fact in enumerate([start[0], *facts, start[1]])))
    assert account_of(RUN, story, now_at=0.0).restarts == dict.fromkeys(CAUSES, 0) | {cause: 1}


@given(
    st.lists(
        st.tuples(
            st.floats(0, 50),
            st.sampled_from(["start", "warm-up", "execute", "execute", "verify", "recover"]),
            st.integers(0, 2),
            st.integers(0, 3),
        ),
        min_size=1,
        max_size=30,
    ),
    st.dictionaries(st.integers(0, 60), st.floats(0, 2000), max_size=6),
    st.floats(0, 100),
)
def test_the_spans_tile_any_history(
    rows: list[tuple[float, str, int, int]], began: dict[int, float], open_s: float
) -> None:
    at, attempt, step, run = 0.0, 0, 0, []
    for after, state, more_attempts, more_steps in rows:
        at, attempt, step = at + after, attempt + more_attempts, step + more_steps
        run.append(Moment(at=at, state=State(state), attempt=attempt, step=step))
    facts = told(*((when, StepsBegan(attempt=number, step=1)) for number, when in began.items()))
    spans = spans_of(run, facts, now_at=at + open_s)
    assert all(before.until == after.at for before, after in pairwise(spans))
    assert all(span.until > span.at and span.use in USES for span in spans)
    if at + open_s > run[0].at:
        assert (spans[0].at, spans[-1].until) == (run[0].at, at + open_s)
    else:
        assert spans == ()
