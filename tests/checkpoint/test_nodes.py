"""Ranks of several nodes, each with an agent of its own: one commit, and no failure that another node waits for."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from typing import Any

import pytest

import perdure
from conftest import HERE, Place, Ranks, await_that, flip_memory

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


@pytest.mark.parametrize(
    "node", ["a", pytest.param("b", marks=pytest.mark.slow)], ids=["the one that commits", "one that follows"]
)
def test_an_agent_that_dies_costs_no_step_on_any_node(place: Place, undisturbed: Digests, node: str) -> None:
    ranks = place.start(*STEPS, "--hold", f"4:{place.folder}/on", nodes=AB)
    ranks.await_line("^perdure.*committed step 3")
    place.kill_agent(node)
    ranks.await_line("lost the agent", ranks=(0, 1))
    (place.folder / "on").touch()
    assert ranks.wait() == [0, 0], ranks.text()
    assert ranks.digests().items() <= undisturbed.items(), ranks.text()
    assert place.steps() == [3, 6, 9, 12]


@pytest.mark.parametrize(
    ("node", "rule"),
    [
        ("b", {"verb": "create", "match": "parts/*000000000006-*", "do": "die before"}),
        pytest.param(
            "b", {"verb": "create", "match": "parts/*000000000006-*", "do": "die after"}, marks=pytest.mark.slow
        ),
        pytest.param("a", {"verb": "create", "match": "slots/*", "nth": 2, "do": "die before"}, marks=pytest.mark.slow),
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


@pytest.mark.parametrize("victim", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_rank_killed_in_the_copy_leaves_the_step_before_it(place: Place, undisturbed: Digests, victim: int) -> None:
    ranks = place.start(*STEPS, "--fault", "copy@6", "--fault-rank", str(victim), nodes=AB)
    assert ranks.wait_for([victim]) == [-signal.SIGKILL], ranks.text()
    ranks.kill_all()
    again = place.train(*STEPS, nodes=AB)
    assert again.began_at() == [3, 3]
    assert again.digests().items() <= undisturbed.items(), again.text()
    assert place.steps() == [3, 6, 9, 12]


def test_a_rank_killed_in_the_copy_leaves_the_step_before_it_in_memory_too(place: Place, undisturbed: Digests) -> None:
    """Though the other node has the newer step whole already, and no store has either."""
    argv = ("--steps", "12", "--every", "12", "--memory-every", "3")
    ranks = place.start(*argv, "--fault", "copy@9", nodes=AB)
    assert ranks.wait_for([1]) == [-signal.SIGKILL], ranks.text()
    ranks.await_line("saved step 9 to memory|copied step 9|saved step 6")
    ranks.kill_all()
    again = place.train(*argv, nodes=AB)
    assert again.began_at() == [6, 6], again.text()
    assert again.digests().items() <= undisturbed.items(), again.text()


def test_a_step_that_is_in_memory_alone_comes_back_from_the_memory_of_all_nodes(
    place: Place, undisturbed: Digests
) -> None:
    place.start_agent({"verb": "put", "match": "packs/*000000000006-*", "do": "hold"}, node="b")
    ranks = place.start(*STEPS, "--hold", f"7:{place.folder}/on", nodes=AB)
    place.await_file("held")
    ranks.await_line("saved step 6 to memory")
    ranks.await_line("D 7", ranks=(0, 1))
    ranks.kill_all()
    again = place.start(*STEPS, nodes=AB)
    again.await_line("^R 6", ranks=(0, 1))
    (place.folder / "go").touch()
    assert again.wait() == [0, 0], again.text()
    assert again.began_at() == [6, 6]
    assert "from memory" in again.text()
    assert again.digests().items() <= undisturbed.items(), again.text()
    assert place.steps() == [3, 6, 9, 12]


def test_what_another_node_holds_is_read_from_its_memory(place: Place, undisturbed: Digests) -> None:
    """The ranks have changed their nodes: none finds what it saved with its own agent."""
    ranks = place.train("--steps", "6", "--every", "3", nodes=AB)
    for pack in place.run_dir.glob("packs/*/*"):
        pack.unlink()  # so that only memory has it
    again = place.train(*STEPS, nodes=("b", "a"))
    assert again.began_at() == [6, 6], again.text()
    assert again.digests().items() <= undisturbed.items(), again.text()
    assert ranks.digests().items() <= undisturbed.items()


def lose(place: Place, node: str, ranks: Ranks) -> None:
    """A whole node is gone, with its agent and all its memory; then the launcher stops the others."""
    place.kill_agent(node)
    ranks.kill_all()


@pytest.mark.parametrize("lost", ["a", pytest.param("b", marks=pytest.mark.slow)])
def test_a_node_that_is_lost_comes_back_from_the_memory_of_its_partner(
    place: Place, undisturbed: Digests, lost: str
) -> None:
    ranks = place.start(*STEPS, "--hold", f"7:{place.folder}/on", "--print-peer", nodes=AB)
    ranks.await_line("^P 6", ranks=(0, 1))
    ranks.await_line("committed step 6")
    lose(place, lost, ranks)
    for pack in place.run_dir.glob("packs/*/*"):
        pack.unlink()  # so that only memory has it
    again = place.train(*STEPS, nodes=("c", "b") if lost == "a" else ("a", "c"))
    assert again.began_at() == [6, 6], again.text()
    assert ("from peer" in again.text()) is (lost == "a"), again.text()  # rank 0 speaks of what it read itself
    assert again.digests().items() <= undisturbed.items(), again.text()


def test_a_step_in_memory_alone_outlives_the_node_that_saved_it(place: Place, undisturbed: Digests) -> None:
    place.start_agent({"verb": "put", "match": "packs/*000000000006-*", "do": "hold"}, node="b")
    ranks = place.start(*STEPS, "--hold", f"7:{place.folder}/on", "--print-peer", nodes=AB)
    ranks.await_line("^P 6", ranks=(0, 1))
    lose(place, "b", ranks)
    again = place.train(*STEPS, nodes=("a", "c"))
    assert again.began_at() == [6, 6], again.text()
    assert again.digests().items() <= undisturbed.items(), again.text()
    assert place.steps()[-1] == 12


def test_a_bit_that_flipped_in_memory_alone_comes_from_the_copy_of_the_partner(
    place: Place, undisturbed: Digests
) -> None:
    argv = ("--steps", "12", "--every", "6", "--memory-every", "3")
    ranks = place.start(*argv, "--hold", f"10:{place.folder}/on", nodes=AB, script=str(HERE / "gated_trainer.py"))
    ranks.await_line("^Q 3$", ranks=(0, 1))
    ranks.await_line("committed step 6")
    ranks.kill_all()
    flip_memory(place, local_rank=0, node="a")
    again = place.train(*argv, nodes=AB)
    assert again.began_at() == [9, 9], again.text()
    assert "the memory of step 9 (memory): tile 0 does not hash to its digest" in again.out(0)
    assert "took the copy on peer" in again.out(0)
    assert again.digests().items() <= undisturbed.items(), again.text()
    assert place.steps()[-1] == 12
    for step in place.steps():  # what is bad in memory is not what goes to disk as good
        assert perdure.load(str(place.run_dir), step=step)


@pytest.mark.parametrize("asked", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_one_rank_that_is_asked_to_stop_stops_all_nodes_at_one_saved_step(
    place: Place, undisturbed: Digests, asked: int
) -> None:
    ranks = place.start("--steps", "500", "--every", "100", "--step-s", "0.05", nodes=AB)
    ranks.await_line("^D 4 ", ranks=(0, 1))
    ranks.kill(asked, signal.SIGTERM)
    assert ranks.wait() == [128 + signal.SIGTERM if rank == asked else 143 for rank in (0, 1)], ranks.text()
    steps = {max(step for rank, step in ranks.digests() if rank == each) for each in (0, 1)}
    assert len(steps) == 1
    assert place.steps() == list(steps)


@pytest.mark.parametrize(
    ("lost", "then"),
    [
        pytest.param("b", ("a", "c"), marks=pytest.mark.slow),
        ("a", ("c", "b")),
        pytest.param("b", ("a",), marks=pytest.mark.slow),
        pytest.param("b", ("a", "c", "d"), marks=pytest.mark.slow),
    ],
    ids=["a new node follows", "a new node commits", "one node is left", "there are more nodes than before"],
)
def test_a_step_that_a_lost_node_left_in_memory_is_durable_before_the_next_save(
    place: Place, undisturbed: Digests, lost: str, then: tuple[str, ...]
) -> None:
    argv = ("--steps", "12", "--every", "6", "--memory-every", "3")
    ranks = place.start(*argv, "--hold", f"10:{place.folder}/on", nodes=AB, script=str(HERE / "gated_trainer.py"))
    ranks.await_line("^Q 3$", ranks=(0, 1))
    ranks.await_line("committed step 6")
    lose(place, lost, ranks)
    again = place.start("--steps", "12", "--every", "100", "--step-s", "5", world=len(then), nodes=then)
    again.await_line("^R 9", ranks=range(len(then)))
    await_that(lambda: place.steps() == [6, 9], "step 9 to be durable", within_s=20)
    again.kill_all()  # it has saved nothing itself
    assert "in memory only" not in again.text()
    assert [commit.parent for commit in place.commits()] == [None, place.commits()[0].slot]
    for pid in place.agent_pids():
        os.kill(pid, signal.SIGKILL)  # so that the disk alone has it
    last = place.train("--steps", "12", "--every", "6", "--no-agent", world=2)
    assert last.began_at() == [9, 9]
    assert last.digests().items() <= undisturbed.items(), last.text()
