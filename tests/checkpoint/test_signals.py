"""SIGTERM and Ctrl-C: all ranks save at one agreed step and leave, with nothing left behind; the next start goes on."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Mapping

import pytest

from conftest import TRAINER, Place, Ranks, await_that

Digests = Mapping[tuple[int, int], str]
LONG = ("--steps", "400", "--every", "3", "--step-s", "0.08")


def stopped_at(place: Place, ranks: Ranks, code: int) -> int:
    """The one step after which all ranks saved and ended with ``code``."""
    assert set(ranks.wait(within_s=15)) == {code}, ranks.text()
    return last_step(place, ranks)


def stopped_by(place: Place, ranks: Ranks, asked: int, number: signal.Signals) -> int:
    """The same where only ``asked`` was sent a signal: the others end as if it had been SIGTERM."""
    codes = [128 + (number if rank == asked else signal.SIGTERM) for rank in range(len(ranks.pids))]
    assert ranks.wait(within_s=30) == codes, ranks.text()
    return last_step(place, ranks)


def last_step(place: Place, ranks: Ranks) -> int:
    """The step that all ranks came to, saved, and said that they would stop after."""
    last = {max(step for of, step in ranks.digests() if of == rank) for rank in range(len(ranks.pids))}
    assert len(last) == 1, ranks.text()
    assert place.steps()[-1] == max(last)
    assert f"asked to stop: all ranks stop after step {max(last)}" in ranks.said(0)
    return max(last)


def without_agents(place: Place, *nodes: str) -> Ranks:
    """Ranks on two nodes in the middle of training, when the agents of ``nodes`` have been killed."""
    ranks = place.start(*LONG, nodes=("a", "b"))
    ranks.await_line("^D 4 ", ranks=(0, 1))
    for node in nodes:
        place.kill_agent(node)
    return ranks


def goes_on(place: Place, undisturbed: Digests, step: int, *argv: str) -> None:
    ranks = place.train("--steps", "16", "--every", "3", *argv)
    assert ranks.began_at() == [step, step]
    assert ranks.digests().items() <= undisturbed.items(), ranks.text()


def test_sigterm_to_one_rank_stops_all_at_one_step_and_leaves_nothing_behind(
    place: Place, undisturbed: Digests
) -> None:
    ranks = place.start(*LONG, PERDURE_LEASE_S="1")
    ranks.await_line("^D 4 ", ranks=(0, 1))
    assert set(place.holders()) == {*ranks.pids, place.agent_pid()}
    ranks.kill(1, signal.SIGTERM)
    step = stopped_at(place, ranks, 128 + signal.SIGTERM)
    assert step < 16
    await_that(lambda: place.agent_pid() is None, "the lease to end")
    assert place.holders() == []  # before its lock is
    assert list((place.runtime / "perdure").glob("*.sock")) == []
    goes_on(place, undisturbed, step)


def test_ctrl_c_in_the_terminal_stops_all_at_one_step(place: Place, undisturbed: Digests) -> None:
    ranks = place.start(*LONG)
    ranks.await_line("^D 4 ", ranks=(0, 1))
    ranks.interrupt()
    step = stopped_at(place, ranks, 128 + signal.SIGINT)
    goes_on(place, undisturbed, step)  # within the lease: from memory


def test_without_an_agent_ranks_agree_as_well(place: Place, undisturbed: Digests) -> None:
    ranks = place.start(*LONG, "--no-agent")
    ranks.await_line("^D 4 ", ranks=(0, 1))
    ranks.kill(0, signal.SIGTERM)
    step = stopped_at(place, ranks, 128 + signal.SIGTERM)
    goes_on(place, undisturbed, step, "--no-agent")


@pytest.mark.parametrize(
    ("dead", "asked", "number"),
    [
        (("b",), 1, signal.SIGTERM),
        pytest.param(("a",), 1, signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param(("b",), 0, signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param(("a", "b"), 1, signal.SIGINT, marks=pytest.mark.slow),
    ],
)
def test_when_agents_have_died_ranks_of_several_nodes_agree_as_well(
    place: Place, undisturbed: Digests, dead: tuple[str, ...], asked: int, number: signal.Signals
) -> None:
    ranks = without_agents(place, *dead)
    ranks.await_line("lost the agent", ranks=(0, 1))
    ranks.kill(asked, number)
    step = stopped_by(place, ranks, asked, number)
    assert sum("through torch's store" in line for line in ranks.said(0)) == 1, ranks.text()
    goes_on(place, undisturbed, step, "--no-agent")


@pytest.mark.parametrize("first", ["agents", pytest.param("signal", marks=pytest.mark.slow)])
def test_a_signal_while_agents_die_stops_all_at_one_step(place: Place, undisturbed: Digests, first: str) -> None:
    ranks = without_agents(place, *(("a", "b") if first == "agents" else ()))
    ranks.kill(1, signal.SIGTERM)
    if first == "signal":
        place.kill_agent("a")
    step = stopped_by(place, ranks, 1, signal.SIGTERM)
    goes_on(place, undisturbed, step, "--no-agent")


@pytest.mark.parametrize("asked", [1, pytest.param(0, marks=pytest.mark.slow)])
def test_several_nodes_without_agents_agree_as_well(place: Place, undisturbed: Digests, asked: int) -> None:
    ranks = place.start(*LONG, "--no-agent", nodes=("a", "b"))
    ranks.await_line("^D 4 ", ranks=(0, 1))
    ranks.kill(asked, signal.SIGTERM)
    step = stopped_by(place, ranks, asked, signal.SIGTERM)
    goes_on(place, undisturbed, step, "--no-agent")


@pytest.mark.parametrize(
    ("number", "more"),
    [
        (signal.SIGTERM, ()),
        pytest.param(signal.SIGINT, (), marks=pytest.mark.slow),
        (signal.SIGINT, ("--no-agent",)),
    ],
    ids=["SIGTERM", "Ctrl-C", "Ctrl-C without an agent"],
)
def test_a_process_without_a_launcher_saves_and_goes_on(
    place: Place, undisturbed_alone: Digests, number: signal.Signals, more: tuple[str, ...]
) -> None:
    one = place.start(*LONG, *more, world=1, bare=True)
    one.await_line("^D 4 ")
    one.kill(0, number)
    step = stopped_at(place, one, 128 + number)
    assert step < 12
    rest = place.train("--steps", "12", "--every", "3", *more, world=1, bare=True)  # in the lease of the same agent
    assert rest.began_at() == [step]
    assert max(rest.digests())[1] == 12  # the request to stop was the last run's
    assert (one.digests() | rest.digests()).items() <= undisturbed_alone.items()


def test_the_second_signal_ends_at_once(place: Place) -> None:
    one = place.start("--steps", "9", "--every", "3", "--hold", f"4:{place.folder}/never", world=1, bare=True)
    one.await_line("^D 4 ")
    one.kill(0, signal.SIGTERM)
    time.sleep(0.2)
    assert one.poll() == {}
    one.kill(0, signal.SIGTERM)
    assert one.wait(within_s=2) == [-signal.SIGTERM]


def test_the_second_ctrl_c_ends_what_a_shell_started_deaf_to_it(place: Place) -> None:
    out = place.folder / "out"
    argv = f"--to {place.run_dir} --steps 9 --every 3 --no-agent --hold 4:{place.folder}/never"
    one = place.popen("sh", "-c", f"trap '' INT; exec {sys.executable} {TRAINER} {argv} > {out}")
    await_that(lambda: out.exists() and "D 4 " in out.read_text(), "step 4", within_s=30)
    one.send_signal(signal.SIGINT)
    time.sleep(0.2)
    assert one.poll() is None
    one.send_signal(signal.SIGINT)
    assert one.wait(10) == -signal.SIGINT


def test_a_signal_while_the_last_step_is_saved_lets_it_be_saved(place: Place) -> None:
    place.start_agent({"verb": "put", "match": "packs/*000000000012-*", "do": "hold"})
    ranks = place.start("--steps", "12", "--every", "3")
    place.await_file("held")
    ranks.await_line("^D 12 ", ranks=(0, 1))
    time.sleep(0.3)  # they wait for the commit
    for rank in (0, 1):
        ranks.kill(rank, signal.SIGTERM)
    (place.folder / "go").touch()
    assert ranks.wait() == [0, 0], ranks.text()
    assert place.steps()[-1] == 12
