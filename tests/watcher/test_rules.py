"""What a node's numbers say for certain, and what they do not."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.watcher.labels import Label
from perdure.watcher.logs.kernel import XIDS
from perdure.watcher.rules import AGAIN_S, NodeRules, kernel_hangs
from perdure.watcher.samples import DiskState, GpuState, NodeSample, RankSample


def node(at_s: float = 0.0, **fields: Any) -> NodeSample:
    return NodeSample(node="n1", at_s=at_s, **fields)


def gpu(**fields: Any) -> tuple[GpuState, ...]:
    return (GpuState(index=0), GpuState(index=3, **fields))


def disk(**fields: Any) -> tuple[DiskState, ...]:
    return (DiskState(**{"path": "/data", "total_bytes": 1 << 40, "free_bytes": 1 << 39, **fields}),)


HOLDING = [
    ("gpu-lost", Label.GPU_OFF_BUS, 0.0, {"gpus": gpu(lost="it has fallen off the bus")}),
    ("gpu-lost", Label.GPU_OTHER, 3.0, {"gpus": gpu(lost="the driver fails on it: unknown error")}),
    ("gpu-remap-failed", Label.GPU_ECC, 0.0, {"gpus": gpu(remap_failed=True, remap_pending=True)}),
    ("gpu-remap-pending", Label.GPU_ECC_CONTAINED, 0.0, {"gpus": gpu(remap_pending=True)}),
    ("gpu-throttled", Label.THERMAL, 30.0, {"gpus": gpu(throttled=("power cap", "heat"), temperature_c=93.0)}),
    ("gpu-pcie", Label.PCIE, 10.0, {"gpus": gpu(pcie_width=8, pcie_width_max=16)}),
    ("gpu-pcie", Label.PCIE, 10.0, {"gpus": gpu(pcie_generation=3, pcie_generation_max=5, utilization=0.9)}),
    ("gpu-nvlink", Label.NVLINK, 3.0, {"gpus": gpu(nvlinks_down=2)}),
    ("gpu-foreign", Label.CONTENTION, 3.0, {"gpus": gpu(foreign_pids=(77,))}),
    ("gpu-silent", Label.DRIVER, 0.0, {"gpu_problem": "the driver has not answered for 30 s"}),
    ("link-down", Label.NIC_LINK, 3.0, {"links_down": ("mlx5_0/1",)}),
    ("disk-full", Label.DISK_FULL, 0.0, {"disks": disk(free_bytes=0)}),
    ("disk-full", Label.DISK_FULL, 0.0, {"disks": disk(free_inodes=0)}),
    ("disk-silent", Label.HOST, 0.0, {"disks": disk(silent_s=40.0)}),
    ("disk-silent", Label.STORAGE, 0.0, {"disks": disk(silent_s=40.0, remote=True)}),
    ("cpu-contention", Label.CONTENTION, 3.0, {"foreign_cpu": (("hog (pid 9)", 1.0),), "cpu_wait": 0.4}),
    ("cpu-contention", Label.CONTENTION, 3.0, {"foreign_cpu": (("hog (pid 9)", 1.0),), "cpu_idle": 0.01}),
]


@pytest.mark.parametrize(("kind", "label", "after_s", "fields"), HOLDING)
def test_a_state_is_told_once_it_has_lasted_and_again_while_it_holds(
    kind: str, label: Label, after_s: float, fields: dict[str, Any]
) -> None:
    rules = NodeRules()
    told = []
    for tenth in range(int((after_s + AGAIN_S) * 10) + 1):
        for one in rules.look(node(tenth / 10, **fields)):
            told.append(tenth / 10)
            assert (one.kind, one.label, one.nodes, one.ranks) == (kind, label, ("n1",), ())
            assert one.sentence
            assert 0.0 < one.strength <= 1.0
    assert told == [after_s, after_s + AGAIN_S]


@pytest.mark.parametrize(("kind", "label", "after_s", "fields"), HOLDING)
def test_a_state_that_does_not_last_is_not_told(
    kind: str, label: Label, after_s: float, fields: dict[str, Any]
) -> None:
    if after_s == 0.0:
        return
    rules = NodeRules()
    for second in range(100):
        holds = second * 0.9 % after_s < after_s - 1.0
        assert rules.look(node(second * 0.9, **(fields if holds else {}))) == []


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"gpus": gpu(throttled=("power cap",))},
        {"gpus": gpu(pcie_generation=1, pcie_generation_max=5, utilization=0.0, pcie_width=16, pcie_width_max=16)},
        {"gpus": gpu(pcie_width=None, pcie_width_max=16, nvlinks_down=0, ecc_uncorrected=7)},
        {"oom_kills": 5},
        {"disks": disk(read_only=True)},
        {"disks": disk(free_bytes=2 << 30, silent_s=3.0)},
        {"foreign_cpu": (("hog (pid 9)", 1.0),), "cpu_wait": 0.0, "cpu_idle": 0.0},
        {"foreign_cpu": (("hog (pid 9)", 1.0),), "cpu_idle": 0.6},
        {"foreign_cpu": (("cron (pid 9)", 0.1),), "cpu_wait": 0.9},
        {"cpu_wait": 0.9, "cpu_idle": 0.0},
    ],
)
def test_what_can_be_innocent_is_not_told(fields: dict[str, Any]) -> None:
    rules = NodeRules()
    assert [one for second in range(100) for one in rules.look(node(second, **fields))] == []


def test_a_count_that_grew_is_told_once_with_how_much() -> None:
    rules = NodeRules()
    found = []
    for at_s, (ecc, kills) in enumerate([(2, 1), (2, 1), (5, 3), (5, 3), (1, 0), (1, 0), (1, None), (1, 4)]):
        told = rules.look(node(at_s, gpus=gpu(ecc_uncorrected=ecc), oom_kills=kills))
        found += [(at_s, one.kind, one.label, one.raw) for one in told]
    assert found == [
        (2, "gpu-ecc", Label.GPU_ECC, ("ecc_uncorrected 2 -> 5",)),
        (2, "oom-kill", Label.HOST_OOM, ("oom_kills 1 -> 3",)),
        (4, "gpu-ecc", Label.GPU_ECC, ("ecc_uncorrected 5 -> 1",)),
        (7, "oom-kill", Label.HOST_OOM, ("oom_kills 0 -> 4",)),
    ]


def test_an_xid_that_is_new_is_told_if_it_is_the_fault_of_the_gpu() -> None:
    rules = NodeRules()
    found = []
    for at_s, xid in enumerate([79, 79, 0, 79, 13, 45, 13, None, 48, 92]):  # 13: a program; 45: what follows; 92: mild
        found += [(at_s, one.label, one.strength >= 0.8) for one in rules.look(node(at_s, gpus=gpu(xid=xid)))]
    assert found == [(3, Label.GPU_OFF_BUS, True), (8, Label.GPU_ECC, True), (9, XIDS[92].label, False)]


def test_a_disk_that_could_be_written_and_is_read_only_now_is_told() -> None:
    for remote, label in ((False, Label.HOST), (True, Label.STORAGE)):
        rules = NodeRules()
        assert rules.look(node(0, disks=disk(remote=remote))) == []
        (one,) = rules.look(node(1, disks=disk(remote=remote, read_only=True)))
        assert (one.kind, one.label) == ("disk-read-only", label)
        assert "/data" in one.sentence


def test_contention_names_the_busiest_process_and_lists_the_others() -> None:
    rules = NodeRules()
    hogs = (("stress (pid 9)", 1.9), ("zip (pid 8)", 0.5), ("cron (pid 7)", 0.1))
    found = [one for t in range(5) for one in rules.look(node(t, cpus=4, foreign_cpu=hogs, cpu_wait=0.5))]
    (one,) = found
    assert "stress (pid 9)" in one.sentence
    assert "2.5 processors" in one.sentence
    assert one.raw[:2] == ("stress (pid 9): 1.90 processors", "zip (pid 8): 0.50 processors")


def test_nodes_are_kept_apart_and_old_samples_are_left_out() -> None:
    rules = NodeRules()
    rules.look(NodeSample(node="a", at_s=5.0, oom_kills=1))
    assert rules.look(NodeSample(node="b", at_s=6.0, oom_kills=9)) == []
    assert rules.look(NodeSample(node="a", at_s=4.0, oom_kills=9)) == []
    (one,) = rules.look(NodeSample(node="a", at_s=6.0, oom_kills=2), at_s=1000.0)
    assert (one.nodes, one.at_s) == (("a",), 1000.0)
    rules.forget("a")
    assert rules.look(NodeSample(node="a", at_s=0.0, oom_kills=9)) == []


def test_a_hang_that_a_kernel_timer_tells_accuses_nobody() -> None:
    def ranks(*hangs: bool | None) -> list[RankSample]:
        return [RankSample(rank=i, node="n", at_s=0.0, kernel_hang=hang) for i, hang in enumerate(hangs)]

    assert kernel_hangs(ranks(False, None, False), at_s=1.0) == []
    (some,) = kernel_hangs(ranks(True, False, None, True), at_s=1.0)
    (every,) = kernel_hangs(ranks(True, True), at_s=1.0)
    assert "2 of 3 ranks (0, 3)" in some.sentence
    assert "all ranks" in every.sentence
    assert (some.ranks, some.nodes, some.label) == ((), (), None)
