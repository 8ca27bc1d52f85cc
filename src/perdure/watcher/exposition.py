"""Verdicts, ranks and nodes as a page of Prometheus metrics, text format 0.0.4. Pure.

The page is bounded however large the job is. Up to `RANK_SERIES` ranks each has its series; beyond that each node tells
what is least and most of its ranks, and beyond `NODE_SERIES` nodes the job does. GPUs follow the same bound: beyond it
only those with a fault are told. Labels are ``job``, ``rank``, ``node``, ``gpu``, ``disk``, and the words of fixed
lists; incidents are no label, for their ids never end. `MetricsPage` keeps what the page of a watched job is made of.
"""

from __future__ import annotations

import math
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from perdure.watcher.evidence import Stage, Verdict
from perdure.watcher.prometheus import parse
from perdure.watcher.samples import GpuState, NodeLook, NodeSample, RankSample

__all__ = ["CONTENT_TYPE", "NODE_SERIES", "RANK_SERIES", "MetricsPage", "joined", "watch_metrics"]

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
RANK_SERIES: Final = 256
NODE_SERIES: Final = 1024
_MOST_VERDICTS: Final = 64
_MOST_NAMED: Final = 16
_LONGEST_LABEL: Final = 128
_KNOWN_S: Final = 300.0
_HEAD: Final = re.compile(r"# (HELP|TYPE) (perdure_watch_[a-z_]+) (.+)")
_LABELS: Final = frozenset({"rank", "node", "gpu", "disk", "phase", "stage", "fault", "owner", "action"})

_RANK: Final[Mapping[str, tuple[str, Callable[[RankSample], float | None]]]] = {
    "step": ("Completed optimizer steps.", lambda rank: rank.step),
    "beat_age_seconds": ("Time since the last heartbeat.", lambda rank: rank.beat_age_s),
    "step_seconds": ("How long the last step took.", lambda rank: rank.step_s),
    "compute_seconds": ("The rank's own work in the last step.", lambda rank: rank.compute_s),
    "wait_seconds": ("Time in the last step spent waiting for other ranks.", lambda rank: rank.wait_s),
    "loss": ("The last loss that the rank told.", lambda rank: rank.loss),
    "in_collective": ("Whether the rank waits in a collective.", lambda rank: _maybe(rank.in_collective)),
    "ended": ("Whether the process of the rank is gone.", lambda rank: float(rank.ended)),
}


class _Text:
    """Series by metric, each metric with its help once."""

    def __init__(self, job: str) -> None:
        self._job = job
        self._series: dict[str, list[str]] = {}
        self._heads: dict[str, tuple[str, str]] = {}

    def gauge(self, name: str, help_text: str, value: float | None, **labels: str) -> None:
        self._add(name, "gauge", help_text, value, labels)

    def counter(self, name: str, help_text: str, value: float | None, **labels: str) -> None:
        self._add(name, "counter", help_text, value, labels)

    def text(self) -> str:
        lines = []
        for name, series in self._series.items():
            kind, help_text = self._heads[name]
            lines += [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}", *series]
        return "\n".join(lines) + "\n"

    def _add(self, name: str, kind: str, help_text: str, value: float | None, labels: Mapping[str, str]) -> None:
        if value is None:
            return
        name = f"perdure_watch_{name}"
        self._heads[name] = (kind, help_text)
        inside = ",".join(f'{key}="{_escaped(text)}"' for key, text in {"job": self._job, **labels}.items())
        self._series.setdefault(name, []).append(f"{name}{{{inside}}} {_number(value)}")


def watch_metrics(
    *,
    job: str,
    verdicts: Iterable[Verdict] = (),
    ranks: Sequence[RankSample] = (),
    nodes: Sequence[NodeSample] = (),
    told: Mapping[str, int] | None = None,
    dropped_lines: int = 0,
    rank_series: int = RANK_SERIES,
    node_series: int = NODE_SERIES,
) -> str:
    """The page. ``verdicts`` are the newest of each open incident, ``told`` how many verdicts there were by label since
    the watcher began, ``dropped_lines`` the log lines that were left out of storms.
    """
    text = _Text(job)
    text.gauge("up", "1 while the watcher runs.", 1)
    _add_verdicts(text, [one for one in verdicts if one.stage is not Stage.CLEARED][:_MOST_VERDICTS])
    for label, count in sorted((told or {}).items())[:_MOST_VERDICTS]:
        text.counter("verdicts_total", "Verdicts since the watcher began.", count, fault=label)
    text.counter("log_lines_dropped_total", "Log lines left out of storms.", dropped_lines)
    text.gauge("ranks", "Ranks that are watched.", len(ranks))
    text.gauge("ranks_ended", "Ranks whose processes are gone.", sum(rank.ended for rank in ranks))
    text.gauge("ranks_finished", "Ranks that have said that their work is done.", sum(rank.finished for rank in ranks))
    for phase, count in sorted(Counter(rank.phase or "unknown" for rank in ranks).items())[:_MOST_NAMED]:
        text.gauge("ranks_in_phase", "Ranks by what they do.", count, phase=phase)
    for name, (help_text, of) in _RANK.items():
        _add_ranks(text, name, help_text, [(rank, value) for rank in ranks if (value := of(rank)) is not None], ranks,
                   rank_series, node_series)  # fmt: skip
    text.gauge("nodes", "Nodes that are watched.", len(nodes))
    whole = sum(len(node.gpus) for node in nodes) <= rank_series
    for node in nodes[:node_series]:
        _add_node(text, node, [gpu for gpu in node.gpus[:_MOST_NAMED] if whole or _troubled(gpu)])
    return text.text()


def _add_verdicts(text: _Text, verdicts: list[Verdict]) -> None:
    for stage in (Stage.SUSPICION, Stage.VERDICT):
        text.gauge("incidents", "Open incidents.", sum(one.stage is stage for one in verdicts), stage=stage.value)
    best: dict[tuple[str, str, str, str, str], float] = {}
    for one in verdicts:
        for node in one.nodes[:_MOST_NAMED] or ("",):
            key = (one.label.value, one.owner.value, one.action.value, one.stage.value, node)
            best[key] = max(best.get(key, 0.0), one.confidence)
    for (fault, owner, action, stage_word, node), confidence in best.items():
        text.gauge(
            "verdict",
            "How sure an open incident's finding is, 0 to 1; one series for each node that is named.",
            confidence,
            fault=fault,
            owner=owner,
            action=action,
            stage=stage_word,
            node=node,
        )


def _add_ranks(
    text: _Text,
    name: str,
    help_text: str,
    known: list[tuple[RankSample, float]],
    ranks: Sequence[RankSample],
    rank_series: int,
    node_series: int,
) -> None:
    if not known:
        return
    values = [value for _, value in known]
    for word, value in (("min", _least(values)), ("max", _most(values))):
        text.gauge(f"job_{name}_{word}", f"{help_text} Of all ranks the {_WORDS[word]}.", value)
    if len(ranks) <= rank_series:
        for rank, value in known:
            text.gauge(f"rank_{name}", help_text, value, rank=str(rank.rank), node=rank.node)
        return
    of_node: dict[str, list[float]] = {}
    for rank, value in known:
        of_node.setdefault(rank.node, []).append(value)
    if len(of_node) <= node_series:
        for node, values in of_node.items():
            for word, value in (("min", _least(values)), ("max", _most(values))):
                text.gauge(
                    f"node_{name}_{word}", f"{help_text} Of a node's ranks the {_WORDS[word]}.", value, node=node
                )


_WORDS: Final = {"min": "least", "max": "most"}


def _add_node(text: _Text, node: NodeSample, gpus: list[GpuState]) -> None:
    def gauge(name: str, help_text: str, value: float | None, **labels: str) -> None:
        text.gauge(f"node_{name}", help_text, value, node=node.node, **labels)

    gauge("memory_total_bytes", "Memory that the node's processes may take.", node.memory_total_bytes)
    gauge("memory_available_bytes", "Memory that is left of it.", node.memory_available_bytes)
    gauge("cpu_wait_ratio", "Share of time that a rank waited for a processor, at worst.", node.cpu_wait)
    gauge("links_down", "Network links that were up and are down.", len(node.links_down))
    if node.oom_kills is not None:
        text.counter("node_oom_kills_total", "Processes killed for memory.", node.oom_kills, node=node.node)
    gauge("gpu_driver_silent", "Whether the driver of the GPUs does not answer.", float(bool(node.gpu_problem)))
    for gpu in gpus:
        which = {"gpu": str(gpu.index)}
        gauge("gpu_temperature_celsius", "Temperature of a GPU.", gpu.temperature_c, **which)
        gauge("gpu_power_watts", "What a GPU draws.", gpu.power_w, **which)
        gauge("gpu_utilization_ratio", "Share of time in which a kernel ran.", gpu.utilization, **which)
        gauge("gpu_throttled", "Whether something but the power cap holds its clocks down.", _slowed(gpu), **which)
        gauge("gpu_ecc_uncorrected", "Memory errors that could not be corrected.", gpu.ecc_uncorrected, **which)
        gauge("gpu_lost", "Whether a GPU does not answer any more.", float(bool(gpu.lost)), **which)
    for disk in node.disks[:_MOST_NAMED]:
        gauge("disk_total_bytes", "Size of a file system.", disk.total_bytes or None, disk=disk.path)
        gauge("disk_free_bytes", "What is free of it.", disk.free_bytes if disk.total_bytes else None, disk=disk.path)
        gauge("disk_silent_seconds", "For how long it has not answered.", disk.silent_s, disk=disk.path)


def _slowed(gpu: GpuState) -> float:
    return float(bool(set(gpu.throttled) - {"power cap"}))


def _troubled(gpu: GpuState) -> bool:
    return bool(gpu.lost or gpu.ecc_uncorrected or gpu.remap_pending or gpu.remap_failed or _slowed(gpu))


def _maybe(flag: bool | None) -> float | None:
    return None if flag is None else float(flag)


def _least(values: list[float]) -> float:
    return min((value for value in values if not math.isnan(value)), default=math.nan)


def _most(values: list[float]) -> float:
    """NaN counts as most: it must not be hidden among thousands."""
    return math.nan if any(math.isnan(value) for value in values) else max(values)


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else f"{value:.12g}"


def _escaped(text: str) -> str:
    cut = text[:_LONGEST_LABEL].encode(errors="replace").decode()
    return cut.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def joined(pages: Mapping[str, str]) -> str:
    """One page of the pages of several jobs, which were kept somewhere: by job, which is the label that they get.

    What is not of a watcher is left out, so a file that somebody has changed cannot break the page.
    """
    heads: dict[str, dict[str, str]] = {}
    series: dict[str, dict[str, str]] = {}
    for job, text in pages.items():
        for line in text.splitlines():
            if head := _HEAD.fullmatch(line):
                heads.setdefault(head[2], {}).setdefault(head[1], head[3])
        for metric in parse(text).metrics:
            if metric.name not in heads or set(heads[metric.name]) != {"HELP", "TYPE"}:
                continue
            if heads[metric.name]["TYPE"] not in ("gauge", "counter") or not set(metric.labels) - {"job"} <= _LABELS:
                continue
            labels = {**metric.labels, "job": job}
            inside = ",".join(f'{key}="{_escaped(labels[key])}"' for key in ("job", *sorted(set(labels) - {"job"})))
            name = f"{metric.name}{{{inside}}}"
            series.setdefault(metric.name, {}).setdefault(name, f"{name} {_number(metric.value)}")
    lines = []
    for name, of in series.items():
        lines += [f"# HELP {name} {heads[name]['HELP']}", f"# TYPE {name} {heads[name]['TYPE']}", *of.values()]
    return "".join(f"{line}\n" for line in lines)


class MetricsPage:
    """The page of one job that is watched: `give` takes what is new, `text` is the page. From any thread.

    A node of which nothing has come for five minutes, or that is not part of the newest attempt, is left out.
    """

    def __init__(self, *, job: str) -> None:
        self._job = job
        self._lock = threading.Lock()
        self._looks: dict[str, tuple[NodeLook, float]] = {}
        self._open: tuple[Verdict, ...] = ()
        self._told: Counter[str] = Counter()
        self._text: str | None = None

    def give(
        self, told: Sequence[Verdict], *, looks: Sequence[NodeLook], still_open: Sequence[Verdict], now_s: float
    ) -> None:
        """Take verdicts that are new or have changed, the looks they were made from, and all open incidents."""
        with self._lock:
            self._looks |= {each.node: (each, now_s) for each in looks}
            attempt = max((look.attempt for look, _ in self._looks.values()), default=0)
            self._looks = {
                node: (look, at_s)
                for node, (look, at_s) in self._looks.items()
                if look.attempt == attempt and now_s - at_s <= _KNOWN_S
            }
            self._open = tuple(still_open)
            self._told.update(each.label.value for each in told)
            self._text = None

    def text(self) -> str:
        """The page as of what was given last; made once for it."""
        with self._lock:
            if self._text is None:
                looks = [look for look, _ in self._looks.values()]
                self._text = watch_metrics(
                    job=self._job,
                    verdicts=self._open,
                    ranks=[sample for look in looks for sample in look.samples],
                    nodes=[look.host for look in looks if look.host is not None],
                    told=dict(self._told),
                )
            return self._text
