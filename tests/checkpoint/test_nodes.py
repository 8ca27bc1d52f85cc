"""Ranks of several nodes, each with an agent of its own: one commit, and no failure that another node waits for."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Any

import pytest
from conftest import Place

STEPS = ("--steps", "12", "--every", "3")
AB = ("a", "b")
Digests = Mapping[tuple[int, int], str]


def test_two_nodes_make_one_commit(place: Place, undisturbed: Digests) -> None:
    ranks = place.train(*STEPS, nodes=AB)
    assert ranks.digests().items() <= undisturbed.items(), ranks.text()
    assert len(place.agent_pids()) == 2
    assert place.agent_pids("a") != place.agent_pids("b")
    assert place.steps() == [3, 6, 9, 12]
    assert [len(commit.parts) for commit in place.commits()] == [2] * 4
    again = place.train("--steps", "15", "--every", "3", nodes=AB)
    assert again.began_at() == [12, 12]
    assert again.digests().items() <= undisturbed.items()
    alone = place.train("--steps", "18", "--every", "3", world=1)
    assert alone.began_at() == [15]


@pytest.mark.parametrize("node", ["a", "b"], ids=["the one that commits", "one that follows"])
def test_an_agent_that_dies_costs_no_step_on_any_node(place: Place, undisturbed: Digests, node: str) -> None:
    ranks = place.start(*STEPS, "--hold", f"4:{place.folder}/on", nodes=AB)
    ranks.await_line("^perdure.*committed step 3")
    place.kill_agent(node)
    ranks.await_line("lost (the )?agent", ranks=(0, 1))
    (place.folder / "on").touch()
    assert ranks.wait() == [0, 0], ranks.text()
    assert ranks.digests().items() <= undisturbed.items(), ranks.text()
    assert place.steps() == [3, 6, 9, 12]


@pytest.mark.parametrize(
    ("node", "rule"),
    [
        ("b", {"verb": "create", "match": "parts/*000000000006-*", "do": "die before"}),
        ("b", {"verb": "create", "match": "parts/*000000000006-*", "do": "die after"}),
        ("a", {"verb": "create", "match": "slots/*", "nth": 2, "do": "die before"}),
        ("a", {"verb": "create", "match": "slots/*", "nth": 2, "do": "die after"}),
    ],
    ids=["before its part", "after its part", "before the commit", "after the commit"],
)
def test_a_step_is_committed_once_wherever_an_agent_dies(
    place: Place, undisturbed: Digests, node: str, rule: dict[str, Any]
) -> None:
    place.start_agent(rule, node=node)
    ranks = place.train(*STEPS, nodes=AB)
    assert ranks.digests().items() <= undisturbed.items(), ranks.text()
    assert not [said for rank in (0, 1) for said in ranks.said(rank) if "could not save" in said], ranks.text()
    assert place.steps() == [3, 6, 9, 12]
    assert place.slots() == 4


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_killed_in_the_copy_leaves_the_step_before_it(place: Place, undisturbed: Digests, victim: int) -> None:
    ranks = place.start(*STEPS, "--fault", "copy@6", "--fault-rank", str(victim), nodes=AB)
    assert ranks.wait_for([victim]) == [-signal.SIGKILL], ranks.text()
    ranks.kill_all()
    again = place.train(*STEPS, nodes=AB)
    assert again.began_at() == [3, 3]
    assert again.digests().items() <= undisturbed.items(), again.text()
    assert place.steps() == [3, 6, 9, 12]
