"""Who the others wait for: ranks aligned by the numbers of their collectives. Pure: columns in, evidence out.

A rank *waits* in a group when it has enqueued more than it has completed and its main thread does not go on. It waits
for the members whose enqueued number is below the one that it needs. This is a wait-for graph over all groups: a rank
that waits for nobody, and is waited for, is a *source*. A rank that waits in one group for somebody who waits in
another for a third is no source, the third is. Ranks of different groups are never compared with one another, and a
group that was made anew with another size is another group.

| kind | what is seen |
|---|---|
| ``behind`` | a source that works, or hangs, outside of the collective that the others wait in |
| ``skipped`` | a source that is done, or has more steps than those who wait: it left a collective out |
| ``died-before`` | a source that has ended badly: it failed first, those who waited for it failed of that |
| ``left-early`` | a rank was done, with exit code 0, before all others failed of its absence |
| ``extra`` | a rank that waits in a collective for which nearly everybody else has no more call |
| ``many-behind`` | sources, but more than half of the group: something that they share |
| ``odd-call`` | all have come, one with another operation or shape than most |
| ``crossed`` | ranks that wait for one another in a circle: the order of their collectives differs |
| ``outside`` | numbers are equal or unknown; a rank is outside of collectives while the others are inside |
| ``all-waiting`` | everybody is in the same collective, and it does not end |
| ``no-progress`` | ranks do not get on, and nothing says who waits for whom |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from perdure.watcher.columns import Columns, Ints, Mask
from perdure.watcher.evidence import Evidence
from perdure.watcher.samples import Stack
from perdure.watcher.standing import Standing, standing

__all__ = ["outside_by_stacks", "who_waits"]

_QUIET_S = 2.5
"""A rank that has called within this is on its way, not missing."""
_SHOWN = 6
_MANY = 4
_UNEVEN = ("gather", "scatter", "all_to_all", "alltoall", "send", "recv")
"""Operations whose shapes may differ between ranks by right."""


@dataclass(frozen=True, slots=True)
class _Calls:
    """What every rank has called in every group, flat: one element a rank and group."""

    row: Ints
    key: Ints
    enqueued: Ints
    completed: Ints
    what: Ints
    keys: list[tuple[str, int]]
    whats: list[tuple[str, str]]


def _flat(columns: Columns, known: Mask) -> _Calls:
    keys: dict[tuple[str, int], int] = {}
    whats: dict[tuple[str, str], int] = {}
    flat: list[tuple[int, int, int, int, int]] = []
    for row, groups in enumerate(columns.groups):
        for each in groups:
            key = keys.setdefault((each.group, each.size), len(keys))
            what = whats.setdefault((each.op, each.shape), len(whats))
            flat.append((row, key, each.enqueued, each.completed, what))
    n = int(known.sum())
    for (_, size), key in list(keys.items()):
        if size == n:  # everybody belongs to it, so who has no number yet has not called at all
            members = {row for row, its, *_ in flat if its == key}
            absent = [row for row in np.flatnonzero(known).tolist() if row not in members]
            if 0 < len(absent) < size:
                nothing = whats.setdefault(("", ""), len(whats))
                flat.extend((row, key, 0, 0, nothing) for row in absent)
    table = np.array(flat, np.int64).reshape(-1, 5)
    rows, numbers, enqueued, completed, called = (np.ascontiguousarray(column) for column in table.T)
    return _Calls(rows, numbers, enqueued, completed, called, list(keys), list(whats))


def _members_only(calls: _Calls, gone: Mask) -> _Calls:
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


def who_waits(columns: Columns, stuck: Mask, now_s: float) -> list[Evidence]:
    """Say for whom the ranks wait that are ``stuck``; empty if none is, or while not enough is known.

    Ranks that have raised count as waiting where they ended inside a collective, so that it can be asked after an
    attempt has failed, too.
    """
    ended, left, badly = columns.ended, columns.left, columns.ended_badly
    alive, seen = columns.alive(now_s), columns.seen
    held = alive & (columns.stopped | ((columns.beat > 0) & (columns.beat_still_s >= _QUIET_S)))
    # A record may be a second old when its rank ends, so numbers of the dead count where they had stood still before.
    stood = columns.calls_still_s >= _QUIET_S
    gone_early = _left_early(columns, now_s)
    if gone_early:
        return gone_early
    waiting = (alive & stuck & (columns.waits != 0) & ~held) | (badly & stood & (columns.exit_signal <= 0))
    if not waiting.any() and not stuck.any():
        return []
    calls = _members_only(_flat(columns, seen), left | ended)
    n_keys = len(calls.keys)
    inside = waiting[calls.row] & (calls.enqueued > calls.completed)
    needed = np.zeros(n_keys, np.int64)
    np.maximum.at(needed, calls.key[inside], calls.completed[inside] + 1)
    fewest = np.full(n_keys, np.iinfo(np.int64).max)
    np.minimum.at(fewest, calls.key, calls.enqueued)

    lags = calls.enqueued < needed[calls.key]
    lacks = inside & (fewest[calls.key] <= calls.completed)
    missed, waits_for_one = np.zeros(len(columns), bool), np.zeros(len(columns), bool)
    missed[calls.row[lags]] = True
    waits_for_one[calls.row[lacks]] = True
    ran_ahead = _ran_ahead(columns, calls, inside, lags & (stood | left)[calls.row])
    if ran_ahead.any():
        return [_named(columns, "skipped", ran_ahead, calls, lags & ran_ahead[calls.row], needed, now_s)]
    # Who has raised inside a collective has waited; who has raised outside of it has not.
    source = missed & ~waits_for_one
    quiet = stood | left
    unknown = source & ~(alive | ended | left)
    source &= quiet & ~unknown
    if source.any():
        odd = _odd_calls(columns, calls, needed, waiting | (badly & seen), now_s)
        names = {columns.ranks[row] for row in np.flatnonzero(source).tolist()}
        if any(each.kind == "odd-call" and names.issuperset(each.ranks) for each in odd):
            return odd  # its peers were served by what it sent, and are past the call that it hangs in
        return _sources(columns, calls, source, waits_for_one, inside, needed, now_s)
    if unknown.any() or (missed & ~quiet).any():
        return []
    odd = _odd_calls(columns, calls, needed, waiting | (badly & seen), now_s)
    if odd:
        return odd
    if waits_for_one.any():
        alone = _alone(columns, calls, inside)
        if alone.any():
            text = "waits alone in a collective, while the others wait for it in another"
            facts = _facts(columns, calls, inside & alone[calls.row], needed)
            return [_evidence(columns, "extra", alone, text, facts, now_s)]
        circle = np.flatnonzero(waits_for_one)
        text = f"{len(circle)} ranks wait for one another in a circle: their collectives come in different orders"
        return [Evidence(kind="crossed", at_s=now_s, sentence=text, raw=_rows_text(columns, circle))]
    if not stuck.any():
        return []
    return _nobody_missing(columns, calls, inside, stuck & alive, held, now_s)


def _ran_ahead(columns: Columns, calls: _Calls, inside: Mask, lags: Mask) -> Mask:
    """Ranks that are behind in a group whose waiting members have fewer steps: they have left out a call.

    They need not be sources: soon they wait in another group for those who wait for them in this one.
    """
    steps = np.full(len(calls.keys), -1, np.int64)
    np.maximum.at(steps, calls.key[inside], columns.step[calls.row[inside]])
    ahead = np.zeros(len(columns), bool)
    ahead[calls.row[lags & (steps[calls.key] >= 0) & (columns.step[calls.row] > steps[calls.key])]] = True
    return ahead if _MANY * int(ahead.sum()) <= len(columns) or ahead.sum() == 1 else np.zeros(len(columns), bool)


def _alone(columns: Columns, calls: _Calls, inside: Mask) -> Mask:
    """In a circle: the rank that is alone in a collective of at least three, if there is just one such rank."""
    most = np.full(len(calls.keys), -1, np.int64)
    np.maximum.at(most, calls.key, calls.enqueued)
    first = calls.enqueued == most[calls.key]
    firsts = np.bincount(calls.key[first], minlength=len(calls.keys))
    sizes = np.array([size for _, size in calls.keys], np.int64)
    alone = np.zeros(len(columns), bool)
    alone[calls.row[inside & first & (firsts[calls.key] == 1) & (sizes[calls.key] >= 3)]] = True
    return alone if int(alone.sum()) == 1 else np.zeros(len(columns), bool)


def _left_early(columns: Columns, now_s: float) -> list[Evidence]:
    left, raised = columns.left, columns.ended_badly & (columns.exit_signal <= 0)
    n_left, n_raised = int(left.sum()), int(raised.sum())
    # Of two the other may have failed of something else, unless it was in a collective.
    sure = n_raised >= 2 or bool((columns.waits[raised] == 1).all())
    if 0 < n_left <= max(1, len(columns) // 4) and n_raised == len(columns) - n_left and sure:
        text = "was done, with exit code 0, before all others failed"
        return [_evidence(columns, "left-early", left, text, _rows_text(columns, np.flatnonzero(raised)), now_s)]
    return []


def _sources(
    columns: Columns, calls: _Calls, source: Mask, waits: Mask, inside: Mask, needed: Ints, now_s: float
) -> list[Evidence]:
    left, badly = columns.left, columns.ended_badly
    lagging = source[calls.row] & (calls.enqueued < needed[calls.key])
    groups = np.unique(calls.key[lagging])
    members = np.unique(calls.row[np.isin(calls.key, groups)])
    wait_steps = columns.step[waits]
    far_step = int(wait_steps.max()) if len(wait_steps) else -1
    dead = source & badly
    if dead.any():
        return [_named(columns, "died-before", dead, calls, lagging, needed, now_s)]
    if 2 * int(source.sum()) > len(members):
        if left[source].all():
            odd = waits & ~source
            text = "waits in a collective more than its peers called, who are done"
            return [_evidence(columns, "extra", odd, text, _facts(columns, calls, inside, needed), now_s)]
        facts = _facts(columns, calls, lagging, needed)
        text = "more than half of a group have not come to a collective in which the others wait"
        return [Evidence(kind="many-behind", at_s=now_s, sentence=text, raw=facts)]
    # Steps and numbers are compared between ranks that stand still, where looks at different moments do not matter.
    ahead = source & ((left & (columns.step >= far_step)) | ((far_step >= 0) & (columns.step > far_step)))
    found = []
    if ahead.any():
        found.append(_named(columns, "skipped", ahead, calls, lagging, needed, now_s))
    behind = source & ~ahead
    if behind.any():
        found.append(_named(columns, "behind", behind, calls, lagging, needed, now_s))
    return found


_SAID: Mapping[str, str] = {
    "died-before": "ended before it came to the collective that the others wait in",
    "skipped": "left out a collective: its number is behind, though its steps are not",
    "behind": "has not come to the collective that the others wait in",
}


def _named(
    columns: Columns, kind: str, rows: Mask, calls: _Calls, lagging: Mask, needed: Ints, now_s: float
) -> Evidence:
    facts = _facts(columns, calls, lagging & rows[calls.row], needed)
    return _evidence(columns, kind, rows, _SAID[kind], facts, now_s)


def _facts(columns: Columns, calls: _Calls, which: Mask, needed: Ints) -> tuple[str, ...]:
    lines = []
    for at in np.flatnonzero(which)[:_SHOWN].tolist():
        row, key = int(calls.row[at]), int(calls.key[at])
        group = calls.keys[key][0]
        lines.append(
            f"rank {columns.ranks[row]}: number {int(calls.enqueued[at])} in group {group}, where others need"
            f" {int(needed[key])}; step {int(columns.step[row])}"
        )
    return tuple(lines)


def _evidence(columns: Columns, kind: str, rows: Mask, text: str, facts: tuple[str, ...], now_s: float) -> Evidence:
    at = np.flatnonzero(rows)
    ranks, nodes = columns.ranks_at(at), columns.nodes_at(at)
    step = int(columns.step[at].min()) if len(at) else -1
    shown = ", ".join(str(rank) for rank in ranks[:_SHOWN]) + (" ..." if len(ranks) > _SHOWN else "")
    return Evidence(
        kind=kind,
        at_s=now_s,
        ranks=ranks,
        nodes=nodes,
        sentence=f"rank {shown} on {', '.join(nodes[:_SHOWN])} {text}",
        step=step if step >= 0 else None,
        raw=facts,
    )


def _odd_calls(columns: Columns, calls: _Calls, needed: Ints, waiting: Mask, now_s: float) -> list[Evidence]:
    """The ranks whose call differs from what most call at the same number, in their group or in groups like it."""
    here = waiting[calls.row] & (needed[calls.key] > 0) & (calls.enqueued == needed[calls.key])
    if not here.any():
        return []
    plain = np.array([_comparable(op, shape) for op, shape in calls.whats], object)
    words = {text: number for number, text in enumerate(dict.fromkeys(plain.tolist()))}
    said = np.array([words[text] for text in plain.tolist()], np.int64)[calls.what]
    odd = np.zeros(len(columns), bool)
    unclear = False
    mixed = [key for key in np.unique(calls.key[here]) if len(np.unique(said[here & (calls.key == key)])) > 1]
    for key in mixed:
        members = here & (calls.key == key)
        size = calls.keys[key][1]
        alike = here & np.isin(calls.key, [k for k, (_, its) in enumerate(calls.keys) if its == size])
        alike &= calls.enqueued == needed[key]
        for jury in (members, alike):
            kinds, counts = np.unique(said[jury], return_counts=True)
            most = int(counts.argmax())
            if 2 * counts[most] > counts.sum():
                odd[calls.row[members & (said != kinds[most])]] = True
                break
        else:
            unclear = True
    if odd.any():
        called = here & odd[calls.row]
        usual = here & ~odd[calls.row] & np.isin(calls.key, mixed)
        facts = tuple(
            f"rank {columns.ranks[int(calls.row[at])]} calls {_spelled(calls, at)} as number {int(calls.enqueued[at])}"
            for at in (*np.flatnonzero(called)[:_SHOWN].tolist(), *np.flatnonzero(usual)[:2].tolist())
        )
        return [_evidence(columns, "odd-call", odd, "calls a collective unlike that of its peers", facts, now_s)]
    if unclear:
        facts = tuple(
            f"rank {columns.ranks[int(calls.row[at])]} calls {_spelled(calls, at)}"
            for at in np.flatnonzero(here & np.isin(calls.key, mixed))[:_SHOWN].tolist()
        )
        text = "ranks of a group call different collectives, and no call is that of most"
        return [Evidence(kind="crossed", at_s=now_s, sentence=text, raw=facts)]
    return []


def _comparable(op: str, shape: str) -> str:
    return op if any(word in op for word in _UNEVEN) else f"{op} {shape}"


def _spelled(calls: _Calls, at: int) -> str:
    op, shape = calls.whats[int(calls.what[at])]
    return f"{op or 'something'} of {shape}" if shape else op or "something"


def _nobody_missing(
    columns: Columns, calls: _Calls, inside: Mask, stuck: Mask, held: Mask, now_s: float
) -> list[Evidence]:
    in_one = np.zeros(len(columns), bool)
    in_one[calls.row[inside]] = True
    in_one |= stuck & (columns.waits == 1) & ~held
    outside = stuck & ~in_one & ~held & (columns.waits == 0)
    if outside.any() and in_one.any() and 2 * int(outside.sum()) < int((in_one | outside).sum()):
        text = "is outside of collectives while the others wait inside"
        return [_evidence(columns, "outside", outside, text, (), now_s)]
    at_work = int((columns.alive(now_s) & ~held).sum())
    if in_one.any() and 2 * int(in_one.sum()) <= at_work:
        return []  # the others go on, so the record of these is old
    if in_one.any():
        text = f"{int(in_one.sum())} ranks wait in collectives to which everybody has come"
        return [
            Evidence(kind="all-waiting", at_s=now_s, sentence=text, raw=_rows_text(columns, np.flatnonzero(in_one)))
        ]
    alive = columns.alive(now_s)
    if stuck.any() and 4 * int(stuck.sum()) <= int(alive.sum()):
        return [_evidence(columns, "behind", stuck, "does not get on, while others do", (), now_s)]
    if stuck.any():
        rows = np.flatnonzero(stuck)
        text = f"{len(rows)} ranks do not get on, and nothing says who waits for whom"
        ranks = columns.ranks_at(rows) if len(rows) == 1 else ()
        return [Evidence(kind="no-progress", at_s=now_s, sentence=text, ranks=ranks, raw=_rows_text(columns, rows))]
    return []


def _rows_text(columns: Columns, rows: Ints) -> tuple[str, ...]:
    return tuple(f"rank {columns.ranks[row]}: step {int(columns.step[row])}" for row in rows[:_SHOWN].tolist())


def outside_by_stacks(stacks: Sequence[Stack], now_s: float) -> list[Evidence]:
    """Say who stands outside of collectives while most stand inside, where stacks are all that is known."""
    newest = {stack.rank: stack for stack in stacks}
    place = {rank: standing(stack.frames) for rank, stack in newest.items()}
    out = sorted(rank for rank, where in place.items() if where is not Standing.COLLECTIVE)
    if not out or 2 * len(out) >= len(place):
        return []
    names = ", ".join(str(rank) for rank in out[:_SHOWN])
    return [
        Evidence(
            kind="outside",
            at_s=now_s,
            ranks=tuple(out),
            nodes=tuple(sorted({newest[rank].node for rank in out})),
            sentence=f"rank {names} stands outside of collectives while the others wait inside",
            raw=tuple(newest[rank].frames[0] for rank in out[:_SHOWN] if newest[rank].frames),
        )
    ]
