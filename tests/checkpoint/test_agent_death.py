"""``kill -9`` of the agent: every rank says so, no save is lost, training does not notice, another comes next time."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from conftest import Place, Ranks, await_that, is_alive
from perdure.checkpoint.link import socket_path
from perdure.process.lock import FileLock

STEPS = ("--steps", "12", "--every", "3")
Digests = Mapping[tuple[int, int], str]


def goes_on_alone(place: Place, ranks: Ranks, undisturbed: Digests) -> None:
    """The ranks end well, having said that they save alone, with nothing lost, nothing twice and nothing changed."""
    assert ranks.wait() == [0, 0], ranks.text()
    for rank in (0, 1):
        lost = [said for said in ranks.said(rank) if said.startswith("lost the agent")]
        assert len(lost) == 1, ranks.text()
        assert "saves by itself" in lost[0]
        assert not [said for said in ranks.said(rank) if "could not save" in said], ranks.text()
    assert ranks.digests().items() <= undisturbed.items(), ranks.text()


def test_an_agent_killed_while_it_has_nothing_to_do(place: Place, undisturbed: Digests) -> None:
    ranks = place.start(*STEPS, "--hold", f"4:{place.folder}/on")
    ranks.await_line("^perdure.*committed step 3")
    place.kill_agent()
    ranks.await_line("lost the agent", ranks=(0, 1))
    (place.folder / "on").touch()
    goes_on_alone(place, ranks, undisturbed)
    assert place.steps() == [3, 6, 9, 12]
    again = place.train("--steps", "15", "--every", "3")
    assert again.began_at() == [12, 12]
    assert again.digests().items() <= undisturbed.items()
    assert place.agent_pid() is not None
    assert place.steps() == [3, 6, 9, 12, 15]


def test_an_agent_killed_while_it_writes_leaves_the_step_to_the_ranks(place: Place, undisturbed: Digests) -> None:
    pid = place.start_agent({"verb": "put", "match": "packs/*000000000006-*", "nth": 2, "do": "hold"})
    ranks = place.start(*STEPS, "--hold", f"7:{place.folder}/on")
    place.await_file("held")
    os.kill(pid, signal.SIGKILL)
    (place.folder / "on").touch()
    goes_on_alone(place, ranks, undisturbed)
    assert place.steps() == [3, 6, 9, 12]


@pytest.mark.parametrize(
    "rule",
    [
        pytest.param({"verb": "create", "match": "parts/*000000000006-*", "do": "die before"}, marks=pytest.mark.slow),
        {"verb": "create", "match": "slots/*", "nth": 2, "do": "die before"},
        {"verb": "create", "match": "slots/*", "nth": 2, "do": "die after"},
    ],
    ids=["before the part", "before the commit", "between the commit and the word of it"],
)
def test_a_step_is_committed_once_wherever_the_agent_dies(
    place: Place, undisturbed: Digests, rule: dict[str, Any]
) -> None:
    place.start_agent(rule)
    ranks = place.start(*STEPS)
    goes_on_alone(place, ranks, undisturbed)
    assert place.steps() == [3, 6, 9, 12]
    assert place.slots() == 4


def test_an_agent_killed_while_ranks_wait_for_memory(place: Place, undisturbed: Digests) -> None:
    pid = place.start_agent({"verb": "put", "match": "packs/*", "do": "hold"})
    ranks = place.start("--steps", "12", "--every", "1", "--fault", "waiting@3")
    place.await_file("waiting@3")
    os.kill(pid, signal.SIGKILL)
    goes_on_alone(place, ranks, undisturbed)
    assert place.steps() == list(range(1, 13))
    assert place.slots() == 12


def test_an_agent_killed_in_the_middle_of_a_copy(place: Place, undisturbed: Digests) -> None:
    ranks = place.start(*STEPS, "--fault", "copy-agent@6")
    goes_on_alone(place, ranks, undisturbed)
    assert place.steps() == [3, 6, 9, 12]


def test_ranks_that_went_on_from_memory_follow_what_is_committed(place: Place, undisturbed: Digests) -> None:
    pid = place.start_agent({"verb": "put", "match": "packs/*000000000006-*", "do": "hold"})
    ranks = place.start(*STEPS, "--hold", f"7:{place.folder}/never")
    ranks.await_line("^D 7 ", ranks=(0, 1))
    ranks.kill_all()
    again = place.start(*STEPS, "--hold", f"7:{place.folder}/on")
    again.await_line("^D 7 ", ranks=(0, 1))
    os.kill(pid, signal.SIGKILL)  # and with it step 6, which was nowhere else
    (place.folder / "on").touch()
    goes_on_alone(place, again, undisturbed)
    assert again.began_at() == [6, 6]
    assert place.steps() == [3, 9, 12]


def test_after_a_rollback_ranks_save_on_the_branch_that_they_are_on(place: Place, undisturbed: Digests) -> None:
    place.train("--steps", "9", "--every", "3")
    ranks = place.start(*STEPS, "--step", "3", "--fault", "copy-agent@6")
    goes_on_alone(place, ranks, undisturbed)
    assert ranks.began_at() == [3, 3]
    assert [(commit.step, commit.slot) for commit in place.commits()] == [(3, 1), (6, 4), (9, 5), (12, 6)]


def test_an_agent_that_is_asked_to_end_writes_what_it_holds_first(place: Place, undisturbed: Digests) -> None:
    pid = place.start_agent({"verb": "put", "match": "packs/*000000000006-*", "do": "hold"})
    ranks = place.start(*STEPS, "--hold", f"7:{place.folder}/on")
    place.await_file("held")
    os.kill(pid, signal.SIGTERM)
    (place.folder / "go").touch()
    await_that(lambda: not is_alive(pid), "the agent to end")
    assert place.steps() == [3, 6]
    (place.folder / "on").touch()
    goes_on_alone(place, ranks, undisturbed)
    assert place.steps() == [3, 6, 9, 12]


def test_ranks_save_alone_where_no_agent_can_start(place: Place, undisturbed: Digests) -> None:
    ranks = place.train(*STEPS, PERDURE_LEASE_S="soon")
    assert any("saving without an agent" in said for said in ranks.said(0)), ranks.text()
    assert ranks.digests().items() <= undisturbed.items()
    assert place.steps() == [3, 6, 9, 12]


def test_an_agent_waits_until_the_one_before_it_has_left(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(place.runtime))
    path = socket_path(job=place.job, url=place.url)
    leaving = FileLock.try_acquire(path.with_suffix(".lock"))
    assert leaving is not None
    agent = place.popen(sys.executable, "-m", "perdure", "agent", "--job", place.job, "--url", place.url)
    with pytest.raises(AssertionError):
        await_that(lambda: agent.poll() is not None or path.exists(), "nothing", within_s=1.0)
    leaving.release()
    await_that(path.exists, "the agent to serve")
