"""Facts: every one is a sentence without a full stop, and survives JSON."""

from __future__ import annotations

import msgspec
import pytest

from perdure import events
from perdure.events import Fact

EXAMPLES: list[Fact] = [
    events.StepSaved(step=7, blocked_s=0.01, nbytes=1 << 20),
    events.Committed(step=7, slot=3, tier="disk", seconds=1.5, raw_bytes=1 << 20, stored_bytes=1 << 19),
    events.SaveFailed(step=7, error="no space is left", latest=6),
    events.Restored(
        step=7, tiers={"memory": 5, "disk": 9}, seconds=0.2, verified_tiles=4, committed=False, notes=("x",)
    ),
    events.RestoreSkipped(where="/data/run"),
    events.FellBack(step=7, to_step=7, from_tier="memory", to_tier="disk", reason="tile 3 is corrupt"),
    events.FellBack(step=7, to_step=6, from_tier="memory", to_tier="disk", reason="a part is missing"),
    events.AgentStarted(pid=5, job="j"),
    events.AgentLost(reason="it was killed", pid=5),
    events.AttemptStarted(attempt=0, world=4, job="j"),
    events.RankDied(rank=2, attempt=0, signal=9, step=41),
    events.RankDied(rank=2, attempt=0, code=1, excused="it had finished"),
    events.AttemptStopped(attempt=0, reason="rank 2 died", seconds=0.1, killed=2),
    events.JobSucceeded(attempts=2, seconds=9.0),
    events.JobFailed(reason="no restart is left", attempts=4, rank=1, code=3),
    events.JobStopped(signal=15, seconds=3.0, killed=1),
    events.StepsBegan(attempt=1, step=41, before=40),
    events.RankLate(rank=2, node="n1", phase="forward", seconds=70.0, allowed_s=60.0, why="does not get on"),
    events.NodeJoined(node="n1", host="10.0.0.1", nproc=8),
    events.NodeLost(node="n1", ranks=8),
    events.NodeCordoned(node="n1", reason="wrong products on core 3"),
    events.NodeDrained(node="n1", step=40),
    events.PlaceTaken(place=1, node="n2", before="n1"),
    events.StopAgreed(step=12),
    events.VerdictTold(
        incident="3fa9-1.2",
        stage="verdict",
        label="train.nan",
        owner="data",
        action="rollback",
        confidence=0.95,
        sentence="the gradient of rank 1 was not finite",
        ranks=(1,),
        nodes=("n0",),
        step=40,
    ),
    events.Notice(text="so it is"),
    events.Other(name="newer", fields={"a": 1}),
]


@pytest.mark.parametrize("fact", EXAMPLES, ids=lambda fact: type(fact).__name__)
def test_a_fact_is_one_sentence_and_survives_json(fact: Fact) -> None:
    sentence = str(fact)
    assert sentence
    assert "\n" not in sentence
    assert not sentence.endswith(".")
    assert msgspec.json.decode(msgspec.json.encode(fact), type=type(fact)) == fact


def test_every_kind_has_an_example_here() -> None:
    assert {type(fact) for fact in EXAMPLES} == set(Fact.__subclasses__())


def test_sentences_say_what_a_person_needs() -> None:
    assert str(EXAMPLES[10]) == "rank 2 was killed by SIGKILL after step 41"
    assert str(EXAMPLES[2]) == "could not save step 7: no space is left; step 6 stays the latest"
