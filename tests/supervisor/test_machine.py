"""The controller's table: what it does, and that no order of faults loses a job or runs two attempts at once."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cluster import Cluster, Node
from perdure.supervisor import vocabulary as v
from perdure.supervisor.config import Spec, Waits
from perdure.supervisor.diagram import mermaid
from perdure.supervisor.job import State
from perdure.supervisor.machine import TABLE

WAITS = Waits(join_s=2.0, wait_s=120.0)


def spec(**changes: object) -> Spec:
    return Spec(**({"name": "job", "command": ("x",), "waits": WAITS, "grace_s": 5.0} | changes))  # type: ignore[arg-type]


def running(cluster: Cluster) -> list[str]:
    return sorted(node.name for node in cluster.nodes.values() if node.running)


def test_a_job_goes_from_start_to_its_end() -> None:
    cluster = Cluster(spec(min_nodes=2, max_nodes=2), 2)
    cluster.pass_time(1.0)
    assert cluster.journal.state is State.EXECUTE
    assert running(cluster) == ["n0", "n1"]
    cluster.settle()
    assert cluster.exit_code == 0


def test_a_spare_takes_the_place_of_a_node_that_is_lost() -> None:
    cluster = Cluster(spec(min_nodes=2, max_nodes=2, spares=1), 3)
    cluster.pass_time(1.0)
    assert running(cluster) == ["n0", "n1"]
    cluster.kill_launcher(cluster.nodes["n0"])
    cluster.pass_time(6.0)
    assert running(cluster) == ["n1", "n2"]
    assert [node.name for node in cluster.journal.places] == ["n2", "n1"]  # the survivor keeps its place


def test_a_job_goes_on_with_fewer_nodes_if_it_may() -> None:
    cluster = Cluster(spec(min_nodes=1, max_nodes=2), 2)
    cluster.pass_time(3.0)
    cluster.kill_launcher(cluster.nodes["n1"])
    cluster.pass_time(12.0)
    assert running(cluster) == ["n0"]


def test_a_job_without_enough_nodes_waits_and_then_says_what_is_missing() -> None:
    cluster = Cluster(spec(min_nodes=2, max_nodes=2), 2)
    cluster.pass_time(1.0)
    cluster.kill_launcher(cluster.nodes["n1"])
    cluster.pass_time(60.0)
    assert cluster.journal.state is State.RECOVER
    cluster.pass_time(100.0)
    assert cluster.journal.state is State.FAILED
    assert "there are n0" in cluster.journal.reason
    assert cluster.exit_code == 75


def test_a_controller_that_comes_back_touches_no_healthy_rank() -> None:
    cluster = Cluster(spec(min_nodes=2, max_nodes=2), 2)
    cluster.pass_time(1.0)
    for _ in range(3):
        cluster.kill_controller()
        cluster.pass_time(10.0)
        cluster.start_controller()
        cluster.pass_time(10.0)
    assert cluster.journal.attempt == 0
    assert running(cluster) == ["n0", "n1"]
    assert len(cluster.starts) == 2
    cluster.settle()
    assert cluster.exit_code == 0


def test_what_happened_while_there_was_no_controller_is_heard_by_the_next() -> None:
    cluster = Cluster(spec(), 1)
    cluster.pass_time(1.0)
    cluster.kill_controller()
    cluster.kill_rank(cluster.nodes["n0"], 1, code=None, signal=9)
    cluster.pass_time(2.0)
    cluster.start_controller()
    cluster.pass_time(2.0)
    assert cluster.journal.attempt == 1
    assert running(cluster) == ["n0"]


def test_a_node_that_is_drained_is_left_after_a_saved_step_and_costs_no_restart() -> None:
    cluster = Cluster(spec(min_nodes=2, max_nodes=2, spares=1), 3)
    cluster.pass_time(1.0)
    cluster.handle(v.Drain("n0"))
    cluster.pass_time(3.0)
    assert running(cluster) == ["n1", "n2"]
    assert cluster.journal.budget.restarts == 0
    assert "n0" in cluster.journal.draining


def test_a_drain_that_would_leave_too_few_nodes_is_refused_with_a_sentence() -> None:
    cluster = Cluster(spec(min_nodes=2, max_nodes=2), 2)
    cluster.pass_time(1.0)
    assert cluster.machine is not None
    assert "start a launcher on another node first" in str(cluster.machine.refuses_to_drain("n0"))


@pytest.mark.parametrize("how", ["closed", "silent"])
def test_a_place_is_not_given_away_before_the_lease_of_a_node_that_is_cut_off(how: str) -> None:
    cluster = Cluster(spec(min_nodes=2, max_nodes=2, spares=1), 3)
    cluster.pass_time(1.0)
    node = cluster.nodes["n0"]
    node.cut = True
    cut_s = cluster.now
    if how == "closed":
        cluster.close_link(node)
    while running(cluster) != ["n1", "n2"]:
        cluster.pass_time(0.5)  # at each moment one attempt runs at most
        assert cluster.now < cut_s + 20
    assert cluster.now >= cut_s + WAITS.lease_s
    node.cut = False
    cluster.pass_time(3.0)
    assert running(cluster) == ["n1", "n2"]  # it is a spare now


def test_a_controller_that_comes_back_waits_for_launchers_that_may_still_keep_their_ranks() -> None:
    cluster = Cluster(spec(min_nodes=1, max_nodes=2), 2)
    cluster.pass_time(3.0)
    cluster.kill_controller()
    cluster.nodes["n0"].cut = True  # its launcher cannot tell a dead controller from a cut link: it keeps the lease
    cluster.pass_time(0.5)
    cluster.start_controller()
    began_s = cluster.now
    cluster.kill_rank(cluster.nodes["n1"], 0, code=None, signal=9)
    while not (running(cluster) == ["n1"] and cluster.journal.attempt == 1):
        cluster.pass_time(0.5)
        assert cluster.now < began_s + 60
    assert cluster.now >= began_s + WAITS.orphan_s


def test_an_order_that_was_lost_with_its_link_is_given_again() -> None:
    cluster = Cluster(spec(grace_s=60.0), 1)
    cluster.pass_time(1.0)
    node = cluster.nodes["n0"]
    cluster.handle(v.Asked(15))
    cluster.close_link(node)  # with the order to stop in it
    cluster.pass_time(3.0)
    assert cluster.exit_code == 143


def test_a_launcher_that_was_started_again_is_a_node_that_was_lost() -> None:
    cluster = Cluster(spec(), 1)
    cluster.pass_time(1.0)
    cluster.kill_launcher(cluster.nodes["n0"])
    cluster.start_launcher(cluster.nodes["n0"])
    cluster.pass_time(5.0)
    assert cluster.journal.attempt == 1
    assert running(cluster) == ["n0"]


def test_every_state_but_an_end_can_be_left_and_every_end_is_reached() -> None:
    rows = {(row.state, row.then) for row in TABLE}
    left = {state for state, then in rows if then is not state}
    assert left == {state for state in State if not state.final}
    reached, new = {State.START}, {State.START}
    while new:
        new = {then for state, then in rows if state in new} - reached
        reached |= new
    assert reached == set(State)


ENDS = st.sampled_from([(None, 9), (1, None), (0, None), (None, 6)])  # code, signal


class Faults(RuleBasedStateMachine):
    """Anything may happen, in any order; `Cluster.check` holds throughout, and at the end the job ends."""

    def __init__(self) -> None:
        super().__init__()
        self.cluster = Cluster(spec(min_nodes=2, max_nodes=3, spares=1, max_restarts=3), 4)

    def node(self, i: int) -> Node:
        return self.cluster.nodes[f"n{i}"]

    @rule(seconds=st.sampled_from([0.25, 0.5, 1.0, 3.0, 8.0]))
    def wait(self, seconds: float) -> None:
        self.cluster.pass_time(seconds)

    @rule(i=st.integers(0, 3), rank=st.integers(0, 1), how=ENDS)
    def rank_ends(self, i: int, rank: int, how: tuple[int | None, int | None]) -> None:
        self.cluster.kill_rank(self.node(i), rank, code=how[0], signal=how[1])

    @rule(i=st.integers(0, 3))
    def launcher_dies(self, i: int) -> None:
        self.cluster.kill_launcher(self.node(i))

    @rule(i=st.integers(0, 3))
    def launcher_starts(self, i: int) -> None:
        self.cluster.start_launcher(self.node(i))

    @rule(i=st.integers(0, 3))
    def link_closes(self, i: int) -> None:
        self.cluster.close_link(self.node(i))

    @rule(i=st.integers(0, 3), cut=st.booleans())
    def network(self, i: int, cut: bool) -> None:
        self.node(i).cut = cut

    @rule(i=st.integers(0, 3))
    def deaf(self, i: int) -> None:
        self.node(i).deaf = True

    @rule()
    def controller_dies(self) -> None:
        self.cluster.kill_controller()

    @rule()
    def controller_starts(self) -> None:
        self.cluster.start_controller()

    @rule()
    def steps(self) -> None:
        self.cluster.progress()

    @rule(on=st.booleans())
    def messages_come_twice(self, on: bool) -> None:
        self.cluster.duplicate = on

    @rule(i=st.integers(0, 3))
    def drain(self, i: int) -> None:
        machine = self.cluster.machine
        if machine is not None and machine.refuses_to_drain(f"n{i}") is None:
            self.cluster.handle(v.Drain(f"n{i}"))

    @rule(i=st.integers(0, 3))
    def uncordon(self, i: int) -> None:
        self.cluster.handle(v.Uncordon(f"n{i}"))

    @rule(i=st.integers(0, 3), rank=st.integers(0, 1))
    def late(self, i: int, rank: int) -> None:
        node = self.node(i)
        if rank in node.running:
            facts = v.LateFacts(local_rank=rank, phase="step", seconds=9.0, allowed_s=5.0)
            self.cluster._send(
                node,
                v.Late(node=node.name, attempt=node.attempt, ranks=(facts,)),
            )

    @rule(
        i=st.integers(0, 3),
        action=st.sampled_from(["restart", "evict", "rollback", "stop_user", "warn"]),
        ago=st.integers(0, 1),
        sure=st.booleans(),
    )
    def watcher_says(self, i: int, action: str, ago: int, sure: bool) -> None:
        attempt = self.cluster.journal.attempt - ago
        self.cluster.handle(
            v.Judged(
                attempt=attempt,
                incident=f"r-{attempt}.{i}",
                stage="verdict",
                label="hw.host",
                owner="node",
                action=action,  # type: ignore[arg-type]
                confidence=0.9 if sure else 0.5,
                sentence="it is so",
                ranks=(i,),
                nodes=(f"n{i}",),
                step=i or None,
            )
        )

    @precondition(lambda self: self.cluster.now > 130)
    @rule()
    def asked(self) -> None:
        self.cluster.handle(v.Asked(15))

    @invariant()
    def holds(self) -> None:
        self.cluster.check()

    @invariant()
    def restarts_are_bounded(self) -> None:
        assert self.cluster.journal.budget.restarts <= 3

    def teardown(self) -> None:
        self.cluster.settle()


TestFaults = pytest.mark.timeout(600)(Faults.TestCase)
TestFaults.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


@pytest.mark.slow
@pytest.mark.timeout(3600)
class TestFaultsForLong(Faults.TestCase):
    settings = settings(max_examples=10_000, stateful_step_count=40, deadline=None)


def test_the_picture_in_the_docs_is_the_table() -> None:
    page = (Path(__file__).parents[2] / "docs/supervisor.md").read_text()
    assert f"```mermaid\n{mermaid(TABLE)}\n```" in page
    for row in TABLE:
        assert f"| {row.state.value} | {row.when} | {row.then.value} | {row.does} |" in page
