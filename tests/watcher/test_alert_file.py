"""The alert file, checked and run by the real promtool on what our own page says."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from perdure.watcher.evidence import Stage, Verdict
from perdure.watcher.exposition import watch_metrics
from perdure.watcher.labels import Action, Label, Owner
from perdure.watcher.prometheus import parse
from perdure.watcher.samples import DiskState, GpuState, NodeSample, RankSample

RULES = Path(__file__).resolve().parents[2] / "docs" / "alerts" / "perdure.rules.yml"
_APT = ["apt-get", "-o", "DPkg::Lock::Timeout=120", "-y", "--no-install-recommends"]
MINUTES = 45


@pytest.fixture(scope="module")
def promtool() -> str:
    """The program of Debian's package prometheus, installed where it is missing and we may; else skip."""
    if shutil.which("promtool") is None and os.geteuid() == 0 and shutil.which("apt-get"):
        for words in (["update"], ["install", "prometheus"]):
            subprocess.run([*_APT, *words], stdin=subprocess.DEVNULL, capture_output=True, timeout=600, check=False)
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("NOT TESTED: the alert file; promtool is missing: apt install prometheus")
    return found


def rank(**fields: Any) -> RankSample:
    return RankSample(**{"rank": 0, "node": "n1", "at_s": 0.0, "step": 9, "beat_age_s": 0.5, "loss": 2.0, **fields})


def node(**fields: Any) -> NodeSample:
    usual = {
        "node": "n1", "at_s": 0.0, "memory_total_bytes": 100, "memory_available_bytes": 50, "oom_kills": 3,
        "cpu_wait": 0.01, "gpus": (GpuState(index=2, ecc_uncorrected=1),),
        "disks": (DiskState(path="/data", total_bytes=100, free_bytes=50),),
    }  # fmt: skip
    return NodeSample(**{**usual, **fields})  # type: ignore[arg-type]


def told(**fields: Any) -> Verdict:
    usual = {
        "incident": "i1", "stage": Stage.VERDICT, "label": Label.GPU_ECC, "owner": Owner.NODE, "action": Action.EVICT,
        "confidence": 0.9, "sentence": "x", "at_s": 0.0, "nodes": ("n1",),
    }  # fmt: skip
    return Verdict(**{**usual, **fields})


def page(step: int, *, verdicts: tuple[Verdict, ...] = (), a_rank: RankSample | None = None,
         a_node: NodeSample | None = None) -> str:  # fmt: skip
    ranks = [a_rank if a_rank is not None else rank(step=step)]
    return watch_metrics(job="run7", verdicts=verdicts, ranks=ranks, nodes=[a_node or node()])


def healthy() -> list[str]:
    return [page(9 + minute) for minute in range(MINUTES)]


def from_minute(begin: int, **faulty: Any) -> list[str]:
    return [page(9 + minute, **(faulty if minute >= begin else {})) for minute in range(MINUTES)]


def gpu(**fields: Any) -> dict[str, NodeSample]:
    return {"a_node": node(gpus=(GpuState(index=2, ecc_uncorrected=1, **fields),))}


FAULTS: dict[str, list[str]] = {
    "PerdureVerdict": from_minute(5, verdicts=(told(),)),
    "PerdureWarning": from_minute(5, verdicts=(told(action=Action.WARN),)),
    "PerdureSuspicionLasts": from_minute(5, verdicts=(told(stage=Stage.SUSPICION),)),
    "PerdureRanksSilent": [
        page(9 + m, a_rank=rank(step=9 + m, beat_age_s=400.0 if m > 5 else 0.5)) for m in range(MINUTES)
    ],
    "PerdureNoProgress": [page(9 + min(minute, 3)) for minute in range(MINUTES)],
    "PerdureLossNotFinite": [page(0, a_rank=rank(step=9 + m, loss=float("nan"))) for m in range(MINUTES)],
    "PerdureWatcherGone": [page(9 + minute) if minute < 30 else "" for minute in range(MINUTES)],
    "PerdureMemoryLow": from_minute(5, a_node=node(memory_available_bytes=1)),
    "PerdureOomKill": from_minute(MINUTES - 3, a_node=node(oom_kills=4)),
    "PerdureDiskFull": from_minute(5, a_node=node(disks=(DiskState(path="/data", total_bytes=100, free_bytes=1),))),
    "PerdureDiskSilent": from_minute(
        5, a_node=node(disks=(DiskState(path="/data", total_bytes=100, free_bytes=50, silent_s=90.0),))
    ),
    "PerdureGpuLost": from_minute(5, **gpu(lost="it has fallen off the bus")),
    "PerdureGpuMemoryErrors": from_minute(MINUTES - 3, a_node=node(gpus=(GpuState(index=2, ecc_uncorrected=2),))),
    "PerdureGpuThrottled": from_minute(5, **gpu(throttled=("heat",))),
    "PerdureGpuDriverSilent": from_minute(5, a_node=node(gpu_problem="it does not answer")),
    "PerdureLinkDown": from_minute(5, a_node=node(links_down=("eth0",))),
    "PerdureContention": from_minute(5, a_node=node(cpu_wait=0.5)),
}


def series(pages: list[str]) -> list[dict[str, str]]:
    """The pages, one a minute, as promtool wants them: each series with its values."""
    values: dict[str, list[str]] = {}
    for minute, text in enumerate(pages):
        for metric in parse(text).metrics:
            inside = ",".join(f'{key}="{value}"' for key, value in metric.labels.items())
            row = values.setdefault(f"{metric.name}{{{inside}}}", [])
            row += ["_"] * (minute - len(row))
            row.append("NaN" if metric.value != metric.value else f"{metric.value:g}")
    return [
        {"series": name, "values": " ".join(row + ["stale"] * (len(row) < MINUTES))} for name, row in values.items()
    ]


def firing(promtool: str, folder: Path, pages: list[str]) -> set[str]:
    """Names of the alerts that promtool says fire at the last minute: each expectation of none fails for those."""
    names = re.findall(r"alert: (\w+)", RULES.read_text())
    test = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": series(pages),
                "alert_rule_test": [
                    {"eval_time": f"{MINUTES - 1}m", "alertname": name, "exp_alerts": []} for name in names
                ],
            }
        ],
    }
    path = folder / "test.yml"
    path.write_text(json.dumps(test))  # JSON is YAML
    done = subprocess.run([promtool, "test", "rules", str(path)], capture_output=True, text=True, timeout=60)
    said = done.stdout + done.stderr
    found = set(re.findall(r"alertname: ?(\w+)", said))
    assert (done.returncode == 0) == (not found), said
    return found


def test_the_file_is_well_formed(promtool: str) -> None:
    done = subprocess.run([promtool, "check", "rules", str(RULES)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert f"{len(FAULTS)} rules found" in done.stdout


def test_the_page_is_well_formed_to_prometheus_too(promtool: str) -> None:
    text = watch_metrics(job='a"\\', verdicts=[told()], ranks=[rank()], nodes=[node()], told={"hw.sdc": 1})
    done = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True, timeout=60)
    assert done.returncode in (0, 3), done.stderr  # 3: it only has remarks on names
    assert "error" not in (done.stdout + done.stderr).lower(), done.stderr


def test_every_metric_of_the_file_is_on_the_page() -> None:
    on_page = {metric.name for metric in parse(page(1, verdicts=(told(),))).metrics}
    asked = set(re.findall(r"perdure_watch_\w+", RULES.read_text()))
    assert asked
    assert asked <= on_page


def test_every_alert_has_a_fault_that_is_tested_here() -> None:
    assert set(FAULTS) == set(re.findall(r"alert: (\w+)", RULES.read_text()))


def test_a_healthy_job_raises_no_alert(promtool: str, tmp_path: Path) -> None:
    assert firing(promtool, tmp_path, healthy()) == set()


def test_a_watcher_that_ends_with_its_job_raises_no_alert(promtool: str, tmp_path: Path) -> None:
    done = page(40, a_rank=rank(step=40, finished=True))
    pages = [*(page(9 + minute) for minute in range(29)), done, *[""] * (MINUTES - 30)]
    assert firing(promtool, tmp_path, pages) == set()


@pytest.mark.parametrize("name", list(FAULTS))
def test_a_fault_raises_its_alert_and_no_other(promtool: str, tmp_path: Path, name: str) -> None:
    assert firing(promtool, tmp_path, FAULTS[name]) == {name}
