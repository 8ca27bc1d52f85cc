"""The agreement to stop: whatever the schedule, all ranks stop at one step and none passes it."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.progress import Page, Phase, StopAgreement
from perdure.progress.stop import fence_all

# --- a model: ranks as generators that yield between any two reads or writes ------------------------------------------
#
# `Words` is the page as the protocol sees it. Every access yields to the scheduler, which picks who goes on: all
# interleavings of single loads and stores. Stores are visible at once here, which is what membarrier gives the arbiter;
# what is tested is the order of the protocol's own steps.


class Words:
    def __init__(self, n: int) -> None:
        self.step = [0] * n
        self.term = [False] * n
        self.finished = [False] * n
        self.proposed = 0
        self.firm = 0


def at_cut(words: Words, me: int, step: int, stopped: list[int | None]) -> Iterator[str]:
    """The protocol of `StopAgreement.at_cut`, one access a step."""
    words.step[me] = step
    yield "published"
    firm = words.firm
    yield "read firm"
    if firm == 0:
        lower_finished = True
        for other in range(me):
            lower_finished = lower_finished and words.finished[other]
            yield "read phase"
        asked = False
        for other in range(len(words.term)):
            asked = asked or words.term[other]
            yield "read term"
        if lower_finished and asked:
            while True:
                highest = 0
                for other in range(len(words.step)):
                    highest = max(highest, words.step[other])
                    yield "read step"
                target = highest + 2
                words.proposed = target
                yield "proposed"
                ahead = True
                for other in range(len(words.step)):
                    ahead = ahead and words.step[other] < target
                    yield "read step again"
                if ahead:
                    words.firm = target
                    yield "firm"
                    break
    proposed = words.proposed
    yield "read proposed"
    if proposed == 0 or step < proposed:
        return
    while True:
        firm = words.firm
        yield "read firm"
        if firm:
            if step >= firm:
                stopped[me] = step
            return
        proposed = words.proposed
        yield "wait"
        if step < proposed:
            return


def rank(words: Words, me: int, last_step: int, slack: int, stopped: list[int | None]) -> Iterator[str]:
    for step in range(1, last_step + 1):
        # The lockstep of training: no rank begins a step while another is `slack` steps behind it.
        while min(s for s, done in zip(words.step, words.finished, strict=True) if not done) < step - slack:
            yield "collective"
        yield from at_cut(words, me, step, stopped)
        if stopped[me] is not None:
            return
    words.finished[me] = True
    yield "finished"


@settings(max_examples=400, deadline=None)
@given(
    n=st.integers(1, 5),
    slack=st.integers(1, 4),
    last_step=st.integers(1, 14),
    seed=st.integers(0, 2**32),
    bursts=st.lists(st.sampled_from([1, 2, 5, 10, 20, 40, 80]), min_size=1, max_size=4),
    data=st.data(),
)
def test_in_any_interleaving_all_stop_at_the_same_step(
    n: int, slack: int, last_step: int, seed: int, bursts: list[int], data: st.DataObject
) -> None:
    words, stopped = Words(n), [None] * n
    asked = data.draw(st.lists(st.tuples(st.integers(0, 600), st.integers(0, n - 1)), min_size=1, max_size=3))
    choose = random.Random(seed)
    live = {me: rank(words, me, last_step, slack, stopped) for me in range(n)}
    me, burst = 0, 0
    for tick in range(1_000_000):
        if not live:
            break
        for at, target in asked:
            if tick == at:
                words.term[target] = True
        if burst == 0 or me not in live:  # one rank runs on while the others stand still, for one access or for steps
            me, burst = choose.choice(list(live)), choose.choice(bursts)
        burst -= 1
        if next(live[me], None) is None:
            del live[me]
    assert not live, "some rank waits for ever"
    check(words, stopped)


def check(words: Words, stopped: list[int | None]) -> None:
    """Either all ranks stopped at the firm step, or all ran to their end."""
    steps = {step for step in stopped if step is not None}
    if steps:
        assert steps == {words.firm}
        assert all(step is not None for step in stopped), "a rank went past the step at which the others stopped"
    else:
        assert all(words.finished)


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("slack", [1, 2, 3])
def test_in_every_schedule_with_two_preemptions_all_stop_at_the_same_step(n: int, slack: int) -> None:
    n_ticks = _run_preempted(n, slack, ())
    for first in range(n_ticks):
        for second in range(first, n_ticks, 1 if n == 2 else 3):
            _run_preempted(n, slack, (first, second))


def _run_preempted(n: int, slack: int, preempt_at: tuple[int, ...]) -> int:
    """Run the ranks one after the other, each until it waits, ends, or is preempted; return the accesses it took."""
    words, stopped = Words(n), [None] * n
    words.term[n - 1] = True
    live = {me: rank(words, me, 5, slack, stopped) for me in range(n)}
    me, tick = 0, 0
    while live:
        label = next(live[me], None)
        if label is None:
            del live[me]
        if live and (tick in preempt_at or label in (None, "wait", "collective")):
            me = next(other % n for other in range(me + 1, me + 1 + n) if other % n in live)
        tick += 1
        assert tick < 10_000, "some rank waits for ever"
    check(words, stopped)
    return tick


def test_the_others_end_where_a_finished_rank_ended() -> None:
    with Page.create(2) as page:
        page.rank(0).claim(rank=0, step=4)
        page.rank(0).enter(Phase.FINISHED)
        page.rank(1).claim(rank=1)
        page.rank(1).ask_to_stop()
        stop = StopAgreement(page, local_rank=1)
        assert [stop.at_cut(step) for step in (2, 3, 4)] == [False, False, False]


def test_without_a_request_nobody_stops() -> None:
    with Page.create(2) as page:
        stops = [StopAgreement(page, local_rank=i) for i in range(2)]
        assert not any(stop.at_cut(step) for step in range(1, 50) for stop in stops)
        assert stops[0].agreed is None


def test_when_the_arbiter_has_finished_the_next_rank_takes_its_place() -> None:
    with Page.create(3) as page:
        stops = [StopAgreement(page, local_rank=i) for i in range(3)]
        for i in range(3):
            page.rank(i).claim(rank=i)
        page.rank(0).enter(Phase.FINISHED)
        page.rank(2).ask_to_stop()
        assert [stop.at_cut(5) for stop in stops[1:]] == [False, False]
        assert page.firm == 7
        assert [stop.at_cut(7) for stop in stops[1:]] == [True, True]


def test_a_rank_that_jumps_over_the_step_stops_behind_it() -> None:
    with Page.create(1) as page:
        stop = StopAgreement(page, local_rank=0)
        page.rank(0).ask_to_stop()
        assert [stop.at_cut(step) for step in (10, 20)] == [False, True]


def test_a_rank_that_waits_for_a_dead_arbiter_goes_on() -> None:
    with Page.create(2) as page:
        page.rank(0).claim(rank=0)
        page.proposed = 4  # and the arbiter is killed before it makes it firm
        assert StopAgreement(page, local_rank=1).at_cut(4, deadline_s=0.02) is False


def test_the_fence_returns() -> None:
    fence_all()


@pytest.mark.parametrize("n", [2, 4])
def test_real_processes_stop_at_the_same_step(n: int) -> None:
    with Page.create(n) as page:
        children = [os.fork() for _ in range(1)]
        if children[0] == 0:
            _run_rank(page, 0)
        for i in range(1, n):
            child = os.fork()
            if child == 0:
                _run_rank(page, i)
            children.append(child)
        while not all(record.pid for record in page.records()):  # who has claimed its record hears signals
            time.sleep(0.005)
        os.kill(children[-1], signal.SIGTERM)
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        assert codes == [0] * n
        assert {record.step for record in page.snapshot()} == {page.firm}


def _run_rank(page: Page, i: int) -> None:
    """One forked rank: steps of random length, at most one step ahead of the slowest."""
    try:
        record = page.rank(i)
        signal.signal(signal.SIGTERM, lambda *_: record.ask_to_stop())
        record.claim(rank=i)
        stop = StopAgreement(page, local_rank=i)
        give_up = time.monotonic() + 20
        for step in range(1, 1_000_000):
            while min(other.step for other in page.records()) < step - 1:
                if time.monotonic() > give_up:
                    os._exit(3)
            if stop.at_cut(step):
                os._exit(0)
    finally:
        os._exit(4)
