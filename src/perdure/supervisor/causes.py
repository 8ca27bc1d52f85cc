"""Which rank failed first, and whether it is the same failure as last time. Pure.

When one rank fails its peers fail too, with complaints about a lost connection, and sometimes they are gone before the
rank that started it has finished its own exit. So the earliest death is the cause unless its last words only blame a
peer and a later one's do not.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from perdure.errors import TryAgain

__all__ = ["Death", "first_cause", "same_failure"]

_BLAMES_A_PEER = re.compile(
    r"closed by peer|connection reset|broken pipe|connection refused|socket timeout|peer .{0,20}(closed|lost|gone)",
    re.I,
)
# What differs between two runs of the same failure: addresses, ports, pids, times, temporary names.
_VARIES = re.compile(r"0x[0-9a-f]+|\d+")
_OWN_FAULT = frozenset({signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE})


@dataclass(frozen=True, slots=True)
class Death:
    """A rank that ended badly, in the order in which it was noticed; ``tail`` is the end of its stderr, by lines."""

    rank: int
    code: int | None = None
    signal: int | None = None
    tail: tuple[str, ...] = ()
    node: str = ""
    step: int | None = None

    @property
    def exit_code(self) -> int:
        """What a shell would report."""
        return 128 + self.signal if self.signal is not None else (self.code or 1)


def first_cause(deaths: Sequence[Death]) -> Death:
    """Return the death that started it; ``deaths`` is not empty.

    >>> fell = Death(0, code=1, tail=("RuntimeError: Connection closed by peer",))
    >>> first_cause([fell, Death(1, code=1, tail=("ValueError: the loss is nan",))]).rank
    1
    """
    return next((death for death in deaths if not _blames_a_peer(death)), deaths[0])


def same_failure(death: Death, before: Death | None) -> bool:
    """Whether ``death`` repeats ``before`` in a way that another restart would repeat too.

    The same end and the same last words, numbers aside. A kill from outside (SIGKILL, SIGTERM) proves nothing, an exit
    code that means "try again" (75) says the opposite, a lost connection may hold next time, and an exit without a word
    is not compared.
    """
    if before is None or (death.code, death.signal) != (before.code, before.signal) or death.code == TryAgain.exit_code:
        return False
    if _blames_a_peer(death) or (death.signal is not None and death.signal not in _OWN_FAULT):
        return False
    if not death.tail and death.signal is None:
        return False
    return _last_words(death) == _last_words(before)


def _blames_a_peer(death: Death) -> bool:
    return death.signal in (None, signal.SIGABRT) and any(_BLAMES_A_PEER.search(line) for line in death.tail[-3:])


def _last_words(death: Death) -> list[str]:
    return [_VARIES.sub("#", line).strip() for line in death.tail if line.strip()][-3:]
