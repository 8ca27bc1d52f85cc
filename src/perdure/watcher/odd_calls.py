"""Whose collective is unlike that of its peers: by the calls that ranks wait in, or that they died of. Pure.

Calls are compared under one number of one group. A jury of those who tell what they called decides, where more than
half of it agrees; a rank that does not tell (it has not been asked yet, or died before it could) is neither odd nor on
the jury.

A rank that gloo aborts, because a peer has sent more than it expected (``op.preamble.length <= op.nbytes``), dies
before it can tell. It is the victim of whoever calls more, or the one that calls less itself; so of two shapes of one
operation it has called the smaller, whichever is the odd one, and that is its vote. Its peers raise soon after and
write what they had called as they do (`perdure.adapters.torch.probe_steps`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable
from typing import Final

import numpy as np

from perdure.watcher.calls import SHOWN, Calls, evidence_of, flat
from perdure.watcher.columns import Columns, Ints, Mask
from perdure.watcher.evidence import Evidence
from perdure.watcher.labels import Label

__all__ = ["aborted_by_size", "calls_of_dead", "odd_calls"]

_UNEVEN: Final = ("gather", "scatter", "all_to_all", "alltoall", "send", "recv")
"""Operations whose shapes may differ between ranks by right."""
_TELLS_S: Final = 8.0
"""A rank that lives and stands still tells what it calls within this."""
_SENT_MORE: Final = re.compile(r"preamble\.length\s*<=\s*op\.nbytes")
_SHAPE: Final = re.compile(r"\[([\d, ]*)\] ?(\w*)")


def aborted_by_size(evidence: Iterable[Evidence], columns: Columns) -> set[int]:
    """The ranks whose library ended them since a peer had sent more than they expected, by their last lines.

    A line that does not say whose it is belongs to the only rank that was ended by SIGABRT, if there is just one.
    """
    found: set[int] = set()
    for each in evidence:
        if each.label is Label.DESYNC and any(_SENT_MORE.search(line) for line in each.raw):
            found.update(each.ranks or _only_abort(columns))
    return found


def _only_abort(columns: Columns) -> tuple[int, ...]:
    rows = np.flatnonzero((columns.exit_signal == 6) | (columns.exit_code == -6) | (columns.exit_code == 134))
    return columns.ranks_at(rows) if len(rows) == 1 else ()


def odd_calls(columns: Columns, calls: Calls, needed: Ints, waiting: Mask, now_s: float) -> list[Evidence] | None:
    """The ranks whose call differs from what most call at the same number, in their group or in groups like it.

    None if that is not known yet, since some have not told what they call.
    """
    come = waiting[calls.row] & (needed[calls.key] > 0) & (calls.enqueued == needed[calls.key])
    said, tells = _said(calls)
    here = come & tells
    if not here.any():
        return []
    odd = np.zeros(len(columns), bool)
    unclear = []
    mixed = [key for key in np.unique(calls.key[here]) if len(np.unique(said[here & (calls.key == key)])) > 1]
    for key in mixed:
        members = here & (calls.key == key)
        size = calls.keys[key][1]
        alike = here & np.isin(calls.key, [k for k, (_, its) in enumerate(calls.keys) if its == size])
        alike &= calls.enqueued == needed[key]
        for jury in (members, alike):
            usual = _usual(said[jury])
            if usual is not None:
                odd[calls.row[members & (said != usual)]] = True
                break
        else:
            unclear.append(key)
    if odd.any():
        facts = _facts(columns, calls, here & odd[calls.row], here & ~odd[calls.row] & np.isin(calls.key, mixed))
        return [evidence_of(columns, "odd-call", odd, "calls a collective unlike that of its peers", facts, now_s)]
    if unclear:
        young = columns.alive(now_s) & (columns.calls_still_s < _TELLS_S)
        if (come & ~tells & np.isin(calls.key, unclear) & young[calls.row]).any():
            return None
        facts = _facts(columns, calls, here & np.isin(calls.key, mixed))
        text = "ranks of a group call different collectives, and no call is that of most"
        return [Evidence(kind="crossed", at_s=now_s, sentence=text, raw=facts)]
    return []


def calls_of_dead(columns: Columns, aborted: Collection[int], now_s: float) -> list[Evidence]:
    """After a death: whose call was odd; or, if ranks died of calls that differ and it cannot be told, just that.

    A collective that has failed counts as completed, so any two calls under one number that differ are compared.
    """
    calls = flat(columns, columns.seen)
    said, tells = _said(calls)
    odd, odd_calls_at, usual_at = np.zeros(len(columns), bool), np.zeros(len(said), bool), np.zeros(len(said), bool)
    unclear = np.zeros(len(said), bool)
    rows = [columns.row_of[rank] for rank in aborted if rank in columns.row_of]
    for key, number in _mixed(calls, said, tells):
        of_group = calls.key == key
        members = of_group & tells & (calls.enqueued == number)
        silent = [row for row in rows if row in calls.row[of_group] and row not in calls.row[members]]
        votes = said[members].tolist()
        less = _smaller(calls, members, said)
        usual = _usual(np.array(votes + ([less] * len(silent) if less is not None else []), np.int64))
        if usual is None:
            unclear |= members
            continue
        odd_calls_at |= members & (said != usual)
        usual_at |= members & (said == usual)
        odd[calls.row[members & (said != usual)]] = True
        if less is not None and less != usual:
            odd[silent] = True
    if odd.any():
        facts = _facts(columns, calls, odd_calls_at, usual_at)
        text = "called a collective unlike that of its peers, of which ranks died"
        return [evidence_of(columns, "odd-call", odd, text, facts, now_s)]
    if not rows and not unclear.any():
        return []
    text = "ranks died of collectives that differ, and whose was wrong cannot be told"
    if rows:
        others = np.setdiff1d(calls.row[np.isin(calls.key, calls.key[np.isin(calls.row, rows)])], rows)
        text += f": {_listed(columns, rows)} was sent more than it expected by {_listed(columns, others)}"
    last = unclear if unclear.any() else tells & ~np.isin(calls.row, rows)
    return [Evidence(kind="calls-differ", at_s=now_s, sentence=text, raw=_facts(columns, calls, last))]


def _listed(columns: Columns, rows: Ints | list[int]) -> str:
    ranks = columns.ranks_at(rows)
    more = " ..." if len(ranks) > SHOWN else ""
    return f"rank {' or '.join(map(str, ranks[:SHOWN]))}{more}"


def _mixed(calls: Calls, said: Ints, tells: Mask) -> list[tuple[int, int]]:
    """The groups and numbers under which more than one call was told, of groups that have no more members than ranks
    that they are of."""
    found: dict[tuple[int, int], set[int]] = {}
    for at in np.flatnonzero(tells).tolist():
        found.setdefault((int(calls.key[at]), int(calls.enqueued[at])), set()).add(int(said[at]))
    members = np.bincount(calls.key, minlength=len(calls.keys))
    return [each for each, kinds in found.items() if len(kinds) > 1 and members[each[0]] <= calls.keys[each[0]][1]]


def _usual(said: Ints) -> int | None:
    """What more than half have said."""
    kinds, counts = np.unique(said, return_counts=True)
    most = int(counts.argmax())
    return int(kinds[most]) if 2 * counts[most] > counts.sum() else None


def _smaller(calls: Calls, members: Mask, said: Ints) -> int | None:
    """Of two calls of one operation with as many bytes an element, that of fewer elements; None if it is not so."""
    of = {int(said[at]): calls.whats[int(calls.what[at])] for at in np.flatnonzero(members).tolist()}
    sizes = [(_elements(shape), said_as, op, dtype) for said_as, (op, shape) in of.items() for dtype in [_dtype(shape)]]
    if len(sizes) != 2 or sizes[0][2:] != sizes[1][2:] or None in (sizes[0][0], sizes[1][0]):
        return None
    return min(sizes)[1] if sizes[0][0] != sizes[1][0] else None


def _elements(shape: str) -> int | None:
    match = _SHAPE.fullmatch(shape)
    return None if match is None else math.prod(int(each) for each in match[1].replace(" ", "").split(",") if each)


def _dtype(shape: str) -> str:
    match = _SHAPE.fullmatch(shape)
    return "" if match is None else match[2]


def _said(calls: Calls) -> tuple[Ints, Mask]:
    """What each call is in words that may be compared, as a number; and whether it is told at all."""
    plain = [_comparable(op, shape) for op, shape in calls.whats]
    words = {text: number for number, text in enumerate(dict.fromkeys(plain))}
    said = np.array([words[text] for text in plain], np.int64)[calls.what]
    tells = np.array([bool(op) for op, _ in calls.whats], bool)[calls.what]
    return said, tells


def _comparable(op: str, shape: str) -> str:
    return op if any(word in op for word in _UNEVEN) else f"{op} {shape}"


def _facts(columns: Columns, calls: Calls, first: Mask, others: Mask | None = None) -> tuple[str, ...]:
    rows = np.flatnonzero(first)[:SHOWN].tolist() + ([] if others is None else np.flatnonzero(others)[:2].tolist())
    return tuple(
        f"rank {columns.ranks[int(calls.row[at])]} calls {_spelled(calls, at)} as number {int(calls.enqueued[at])}"
        for at in rows
    )


def _spelled(calls: Calls, at: int) -> str:
    op, shape = calls.whats[int(calls.what[at])]
    return f"{op or 'something'} of {shape}" if shape else op or "something"
