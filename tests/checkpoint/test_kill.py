"""``kill -9`` of a rank at every point of a save: the next attempt goes on, bit for bit as if nothing had happened."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Any

import pytest

from conftest import Place, Ranks, await_that

STEPS = ("--steps", "12", "--every", "3")
Digests = Mapping[tuple[int, int], str]


def kill_the_others(ranks: Ranks, victim: int = 1) -> None:
    """What a launcher does once a rank has died."""
    assert ranks.wait_for([victim]) == [-signal.SIGKILL], ranks.text()
    ranks.kill_all()


def goes_on(place: Place, undisturbed: Digests, *, at: set[int], argv: tuple[str, ...] = STEPS) -> Ranks:
    """Run the next attempt to its end: from one of the steps ``at``, and then as if nothing had happened."""
    ranks = place.train(*argv)
    assert len(set(ranks.began_at())) == 1
    assert ranks.began_at()[0] in at
    assert ranks.digests().items() <= undisturbed.items(), ranks.text()
    assert max(ranks.digests())[1] == 12
    assert place.steps()[-1] == 12
    return ranks


@pytest.mark.parametrize(
    ("fault", "at"),
    [
        ("forward@7", {6}),  # the save of step 6 is staged before the next optimizer step: it is in memory
        ("optimizer@7", {6}),
        pytest.param("forward@6", {3, 6}, marks=pytest.mark.slow),  # while it is copied
        ("copy@6", {3}),  # in the middle of the copy: half a step is no step
    ],
)
def test_a_rank_killed_while_it_trains_costs_no_saved_step(
    place: Place, undisturbed: Digests, fault: str, at: set[int]
) -> None:
    first = place.start(*STEPS, "--fault", fault)
    if fault == "optimizer@7":  # the other rank has to come to that step too before it is killed
        assert first.wait_for([1]) == [-signal.SIGKILL], first.text()
        await_that(lambda: 6 in place.steps(), "step 6 to be committed")
    kill_the_others(first)
    ranks = goes_on(place, undisturbed, at=at)
    assert any("from memory" in said for said in ranks.said(0))


@pytest.mark.parametrize(
    "rule",
    [
        {"verb": "put", "match": "packs/*000000000006-*", "do": "hold"},
        pytest.param({"verb": "create", "match": "parts/*000000000006-*", "do": "hold"}, marks=pytest.mark.slow),
        {"verb": "create", "match": "slots/*", "nth": 2, "do": "hold"},
    ],
    ids=["drain", "part", "commit"],
)
def test_a_rank_killed_while_the_agent_writes_does_not_stop_the_agent(
    place: Place, undisturbed: Digests, rule: dict[str, Any]
) -> None:
    place.start_agent(rule)
    ranks = place.start(*STEPS, "--step-s", "0.05")
    place.await_file("held")
    ranks.kill(1)
    kill_the_others(ranks)
    (place.folder / "go").touch()
    goes_on(place, undisturbed, at={6, 9})
    assert place.steps()[:2] == [3, 6]


def test_a_step_that_was_being_written_is_written_by_the_next_attempt(place: Place, undisturbed: Digests) -> None:
    """The first save of the next attempt claims an epoch, so that the old one's commit is refused: it is made again."""
    place.start_agent({"verb": "put", "match": "packs/*000000000006-*", "do": "hold"})
    ranks = place.start(*STEPS, "--hold", f"7:{place.folder}/never")
    ranks.await_line("^D 7 ", ranks=(0, 1))
    kill_the_others_after_kill(ranks)
    again = place.start(*STEPS)
    await_that((place.run_dir / "epochs/0000000002.json").exists, "the second epoch", within_s=20)
    (place.folder / "go").touch()
    assert again.wait() == [0, 0], again.text()
    assert again.began_at() == [6, 6]
    assert again.digests().items() <= undisturbed.items()
    assert place.steps() == [3, 6, 9, 12]
    assert [commit.epoch for commit in place.commits()] == [1, 2, 2, 2]
    assert not any("memory only" in said for said in again.said(0))


def test_a_rank_killed_while_it_waits_for_a_segment_leaves_the_others_free(place: Place, undisturbed: Digests) -> None:
    place.start_agent({"verb": "put", "match": "packs/*", "do": "hold"})
    argv = ("--steps", "12", "--every", "1")
    ranks = place.start(*argv, "--fault", "waiting@3")  # step 1 is being written, step 2 is in memory
    place.await_file("waiting@3")
    kill_the_others_after_kill(ranks)
    (place.folder / "go").touch()
    goes_on(place, undisturbed, at={2}, argv=argv)
    assert place.steps() == list(range(1, 13))


def kill_the_others_after_kill(ranks: Ranks) -> None:
    ranks.kill(1)
    kill_the_others(ranks)


@pytest.mark.parametrize("fault", ["copy@6", pytest.param("forward@7", marks=pytest.mark.slow)])
def test_without_an_agent_the_last_committed_step_counts(place: Place, undisturbed: Digests, fault: str) -> None:
    slow = ("--step-s", "0.1")  # else the kill may come before step 3 is written
    kill_the_others(place.start(*STEPS, *slow, "--no-agent", "--fault", fault))
    goes_on(place, undisturbed, at={3, 6}, argv=(*STEPS, "--no-agent"))
    assert place.agent_pid() is None
