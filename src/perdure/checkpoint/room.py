"""Which segment of the agent's memory a rank may fill next, and which generations may go for it. Pure.

A rank has two segments, and a third one while a *base* is kept: the durable generation that deltas are made on. Those
of local rank r have the numbers from ``r * SEGMENTS_PER_RANK``.

The newest complete generation is always kept: it is what a restarted rank comes back from. So a rank may fill a
segment only if no kept generation lies in it; the others wait (back-pressure). One before it that lies in memory alone
stays until its segment is wanted, which is when all ranks of all nodes have staged the newest: until then a rank that
dies while it copies would leave neither.
"""

from __future__ import annotations

from collections.abc import Sequence

from perdure.checkpoint.vocabulary import Generation, Phase

__all__ = ["SEGMENTS_PER_RANK", "free_segment", "to_spare"]

SEGMENTS_PER_RANK = 3
_IN_USE = 2  # of those, at a time, beside the base's


def to_spare(generations: Sequence[Generation], base: Generation | None) -> tuple[list[Generation], list[Generation]]:
    """The generations that go at once, and those that go when a segment is wanted; both oldest first, as given."""
    whole = [each for each in generations if each.whole and each.digested]
    newest = next((each for each in reversed(whole) if each.staged), None)  # and so of use
    last = whole[-1] if whole else None  # an heir may have it made durable again
    gone: list[Generation] = []
    older: list[Generation] = []
    for each in generations:
        if each.at_rest and each.adopter is None and not any(each is kept for kept in (newest, last, base)):
            (gone if each.phase is Phase.DURABLE or not each.staged else older).append(each)
    return gone, older


def free_segment(local_rank: int, generations: Sequence[Generation], base: Generation | None) -> int | None:
    """The number of a segment in which nothing lies that is kept; None if the rank has filled all that it may."""
    first = local_rank * SEGMENTS_PER_RANK
    mine = range(first, first + SEGMENTS_PER_RANK)
    taken = {segment for each in generations for segment in each.lanes.values() if segment in mine}
    kept = set() if base is None else set(base.lanes.values())
    if len(taken - kept) >= _IN_USE:
        return None
    return next((segment for segment in mine if segment not in taken), None)
