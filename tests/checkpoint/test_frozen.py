"""Agents and nodes that are stopped (SIGSTOP) and come back: noticed soon, named, and harmless when they are awake."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

import pytest
from relay import Relay
from test_wards import SECRET, entry_of

from conftest import HERE, SRC, Place, Ranks, await_that, is_alive
from perdure.checkpoint.peer_packs import PeerPacks
from perdure.errors import StorageError

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


@contextmanager
def peer_process(columns: int) -> Iterator[tuple[int, int]]:
    """A process that holds a save as another node's agent does: its pid, and its port."""
    command = [sys.executable, str(HERE / "peer_process.py"), str(columns)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": SRC}) as process:
        assert process.stdout is not None
        try:
            yield process.pid, int(process.stdout.readline())
        finally:
            process.kill()


def packs_at(port: int, *, silent_s: float) -> PeerPacks:
    name = "step 3 on node 1 (b)"
    return PeerPacks(
        ("127.0.0.1", port), session="s", secret=SECRET, url="u", save=("s", 3), file=name, silent_s=silent_s
    )


@pytest.mark.parametrize("how", ["digested", "fetched"])
def test_a_peer_that_is_stopped_while_it_sends_is_given_up_by_name_and_serves_others_when_it_is_back(how: str) -> None:
    with peer_process(50_000) as (pid, port):
        packs = packs_at(port, silent_s=2.0)
        tile_bytes, entry = packs.index().tile_bytes, entry_of(packs)
        packs._moved = lambda nbytes: os.kill(pid, signal.SIGSTOP)  # most of 60 MB is still to come then
        room = memoryview(bytearray(entry.nbytes))

        def read() -> None:
            if how == "digested":
                packs.read_digested(entry.start, entry.nbytes, room, tile_bytes)
            else:
                packs.fetch(entry.start, entry.nbytes, room)

        for _ in range(2):
            with pytest.raises(StorageError) as caught:
                read()
            why = "step 3 on node 1 (b) cannot be read: nothing has come from it for 2 s (stopped, or cut off)"
            assert str(caught.value) == why
            wake(pid)  # who has been given up is not asked again, also when it is back
        packs.close()
        stop(pid)
        with pytest.raises(StorageError, match=r"node 1 \(b\) cannot be read: nothing has come from it for 2 s"):
            packs_at(port, silent_s=2.0)
        wake(pid)
        again = packs_at(port, silent_s=20.0)
        assert again.read_digested(entry.start, entry.nbytes, room, tile_bytes)
        again.close()


@pytest.mark.slow
def test_a_slow_link_is_no_stopped_peer() -> None:
    """All of it takes longer than a peer may be silent; but bytes come all the while."""
    relay, silent_s = Relay(), 3.0
    try:
        with peer_process(5_000) as (_, port):
            relay.slow_s = 0.06
            packs = packs_at(through(relay, port), silent_s=silent_s)
            entry = entry_of(packs)
            began = time.monotonic()
            room = memoryview(bytearray(entry.nbytes))
            slowly = packs.read_digested(entry.start, entry.nbytes, room, packs.index().tile_bytes)
            assert time.monotonic() - began > silent_s
            relay.slow_s = 0.0
            assert packs.read_digested(entry.start, entry.nbytes, room, packs.index().tile_bytes) == slowly
            packs.close()
    finally:
        relay.end()


def through(relay: Relay, port: int) -> int:
    """The port behind which the relay passes on what goes to ``port``."""
    with socket.create_connection(("127.0.0.1", relay.port)) as asking:
        asking.sendall(str(port).encode())
        return int(asking.recv(16))


def test_a_node_that_is_stopped_in_the_middle_of_a_restore_is_gone_round_by_the_disk(
    place: Place, undisturbed: Digests
) -> None:
    """A new node reads from the only one that holds the step in memory, which is stopped whole; its rank comes back."""
    ranks = place.start(*STEPS, "--hold", f"7:{place.folder}/on", "--print-peer", nodes=AB)
    ranks.await_line("^P 6", ranks=(0, 1))
    ranks.await_line("committed step 6")
    ranks.kill_all()
    place.kill_agent("a")
    script = str(HERE / "gated_trainer.py")
    again = place.start(*STEPS, nodes=("c", "b"), script=script, GATE="restore@0", GATE_RANK="0")
    place.await_file("held")
    agent = stop(place.agent_pid("b"))
    stop(again.pids[1])
    (place.folder / "go").touch()
    again.await_line("lost the agent")  # the agents wait for a sign of life as long as the rank does for bytes
    wake(again.pids[1])
    again.await_line("^R 6", ranks=(0, 1), within_s=30)
    wake(agent)
    assert again.wait() == [0, 0], again.text()
    why = f"the memory of step 6 on node 1 (b) cannot be read: nothing has come from it for {SILENT_S} s"
    assert f"{why} (stopped, or cut off); took the copy on disk" in again.out(0)
    assert again.began_at() == [6, 6]
    assert again.digests().items() <= undisturbed.items(), again.text()
    assert place.steps() == [3, 6, 9, 12]
