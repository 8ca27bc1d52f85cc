"""What launchers and controllers need of the watcher, which is another system: here two Protocols, made in `cli`.

An `Eye` looks at the ranks of one node, for its launcher; what it sees is bytes that a launcher passes on unread. A
`Judge` takes what all eyes have seen, for the controller, and says what is wrong. Both look and think in processes of
their own: one that hangs, fails or dies costs a job its names for things and nothing else.
"""

from __future__ import annotations

from typing import Final, Protocol

import msgspec

from perdure.supervisor.vocabulary import Acknowledge, Judged, Mute

__all__ = ["MAX_LOOK_BYTES", "Began", "Ending", "Eye", "Found", "Gone", "Judge", "Said", "Told", "Wanted"]

MAX_LOOK_BYTES: Final = 512 << 10
"""What an eye may say at once; more is cut by it, and refused by launchers and controllers."""


class Began(msgspec.Struct, frozen=True, kw_only=True, tag="began"):
    """The ranks of an attempt are about to be started here."""

    attempt: int
    ranks: tuple[int, ...]


class Gone(msgspec.Struct, frozen=True, kw_only=True, tag="gone"):
    """A rank has ended, and nobody had told it to."""

    rank: int
    pid: int
    code: int | None = None
    signal: int | None = None


class Said(msgspec.Struct, frozen=True, tag="said"):
    """Lines that ranks have printed, each with its rank; of many the last."""

    lines: tuple[tuple[int, str], ...]


class Ending(msgspec.Struct, frozen=True, tag="ending"):
    """The attempt is being ended: whatever ends from now on says nothing."""


class Wanted(msgspec.Struct, frozen=True, tag="wanted"):
    """The stacks of these ranks would help."""

    ranks: tuple[int, ...]


Told = Began | Gone | Said | Ending | Wanted


class Eye(Protocol):
    """The launcher's hold on what looks at its ranks. From the launcher's main thread; no call may block."""

    @property
    def pid(self) -> int | None:
        """Its process, which the launcher must not reap; None while there is none."""
        ...

    def tell(self, what: Told) -> None:
        """Something has happened to the ranks."""
        ...

    def poll(self) -> list[bytes]:
        """What it has seen since the last call, at most `MAX_LOOK_BYTES` each. Called every ``monitor_s``: be cheap."""
        ...

    def problem(self) -> str:
        """A sentence if something is wrong with it that was not said before, else empty."""
        ...

    def close(self) -> None:
        """The launcher ends: leave nothing behind."""
        ...


class Found(msgspec.Struct, frozen=True):
    """What a judge says: incidents that are new or have changed, and ranks whose stacks would help."""

    judged: tuple[Judged, ...] = ()
    wanted: tuple[int, ...] = ()
    heard: bool = False
    "Whether it has said anything, be it that there is nothing."


class Judge(Protocol):
    """The controller's hold on what makes something of the looks. From its main thread; no call may block."""

    def take(self, look: bytes) -> None:
        """A launcher has sent what its eye saw."""
        ...

    def tell(self, what: Mute | Acknowledge) -> None:
        """A person has said something about incidents."""
        ...

    def poll(self) -> Found:
        """What it has found since the last call. Called ten times a second: be cheap."""
        ...

    def problem(self) -> str:
        """A sentence if something is wrong with it that was not said before, else empty."""
        ...

    def close(self) -> None:
        """The controller ends."""
        ...
