"""How node 0 finds a step at which the ranks of all nodes stop: one that lies ahead of every rank, as
`perdure.progress.stop` tells.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from perdure.checkpoint.peer_messages import StopFirm, StopLook
from perdure.clock import Deadline
from perdure.errors import AgentLost, PerdureError
from perdure.progress import MARGIN_STEPS

__all__ = ["Stopping"]

_LOOK_S = 8.0  # less than ranks wait for a step to become firm


class Stopping:
    """Used by the council of node 0. ``look`` and ``firm`` are of its own node; ``lost`` says why no answer comes."""

    def __init__(
        self,
        *,
        members: Callable[[], list[int]],
        send: Callable[[int, object], None],
        look: Callable[[int], int],
        firm: Callable[[int], None],
        lost: Callable[[], AgentLost | None],
        label: Callable[[int], str],
    ) -> None:
        self._members, self._send, self._look, self._firm = members, send, look, firm
        self._lost, self._label = lost, label
        self._changed = threading.Condition()
        self._seen: dict[int, dict[int, int]] = {}  # proposed step -> node -> the largest step there
        self.agreeing = False
        """whether an agreement is under way, or has been reached"""

    def wanted(self) -> None:
        """A rank was asked to stop: agree, on a thread."""
        with self._changed:
            if self.agreeing:
                return
            self.agreeing = True
        threading.Thread(target=self._agree, name="stop", daemon=True).start()

    def seen(self, node: int, *, proposed: int, step: int) -> None:
        """The largest step of a node once it had seen ``proposed``."""
        with self._changed:
            self._seen.setdefault(proposed, {})[node] = step
            self._changed.notify_all()

    def _agree(self) -> None:
        try:
            target = 0
            while True:
                steps = self._looks(target, Deadline.after(_LOOK_S, "the steps of all nodes"))
                if target and max(steps) < target:
                    break
                target = max(steps) + MARGIN_STEPS
            for node in self._members():
                self._send(node, StopFirm(step=target))
            self._firm(target)
        except PerdureError:  # a node is gone, or slow: whoever still wants to stop asks again
            self.agreeing = False

    def _looks(self, proposed: int, deadline: Deadline) -> list[int]:
        """The largest step of each node once all of them have seen ``proposed``."""
        with self._changed:
            self._seen.pop(proposed, None)
        members = self._members()
        for node in members:
            self._send(node, StopLook(proposed=proposed))
        own = self._look(proposed)
        with self._changed:
            while len(found := self._seen.get(proposed, {})) < len(members):
                gone = self._lost()
                if gone is not None:
                    raise gone
                deadline.check(", ".join(self._label(node) for node in members if node not in found))
                self._changed.wait(min(0.5, deadline.left()))
            return [own, *found.values()]
