"""What a plan needs of the links between ranks.

Four verbs and two facts, so that a twin is short: `perdure.fabric.solo` (one process), `perdure.fabric.threads` (ranks
as threads, for tests), sockets, and a process group. `perdure.testing.fabric` holds what every twin must pass.
"""

from __future__ import annotations

from typing import Protocol, TypeAlias

from perdure.clock import Deadline

__all__ = ["Bytes", "Fabric"]

Bytes: TypeAlias = bytes | bytearray | memoryview
"""What can be sent: contiguous; the sender may change it as soon as the verb returns."""


class Fabric(Protocol):
    """The links of one rank to all others. One thread a rank uses it; nothing waits without a deadline.

    A wait that ends unmet raises `DeadlineExceeded` with fact ``missing``, the list of ranks that were awaited, or
    `LinkLost` (fact ``missing`` too) as soon as it is known that they cannot answer any more.
    """

    @property
    def rank(self) -> int:
        """This rank."""
        ...

    @property
    def world(self) -> int:
        """How many ranks there are."""
        ...

    def all_gather(self, data: Bytes, *, deadline: Deadline) -> list[bytes]:
        """What each rank gave, in rank order; lengths may differ. Every rank calls it, in the same order.

        With ``b""`` it is a barrier.
        """
        ...

    def send(self, to: int, data: Bytes) -> None:
        """Hand ``data`` over to rank ``to`` (itself too); never waits for the receiver, so it keeps a copy.

        Messages from one rank to another arrive whole and in order. Raises `CallError` if there is no rank ``to``.
        """
        ...

    def recv(self, source: int, *, deadline: Deadline) -> bytes:
        """The next message from rank ``source``. Raises `CallError` if there is no rank ``source``."""
        ...
