"""Ranks of one node hand bytes to one another: what one of them has read, in bays of shared memory.

Theory. Work is cut into *units*, numbered, the same on every rank. Each has one rank that reads it and some that want
it too. A rank writes to its own segment alone and maps those of the others read-only: there it says which of its units
are filled and which of theirs it has taken. A unit lies in a bay of its reader's; the next one goes into the same bay
when all who wanted the first have taken it. Everybody works on units in the order of their numbers. So of all units
that somebody still waits for, the lowest can always be filled: all before it have been taken, so its bay is free.

Nobody depends on anybody: each wait ends when the other process ends, when it says that the unit will not come, or at a
deadline; then who waited reads by itself. What lies in a bay is compared with digests by who takes it, so a bay that
was overwritten, or is seen half filled, is a bad copy and no more.

A segment is found by the process and descriptor that its rank tells the others (`Relay.invitation`); a token in it
proves that it is the one that was meant.
"""

from __future__ import annotations

import os
import select
import struct
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from perdure.clock import Deadline
from perdure.errors import CallError, PerdureError, StorageError
from perdure.shm import Segment

__all__ = ["MOST_UNITS", "Invitation", "Relay", "Unit"]

MOST_UNITS = 1 << 20
_TOKEN_BYTES = 16
_OUT, _WHY_NBYTES, _WHY, _LETTER_NBYTES = 16, 20, 32, 24  # where what lies in the first page
_WHY_MOST = 2000
_HEAD = 4096
_FILLED, _SKIPPED = 1, 2
_NAP_S = (0.0002, 0.005)
_LOOK_S = 0.1  # between two looks whether the other process lives

Invitation = tuple[int, int, str]
"""Process id, descriptor there, token: plain values, for the other ranks of the node."""


@dataclass(frozen=True, slots=True)
class Unit:
    """``nbytes`` bytes that ``reader`` reads and that all ``wanters``, it among them, want."""

    reader: int
    wanters: tuple[int, ...]
    nbytes: int


class Relay:
    """One rank's segment and those of the others. Filled and read from any thread of the rank.

    ``letter`` is what this rank wants to tell the others; they read it when they `meet`. A bay has ``bay_bytes``.
    After ``wait_s`` without news of a rank it is not waited for any more.
    """

    def __init__(self, letter: bytes, *, n_bays: int, bay_bytes: int, label: str, wait_s: float) -> None:
        self._n_bays, self._bay_bytes, self._wait_s = n_bays, bay_bytes, wait_s
        self._flags = _HEAD + -(-len(letter) // _HEAD) * _HEAD
        self._bays = self._flags + 2 * MOST_UNITS
        # Memory is taken page by page as it is touched: of the room for flags, a page or two.
        self._own = Segment.create(self._bays + n_bays * bay_bytes, label=label)
        self._token = os.urandom(_TOKEN_BYTES)
        view = self._own.view
        view[_HEAD : _HEAD + len(letter)] = letter
        struct.pack_into("<Q", view, _LETTER_NBYTES, len(letter))
        view[:_TOKEN_BYTES] = self._token
        self.rank = -1
        self._others: dict[int, _Other] = {}
        self._units: Sequence[Unit] = ()
        self._mine: list[int] = []  # the numbers of the units that this rank reads
        self._place: dict[int, int] = {}  # and where in that list each is
        self._lock = threading.Lock()
        self._ended = threading.Event()

    @property
    def invitation(self) -> Invitation:
        """What the other ranks of the node need to `meet` this one."""
        return os.getpid(), self._own.fd, self._token.hex()

    def meet(self, rank: int, others: Mapping[int, Invitation]) -> dict[int, bytes]:
        """Map the segments of the ``others`` (rank to invitation); return their letters. This one is ``rank``.

        Raises `StorageError` if one cannot be mapped; call `leave` then.
        """
        self.rank = rank
        for number, invited in sorted(others.items()):
            self._others[number] = _Other.of(number, invited)
        return {number: other.letter for number, other in self._others.items()}

    def begin(self, units: Sequence[Unit]) -> None:
        """Work on ``units``, the same on every rank that met."""
        if len(units) > MOST_UNITS or any(unit.nbytes > self._bay_bytes for unit in units):
            raise CallError(f"{len(units)} units, or one of more than {self._bay_bytes} bytes, are too much to relay")
        self._units = units
        places: dict[int, int] = {}
        for number, unit in enumerate(units):
            at = places.get(unit.reader, 0)
            self._place[number] = at
            places[unit.reader] = at + 1
            if unit.reader == self.rank:
                self._mine.append(number)

    def room(self, number: int) -> memoryview | None:
        """The bay of a unit that this rank reads; waits until it is free. None if that takes too long."""
        at = self._place[number]
        if at >= self._n_bays:
            before = self._mine[at - self._n_bays]
            for rank in self._units[before].wanters:
                if rank != self.rank and not self._await_taken(self._others[rank], before):
                    return None
        start = self._bays + at % self._n_bays * self._bay_bytes
        return self._own.view[start : start + self._units[number].nbytes]

    def filled(self, number: int) -> None:
        """The unit lies in its bay."""
        with self._lock:  # also so that no processor shows the mark before the bytes
            self._own.view[self._flags + number] = _FILLED

    def skipped(self, number: int) -> None:
        """The unit will not come: who wants it reads it."""
        self._own.view[self._flags + number] = _SKIPPED

    def given(self, number: int) -> memoryview:
        """The bytes of a unit that another rank reads; waits for them. Call `taken` when they are not needed any more.

        Raises `StorageError`, which says why, if they will not come.
        """
        unit = self._units[number]
        other = self._others[unit.reader]
        mark = other.wait(lambda: other.flag(number), self._wait_s, self._ended)
        if mark != _FILLED:
            raise StorageError(other.because("read for its node"), rank=unit.reader)
        start = other.bays + self._place[number] % self._n_bays * self._bay_bytes
        return other.segment.view[start : start + unit.nbytes]

    def taken(self, number: int) -> None:
        """This rank needs the bay of the unit no more."""
        self._own.view[self._flags + MOST_UNITS + number] = 1

    def leave(self, why: str) -> None:
        """Tell the others that nothing more comes from here, nor is wanted."""
        text = why.encode()[:_WHY_MOST]
        view = self._own.view
        view[_WHY : _WHY + len(text)] = text
        struct.pack_into("<I", view, _WHY_NBYTES, len(text))
        with self._lock:
            view[_OUT] = 1

    def close(self) -> None:
        """End all waits and let go of the segments; when all who met are done, or this rank gives up."""
        self._ended.set()
        for segment in (self._own, *(other.segment for other in self._others.values())):
            with suppress(CallError):  # a thread that was given up still looks at it: it goes when that ends
                segment.close()
        for other in self._others.values():
            other.close()

    def _await_taken(self, other: _Other, number: int) -> bool:
        """Whether ``other`` has taken the unit, or never will; False if it might still."""
        if other.given_up and not other.ended:
            return bool(other.flag(MOST_UNITS + number))
        return bool(other.wait(lambda: other.flag(MOST_UNITS + number), self._wait_s, self._ended)) or other.ended


@dataclass(slots=True)
class _Other:
    """The segment of another rank, and what is known of its process."""

    rank: int
    pid: int
    segment: Segment
    letter: bytes
    flags: int
    bays: int
    pidfd: int = -1
    ended: bool = False
    given_up: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def of(cls, rank: int, invited: Invitation) -> _Other:
        pid, fd, token = invited
        try:
            opened = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
            try:
                segment = Segment.attach(opened, writable=False)
            finally:
                os.close(opened)
        except (OSError, PerdureError) as error:
            raise StorageError(f"the shared memory of rank {rank} cannot be mapped: {error}", rank=rank) from error
        view = segment.view
        (nbytes,) = struct.unpack_from("<Q", view, _LETTER_NBYTES) if len(view) > _HEAD else (0,)
        flags = _HEAD + -(-nbytes // _HEAD) * _HEAD
        if bytes(view[:_TOKEN_BYTES]).hex() != token or flags + 2 * MOST_UNITS > len(view):
            segment.close()
            raise StorageError(f"what process {pid} shares is not what rank {rank} meant", rank=rank)
        letter = bytes(view[_HEAD : _HEAD + nbytes])
        pidfd = -1
        with suppress(OSError):  # where there is none, `alive` looks in another way
            pidfd = os.pidfd_open(pid)
        return cls(rank, pid, segment, letter, flags, flags + 2 * MOST_UNITS, pidfd)

    def flag(self, at: int) -> int:
        return self.segment.view[self.flags + at]

    def wait(self, look: object, wait_s: float, stop: threading.Event) -> int:
        """What ``look`` finds once it is not 0; 0 if nothing more is to be expected of this rank."""
        assert callable(look)
        found = int(look())
        deadline = Deadline.after(wait_s, f"rank {self.rank}")
        nap, next_look = _NAP_S[0], time.monotonic() + _LOOK_S
        while not found and not self.given_up:
            if time.monotonic() >= next_look:
                next_look = time.monotonic() + _LOOK_S
                if not self.alive():
                    self.ended = True
                    self.give_up(f"rank {self.rank} has ended")
            if self.segment.view[_OUT]:
                self.ended = True
                self.give_up(f"rank {self.rank} has left: {self.why()}")
            elif deadline.passed():
                self.give_up(f"rank {self.rank} did nothing for {wait_s:g} s")
            if stop.wait(nap):
                self.give_up("the restore is over")
            nap = min(2 * nap, _NAP_S[1])
            found = int(look())
        return found

    def give_up(self, why: str) -> None:
        with self.lock:
            self.given_up = self.given_up or why

    def because(self, what: str) -> str:
        return f"{self.given_up or f'rank {self.rank} passed it on as bad'}: what it was to {what} is read again"

    def why(self) -> str:
        (nbytes,) = struct.unpack_from("<I", self.segment.view, _WHY_NBYTES)
        return bytes(self.segment.view[_WHY : _WHY + min(nbytes, _WHY_MOST)]).decode(errors="replace")

    def alive(self) -> bool:
        if self.pidfd >= 0:
            poller = select.poll()
            poller.register(self.pidfd, select.POLLIN)
            return not poller.poll(0)
        try:
            with open(f"/proc/{self.pid}/stat", encoding="ascii", errors="replace") as file:
                return file.read().rpartition(")")[2].split()[0] not in "ZX"
        except OSError:
            return False

    def close(self) -> None:
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1
