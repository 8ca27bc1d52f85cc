"""What every rank has called in every process group, flat; for `collectives` and `odd_calls`."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from perdure.watcher.columns import Columns, Ints, Mask
from perdure.watcher.evidence import Evidence

__all__ = ["SHOWN", "Calls", "evidence_of", "flat", "members_only"]

SHOWN = 6
"""So many ranks are listed in a sentence."""


@dataclass(frozen=True, slots=True)
class Calls:
    """What every rank has called in every group, flat: one element a rank and group."""

    row: Ints
    key: Ints
    enqueued: Ints
    completed: Ints
    what: Ints
    keys: list[tuple[str, int]]
    whats: list[tuple[str, str]]


def flat(columns: Columns, known: Mask) -> Calls:
    """What the ``known`` ranks have called; of a group to which all belong, nothing for those without a number."""
    keys: dict[tuple[str, int], int] = {}
    whats: dict[tuple[str, str], int] = {}
    rows_of: list[tuple[int, int, int, int, int]] = []
    for row, groups in enumerate(columns.groups):
        for each in groups:
            key = keys.setdefault((each.group, each.size), len(keys))
            what = whats.setdefault((each.op, each.shape), len(whats))
            rows_of.append((row, key, each.enqueued, each.completed, what))
    n = int(known.sum())
    for (_, size), key in list(keys.items()):
        if size == n:  # everybody belongs to it, so who has no number yet has not called at all
            members = {row for row, its, *_ in rows_of if its == key}
            absent = [row for row in np.flatnonzero(known).tolist() if row not in members]
            if 0 < len(absent) < size:
                nothing = whats.setdefault(("", ""), len(whats))
                rows_of.extend((row, key, 0, 0, nothing) for row in absent)
    table = np.array(rows_of, np.int64).reshape(-1, 5)
    rows, numbers, enqueued, completed, called = (np.ascontiguousarray(column) for column in table.T)
    return Calls(rows, numbers, enqueued, completed, called, list(keys), list(whats))


def members_only(calls: Calls, gone: Mask) -> Calls:
    """Without the ranks that are gone, where a group would else have more members than its size: others took over."""
    sizes = np.array([size for _, size in calls.keys], np.int64)
    too_many = np.bincount(calls.key, minlength=len(sizes)) > sizes
    keep = ~(too_many[calls.key] & gone[calls.row])
    return replace(
        calls,
        row=calls.row[keep],
        key=calls.key[keep],
        enqueued=calls.enqueued[keep],
        completed=calls.completed[keep],
        what=calls.what[keep],
    )


def evidence_of(columns: Columns, kind: str, rows: Mask, text: str, facts: tuple[str, ...], now_s: float) -> Evidence:
    """Evidence that accuses the ``rows``, of which ``text`` says what they do."""
    at = np.flatnonzero(rows)
    ranks, nodes = columns.ranks_at(at), columns.nodes_at(at)
    step = int(columns.step[at].min()) if len(at) else -1
    shown = ", ".join(str(rank) for rank in ranks[:SHOWN]) + (" ..." if len(ranks) > SHOWN else "")
    return Evidence(
        kind=kind,
        at_s=now_s,
        ranks=ranks,
        nodes=nodes,
        sentence=f"rank {shown} on {', '.join(nodes[:SHOWN])} {text}",
        step=step if step >= 0 else None,
        raw=facts,
    )
