"""Which ranks do equal work, so that their times may be compared: from what they do in their process groups. Pure.

Ranks that hold replicas of the same parameters (`RankSample.replicas`, of a DDP) do equal work by definition. Of others
the groups tell. Ranks of a tensor-parallel, sharded or data-parallel group do the same work on other data or other
slices; stages of a pipeline do not, but their groups can be told by what is *not* done in them: a stage sends and
receives, which is no collective, and has few of those a step (a norm, a count). So groups are counted over some steps:

- a group in which less than one collective a step was called, or whose ranks called different numbers of them, joins
  nobody, nor does one whose operations or name are those of a pipeline;
- the group that was used most joins its ranks, and so does each in which at least four collectives a step were called;
- if two groups were used equally much, neither does: who cannot be told apart is not compared.

What is joined is joined transitively: eight tensor-parallel ranks of each of many data-parallel replicas are one class.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from perdure.watcher.samples import GroupState, RankSample

__all__ = ["LEAST_STEPS", "Counts", "counts_of", "equals"]

LEAST_STEPS: Final = 8
"""Over so many steps groups are counted."""
_MANY: Final = 4.0
_UNEVEN: Final = 0.1
_SLACK: Final = 8
"""Ranks are looked at at different moments of a step."""
_STAGES: Final = ("send", "recv", "coalesced")
_NAMED: Final = ("pp", "pipe", "stage", "embed")

Counts = Mapping[int, tuple[int, Mapping[tuple[str, int], int]]]
"""Of each rank its step, and what it has enqueued in each group, by name and size."""


def counts_of(samples: Iterable[RankSample]) -> dict[int, tuple[int, Mapping[tuple[str, int], int]]]:
    """What ranks have done so far, to be compared with what they have done later."""
    return {
        each.rank: (each.step, {(group.group, group.size): group.enqueued for group in each.groups})
        for each in samples
        if each.step is not None
    }


def equals(before: Counts, now: Sequence[RankSample]) -> list[tuple[int, ...]]:
    """The classes of equal ranks, each of at least two, from what they have done since ``before``.

    >>> def at(step, tp):
    ...     return [
    ...         RankSample(
    ...             rank=rank, node="a", at_s=0.0, step=step,
    ...             groups=(
    ...                 GroupState(group=f"tp{rank // 2}", size=2, enqueued=tp, completed=tp),
    ...                 GroupState(group="world", size=4, enqueued=step, completed=step),
    ...             ),
    ...         )
    ...         for rank in range(4)
    ...     ]
    >>> equals(counts_of(at(10, tp=40)), at(20, tp=240))
    [(0, 1), (2, 3)]
    """
    classes = _Classes(each.rank for each in now)
    left = [each for each in now if not each.replicas]
    of_replicas: dict[str, int] = {}
    for each in now:
        if each.replicas:
            classes.join(of_replicas.setdefault(each.replicas, each.rank), each.rank)
    for members in _joining(before, left):
        for rank in members[1:]:
            classes.join(members[0], rank)
    return classes.found()


def _joining(before: Counts, now: Sequence[RankSample]) -> list[list[int]]:
    """The ranks of each group that joins them."""
    done: dict[tuple[str, int], dict[int, float]] = {}
    barred: set[tuple[str, int]] = set()
    steps = 1
    alone = all(not each.groups for each in now)
    for each in now:
        then = before.get(each.rank)
        if then is None or each.step is None or each.step - then[0] < LEAST_STEPS:
            continue
        steps = max(steps, each.step - then[0])
        for group in each.groups:
            key = group.group, group.size
            if _is_pipeline(group):
                barred.add(key)
            done.setdefault(key, {})[each.rank] = group.enqueued - then[1].get(key, 0)
    if alone:
        return [[each.rank for each in now if each.step is not None]]
    used = {}
    for key, counts in done.items():
        least, most = min(counts.values()), max(counts.values())
        if key not in barred and len(counts) > 1 and most - least <= _UNEVEN * most + _SLACK and most + 1 >= steps:
            used[key] = most
    of_rank: dict[int, list[tuple[str, int]]] = {}
    for key in used:
        for rank in done[key]:
            of_rank.setdefault(rank, []).append(key)
    found = []
    for key, most in used.items():
        members = sorted(done[key])
        others = {other for rank in members for other in of_rank[rank] if used[other] >= 0.9 * most}
        if most >= _MANY * steps or all(done[other].keys() == done[key].keys() for other in others):
            found.append(members)
    return found


def _is_pipeline(group: GroupState) -> bool:
    name = group.group.lower()
    words = name.replace("-", "_").replace(".", "_").split("_")
    return any(word in group.op for word in _STAGES) or any(
        word.rstrip("0123456789") in _NAMED or word.startswith("embed") for word in words
    )


class _Classes:
    """Ranks that are joined to each other (union and find)."""

    def __init__(self, ranks: Iterable[int]) -> None:
        self._above = {rank: rank for rank in ranks}

    def _top(self, rank: int) -> int:
        while self._above[rank] != rank:
            self._above[rank] = rank = self._above[self._above[rank]]
        return rank

    def join(self, one: int, other: int) -> None:
        one, other = self._top(one), self._top(other)
        self._above[max(one, other)] = min(one, other)

    def found(self) -> list[tuple[int, ...]]:
        """All classes of two and more, by their first ranks."""
        classes: dict[int, list[int]] = {}
        for rank in sorted(self._above):
            classes.setdefault(self._top(rank), []).append(rank)
        return [tuple(ranks) for ranks in classes.values() if len(ranks) > 1]
