"""One examination of nodes: their own checks, then two rounds in which groups of nodes are compared. No I/O.

A round ends when every node that was asked has answered, or is gone, or the time is over: a node that does not answer
has failed. Groups are chosen and judged by `perdure.supervisor.pairing`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perdure.supervisor.job import NodeFacts
from perdure.supervisor.pairing import Group, first_round, judge, second_round
from perdure.supervisor.vocabulary import Examine, Examined

__all__ = ["Examination"]

_OWN, _FIRST, _SECOND = 0, 1, 2


class Examination:
    """Runs the checks ``names`` of each node, then compares ``paired`` (fewer than two: no comparison).

    `orders` begins a round; the next one is due when `next_round_due`; `bad` is complete once it is `over`.
    """

    def __init__(
        self,
        names: Mapping[str, Sequence[str]],
        nodes: Sequence[NodeFacts],
        paired: Sequence[NodeFacts],
        *,
        within_s: float,
    ) -> None:
        self._names = {name: tuple(checks) for name, checks in names.items()}
        self._nodes = {node.name: node for node in nodes}
        self._within_s = within_s
        self._rounds: list[int] = [_OWN] if any(self._names.values()) else []
        self._rounds += [_FIRST, _SECOND] if len(paired) > 1 else []
        self._paired = {node.name: node for node in paired}
        self._round: int | None = None
        self._due_s = 0.0
        self._awaited: set[str] = set()
        self._bad: dict[str, str] = {}
        self._slow: dict[str, str] = {}
        self._groups: tuple[Group, ...] = ()
        self._answers: dict[str, Examined] = {}
        self._results: list[dict[Group, float | None]] = []

    def orders(self, now: float) -> list[Examine]:
        """The orders of the round that begins now."""
        self._round = self._rounds.pop(0)
        self._due_s = now + self._within_s
        self._answers = {}
        if self._round == _OWN:
            self._awaited = {name for name in self._nodes if self._names.get(name)}
            return [self._order(name, names=self._names[name]) for name in self._nodes if name in self._awaited]
        names = [name for name in self._paired if name not in self._bad]
        self._groups = first_round(names) if self._round == _FIRST else second_round(names, self._results[0])
        self._awaited = set(names)
        return [
            self._order(name, group=tuple(self._paired[each] for each in group))
            for group in self._groups
            for name in group
        ]

    def _order(self, name: str, *, names: tuple[str, ...] = (), group: tuple[NodeFacts, ...] = ()) -> Examine:
        assert self._round is not None
        return Examine(node=name, round=self._round, names=names, group=group, within_s=self._within_s)

    def found(self, event: Examined) -> None:
        """A node has answered; what is late or twice is ignored."""
        if event.round != self._round or event.node not in self._awaited:
            return
        self._awaited.discard(event.node)
        self._answers[event.node] = event

    def gone(self, name: str) -> None:
        """A node is not there any more: nothing is to be awaited of it."""
        self._awaited.discard(name)

    def next_round_due(self, now: float) -> bool:
        """Whether `orders` has another round, and the one before is over."""
        self._look(now)
        return self._round is None and bool(self._rounds)

    def over(self, now: float) -> bool:
        """Whether nothing more is to come."""
        self._look(now)
        return self._round is None and not self._rounds

    def _look(self, now: float) -> None:
        """Judge the round if it has come to its end."""
        if self._round is not None and (not self._awaited or now >= self._due_s):
            self._close()
            if len([name for name in self._paired if name not in self._bad]) < 2:
                self._rounds = []  # nobody is left to be compared

    def bad(self) -> dict[str, str]:
        """What is wrong with which node."""
        return dict(self._bad)

    def slow(self) -> dict[str, str]:
        """Which nodes are much slower than the others, with a sentence."""
        return dict(self._slow)

    def _close(self) -> None:
        closed, self._round = self._round, None
        if closed == _OWN:
            for name in self._awaited:
                self._bad[name] = f"it gave no answer to its checks within {self._within_s:g} s"
            for name, event in self._answers.items():
                if event.bad:
                    self._bad[name] = "; ".join(event.bad)
        else:
            self._results.append({group: self._seconds(group) for group in self._groups})
            if closed == _SECOND:
                judged = judge(self._results[0], self._results[1])
                self._bad |= {name: judged.says[name] for name in judged.bad}
                self._slow |= {name: judged.says[name] for name in judged.stragglers}
        self._awaited = set()

    def _seconds(self, group: Group) -> float | None:
        """How long a group took; None if it failed."""
        answers = [self._answers.get(name) for name in group]
        seconds = [None if answer is None or answer.bad else answer.seconds for answer in answers]
        known = [each for each in seconds if each is not None]
        return max(known) if len(known) == len(group) else None
