"""Where a watcher is plugged in, and perdure's own, driven as `perdure watch` drives it: a `NodeWatch` a node, a
`JobWatch` for the job, about two looks a second.

Another watcher has three methods to offer; it may run processes of its own, and answers in the words of `Verdict`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from perdure.progress import phase_deadlines
from perdure.progress.probing import probe_env
from perdure.testing.faults.job import Job, Node
from perdure.testing.faults.kinds import DEADLINE_S
from perdure.watcher.analyser import Settings
from perdure.watcher.evidence import Verdict
from perdure.watcher.job_watch import JobWatch
from perdure.watcher.node_watch import NodeWatch
from perdure.watcher.samples import NodeLook

__all__ = ["PerdureWatcher", "Watcher"]

_LOOK_S = 0.5


class Watcher(Protocol):
    """Whoever is tested. One is made for each case."""

    def start(self, job: Job, *, base: Mapping[str, str]) -> Mapping[str, Mapping[str, str]]:
        """Watch ``job``, whose ranks start next; return what they are to have in their environment, by node.

        ``base`` is the environment that they inherit. The job may be started more than once while it is watched.
        """
        ...

    def verdicts(self) -> Sequence[Verdict]:
        """What is new since the last call. Called again and again; may wait up to half a second, until a rank ends."""
        ...

    def close(self) -> None:
        """The case is over."""
        ...


class PerdureWatcher:
    """Perdure's. ``settings`` are those of a user who says what a step and a save may take."""

    def __init__(self, settings: Settings | None = None) -> None:
        deadlines = phase_deadlines(f"step={DEADLINE_S:g},save={3 * DEADLINE_S:g},evaluate={3 * DEADLINE_S:g}")
        self._settings = settings or Settings(phase_deadlines=deadlines, node_gone_s=15.0)

    def start(self, job: Job, *, base: Mapping[str, str]) -> Mapping[str, Mapping[str, str]]:
        """Lay down the probes, and begin to look."""
        self._job = job
        self._watch = JobWatch(self._settings)
        words = {}
        self._nodes: list[tuple[Node, NodeWatch]] = []
        for node in job.nodes:
            words[node.name] = probe_env(node.probes, base=base) | {"PERDURE_PROBE_CHECKSUM": "20"}
            watch = NodeWatch(
                node.probes,
                node=node.name,
                disks=[node.disk],
                logs=node.logs,
                kernel_log=node.kernel_log,
                clock=node.clock,
            )
            self._nodes.append((node, watch))
        return words

    def verdicts(self) -> Sequence[Verdict]:
        """Wait for the time of the next look, look, and judge."""
        self._nodes[0][1].wait(_LOOK_S, *self._job.ends())
        wanted = self._watch.wants_stacks()
        looks: list[NodeLook] = []
        for node, watch in self._nodes:
            if node.silent:
                continue
            look = watch.look(stacks_of=[rank for rank in wanted if rank in node.ranks])
            if look.host is not None:
                look = msgspec.structs.replace(look, host=node.shown(look.host))
            looks.append(look)
        return self._watch.feed(looks, now_s=time.monotonic())

    def close(self) -> None:
        """End what runs beside."""
        for _, watch in self._nodes:
            watch.close()
