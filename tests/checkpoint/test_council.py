"""The agents of several nodes hear of each other's parts, failures and commits, over real connections."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec
import pytest

from perdure.checkpoint.council import Council
from perdure.checkpoint.peer_messages import Member, PartSaid, SaveName
from perdure.checkpoint.peer_server import PeerServer
from perdure.clock import Deadline
from perdure.errors import AgentLost, DeadlineExceeded, PerdureError, StateMismatch, StorageFull
from perdure.store import PartRef
from perdure.wire import NodeLink

SAVE: SaveName = ("s", 1)


def soon(seconds: float = 10.0) -> Deadline:
    return Deadline.after(seconds, "a test")


def part(node: int, step: int = 10) -> PartSaid:
    ref = PartRef(name=f"parts/{node}", nbytes=1, digest="0" * 32, top_nbytes=1)
    return PartSaid(save=SAVE, step=step, ref=ref, said=((node, {}),), raw_nbytes=1, stored_nbytes=1)


@dataclass
class Node:
    """One agent's council, what it was told, and the steps that its ranks come to, one for each look."""

    number: int
    nodes: int
    told_broken: list[tuple[SaveName, PerdureError]] = field(default_factory=list)
    told_asked: list[SaveName] = field(default_factory=list)
    told_copied: list[tuple[SaveName, PerdureError | None]] = field(default_factory=list)
    told_lost: list[AgentLost] = field(default_factory=list)
    told_firm: list[int] = field(default_factory=list)
    step: int = 0
    pace: int = 0
    silent_s: float = 8.0

    def __post_init__(self) -> None:
        self.council = Council(
            session="s",
            secret=b"k" * 32,
            url="file:///x",
            node=self.number,
            nodes=self.nodes,
            commit_s=10.0,
            silent_s=self.silent_s,
            host=self,
        )
        self.server = PeerServer({"s": b"k" * 32}.get, self.serve)

    def serve(self, link: NodeLink, first: object) -> None:
        assert isinstance(first, Member)
        self.council.admit(first, link)

    def broken(self, name: SaveName, error: PerdureError) -> None:
        self.told_broken.append((name, error))

    def asked(self, name: SaveName, step: int) -> None:
        self.told_asked.append(name)

    def copied(self, name: SaveName, error: PerdureError | None) -> None:
        self.told_copied.append((name, error))

    def lost(self, error: AgentLost) -> None:
        self.told_lost.append(error)

    def look(self, proposed: int) -> int:
        self.step, self.pace = self.step + self.pace, max(0, self.pace - 1)
        return self.step

    def firm(self, step: int) -> None:
        self.told_firm.append(step)


@pytest.fixture
def three() -> Iterator[list[Node]]:
    yield from met([Node(number, 3) for number in range(3)])


def met(nodes: list[Node]) -> Iterator[list[Node]]:
    addresses = [("127.0.0.1", node.server.listen("127.0.0.1")) for node in nodes]
    threads = [
        threading.Thread(target=node.council.meet, args=(addresses, (number + 1) % 3, soon()))
        for number, node in enumerate(nodes)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    yield nodes
    for node in nodes:
        node.council.close()
        node.server.close()


def in_background(work: Callable[[], object]) -> Callable[[], object]:
    """Start ``work``; the function that comes back waits for what it returns, or raises what it raised."""
    result: list[object] = []

    def run() -> None:
        try:
            result.append(work())
        except PerdureError as error:
            result.append(error)

    thread = threading.Thread(target=run)
    thread.start()

    def wait() -> object:
        thread.join(15)
        assert not thread.is_alive(), "it hangs"
        if isinstance(result[0], PerdureError):
            raise result[0]
        return result[0]

    return wait


def await_that(done: Callable[[], bool]) -> None:
    deadline = soon()
    while not done():
        deadline.check()
        threading.Event().wait(0.005)


def test_all_hear_of_the_slot_once_all_parts_are_there(three: list[Node]) -> None:
    waits = [in_background(lambda n=n: three[n].council.report(part(n), soon())) for n in (1, 2)]  # type: ignore[misc]
    assert [each.ref.name for each in three[0].council.gather(SAVE, 10, soon())] == ["parts/1", "parts/2"]
    three[0].council.conclude(SAVE, slot=7)
    assert [wait() for wait in waits] == [7, 7]


def test_a_failure_on_one_node_ends_the_save_on_all(three: list[Node]) -> None:
    wait = in_background(lambda: three[1].council.report(part(1), soon()))
    three[2].council.broke(SAVE, StorageFull("the disk is full", file="x"))
    with pytest.raises(StorageFull, match="node 2: the disk is full"):
        three[0].council.gather(SAVE, 10, soon())
    with pytest.raises(StorageFull, match="node 2") as caught:
        wait()
    assert caught.value.facts["final"] is True
    await_that(lambda: bool(three[0].told_broken and three[1].told_broken))


def test_a_part_of_another_step_is_a_mismatch(three: list[Node]) -> None:
    wait = in_background(lambda: three[1].council.report(part(1, step=11), soon()))
    with pytest.raises(StateMismatch, match="step 11 on rank 1"):
        three[0].council.gather(SAVE, 10, soon())
    three[0].council.conclude(SAVE, error=StateMismatch("no"))
    with pytest.raises(StateMismatch):
        wait()


def test_who_is_late_is_named_and_was_asked(three: list[Node]) -> None:
    wait = in_background(lambda: three[1].council.report(part(1), soon()))
    with pytest.raises(DeadlineExceeded, match="the part of node 2"):
        three[0].council.gather(SAVE, 10, soon(2.2))
    assert three[2].told_asked == [SAVE] * len(three[2].told_asked) != []
    three[0].council.conclude(SAVE, error=DeadlineExceeded("late"))
    with pytest.raises(DeadlineExceeded):
        wait()


def test_who_comes_late_hears_how_it_ended(three: list[Node]) -> None:
    three[0].council.conclude(SAVE, slot=3)
    assert three[2].council.report(part(2), soon()) == 3


@pytest.mark.parametrize("gone", [0, 1])
def test_a_node_that_is_gone_ends_every_wait(three: list[Node], gone: int) -> None:
    wait = in_background(lambda: three[2].council.report(part(2), soon()))
    three[gone].council.close()
    if gone:
        with pytest.raises(AgentLost, match="node 1 is gone"):
            three[0].council.gather(SAVE, 10, soon())
        three[0].council.conclude(SAVE, error=AgentLost("node 1"))
    with pytest.raises(AgentLost):
        wait()
    await_that(lambda: len(three[0 if gone else 2].told_lost) == 1)


def test_copies_are_told_once_every_node_has_one(three: list[Node]) -> None:
    for node in (1, 0):
        three[node].council.copied(SAVE, None)
    threading.Event().wait(0.1)
    assert not any(node.told_copied for node in three)
    three[2].council.copied(SAVE, None)
    await_that(lambda: all(node.told_copied == [(SAVE, None)] for node in three))
    other = ("s", 2)
    three[1].council.copied(other, StorageFull("no memory", file="memory"))
    await_that(lambda: all(len(node.told_copied) == 2 for node in three))
    assert all(isinstance(node.told_copied[1][1], StorageFull) for node in three)
    for node in (0, 2):
        three[node].council.copied(other, None)
    threading.Event().wait(0.1)
    assert all(len(node.told_copied) == 2 for node in three)  # that the others have theirs makes it no better


def test_strangers_and_doubles_are_refused(three: list[Node]) -> None:
    port = three[0].server.listen("127.0.0.1")
    again = Node(1, 3)
    again.council.meet([("127.0.0.1", port)] * 3, 2, soon())  # node 1 is there already
    await_that(lambda: len(again.told_lost) == 1)
    with suppress(PerdureError):
        again.council.report(part(1), soon(0.2))
    assert not three[0].told_lost


def test_all_nodes_stop_at_one_step_that_none_has_passed(three: list[Node]) -> None:
    for node, (step, pace) in zip(three, ((5, 0), (7, 4), (6, 1)), strict=True):  # the second runs on meanwhile
        node.step, node.pace = step, pace
    three[2].council.stop_wanted()
    three[1].council.stop_wanted()
    await_that(lambda: all(node.told_firm for node in three))
    (firm,) = {tuple(node.told_firm) for node in three}
    assert len(firm) == 1
    assert firm[0] > max(node.step for node in three)


def test_a_node_that_is_gone_does_not_keep_the_others_from_asking_again(three: list[Node]) -> None:
    three[2].council.close()
    await_that(lambda: bool(three[0].told_lost))
    three[0].council.stop_wanted()
    await_that(lambda: not three[0].council._stopping.agreeing)
    assert not three[0].told_firm


def test_a_bug_in_what_hears_loses_the_council_and_leaves_nobody_waiting(three: list[Node]) -> None:
    def fail(proposed: int) -> int:
        raise ValueError("a page that is closed")

    three[1].look = fail  # type: ignore[method-assign]
    three[2].council.stop_wanted()
    give_up = time.monotonic() + 5
    while not all(node.told_lost for node in three[:2]) and time.monotonic() < give_up:
        time.sleep(0.01)
    assert "a page that is closed" in str(three[1].told_lost[0])
    assert three[0].told_lost


def test_a_node_that_gives_no_sign_of_life_is_named_on_all_others() -> None:
    nodes = [Node(number, 3, silent_s=2.0) for number in range(3)]
    nodes[1].council._begin_to_beat = lambda: None  # type: ignore[method-assign]
    for _ in met(nodes):
        await_that(lambda: all(node.told_lost for node in nodes))
        for node in (0, 2):
            (error,) = nodes[node].told_lost
            assert "the agent of node 1 is gone (it has given no sign of life for 2 s: stopped, or cut off)" in str(
                error
            )
            assert error.facts["node"] == 1


def test_nodes_that_have_nothing_to_say_for_long_stay_a_council() -> None:
    for three in met([Node(number, 3, silent_s=2.0) for number in range(3)]):
        threading.Event().wait(3.0)
        assert not any(node.told_lost for node in three)


def test_all_hear_which_node_is_gone(three: list[Node]) -> None:
    three[1].council.close()
    await_that(lambda: bool(three[0].told_lost and three[2].told_lost))
    assert "the agent of node 1 is gone" in str(three[2].told_lost[0])


def test_a_failure_on_the_node_that_commits_names_it_on_the_others_by_what_people_call_it(three: list[Node]) -> None:
    for node in three:
        node.council.names = ("gpu-1", "gpu-2", "gpu-3")
    wait = in_background(lambda: three[1].council.report(part(1), soon()))
    three[0].council.conclude(SAVE, error=StorageFull("no space is left on the device", file="x"))
    with pytest.raises(StorageFull, match=r"^node 0 \(gpu-1\): no space is left on the device$"):
        wait()
    three[2].council.broke(("s", 2), StorageFull("no memory", file="memory"))
    with pytest.raises(StorageFull, match=r"^node 2 \(gpu-3\): no memory$"):
        three[1].council.report(msgspec.structs.replace(part(1), save=("s", 2)), soon())
