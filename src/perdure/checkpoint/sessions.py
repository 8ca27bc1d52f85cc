"""Who is connected to the agent, who has left, and which saves of a session failed before they were whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from perdure.checkpoint.vocabulary import Client
from perdure.errors import PerdureError, to_wire

__all__ = ["Sessions"]


class Sessions:
    """What `generations` knows of connections. ``clients`` are those that introduced themselves, by their number."""

    def __init__(self) -> None:
        self.clients: dict[int, Client] = {}
        self._departed: dict[str, int] = {}  # session -> the last rank of it that has left
        self._failed: dict[tuple[str, int], dict[str, Any]] = {}

    def join(self, client: Client) -> None:
        """A connection introduced itself."""
        self.clients[client.id] = client

    def leave(self, client_id: int) -> Client | None:
        """A connection closed; who it was, if it had introduced itself."""
        client = self.clients.pop(client_id, None)
        if client is not None and client.local_rank is not None:
            self._departed[client.session] = client.rank
        return client

    def forget(self, session: str) -> None:
        """Drop what is noted of ``session`` if nobody of it is here any more."""
        if not self.has(session):
            self._departed.pop(session, None)
            self._failed = {name: error for name, error in self._failed.items() if name[0] != session}

    def has(self, session: str) -> bool:
        """Whether somebody of ``session`` is connected."""
        return any(client.session == session for client in self.clients.values())

    def ranks_of(self, session: str) -> Iterator[Client]:
        """The ranks of ``session`` that are connected."""
        return (each for each in self.clients.values() if each.session == session and each.local_rank is not None)

    def left(self, session: str) -> int | None:
        """A rank of ``session`` that has left, while others are here."""
        return self._departed.get(session)

    def note_failure(self, session: str, seq: int, error: PerdureError) -> None:
        """The save failed before all ranks had staged; what failed it first counts."""
        self._failed.setdefault((session, seq), to_wire(error))

    def failure(self, session: str, seq: int) -> dict[str, Any] | None:
        """Why the save failed, as it goes over the wire."""
        return self._failed.get((session, seq))
