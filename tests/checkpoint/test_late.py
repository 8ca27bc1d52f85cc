"""A rank that does not come, or leaves: the others hear its name within the deadline, and nobody hangs."""

from __future__ import annotations

import json
import re
import time

import pytest

from conftest import Place, Ranks, await_that

SHORT = ("--deadlines", json.dumps({"agree_s": 4.0, "stage_s": 1.5, "commit_s": 3.0, "agent_s": 5.0}))
STEPS = ("--steps", "6", "--every", "3")


def hears(ranks: Ranks, pattern: str, *, rank: int = 0, within_s: float = 8.0) -> None:
    began = time.monotonic()
    ranks.await_line(pattern, ranks=(rank,), within_s=within_s)
    assert time.monotonic() - began < within_s


def test_a_rank_that_never_calls_the_first_save_is_named(place: Place) -> None:
    ranks = place.start(*STEPS, *SHORT, "--fault", "sleep@3")
    hears(ranks, r"could not save step 3: gave up waiting for all ranks to call save.*(rank )?1", within_s=15)


@pytest.mark.parametrize("more", [(), ("--no-agent",)], ids=["with an agent", "without one"])
def test_a_rank_that_never_calls_a_later_save_is_named(place: Place, more: tuple[str, ...]) -> None:
    ranks = place.start("--steps", "9", "--every", "3", *SHORT, *more, "--fault", "sleep@6")
    who = "missing: rank1" if more else r"rank 1 had not staged its part within 1.5 s"
    hears(ranks, rf"could not save step 6: .*{who}.*step 3 stays the latest", within_s=15)
    assert place.steps() == [3]


@pytest.mark.parametrize("more", [(), ("--no-agent",)], ids=["with an agent", "without one"])
def test_what_one_rank_cannot_save_is_told_to_all_at_once(place: Place, more: tuple[str, ...]) -> None:
    ranks = place.start("--steps", "9", "--every", "3", *more, "--fault", "value@6")  # with deadlines of minutes
    assert ranks.wait_for([1]) == [64], ranks.text()
    assert "NotSerializable: scheduler" in ranks.out(1)
    hears(ranks, r"could not save step 6: (rank 1: )?scheduler\.odd is a builtins\.object")
    await_that(lambda: place.steps() == [3], "step 3 to be durable")


@pytest.mark.parametrize(
    "more", [(), pytest.param(("--no-agent",), marks=pytest.mark.slow)], ids=["with an agent", "without one"]
)
def test_a_rank_that_leaves_early_is_named_and_its_own_save_fails(place: Place, more: tuple[str, ...]) -> None:
    """It saves its last step at exit, alone; the others stand at theirs or fall with the process group."""
    ranks = place.start(*STEPS, *SHORT, *more, "--fault", "leave@4")
    began = time.monotonic()
    codes = ranks.wait(within_s=25)
    assert time.monotonic() - began < 20
    assert codes[1] == 75  # its exit code says that its last step is not durable
    told = [said for said in ranks.said(1) if re.search(r"step 4", said)]
    assert told, ranks.text()
    assert re.search(r"rank ?0", told[0]), ranks.text()
    assert place.steps() == [3]
