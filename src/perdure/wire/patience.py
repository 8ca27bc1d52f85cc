"""How long a blocking call on a socket goes on: until a deadline, and while the peer shows signs of life.

The kernel waits in *slices*, a quarter of the silence that is allowed each. Slices in a row in which not one byte moved
are counted, not timed: this process may itself have been stopped meanwhile, and has heard nothing for that reason.
"""

from __future__ import annotations

import math
import socket
import struct
from typing import Final, NoReturn

from perdure.clock import Deadline
from perdure.errors import DeadlineExceeded

__all__ = ["SLICES", "Patience"]

SLICES: Final = 4
"""After so many slices in a row without a byte the peer is silent."""

_LONGEST_S: Final = 3600.0
_TIMEVAL: Final = struct.Struct("@ll")


class Patience:
    """One call's: ``option`` is SO_RCVTIMEO or SO_SNDTIMEO, ``silent_s`` the seconds that the peer may be silent."""

    def __init__(self, sock: socket.socket, option: int, deadline: Deadline, silent_s: float = math.inf) -> None:
        self._sock, self._option, self._deadline, self._silent_s = sock, option, deadline, silent_s
        self._silent = 0

    @property
    def most_silent(self) -> int:
        """After how many slices in a row the peer is silent; 0 if it may be so for ever."""
        return 0 if math.isinf(self._silent_s) else SLICES

    def arm(self) -> None:
        """Let the next call that sends or receives wait in the kernel, which fills whole buffers, for a slice."""
        wait_s = min(self._deadline.left(), self._silent_s / SLICES, _LONGEST_S)
        us = max(int(wait_s * 1e6), 1)  # 0 would be for ever
        self._sock.setsockopt(socket.SOL_SOCKET, self._option, _TIMEVAL.pack(*divmod(us, 1_000_000)))

    def moved(self, n: int) -> None:
        """A call has moved ``n`` bytes, and not all of them. Raises `DeadlineExceeded`."""
        self._silent = 0 if n else self._silent + 1
        if self._silent and self._silent == self.most_silent:
            self.silent()
        if self._deadline.passed():
            self.late()

    def silent(self) -> NoReturn:
        """Raise what a silent peer is given up with."""
        what = self._deadline.what
        raise DeadlineExceeded(
            f"nothing has come or gone for {self._silent_s:g} s (stopped, or cut off) while waiting for {what}",
            what=what,
            missing="",
            silent_s=self._silent_s,
        )

    def late(self) -> NoReturn:
        """Raise what a peer that is late is given up with."""
        what = self._deadline.what
        raise DeadlineExceeded(f"gave up waiting for {what}", what=what, missing="")
