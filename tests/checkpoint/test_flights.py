"""The saves under way: in which order they are finished without the agent, and that each end is told once."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.checkpoint import flights as module
from perdure.checkpoint.drain import Order
from perdure.checkpoint.flights import Flights
from perdure.checkpoint.messages import Committed, Failed
from perdure.checkpoint.notes import FailureNotes
from perdure.checkpoint.saved import Outcome, Saved
from perdure.checkpoint.solo import SoloSave
from perdure.errors import AgentLost, DeadlineExceeded, StorageFull, to_wire
from perdure.events import AgentLost as AgentLostFact
from perdure.events import Committed as CommittedFact
from perdure.events import Fact, SaveFailed

FULL = StorageFull("no space is left")


class Told(list[Fact]):
    def __call__(self, fact: Fact, *, everywhere: bool = False) -> None:
        self.append(fact)


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def flights(told: Told) -> Flights:
    made = Flights(rank=0, world=1, commit_s=5.0, run=lambda: None, latest=lambda: 3, tell=told)  # type: ignore[arg-type,return-value]
    made.start(link=None, failures=FailureNotes(None, session="s", rank=0))
    return made


def add(flights: Flights, seq: int, *, staged: bool = True) -> Saved:
    saved = Saved(10 * seq, seq, stage_s=5.0, commit_s=5.0)
    flight = flights.add(saved)
    order = Order(epoch=1, step=10 * seq, seq=seq, base=None)
    flight.solo = SoloSave(saved, order, None, None, 0, lambda: None)  # type: ignore[arg-type]
    if staged:
        saved.note_staged()
    return saved


def drain_in(order: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    def drain(run: Any, solo: SoloSave, **_: Any) -> tuple[Outcome, None]:
        order.append(solo.saved.seq)
        return Outcome(solo.saved.seq, 1, 1, 0.0), None

    monkeypatch.setattr(module, "drain_alone", drain)


def test_what_the_agent_had_is_finished_before_a_later_save(
    flights: Flights, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else ranks that hear of the agent's death at different moments wait for one another's parts of other steps."""
    order: list[int] = []
    drain_in(order, monkeypatch)
    for seq in (1, 2, 3):
        add(flights, seq)
    third = list(flights._flights.values())[-1]
    flights.drain_alone(third)  # the copier, before the link's thread has come so far
    flights.agent_lost(AgentLost("gone", pid=7))
    flights.settle()
    assert order == [1, 2, 3]
    assert [type(fact) for fact in told].count(CommittedFact) == 3
    assert [type(fact) for fact in told].count(AgentLostFact) == 1


def test_what_is_not_copied_yet_is_left_to_the_copier(flights: Flights, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[int] = []
    drain_in(order, monkeypatch)
    add(flights, 1)
    second = add(flights, 2, staged=False)
    flights.agent_lost(AgentLost("gone"))
    flights._flights[1].saved.committed(5.0)
    assert order == [1]
    second.note_staged()
    flights.drain_alone(flights._flights[2])
    flights.settle()
    assert order == [1, 2]


def test_each_end_is_told_once_whoever_says_it(flights: Flights, told: Told) -> None:
    first, second = add(flights, 1), add(flights, 2)
    flights.hear(Failed(seq=1, error=to_wire(FULL)))
    flights.failed(first, DeadlineExceeded("late"))
    flights.hear(Committed(seq=2, slot=4, raw_bytes=1, stored_bytes=1, seconds=0.1))
    flights.failed(second, FULL)
    assert [str(fact) for fact in told] == [
        "could not save step 10: no space is left; step 3 stays the latest",
        str(told[1]),
    ]
    assert isinstance(told[0], SaveFailed)
    assert isinstance(told[1], CommittedFact)
    assert isinstance(first.error, StorageFull)
    assert second.error is None


def test_a_rank_that_has_to_leave_does_not_wait_for_the_disk_of_an_agent(flights: Flights, told: Told) -> None:
    saved = add(flights, 1)
    flights._link = object()  # type: ignore[assignment]
    saved.note_memory()
    flights.settle(leaving_within_s=5.0)
    assert not saved.settled
    assert told == []
