"""One examination of nodes: their own checks, then two rounds in which pairs of nodes are compared. No I/O.

A round ends when every node that was asked has answered, or is gone, or the time is over: a node that does not answer
has failed. Pairs are chosen and judged by `perdure.supervisor.pairing`.
"""

from __future__ import annotations

from collections.abc import Sequence

from perdure.supervisor.job import NodeFacts
from perdure.supervisor.vocabulary import Examine, Examined

__all__ = ["Examination"]

_OWN = 0


class Examination:
    """Examines ``nodes`` with the checks ``names``, then compares ``paired`` (none: no comparison)."""

    def __init__(
        self,
        names: Sequence[str],
        nodes: Sequence[NodeFacts],
        paired: Sequence[NodeFacts],
        *,
        now: float,
        within_s: float,
    ) -> None:
        self._names = tuple(names)
        self._nodes = {node.name: node for node in nodes}
        self._within_s = within_s
        self._round = _OWN
        self._ordered = False
        self._due_s = now + within_s
        self._awaited: set[str] = set()
        self._bad: dict[str, str] = {}

    def orders(self, now: float) -> list[Examine]:
        """The orders of the round that begins now."""
        self._ordered, self._due_s = True, now + self._within_s
        self._awaited = set(self._nodes)
        return [
            Examine(node=name, round=self._round, names=self._names, within_s=self._within_s) for name in self._nodes
        ]

    def found(self, event: Examined) -> None:
        """A node has answered; what is late or twice is ignored."""
        if event.round != self._round or event.node not in self._awaited:
            return
        self._awaited.discard(event.node)
        if event.bad:
            self._bad[event.node] = "; ".join(event.bad)

    def gone(self, name: str) -> None:
        """A node is not there any more: nothing is to be awaited of it."""
        self._awaited.discard(name)

    def next_round_due(self, now: float) -> bool:
        """Whether `orders` has another round."""
        return False

    def over(self, now: float) -> bool:
        """Whether nothing more is to come."""
        return self._ordered and (not self._awaited or now >= self._due_s)

    def bad(self) -> dict[str, str]:
        """What is wrong with which node; complete once it is `over`."""
        silent = dict.fromkeys(self._awaited, f"gave no answer to its checks within {self._within_s:g} s")
        return silent | self._bad
