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
| ``calls-differ`` | ranks have died of calls that differ, and it cannot be told whose was wrong |
| ``crossed`` | ranks that wait for one another in a circle: the order of their collectives differs |
| ``outside`` | numbers are equal or unknown; a rank is outside of collectives while the others are inside |
| ``all-waiting`` | everybody is in the same collective, and it does not end |
| ``no-progress`` | ranks do not get on, and nothing says who waits for whom |
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from perdure.watcher.calls import SHOWN, Calls, evidence_of, flat, members_only
from perdure.watcher.columns import Columns, Ints, Mask
from perdure.watcher.evidence import Evidence
from perdure.watcher.odd_calls import calls_of_dead, odd_calls
from perdure.watcher.samples import Stack
from perdure.watcher.standing import Standing, standing

__all__ = ["all_wait_unlike", "outside_by_stacks", "who_waits"]

_QUIET_S = 2.5
"""A rank that has called within this is on its way, not missing."""
_MANY = 4


def who_waits(columns: Columns, stuck: Mask, now_s: float, *, aborted: Collection[int] = ()) -> list[Evidence]:
    """Say for whom the ranks wait that are ``stuck``; empty if none is, or while not enough is known.

    Ranks that have raised count as waiting where they ended inside a collective, so that it can be asked after an
    attempt has failed, too. ``aborted`` are ranks that their library ended because a peer sent more than they expected.
    """
    differ = calls_of_dead(columns, aborted, now_s) if columns.ended.any() else []
    if any(each.kind == "odd-call" for each in differ):
        return differ
    return [*differ, *_who_waits(columns, stuck, now_s)]


def all_wait_unlike(columns: Columns, now_s: float) -> list[Evidence]:
    """Say whose call is unlike that of most where everybody waits: that ends never, however patient one is."""
    alive = columns.alive(now_s)
    if not alive.any() or not ((columns.waits == 1) & (columns.calls_still_s >= _QUIET_S))[alive].all():
        return []
    calls = members_only(flat(columns, columns.seen), columns.left | columns.ended)
    needed, _ = _needed(calls, alive)
    return odd_calls(columns, calls, needed, alive, now_s) or []


def _needed(calls: Calls, waiting: Mask) -> tuple[Ints, Mask]:
    """The number that the waiting members of each group need, and who waits inside."""
    inside: Mask = waiting[calls.row] & (calls.enqueued > calls.completed)
    needed = np.zeros(len(calls.keys), np.int64)
    np.maximum.at(needed, calls.key[inside], calls.completed[inside] + 1)
    return needed, inside


def _who_waits(columns: Columns, stuck: Mask, now_s: float) -> list[Evidence]:
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
    calls = members_only(flat(columns, seen), left | ended)
    needed, inside = _needed(calls, waiting)
    fewest = np.full(len(calls.keys), np.iinfo(np.int64).max)
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
        odd = odd_calls(columns, calls, needed, waiting | (badly & seen), now_s)
        if odd is None:
            return []
        names = {columns.ranks[row] for row in np.flatnonzero(source).tolist()}
        if any(each.kind == "odd-call" and names.issuperset(each.ranks) for each in odd):
            return odd  # its peers were served by what it sent, and are past the call that it hangs in
        return _sources(columns, calls, source, waits_for_one, inside, needed, now_s)
    if unknown.any() or (missed & ~quiet).any():
        return []
    odd = odd_calls(columns, calls, needed, waiting | (badly & seen), now_s)
    if odd is None or odd:
        return odd or []
    if waits_for_one.any():
        alone = _alone(columns, calls, inside)
        if alone.any():
            text = "waits alone in a collective, while the others wait for it in another"
            facts = _facts(columns, calls, inside & alone[calls.row], needed)
            return [evidence_of(columns, "extra", alone, text, facts, now_s)]
        circle = np.flatnonzero(waits_for_one)
        text = f"{len(circle)} ranks wait for one another in a circle: their collectives come in different orders"
        return [Evidence(kind="crossed", at_s=now_s, sentence=text, raw=_rows_text(columns, circle))]
    if not stuck.any():
        return []
    return _nobody_missing(columns, calls, inside, stuck & alive, held, now_s)


def _ran_ahead(columns: Columns, calls: Calls, inside: Mask, lags: Mask) -> Mask:
    """Ranks that are behind in a group whose waiting members have fewer steps: they have left out a call.

    They need not be sources: soon they wait in another group for those who wait for them in this one.
    """
    steps = np.full(len(calls.keys), -1, np.int64)
    np.maximum.at(steps, calls.key[inside], columns.step[calls.row[inside]])
    ahead = np.zeros(len(columns), bool)
    ahead[calls.row[lags & (steps[calls.key] >= 0) & (columns.step[calls.row] > steps[calls.key])]] = True
    return ahead if _MANY * int(ahead.sum()) <= len(columns) or ahead.sum() == 1 else np.zeros(len(columns), bool)


def _alone(columns: Columns, calls: Calls, inside: Mask) -> Mask:
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
        return [evidence_of(columns, "left-early", left, text, _rows_text(columns, np.flatnonzero(raised)), now_s)]
    return []


def _sources(
    columns: Columns, calls: Calls, source: Mask, waits: Mask, inside: Mask, needed: Ints, now_s: float
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
            return [evidence_of(columns, "extra", odd, text, _facts(columns, calls, inside, needed), now_s)]
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
    columns: Columns, kind: str, rows: Mask, calls: Calls, lagging: Mask, needed: Ints, now_s: float
) -> Evidence:
    facts = _facts(columns, calls, lagging & rows[calls.row], needed)
    return evidence_of(columns, kind, rows, _SAID[kind], facts, now_s)


def _facts(columns: Columns, calls: Calls, which: Mask, needed: Ints) -> tuple[str, ...]:
    lines = []
    for at in np.flatnonzero(which)[:SHOWN].tolist():
        row, key = int(calls.row[at]), int(calls.key[at])
        group = calls.keys[key][0]
        lines.append(
            f"rank {columns.ranks[row]}: number {int(calls.enqueued[at])} in group {group}, where others need"
            f" {int(needed[key])}; step {int(columns.step[row])}"
        )
    return tuple(lines)


def _nobody_missing(
    columns: Columns, calls: Calls, inside: Mask, stuck: Mask, held: Mask, now_s: float
) -> list[Evidence]:
    in_one = np.zeros(len(columns), bool)
    in_one[calls.row[inside]] = True
    in_one |= stuck & (columns.waits == 1) & ~held
    outside = stuck & ~in_one & ~held & (columns.waits == 0)
    if outside.any() and in_one.any() and 2 * int(outside.sum()) < int((in_one | outside).sum()):
        text = "is outside of collectives while the others wait inside"
        return [evidence_of(columns, "outside", outside, text, (), now_s)]
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
        return [evidence_of(columns, "behind", stuck, "does not get on, while others do", (), now_s)]
    if stuck.any():
        rows = np.flatnonzero(stuck)
        text = f"{len(rows)} ranks do not get on, and nothing says who waits for whom"
        ranks = columns.ranks_at(rows) if len(rows) == 1 else ()
        return [Evidence(kind="no-progress", at_s=now_s, sentence=text, ranks=ranks, raw=_rows_text(columns, rows))]
    return []


def _rows_text(columns: Columns, rows: Ints) -> tuple[str, ...]:
    return tuple(f"rank {columns.ranks[row]}: step {int(columns.step[row])}" for row in rows[:SHOWN].tolist())


def outside_by_stacks(stacks: Sequence[Stack], now_s: float) -> list[Evidence]:
    """Say who stands outside of collectives while most stand inside, where stacks are all that is known."""
    newest = {stack.rank: stack for stack in stacks}
    place = {rank: standing(stack.frames) for rank, stack in newest.items()}
    out = sorted(rank for rank, where in place.items() if where is not Standing.COLLECTIVE)
    if not out or 2 * len(out) >= len(place):
        return []
    names = ", ".join(str(rank) for rank in out[:SHOWN])
    return [
        Evidence(
            kind="outside",
            at_s=now_s,
            ranks=tuple(out),
            nodes=tuple(sorted({newest[rank].node for rank in out})),
            sentence=f"rank {names} stands outside of collectives while the others wait inside",
            raw=tuple(newest[rank].frames[0] for rank in out[:SHOWN] if newest[rank].frames),
        )
    ]
