"""What fills, clocks that jump, neighbours that stay, a loss that is told no more: found while it holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from looks import sample

from perdure.watcher.detecting import Held
from perdure.watcher.evidence import Evidence
from perdure.watcher.of_loss import OfLoss
from perdure.watcher.of_nodes import OfFills, OfNodes
from perdure.watcher.samples import DiskState, Looks, NodeSample
from perdure.watcher.verdicts import judge

GB = 1_000_000_000


def fed(detector: Any, machines: Sequence[NodeSample]) -> list[tuple[float, Evidence]]:
    """All that was found, with the time of its look."""
    return [
        (machine.at_s, each)
        for machine in machines
        for each in detector.feed(Looks(nodes=(machine,)), now_s=machine.at_s)
    ]


def disk(free: float, inodes: int = 1000) -> DiskState:
    return DiskState(
        path="/data", total_bytes=100 * GB, free_bytes=int(free), free_inodes=inodes, total_inodes=1000
    )  # fmt: skip


def test_memory_that_falls_is_told_until_it_does_not() -> None:
    def free(t: int) -> float:
        return max(40e9 - 30e6 * min(t, 900), 5e9)

    machines = [
        NodeSample(node="b1", at_s=float(t), memory_total_bytes=64 * GB, memory_available_bytes=int(free(t)))
        for t in range(2000)
    ]
    found = fed(OfFills(), machines)
    assert {(each.kind, each.nodes) for _, each in found} == {("memory_soon_full", ("b1",))}
    times = [at_s for at_s, _ in found]
    assert 600 < times[0] < 800
    assert times[-1] < 1500
    assert times == [float(t) for t in range(int(times[0]), int(times[-1]) + 1)]
    ruling = judge([found[0][1]])
    assert ruling is not None
    assert (ruling.label, ruling.action) == ("infra.host_oom", "warn")


@pytest.mark.parametrize("what", ["bytes", "files"])
def test_a_disk_fills_by_its_bytes_or_by_its_files(what: str) -> None:
    def state(t: int) -> DiskState:
        left = max(0.0, 0.5 - t / 2000)
        return disk(left * 100 * GB) if what == "bytes" else disk(50 * GB, int(1000 * left))

    found = fed(OfFills(), [NodeSample(node="b1", at_s=float(t), disks=(state(t),)) for t in range(0, 1000, 2)])
    ((kind, nodes),) = {(each.kind, each.nodes) for _, each in found}
    assert (kind, nodes) == ("disk_soon_full", ("b1",))
    assert ("files" in found[0][1].sentence) is (what == "files")
    ruling = judge([found[0][1]])
    assert ruling is not None
    assert ruling.label == "infra.disk_full"


def test_what_comes_and_goes_is_no_trend_and_a_silent_disk_tells_nothing() -> None:
    wave = [disk(30 * GB - (t % 40) * GB / 8) for t in range(1200)]
    assert fed(OfFills(), [NodeSample(node="b1", at_s=float(t), disks=(each,)) for t, each in enumerate(wave)]) == []
    silent = DiskState(path="/data", total_bytes=100 * GB, free_bytes=0, silent_s=40.0)
    assert fed(OfFills(), [NodeSample(node="b1", at_s=float(t), disks=(silent,)) for t in range(60)]) == []


def test_a_clock_that_jumps_is_told_for_a_while() -> None:
    machines = [NodeSample(node="b1", at_s=float(t), wall_s=1e9 + t + 60 * (t >= 10)) for t in range(40)]
    found = fed(OfFills(), machines)
    assert {each.kind for _, each in found} == {"clock_jump"}
    assert [at_s for at_s, _ in found] == [float(t) for t in range(10, 25)]


def test_a_neighbour_is_told_once_it_stays() -> None:
    def busy(seconds: int, *, pids: int = 1) -> list[tuple[float, Evidence]]:
        machines = []
        for t in range(60):
            foreign = ((f"hog (pid {9 + t // 5 % pids})", 1.0),) if t < seconds else ()
            machines.append(NodeSample(node="b1", at_s=float(t), cpus=2, foreign_cpu=foreign, cpu_wait=0.4))
        return fed(OfNodes(), machines)

    assert busy(20) == []
    assert busy(60, pids=20) == []
    found = busy(40)
    assert {(each.kind, each.label) for _, each in found} == {("contention", "sw.contention")}
    assert 22 <= found[0][0] <= 25


def test_a_loss_that_is_told_no_more_is_found_while_steps_go_on() -> None:
    detector, found = OfLoss(), []
    for second in range(300):
        step = 10 * second
        said = {"loss": 1.0, "loss_step": step if second < 100 or second >= 200 else 990}
        seen = [sample(0, float(second), step=step, **said)]
        found += [(second, e) for e in detector.feed(Looks(samples=seen), now_s=float(second))]
    assert {(each.kind, each.label) for _, each in found} == {("metric_lost", "train.metric_lost")}
    assert [second for second, _ in found] == list(range(found[0][0], 200))
    assert 104 < found[0][0] < 110


def test_what_is_held_is_given_until_it_is_over_or_its_time_is() -> None:
    held = Held()
    one = Evidence(kind="x", at_s=0.0, sentence="it is so")
    held.keep("a", one)
    held.keep("b", one, until_s=5.0)
    assert [each.at_s for each in held.found(4.0)] == [4.0, 4.0]
    assert len(held.found(5.0)) == 1
    held.drop("a")
    assert (held.found(6.0), len(held), "a" in held) == ([], 0, False)
