"""Real ranks of a node restore what all of them hold: it is read once, and no rank that fails leaves others waiting."""

from __future__ import annotations

import re
import signal
from typing import Any

import pytest

from conftest import HERE, Place, Ranks

SCRIPT = str(HERE / "replica.py")
MIB = 1 << 20
STATE = 24 * MIB
PATIENCE_S = 120.0


def numbers(ranks: Ranks, letter: str) -> list[int]:
    """What follows ``letter`` at the begin of a line, of each rank."""
    found = [re.search(rf"^{letter} (\d+)", ranks.out(rank), re.M) for rank in range(len(ranks.pids))]
    assert all(found), ranks.text()
    return [int(each[1]) for each in found if each]


def run(place: Place, *argv: str, world: int, **more: Any) -> Ranks:
    """An attempt, which must end well."""
    ranks = place.start(*argv, world=world, script=SCRIPT, **more)
    assert ranks.wait(within_s=PATIENCE_S) == [0] * world, ranks.text()
    return ranks


@pytest.fixture
def saved(place: Place) -> tuple[Place, str]:
    """A run with one step, and the digest of its state."""
    ranks = run(place, "--save", world=3)
    (digest,) = set(ranks.digests().values())
    return place, digest


def test_what_all_ranks_of_a_node_hold_is_read_once(saved: tuple[Place, str]) -> None:
    place, digest = saved
    ranks = run(place, world=3)
    assert set(ranks.digests().values()) == {digest}
    read = numbers(ranks, "B")
    assert STATE <= sum(read) <= 1.05 * STATE, ranks.text()
    assert max(read) <= STATE / 2
    fewer = run(place, world=2)
    assert set(fewer.digests().values()) == {digest}
    assert STATE <= sum(numbers(fewer, "B")) <= 1.05 * STATE


def test_what_lies_in_the_page_cache_is_copied_from_there_by_each(saved: tuple[Place, str]) -> None:
    place, digest = saved
    for path in place.run_dir.rglob("*.safetensors"):
        path.read_bytes()
    ranks = run(place, "--near", world=2)
    assert set(ranks.digests().values()) == {digest}
    assert all(STATE <= each <= 1.05 * STATE for each in numbers(ranks, "B")), ranks.text()


def test_ranks_of_different_nodes_read_each_for_their_node(saved: tuple[Place, str]) -> None:
    place, digest = saved
    ranks = run(place, world=3, nodes=("a", "a", "b"))
    assert set(ranks.digests().values()) == {digest}
    one, other, alone = numbers(ranks, "B")
    assert STATE <= one + other <= 1.05 * STATE, ranks.text()
    assert STATE <= alone <= 1.05 * STATE


def test_coded_tensors_and_the_bases_that_they_follow_from_are_read_by_one_rank(place: Place) -> None:
    options = ("--coding", "lossless", "--mib", "48")
    (digest,) = set(run(place, "--save", *options, world=2).digests().values())
    alone = run(place, *options, world=1)
    both = run(place, *options, world=2)
    assert set(both.digests().values()) == set(alone.digests().values()) == {digest}
    assert sum(numbers(both, "B")) <= 1.25 * numbers(alone, "B")[0], both.text()


def test_the_most_memory_is_the_state_and_one_budget(place: Place) -> None:
    mib, budget, bays = 128, 32 * MIB, 16 * MIB
    run(place, "--save", "--mib", str(mib), world=2)
    for world in (1, 2):
        ranks = run(place, "--mib", str(mib), "--budget", str(budget), world=world)
        # What the other rank shares is of its budget; besides there are headers, objects, stacks of threads.
        most = budget + (world - 1) * bays + 12 * MIB
        assert all(taken <= most < mib * MIB for taken in numbers(ranks, "M")), ranks.text()


def test_a_rank_that_cannot_read_fails_the_restore_on_all_ranks_alike(saved: tuple[Place, str]) -> None:
    place, _ = saved
    ranks = place.start("--fault", "fail", world=3, script=SCRIPT)
    assert ranks.wait(within_s=PATIENCE_S) == [3, 3, 3], ranks.text()
    for rank in range(3):
        assert re.search(r"^E StorageError .*rank 1: .*the wire is cut", ranks.out(rank), re.M), ranks.text()


@pytest.mark.parametrize("fault", ["die", pytest.param("stop", marks=pytest.mark.slow)])
def test_nobody_hangs_on_a_rank_that_dies_or_stops_while_it_reads_for_others(
    saved: tuple[Place, str], fault: str
) -> None:
    place, _ = saved
    deadlines = '{"agree_s": 10.0, "stall_s": 10.0}'
    ranks = place.start("--fault", fault, "--deadlines", deadlines, world=3, script=SCRIPT)
    ranks.await_line(f"^F {fault}", ranks=(1,), within_s=PATIENCE_S)
    assert ranks.wait_for([0, 2], within_s=PATIENCE_S) == [3, 3], ranks.text()
    assert re.search(r"^E (DeadlineExceeded|LinkLost) .*rank 1", ranks.out(0), re.M), ranks.text()
    assert re.search(r"^E (DeadlineExceeded|LinkLost) ", ranks.out(2), re.M), ranks.text()  # rank 0 may be gone by then
    if fault == "stop":
        ranks.kill(1, signal.SIGCONT)
