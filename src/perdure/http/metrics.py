"""Jobs as Prometheus metrics, in its text format 0.0.4. Pure.

Labels are bounded: ``job`` by the jobs that run or were over less than an hour ago, the others by fixed lists.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from perdure.http.jobs import Looked
from perdure.supervisor.asking import Seen
from perdure.supervisor.goodput import CAUSES, USES
from perdure.supervisor.job import State
from perdure.supervisor.plain import live_account

__all__ = ["CONTENT_TYPE", "RECENT_S", "metrics_of"]

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
RECENT_S: Final = 3600.0
_STANDINGS: Final = ("runs", "spare", "draining", "drained", "cordoned", "lost", "unknown", "released")
_PHASES: Final = (
    "starting",
    "restoring",
    "forward",
    "step",
    "copying",
    "saving",
    "evaluating",
    "closing",
    "finished",
    "running",
    "ended",
)


class _Text:
    """Samples by metric, each metric with its help once."""

    def __init__(self) -> None:
        self._samples: dict[str, list[str]] = {}
        self._heads: dict[str, tuple[str, str]] = {}

    def add(self, name: str, kind: str, help_text: str, value: float, labels: Mapping[str, str]) -> None:
        self._heads[name] = (kind, help_text)
        inside = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
        self._samples.setdefault(name, []).append(
            f"{name}{{{inside}}} {value:.15g}" if inside else f"{name} {value:.15g}"
        )

    def text(self) -> str:
        lines = []
        for name, samples in self._samples.items():
            kind, help_text = self._heads[name]
            lines += [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}", *samples]
        return "".join(f"{line}\n" for line in lines)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def metrics_of(looked: Iterable[Looked], *, now_at: float) -> str:
    """The text; ``now_at`` are seconds since 1970."""
    text = _Text()
    for each in looked:
        seen = each.seen
        if seen is None:
            text.add("perdure_job_readable", "gauge", "Whether the job can be looked at.", 0, {"job": each.name})
        elif seen.live or now_at - seen.view.now_at <= RECENT_S:
            text.add("perdure_job_readable", "gauge", "Whether the job can be looked at.", 1, {"job": each.name})
            _one(text, seen)
    return text.text()


def _one(text: _Text, seen: Seen) -> None:
    view = seen.view
    job = {"job": view.job.name}
    _, account = live_account(view)

    def gauge(name: str, help_text: str, value: float, **labels: str) -> None:
        text.add(f"perdure_job_{name}", "gauge", help_text, value, job | labels)

    gauge("live", "Whether the job has a controller that answers.", float(seen.live))
    for state in State:
        gauge("state", "1 for the state that the job is in.", float(view.job.state is state), state=state.value)
    gauge("attempt", "Number of the current attempt; -1 before the first.", view.job.attempt)
    gauge("step", "Completed steps.", view.job.best_step)
    gauge("wall_seconds", "Time since the run began, or that it took.", account.wall_s)
    if account.goodput is not None:
        gauge("goodput_ratio", "Time with new steps over wall time (ETTR).", account.goodput)
    for use in USES:
        gauge(
            "time_seconds",
            "What the time of the run went into; all but progress is lost.",
            account.seconds[use],
            phase=use,
        )
    for cause in CAUSES:
        text.add(
            "perdure_job_restarts_total",
            "counter",
            "Attempts after the first of the run, by what ended the one before.",
            account.restarts[cause],
            job | {"cause": cause},
        )
    standings = Counter(node.standing for node in view.nodes)
    for standing in _STANDINGS:
        gauge("nodes", "Nodes by standing.", standings[standing], standing=standing)
    ranks = [rank for node in view.nodes for rank in node.ranks]
    phases = Counter("ended" if rank.ended else rank.phase or "running" for rank in ranks)
    for phase in _PHASES:
        gauge("ranks", "Ranks of the current attempt by phase.", phases[phase], phase=phase)
