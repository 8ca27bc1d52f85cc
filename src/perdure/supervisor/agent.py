"""What the launcher needs of the agent of its node, which is another system: here a Protocol and its absence."""

from __future__ import annotations

from typing import Protocol

from perdure.progress import Page

__all__ = ["AgentLink", "NoAgent"]


class AgentLink(Protocol):
    """The launcher's hold on the agents of its job. Called from the launcher's main thread; no call may block for long.

    The launcher reaps every dead child of its process that is not a rank: an implementation starts no process of its
    own, or expects to find it reaped.
    """

    def begin_attempt(self, attempt: str) -> None:
        """Ranks of ``attempt`` (its mark: no two attempts share it) are about to start; the page of the last one is
        over.
        """
        ...

    def page(self) -> Page | None:
        """The progress page of this attempt once an agent has one; readable until the next `begin_attempt` or
        `release`.
        """
        ...

    def poll(self) -> None:
        """Look for agents that ranks have started, and keep their lease. Called every ``monitor_s``: be cheap."""
        ...

    def release(self) -> None:
        """The launcher ends: let the agents drain and go."""
        ...


class NoAgent:
    """No agent: the launcher sees no progress, so each restart counts."""

    def begin_attempt(self, attempt: str) -> None:
        pass

    def page(self) -> Page | None:
        return None

    def poll(self) -> None:
        pass

    def release(self) -> None:
        pass
