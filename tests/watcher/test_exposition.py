"""The page that is scraped: readable by our own parser, true to the samples, and bounded."""

from __future__ import annotations

import math
import re

import pytest

from perdure.watcher.evidence import Stage, Verdict
from perdure.watcher.exposition import watch_metrics
from perdure.watcher.labels import Action, Label, Owner
from perdure.watcher.prometheus import Page, parse
from perdure.watcher.samples import DiskState, GpuState, NodeSample, RankSample


def verdict(**fields: object) -> Verdict:
    usual = {
        "incident": "i1", "stage": Stage.VERDICT, "label": Label.GPU_ECC, "owner": Owner.NODE, "action": Action.EVICT,
        "confidence": 0.9, "sentence": "GPU 3 fails", "at_s": 5.0, "nodes": ("n1",), "ranks": (3,),
    }  # fmt: skip
    return Verdict(**{**usual, **fields})  # type: ignore[arg-type]


def ranks(count: int, per_node: int = 8) -> list[RankSample]:
    return [
        RankSample(
            rank=i, node=f"n{i // per_node}", at_s=1.0, step=100 + i, beat_age_s=0.5, phase="forward", loss=2.0 + i,
            in_collective=i % 2 == 0,
        )
        for i in range(count)
    ]  # fmt: skip


def read(text: str) -> Page:
    page = parse(text)
    assert page.left_out == 0, page.problems
    return page


def test_verdicts_ranks_and_nodes_are_on_the_page() -> None:
    node = NodeSample(
        node="n0", at_s=1.0, memory_total_bytes=8, memory_available_bytes=4, oom_kills=1, links_down=("eth0",),
        gpus=(GpuState(index=2, temperature_c=45.5, throttled=("power cap",), ecc_uncorrected=3),),
        disks=(DiskState(path="/data", total_bytes=10, free_bytes=5),), cpu_wait=0.25,
    )  # fmt: skip
    text = watch_metrics(
        job="run7", verdicts=[verdict()], ranks=ranks(4), nodes=[node], told={"hw.gpu_ecc": 2}, dropped_lines=9
    )
    page = read(text)

    def value(name: str, **labels: str) -> float:
        wanted = {"job": "run7", **labels}
        (found,) = [m for m in page.of(f"perdure_watch_{name}") if wanted.items() <= m.labels.items()]
        return found.value

    assert value("up") == 1
    assert value("verdict", fault="hw.gpu_ecc", owner="node", action="evict", stage="verdict", node="n1") == 0.9
    assert (value("incidents", stage="verdict"), value("incidents", stage="suspicion")) == (1, 0)
    assert value("verdicts_total", fault="hw.gpu_ecc") == 2
    assert (value("ranks"), value("ranks_ended"), value("ranks_in_phase", phase="forward")) == (4, 0, 4)
    assert value("rank_step", rank="3", node="n0") == 103
    assert (value("job_step_min"), value("job_step_max")) == (100, 103)
    assert value("rank_in_collective", rank="1") == 0
    assert (value("node_memory_available_bytes"), value("node_cpu_wait_ratio"), value("node_links_down")) == (
        4,
        0.25,
        1,
    )
    assert (value("node_gpu_temperature_celsius", gpu="2"), value("node_gpu_throttled", gpu="2")) == (45.5, 0)
    assert value("node_disk_free_bytes", disk="/data") == 5
    assert value("log_lines_dropped_total") == 9
    for line in text.splitlines():
        assert line.startswith(("# HELP perdure_watch_", "# TYPE perdure_watch_", "perdure_watch_"))
    assert len(re.findall(r"^# TYPE", text, re.M)) == len(set(re.findall(r"^# TYPE (\S+)", text, re.M)))


def test_above_a_bound_ranks_become_nodes_and_nodes_become_the_job() -> None:
    page = read(watch_metrics(job="a", ranks=ranks(64), rank_series=32))
    assert page.of("perdure_watch_rank_step") == []
    by_node = {m.labels["node"]: m.value for m in page.of("perdure_watch_node_step_max")}
    assert by_node == {f"n{i}": 100 + 8 * i + 7 for i in range(8)}
    page = read(watch_metrics(job="a", ranks=ranks(64), rank_series=32, node_series=4))
    assert page.of("perdure_watch_node_step_max") == []
    assert page.of("perdure_watch_job_step_min")[0].value == 100


def test_the_page_of_a_job_of_any_size_is_bounded() -> None:
    nodes = [NodeSample(node=f"n{i}", at_s=1.0, memory_total_bytes=i) for i in range(3000)]
    page = read(
        watch_metrics(
            job="a",
            ranks=ranks(20_000),
            nodes=nodes,
            verdicts=[verdict(incident=str(i), nodes=tuple(f"n{j}" for j in range(i))) for i in range(500)],
            told={str(i): i for i in range(500)},
        )
    )
    assert len(page.metrics) < 8_000


def test_incidents_that_are_cleared_are_not_on_the_page_and_one_without_a_node_names_none() -> None:
    page = read(watch_metrics(job="a", verdicts=[verdict(stage=Stage.CLEARED), verdict(nodes=())]))
    (found,) = page.of("perdure_watch_verdict")
    assert found.labels["node"] == ""


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\nb", "caf\u00e9", "\udc80", "{}=,"])
def test_any_name_of_a_job_or_a_node_is_a_label(name: str) -> None:
    page = read(watch_metrics(job=name, verdicts=[verdict(nodes=(name,))]))
    assert page.of("perdure_watch_verdict")[0].labels["node"] == name.encode(errors="replace").decode()


def test_a_loss_that_is_no_number_is_not_hidden() -> None:
    bad = [*ranks(400), RankSample(rank=400, node="n9", at_s=1.0, loss=math.nan)]
    page = read(watch_metrics(job="a", ranks=bad))
    assert math.isnan(page.of("perdure_watch_job_loss_max")[0].value)
    assert page.of("perdure_watch_job_loss_min")[0].value == 2.0
    page = read(watch_metrics(job="a", ranks=[RankSample(rank=0, node="n", at_s=1.0, loss=math.inf)]))
    assert page.of("perdure_watch_rank_loss")[0].value == math.inf


def test_of_nothing_there_is_a_page_too() -> None:
    page = read(watch_metrics(job="a"))
    assert page.of("perdure_watch_ranks")[0].value == 0


def test_of_many_gpus_only_those_with_a_fault_are_on_the_page() -> None:
    def gpus(node: int) -> tuple[GpuState, ...]:
        lost = {(700, 5): "gone"}
        return tuple(GpuState(index=i, lost=lost.get((node, i), ""), temperature_c=40) for i in range(8))

    nodes = [NodeSample(node=f"n{i}", at_s=1.0, gpus=gpus(i)) for i in range(1000)]
    (found,) = read(watch_metrics(job="a", nodes=nodes)).of("perdure_watch_node_gpu_lost")
    assert (found.labels["node"], found.labels["gpu"], found.value) == ("n700", "5", 1)
