"""Looks at ranks, made by hand: what tests of the analyser and its parts feed."""

from __future__ import annotations

from typing import Any

from perdure.watcher.columns import Columns
from perdure.watcher.evidence import Evidence, Verdict
from perdure.watcher.samples import GroupState, RankSample

OFFSETS = {"a": 1e6, "b": 5.0, "c": 3e3, "d": 40.0}
"""Each node has a clock of its own."""


def nodes_of(n_ranks: int, *, per_node: int = 2) -> dict[str, list[int]]:
    """Ranks on nodes a, b, c, ..."""
    return {
        chr(ord("a") + first // per_node): list(range(first, min(first + per_node, n_ranks)))
        for first in range(0, n_ranks, per_node)
    }


def group(name: str, size: int, enqueued: int, completed: int | None = None, **said: str) -> GroupState:
    """What a rank has called in a group; it waits there if it has completed less."""
    done = enqueued if completed is None else completed
    return GroupState(group=name, size=size, enqueued=enqueued, completed=done, **{"op": "all_reduce", **said})


def sample(rank: int, now_s: float, *, per_node: int = 2, **said: Any) -> RankSample:
    """A look at a rank that is among its later steps."""
    node = chr(ord("a") + rank // per_node)
    at_s = now_s + OFFSETS.get(node, 0.0)
    usual: dict[str, Any] = {"pid": 100 + rank, "beat": int(now_s) + 1, "step": 50, "phase": "forward", "state": "S"}
    return RankSample(rank=rank, node=node, at_s=at_s, **{**usual, **said})


def looked(n_ranks: int, seconds: int, *, of: Any, per_node: int = 2) -> tuple[Columns, float]:
    """Columns after so many looks a second apart; ``of(rank, second)`` is what differs from the usual."""
    columns = Columns(nodes_of(n_ranks, per_node=per_node))
    before = [sample(rank, -1.0, per_node=per_node, step=0, phase="starting") for rank in range(n_ranks)]
    columns.look(before, -1.0)
    for second in range(seconds + 1):
        seen = [sample(rank, float(second), per_node=per_node, **of(rank, second)) for rank in range(n_ranks)]
        columns.look(seen, float(second))
    return columns, float(seconds)


def kinds(found: list[Evidence]) -> list[str]:
    """The kinds of evidence."""
    return [each.kind for each in found]


def gists(told: list[Verdict]) -> list[tuple[str, str, str, tuple[int, ...]]]:
    """Stage, label, action and ranks of verdicts."""
    return [(each.stage.value, each.label.value, each.action.value, each.ranks) for each in told]
