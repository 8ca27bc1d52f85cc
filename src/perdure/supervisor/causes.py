"""Which rank failed first, what its last words say, and whether it is the same failure as last time. Pure.

When one rank fails its peers fail too, with complaints about a lost connection, and sometimes they are gone before the
rank that started it has finished its own exit. So the earliest death is the cause unless its last words only blame a
peer and a later one's do not.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from perdure.errors import TryAgain

__all__ = ["OWN_FAULT", "Death", "LastWords", "blames_a_peer", "excused", "fingerprint", "first_cause", "same_failure"]

# What gloo, NCCL, torch's stores and sockets say of another rank that is gone, slow, or was never there.
_BLAMES_A_PEER = re.compile(
    r"closed by (remote )?peer|connection reset|broken pipe|connection refused|socket timeout"
    r"|peer .{0,20}(closed|lost|gone)|ncclRemoteError|remote process exiting prematurely|communicator was aborted"
    r"|collective operation timeout|timed out waiting \d+ms for (recv|send)"
    r"|connectFullMesh failed|timeout caused pair closure|failed to recv, got 0 bytes|recvValue failed"
    r"|client socket has timed out|waiting for clients|monitoredBarrier",
    re.I,
)
# What differs between two runs of the same failure: addresses, ports, pids, times, temporary names.
_VARIES = re.compile(r"0x[0-9a-f]+|\btmp\w{4,}|\d+", re.I)
_FRAME = re.compile(r'^\s+File "(.+)", line (\d+)(?:, in (.+))?$')
_OF_A_RANK = re.compile(r"^\[rank\d+\]: ?")
_NAMES_ERROR = re.compile(r"^([A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt))(?:: ?(.*))?$")
_THROWN = re.compile(r"^terminate called after throwing an instance of '(.+)'")
_BESIDE = re.compile(r"^Exception (ignored in|in thread)")
_WHAT_LINES = 8
OWN_FAULT = frozenset({signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE})
"""Signals that a process brings upon itself."""
_AT_EXIT = frozenset({signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS})


@dataclass(frozen=True, slots=True)
class Death:
    """A rank that ended badly, in the order in which it was noticed; ``tail`` is the end of its stderr, by lines.

    ``step`` is what it had completed; ``finished`` if its phase said so before it ended.
    """

    rank: int
    code: int | None = None
    signal: int | None = None
    tail: tuple[str, ...] = ()
    node: str = ""
    step: int | None = None
    finished: bool = False

    @property
    def exit_code(self) -> int:
        """What a shell would report."""
        return 128 + self.signal if self.signal is not None else (self.code or 1)

    @property
    def by_signal(self) -> int | None:
        """The signal that ended it, also if a shell around it passed that on as 128 + the signal."""
        if self.signal is None and self.code is not None and self.code - 128 in signal.valid_signals():
            return self.code - 128
        return self.signal


_ROUTINE = re.compile(r"\b(INFO|DEBUG|NOTICE)\b")  # a logger's line that is about no end


@dataclass(frozen=True, slots=True)
class LastWords:
    """What the end of a stderr says: the exception that ended the process, its message, where it was raised.

    ``error`` is the name of its class without the module, empty if the process died without one; ``message`` then is
    the last line. ``lines`` are those that are about this end, ``place`` is ``file:line in function``.
    """

    error: str = ""
    message: str = ""
    place: str = ""
    lines: tuple[str, ...] = ()

    @classmethod
    def of(cls, tail: Sequence[str]) -> LastWords:
        """Read the end of a stderr.

        >>> LastWords.of(["Traceback (most recent call last):", '  File "a.py", line 3, in go', "KeyError: 'x'"])
        LastWords(error='KeyError', message="'x'", place='a.py:3 in go', lines=("KeyError: 'x'",))
        """
        lines = [_OF_A_RANK.sub("", line).rstrip() for line in tail]
        raised = None
        for raised in _raised(lines):  # noqa: B007  the last one ended the process
            pass
        if raised is not None:
            return raised
        for i, line in reversed(list(enumerate(lines))):
            if (thrown := _THROWN.match(line)) is not None:
                what = next((each for each in lines[i + 1 :] if each.lstrip().startswith("what():")), "")
                message = what.partition("what():")[2].strip()
                return cls(thrown[1].rpartition("::")[2], message, "", tuple(each for each in lines if each))
            if (named := _NAMES_ERROR.match(line)) is not None:
                about = tuple(each for each in lines[i : i + _WHAT_LINES] if each)
                return cls(named[1].rpartition(".")[2], named[2] or "", "", about)
        said = tuple(line.strip() for line in lines if line.strip() and not _ROUTINE.search(line))
        return cls("", said[-1] if said else "", "", said)

    @property
    def text(self) -> str:
        """All that is about this end, as one text."""
        return "\n".join(self.lines)


def _raised(lines: Sequence[str]) -> Iterator[LastWords]:
    """The exceptions whose tracebacks are in ``lines``, without those that ended a thread or nothing at all."""
    place, beside = "", False
    for i, line in enumerate(lines):
        if (frame := _FRAME.match(line)) is not None:
            place = f"{frame[1]}:{frame[2]}" + (f" in {frame[3]}" if frame[3] else "")
        elif _BESIDE.match(line):
            place, beside = "", True
        elif place and line and not line[0].isspace():
            if not beside:
                name, _, message = line.partition(":")
                about = _until(lines[i : i + _WHAT_LINES])
                yield LastWords(name.rpartition(".")[2], message.strip(), place, tuple(about))
            place, beside = "", False


def _until(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        if not line or line.startswith("Traceback"):
            return
        yield line


def first_cause(deaths: Sequence[Death]) -> Death:
    """Return the death that started it; ``deaths`` is not empty.

    >>> fell = Death(0, code=1, tail=("RuntimeError: Connection closed by peer",))
    >>> first_cause([fell, Death(1, code=1, tail=("ValueError: the loss is nan",))]).rank
    1
    """
    own = [death for death in deaths if not blames_a_peer(death)]
    sure = [death for death in own if death.code != TryAgain.exit_code]  # a rank that waited for another in vain
    return (sure or own or list(deaths))[0]


def excused(death: Death) -> bool:
    """Whether this is no failure: libraries of process groups abort at exit now and then, after all work is done."""
    return death.finished and death.signal in _AT_EXIT


def blames_a_peer(death: Death) -> bool:
    """Whether the last words of ``death`` are about another rank that was lost."""
    if death.signal not in (None, signal.SIGABRT):
        return False
    words = LastWords.of(death.tail)
    return any(_BLAMES_A_PEER.search(line) for line in (words.lines if words.error else words.lines[-3:]))


def same_failure(death: Death, before: Death | None) -> bool:
    """Whether ``death`` repeats ``before`` in a way that another restart would repeat too.

    The same end at the same place with the same words, numbers aside. A kill from outside (SIGKILL, SIGTERM) proves
    nothing, an exit code that means "try again" (75) says the opposite, a lost connection may hold next time, and an
    exit without a word is not compared.
    """
    if before is None or death.code == TryAgain.exit_code or blames_a_peer(death):
        return False
    mark = fingerprint(death)
    return mark != "" and mark == fingerprint(before)


def fingerprint(death: Death) -> str:
    """What two deaths have in common if they are the same failure; empty if nothing can be said of that.

    The end, then the class of the exception, the frame that raised it and its message; without an exception the last
    three lines. Numbers, addresses and temporary names in what was said do not count.

    >>> fingerprint(Death(3, code=1, tail=("ValueError: bad shape at 0x7f12 (pid 431)",)))
    '1|ValueError||bad shape at # (pid #)'
    """
    number = death.by_signal
    if number is not None and number not in OWN_FAULT:
        return ""
    words = LastWords.of(death.tail)
    if number is None and not words.lines:
        return ""
    end = f"signal {number}" if number is not None else str(death.code)
    said = [words.message] if words.error else list(words.lines[-3:])
    return "|".join([end, words.error, words.place, *(_VARIES.sub("#", line).strip() for line in said)])
