"""Which nodes to compare with which, twice, so that a bad or slow one is told from its partners.

Pure. A *group* of nodes does the same collective work (`perdure.adapters.torch.pair_check`); it fails if one of its
nodes is bad and is as slow as its slowest node, so one round tells groups apart, not nodes. The second round sets each
suspect beside a partner that has just passed. The idea is that of DLRover's node check; the rules are ours.

Theory. A node is *cleared* if a group of at least two nodes with it passed: then it is good. A node is *bad* if a group
failed in which all others are cleared, or if it failed alone. So a good node is never called bad, however many others
are, as long as a group fails when and only when one of its nodes is bad. And one bad node among four or more is always
found: its first partners are all cleared, or all but it are, in the second round. A node that failed only beside bad
ones is not suspected. Slowness is judged in the same way, with "much slower than most groups" for "failed", among
groups that passed.

Three nodes are two groups a round, of which one is a node alone. If a node fails beside both others, it is called bad;
that both others are bad instead is possible and is said. Two nodes cannot be told apart but by running alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from perdure.errors import CallError

__all__ = ["Group", "Judged", "Results", "first_round", "judge", "second_round"]

Group = tuple[str, ...]
Results = Mapping[Group, float | None]
"""Seconds that each group took; None if it failed or did not end in time."""

Trials = Sequence[tuple[Group, float | None]]
"""Groups of both rounds, with their seconds."""

_SLOW = 2.0


@dataclass(frozen=True, slots=True)
class Judged:
    """What two rounds tell: which nodes are bad, which slow, of which it cannot be said; a sentence each."""

    bad: tuple[str, ...] = ()
    stragglers: tuple[str, ...] = ()
    unsure: tuple[str, ...] = ()
    says: dict[str, str] = field(default_factory=dict)


def first_round(nodes: Sequence[str]) -> tuple[Group, ...]:
    """Groups of neighbours; an odd number makes one group of three, three nodes make a pair and one alone.

    >>> first_round(["a", "b", "c", "d", "e"])
    (('a', 'b'), ('c', 'd', 'e'))
    """
    if len(set(nodes)) < len(nodes):
        raise CallError("a node is named twice; each must have its own name", nodes=list(nodes))
    groups = [tuple(nodes[i : i + 2]) for i in range(0, len(nodes), 2)]
    if len(nodes) > 3 and len(nodes) % 2:
        alone = groups.pop()
        groups[-1] += alone
    return tuple(groups)


def second_round(nodes: Sequence[str], results: Results) -> tuple[Group, ...]:
    """Groups that set each node of a failed group beside one that passed, and the slower half beside the faster.

    A suspect for which nobody is left that passed runs alone: first those whose former partner has somebody.
    ``results`` must tell of each node.
    """
    _check(nodes, results)
    rank = {node: i for i, node in enumerate(nodes)}
    failed = [group for group, seconds in results.items() if seconds is None]
    suspects = [node for place in range(max(map(len, failed), default=0)) for node in _nth(failed, place)]
    # Slowest first; what ran alone did less, so its seconds say nothing: it counts as the least sure.
    order = {
        node: (len(group) > 1, -seconds, rank[node])
        for group, seconds in results.items()
        for node in group
        if seconds is not None
    }
    good = sorted(order, key=lambda node: order[node])
    beside = min(len(suspects), len(good))
    groups: list[Group] = [(suspect, good.pop()) for suspect in suspects[:beside]]
    half, odd = divmod(len(good), 2)
    groups += [(good[i], good[i + half + odd]) for i in range(half)]
    if odd:
        middle = good[half]
        if groups and not any({middle, groups[-1][0]} <= set(group) for group in results):
            groups[-1] += (middle,)
        else:  # of five nodes the three that were one group must now be in three
            groups.append((middle,))
    groups += [(suspect,) for suspect in suspects[beside:]]
    return tuple(groups)


def judge(results1: Results, results2: Results, *, slow: float = _SLOW) -> Judged:
    """Tell which nodes are bad and which are slow from the results of the two rounds.

    A group is slow if it took more than ``slow`` times the median of all groups; one of three may take twice that.
    """
    nodes = list(dict.fromkeys(node for group in results1 for node in group))
    _check(nodes, results1)
    _check(nodes, results2)
    trials = [*results1.items(), *results2.items()]
    bad, unsure, says = _from_failures(nodes, trials)
    stragglers = {node: sentence for node, sentence in _from_seconds(trials, slow).items() if node not in bad}
    return Judged(
        bad=tuple(node for node in nodes if node in bad),
        stragglers=tuple(node for node in nodes if node in stragglers),
        unsure=tuple(unsure),
        says={**says, **stragglers},
    )


def _from_failures(nodes: Sequence[str], trials: Trials) -> tuple[set[str], list[str], dict[str, str]]:
    """Nodes that are bad, nodes of which it cannot be said, and a sentence for whatever failed unexplained."""
    says: dict[str, str] = {}
    failed = [group for group, seconds in trials if seconds is None]
    cleared = {node for group, seconds in trials if seconds is not None and len(group) > 1 for node in group}
    bad = _blamed(failed, cleared)
    for node in bad:
        says[node] = _why_bad(node, failed)
    if len(nodes) == 3 and not bad:
        for node in nodes:
            if sum(node in group and len(group) == 2 for group in failed) == 2:
                bad = {node}
                a, b = (other for other in nodes if other != node)
                says[node] = f"{node} failed beside {a} and beside {b}: it is bad, or both of them are"
    unsure = []
    for node in nodes:
        its = [group for group in failed if node in group]
        explained = all(bad & set(group) for group in its)
        if node in bad or not its or (explained and node in cleared):
            continue
        if node in cleared:
            says[node] = f"{node} failed in one group and passed in another: a fault that passes, or another's"
        elif explained:
            says[node] = f"{node} failed only beside a node that is bad; it has passed beside nobody yet"
        else:
            unsure.append(node)
            says[node] = _why_unsure(node, nodes, its)
    return bad, unsure, says


def _from_seconds(trials: Trials, slow: float) -> dict[str, str]:
    """The nodes that are slow, and a sentence each."""
    timed = [(group, seconds) for group, seconds in trials if seconds is not None and len(group) > 1]
    if not timed:
        return {}
    usual_s = sorted(seconds for _, seconds in timed)[(len(timed) - 1) // 2]
    # Three gather twice the bytes of two, so a group of three is late at twice the time, but prompt at the time of two.
    late = [group for group, seconds in timed if seconds > slow * usual_s * (len(group) - 1)]
    prompt = {node for group, seconds in timed if seconds <= slow * usual_s for node in group}
    says = {}
    for node in _blamed(late, prompt):
        best_s = min(seconds for group, seconds in timed if node in group)
        says[node] = f"{node} is slow: {best_s:.3g} s in its best group, {usual_s:.3g} s in most"
    return says


def _blamed(wrong: Iterable[Group], cleared: set[str]) -> set[str]:
    """Nodes without which a group would not have gone wrong: all its other nodes are cleared."""
    blamed = set()
    for group in wrong:
        left = [node for node in group if node not in cleared or len(group) == 1]
        if len(left) == 1 and left[0] not in cleared:
            blamed.add(left[0])
    return blamed


def _why_bad(node: str, failed: Sequence[Group]) -> str:
    groups = [group for group in failed if node in group]
    if (node,) in groups:
        return f"{node} failed with no other node beside it"
    beside = " and beside ".join(", ".join(other for other in group if other != node) for group in groups)
    return f"{node} failed beside {beside}, where the others pass without it"


def _why_unsure(node: str, nodes: Sequence[str], groups: Sequence[Group]) -> str:
    others = sorted({other for group in groups for other in group} - {node})
    if len(nodes) == 2:
        pair = f"{node} and {others[0]}"
        return f"{pair} fail together and pass alone: which of them, or the link between them, cannot be told apart"
    return f"{node} failed beside {', '.join(others)} and passed beside nobody: they cannot be told apart in two rounds"


def _check(nodes: Sequence[str], results: Results) -> None:
    told = [node for group in results for node in group]
    if sorted(told) != sorted(nodes):
        raise CallError("the results of a round must name each node once", nodes=sorted(nodes), told=sorted(told))


def _nth(groups: Iterable[Group], place: int) -> list[str]:
    return [group[place] for group in groups if len(group) > place]
