"""Agents and nodes that are stopped (SIGSTOP) and come back: noticed soon, named, and harmless when they are awake."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping
from contextlib import suppress

import pytest
from conftest import Place, Ranks, await_that, is_alive

Digests = Mapping[tuple[int, int], str]
SILENT_S = 3
STEPS = ("--steps", "12", "--every", "3", "--deadlines", json.dumps({"silent_s": SILENT_S}))
AB = ("a", "b")
SIGN = f"no sign of life for {SILENT_S} s"


def stop(pid: int | None) -> int:
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    return pid


def wake(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def told(ranks: Ranks, rank: int) -> str:
    """Why the rank has no agent any more."""
    (found,) = [said for said in ranks.said(rank) if said.startswith("lost ")]
    return found


@pytest.mark.parametrize("nodes", [(), pytest.param(AB, marks=pytest.mark.slow)], ids=["one node", "two nodes"])
def test_an_agent_that_is_stopped_in_its_commit_and_awake_later_commits_nothing_twice(
    place: Place, undisturbed: Digests, nodes: tuple[str, ...]
) -> None:
    rule = {"verb": "create", "match": "slots/*", "nth": 2, "do": "hold"}
    place.start_agent(rule, node=nodes[0] if nodes else None)
    ranks = place.start(*STEPS, "--hold", f"10:{place.folder}/on", nodes=nodes)
    place.await_file("held")
    agent = stop(place.agent_pid(nodes[0] if nodes else None))
    ranks.await_line(SIGN)
    (place.folder / "go").touch()
    wake(agent)
    (place.folder / "on").touch()
    assert ranks.wait() == [0, 0], ranks.text()
    assert f"the node's agent (pid {agent}) has given {SIGN}: it was stopped, or hung, and has been ended" in told(
        ranks, 0
    )
    assert ranks.digests().items() <= undisturbed.items(), ranks.text()
    assert place.steps() == [3, 6, 9, 12]
    assert place.slots() == 4


@pytest.mark.slow
def test_the_agent_of_another_node_that_is_stopped_is_named_on_every_rank(place: Place, undisturbed: Digests) -> None:
    ranks = place.start(*STEPS, "--hold", f"4:{place.folder}/on", nodes=AB)
    ranks.await_line("committed step 3")
    agent = stop(place.agent_pid("b"))
    ranks.await_line("^perdure.*lost ", ranks=(0, 1))
    await_that(lambda: not is_alive(agent), "the rank of that node to end its agent")
    (place.folder / "on").touch()
    assert ranks.wait() == [0, 0], ranks.text()
    named = [f"the agent of node 1 (b) is gone (it has given {SIGN}", f"(pid {agent}) has given {SIGN}"]
    assert "node 1 (b)" in told(ranks, 0)
    assert any(each in told(ranks, 1) for each in named)
    assert ranks.digests().items() <= undisturbed.items(), ranks.text()
    assert place.steps() == [3, 6, 9, 12]


def test_a_node_that_was_stopped_whole_does_no_harm_when_it_is_back(place: Place, undisturbed: Digests) -> None:
    ranks = place.start(*STEPS, "--hold", f"7:{place.folder}/on", "--print-peer", nodes=AB)
    ranks.await_line("^P 6", ranks=(0, 1))
    ranks.await_line("committed step 6")
    agent = stop(place.agent_pid("b"))
    stop(ranks.pids[1])
    ranks.await_line("lost the agent")
    assert f"the agent of node 1 (b) is gone (it has given {SIGN}: stopped, or cut off)" in told(ranks, 0)
    ranks.kill(0)  # by its launcher; that of the other node is as silent as its rank
    again = place.start(*STEPS, "--hold", f"10:{place.folder}/on2", nodes=("a", "c"))
    again.await_line("^D 10 ", ranks=(0, 1), within_s=30)
    wake(agent)
    wake(ranks.pids[1])
    (place.folder / "on").touch()
    assert ranks.wait()[1] != 0  # its peers are gone
    (place.folder / "on2").touch()
    assert again.wait() == [0, 0], again.text()
    assert again.began_at() == [6, 6]
    assert again.digests().items() <= undisturbed.items(), again.text()
    assert place.steps() == [3, 6, 9, 12]
    assert place.slots() == 4


@pytest.mark.slow
def test_an_agent_that_a_new_attempt_finds_stopped_is_ended_and_another_started(
    place: Place, undisturbed: Digests
) -> None:
    ranks = place.start(*STEPS, "--hold", f"7:{place.folder}/on")
    ranks.await_line("committed step 6")
    ranks.kill_all()
    old = stop(place.agent_pid())
    again = place.train(*STEPS)
    assert again.began_at() == [6, 6]
    assert not is_alive(old)
    assert place.agent_pid() is not None
    assert "without an agent" not in again.text()
    assert again.digests().items() <= undisturbed.items(), again.text()
