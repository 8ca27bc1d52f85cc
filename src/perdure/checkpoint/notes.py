"""How ranks that save without an agent hear of each other's failures: short notes that all read while they wait.

Theory. A save that one rank cannot make durable must fail on every rank, and soon: rank 0 waits for the part of each,
the others wait for its commit, all on background threads, where no collective may run. So a rank that fails leaves a
note under the name of the save. Rank 0 heeds the notes of the others; the others heed its alone, because it alone
commits: once it has given up before it tried to, the save is *final*ly dead, and whatever was written for it may be
deleted. The store of the run is no place for notes: it may be what failed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from perdure.errors import PerdureError, RankFailed, TryAgain, from_wire, to_wire

__all__ = ["FailureNotes", "Notes"]


class Notes(Protocol):
    """A board that all ranks of a job can reach from any thread, without waiting for one another."""

    def leave(self, name: str, text: bytes) -> None:
        """Put ``text`` under ``name``, over what was there. Raises `LinkLost` if the board is gone."""
        ...

    def read(self, name: str) -> bytes | None:
        """What was left under ``name``; None if nothing was. Raises `LinkLost` if the board is gone."""
        ...

    def read_all(self, names: Sequence[str]) -> list[bytes] | None:
        """What was left under each of ``names``; None if under one nothing was. Raises `LinkLost`, as above."""
        ...


class FailureNotes:
    """The notes of one session; ``notes`` is None where there is one rank only. Used from any thread."""

    def __init__(self, notes: Notes | None, *, session: str, rank: int) -> None:
        self._notes, self._session, self._rank = notes, session, rank

    def tell(self, seq: int, error: PerdureError) -> None:
        """Tell the other ranks that save ``seq`` has failed here; of rank 0 the fact ``final`` counts."""
        if self._notes is not None:
            try:
                self._notes.leave(self._name(seq, self._rank == 0), msgspec.json.encode([self._rank, to_wire(error)]))
            except TryAgain:
                pass  # whoever kept the board is gone, and with it the job

    def heed(self, seq: int) -> None:
        """Raise what another rank left about save ``seq``, if one did; with the fact ``final`` if that is the end."""
        if self._notes is None:
            return
        try:
            text = self._notes.read(self._name(seq, self._rank != 0))
        except TryAgain as error:
            raise RankFailed(f"rank 0 has left: {error}", rank=0) from error
        if text is None:
            return
        rank, found = msgspec.json.decode(text, type=tuple[int, dict[str, Any]])
        theirs = from_wire(found)
        if "from_rank" in theirs.facts:  # rank 0 passes on what it heeded
            raise theirs
        raise type(theirs)(f"rank {rank}: {theirs}", **theirs.facts, from_rank=rank)

    def say(self, seq: int, digests: Mapping[str, str]) -> None:
        """Tell rank 0 the digests of what this rank holds in common with others in save ``seq``."""
        if self._notes is not None:
            self._notes.leave(f"{self._session}/{seq}/said-{self._rank}", msgspec.json.encode(dict(digests)))

    def said(self, seq: int, rank: int) -> dict[str, str]:
        """What ``rank`` has said of save ``seq``; it does so before it writes its part."""
        text = None if self._notes is None else self._notes.read(f"{self._session}/{seq}/said-{rank}")
        return {} if text is None else msgspec.json.decode(text, type=dict[str, str])

    def _name(self, seq: int, of_rank_0: bool) -> str:
        return f"{self._session}/{seq}/{'given-up' if of_rank_0 else 'failed'}"
