"""Detectors of nodes, plugged into the analyser: certain rules, kernels that hang, what fills, clocks that jump."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from perdure.watcher.detecting import EVENT_LASTS_S, Held
from perdure.watcher.evidence import Evidence
from perdure.watcher.rules import AGAIN_S, NodeRules, kernel_hangs
from perdure.watcher.samples import Looks, NodeSample
from perdure.watcher.slopes import ClockWatch, FillWatch

__all__ = ["OfFills", "OfNodes"]

_FILLS_EVERY_S: Final = 4.0
"""Slopes over minutes need no more, and there may be thousands of nodes."""
_MOST_DISKS: Final = 16
_NEIGHBOUR_S: Final = 2 * AGAIN_S - 1.0


class OfNodes:
    """`NodeRules` and hanging kernels.

    A neighbour is told once the same process has been busy for a while: a compiler beside a job is no news. If ranks
    are slow of it, `of_pace` tells it at once.
    """

    def __init__(self) -> None:
        self._rules = NodeRules()
        self._crowded: dict[str, tuple[float, float, frozenset[str]]] = {}
        self._held = Held()

    def feed(self, looks: Looks, *, now_s: float) -> Iterable[Evidence]:
        """What holds of these nodes."""
        for node in looks.nodes:
            for each in self._rules.look(node, at_s=now_s):
                if each.kind == "cpu-contention":
                    if not self._lasts(node.node, each, now_s):
                        continue
                    each = msgspec.structs.replace(each, kind="contention")  # as the table has it
                self._held.keep((each.kind, each.nodes, each.sentence), each, until_s=now_s + EVENT_LASTS_S)
        return [*self._held.found(now_s), *kernel_hangs(looks.samples, at_s=now_s)]

    def _lasts(self, node: str, each: Evidence, now_s: float) -> bool:
        """Whether the same neighbour has been told of for a while; it is each `AGAIN_S`."""
        names = frozenset(line.partition(": ")[0] for line in each.raw)
        since_s, last_s, before = self._crowded.get(node, (now_s, now_s, names))
        if now_s - last_s > 1.5 * AGAIN_S or not names & before:
            since_s, before = now_s, names
        self._crowded[node] = since_s, now_s, names & before
        return now_s - since_s >= _NEIGHBOUR_S

    def restarted(self, attempt: int) -> None:
        """Nodes stay what they are."""


class _Node:
    """What is watched of one node."""

    def __init__(self, name: str) -> None:
        self.memory = FillWatch("memory_soon_full", f"memory of {name}", node=name)
        self.clock = ClockWatch(name)
        self.disks: dict[tuple[str, str], FillWatch] = {}
        self.fed_s = float("-inf")

    def disk(self, name: str, path: str, what: str) -> FillWatch | None:
        """The watch over bytes or files of a disk; None if there are too many."""
        key = (path, what)
        if key not in self.disks and len(self.disks) < 2 * _MOST_DISKS:
            self.disks[key] = FillWatch("disk_soon_full", f"{path} of {name}{what}", node=name)
        return self.disks.get(key)


class OfFills:
    """`FillWatch` over memory and disks (their bytes, and the files that they can hold) and `ClockWatch`, by node."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Node] = {}
        self._held = Held()

    def feed(self, looks: Looks, *, now_s: float) -> Iterable[Evidence]:
        """What will be full soon; clocks that have jumped lately."""
        for sample in looks.nodes:
            node = self._nodes.get(sample.node)
            if node is None:
                node = self._nodes[sample.node] = _Node(sample.node)
            if sample.wall_s is not None:
                jump = node.clock.observe(wall_s=sample.wall_s, at_s=sample.at_s)
                if jump is not None:
                    self._held.keep(("clock", sample.node, jump.sentence), jump, until_s=now_s + EVENT_LASTS_S)
            if not 0 <= sample.at_s - node.fed_s < _FILLS_EVERY_S:
                node.fed_s = sample.at_s
                self._fills(node, sample)
        return self._held.found(now_s)

    def _fills(self, node: _Node, sample: NodeSample) -> None:
        for watch, free, total in _watched(node, sample):
            each = watch.observe(free=free, total=total, at_s=sample.at_s)
            if each is not None and each.kind.endswith("_over"):
                self._held.drop(id(watch))
            elif each is not None:
                self._held.keep(id(watch), each)

    def restarted(self, attempt: int) -> None:
        """What the ranks took is given back when they end, and taken again: slopes begin anew."""
        for node in self._nodes.values():
            node.memory.reset()
            for watch in node.disks.values():
                watch.reset()
        self._held.clear()


def _watched(node: _Node, sample: NodeSample) -> Iterator[tuple[FillWatch, float, float]]:
    """What fills, how much of it is free, and of how much."""
    if sample.memory_total_bytes and sample.memory_available_bytes is not None:
        yield node.memory, sample.memory_available_bytes, sample.memory_total_bytes
    for disk in sample.disks:
        if disk.silent_s or disk.total_bytes <= 0:
            continue  # it tells what was before
        watch = node.disk(sample.node, disk.path, "")
        if watch is not None:
            yield watch, disk.free_bytes, disk.total_bytes
        if disk.free_inodes is not None and disk.total_inodes:
            watch = node.disk(sample.node, disk.path, " (the files that it can hold)")
            if watch is not None:
                yield watch, disk.free_inodes, disk.total_inodes
