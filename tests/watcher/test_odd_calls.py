"""Whose collective was odd, where ranks have died of it, and where everybody waits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from looks import group, looked

from perdure.watcher.analyser import Analyser
from perdure.watcher.collectives import all_wait_unlike, who_waits
from perdure.watcher.evidence import Evidence, Stage, Verdict
from perdure.watcher.job_watch import detectors
from perdure.watcher.labels import Label
from perdure.watcher.odd_calls import aborted_by_size
from perdure.watcher.samples import LogLine, RankSample

LINE = "  what():  [enforce fail at pair.cc:456] op.preamble.length <= op.nbytes. 8 vs 4. Received data size"
ABORTED: dict[str, Any] = {"exit_signal": 6, "state": "Z", "groups": (group("m", 3, 4, shape="[2] float32"),)}


def failed(shape: str, *, op: str = "all_reduce", size: int = 3) -> dict[str, Any]:
    """A rank that has raised of a collective; the recorder takes it for completed."""
    return {"exit_code": 1, "state": "Z", "groups": (group("m", size, 9, op=op, shape=shape),)}


def found(n_ranks: int, picture: dict[int, dict[str, Any]], *aborted: int) -> list[tuple[str, tuple[int, ...]]]:
    columns, now_s = looked(n_ranks, 1, of=lambda rank, _: picture[rank])
    evidence = who_waits(columns, np.zeros(n_ranks, bool), now_s, aborted=aborted)
    return [(each.kind, each.ranks) for each in evidence if each.kind in ("odd-call", "calls-differ")]


@pytest.mark.parametrize(("shape", "odd"), [("[7] float32", 2), ("[1] float32", 0)])
def test_a_rank_that_was_sent_more_than_it_expected_votes_for_the_smaller_call(shape: str, odd: int) -> None:
    picture = {0: failed("[2] float32"), 1: ABORTED, 2: failed(shape)}
    assert found(3, picture, 1) == [("odd-call", (odd,))]


def test_as_many_votes_on_both_sides_accuse_nobody() -> None:
    picture = {0: failed("[7] float32", size=4), 1: failed("[7] float32", size=4), 3: failed("[2] float32", size=4)}
    picture[2] = ABORTED | {"groups": (group("m", 4, 4),)}
    assert found(4, picture, 2) == [("calls-differ", ())]


def test_without_the_line_two_that_differ_accuse_nobody() -> None:
    picture = {0: failed("[2] float32"), 1: ABORTED, 2: failed("[7] float32")}
    assert found(3, picture) == [("calls-differ", ())]
    assert found(3, {**picture, 1: failed("[2] float32")}) == [("odd-call", (2,))]


def test_an_abort_says_nothing_of_two_operations() -> None:
    picture = {0: failed("[2] float32"), 1: ABORTED, 2: failed("[2] float32", op="broadcast")}
    assert found(3, picture, 1) == [("calls-differ", ())]


def test_ranks_that_were_done_tell_what_they_called() -> None:
    picture = {rank: failed("[2] float32", size=4) | {"exit_code": 0, "finished": True} for rank in range(4)}
    picture[2] = failed("[7] float32", size=4)
    assert found(4, picture) == [("odd-call", (2,))]


def test_deaths_of_ranks_that_called_the_same_say_nothing_of_calls() -> None:
    assert found(3, {0: failed("[2] float32"), 1: ABORTED, 2: failed("[2] float32")}) == []


def test_a_line_that_names_no_rank_is_that_of_the_only_abort() -> None:
    line = Evidence(kind="stop-line", at_s=0.0, sentence="", label=Label.DESYNC, raw=(LINE,))
    columns, _ = looked(3, 1, of=lambda rank, _: ABORTED if rank == 1 else failed("[2] float32"))
    assert aborted_by_size([line], columns) == {1}
    columns, _ = looked(3, 1, of=lambda rank, _: ABORTED if rank else failed("[2] float32"))
    assert aborted_by_size([line], columns) == set()


def test_where_all_wait_an_odd_call_is_told_however_patient_one_is_with_first_steps() -> None:
    def of(rank: int, _: int) -> dict[str, Any]:
        shape = "[7] float32" if rank == 2 else "[2] float32"
        return {"in_collective": rank != away, "groups": (group("m", 3, 9, 8, shape=shape),)}

    away = -1
    columns, now_s = looked(3, 4, of=of)
    assert [(each.kind, each.ranks) for each in all_wait_unlike(columns, now_s)] == [("odd-call", (2,))]
    away = 0
    columns, now_s = looked(3, 4, of=of)
    assert all_wait_unlike(columns, now_s) == []


class Dying:
    """Ranks that die of what they call, on two nodes, look by look."""

    def __init__(self, n_ranks: int) -> None:
        self.n, self.now_s, self.told = n_ranks, 0.0, list[Verdict]()
        self.analyser = Analyser({"a": [0, 1], "b": list(range(2, n_ranks))}, detectors=detectors())

    def look(self, picture: dict[int, dict[str, Any]], lines: tuple[LogLine, ...] = ()) -> None:
        self.now_s += 0.5
        samples = []
        for rank in range(self.n):
            usual: dict[str, Any] = {"step": 20, "phase": "forward", "state": "S", "in_collective": True}
            usual["groups"] = (group("m", self.n, 4, shape="[2] float32"),)
            said = {**usual, **picture.get(rank, {})}
            node = "a" if rank < 2 else "b"
            beat = int(self.now_s) + 1
            samples.append(RankSample(rank=rank, node=node, at_s=self.now_s, pid=100 + rank, beat=beat, **said))
        self.told += self.analyser.feed(samples, lines=lines, now_s=self.now_s)


@pytest.mark.parametrize("end", [{"exit_signal": 6, "state": "Z"}, {"state": "X"}])
def test_the_odd_rank_of_three_is_the_only_one_that_is_named(end: dict[str, Any]) -> None:
    job = Dying(3)
    for _ in range(4):
        job.look({})
    line = LogLine(node="a", source="rank", rank=1, text=LINE, at_s=job.now_s)
    picture: dict[int, dict[str, Any]] = {1: end}
    job.look(picture, (line,))
    picture[0] = failed("[2] float32")
    job.look(picture)
    job.look(picture)
    picture[2] = failed("[7] float32")
    for _ in range(8):
        job.look(picture)
    assert [(each.stage, each.label, each.ranks) for each in job.told] == [(Stage.VERDICT, Label.DESYNC, (2,))]


def test_of_two_nobody_is_named_and_both_are_said() -> None:
    job = Dying(2)
    for _ in range(4):
        job.look({})
    line = LogLine(node="a", source="rank", rank=0, text=LINE, at_s=job.now_s)
    picture: dict[int, dict[str, Any]] = {0: {"exit_signal": 6, "state": "Z"}}
    job.look(picture, (line,))
    picture[1] = failed("[7] float32", size=2)
    for _ in range(8):
        job.look(picture)
    (verdict,) = job.told
    assert (verdict.label, verdict.ranks) == (Label.DESYNC, ())
    assert "rank 0 was sent more than it expected by rank 1" in verdict.sentence
    assert any("rank 1 calls all_reduce of [7] float32 as number 9" in each.raw for each in verdict.evidence)
