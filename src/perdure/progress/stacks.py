"""Stacks of a rank on request: a signal, which faulthandler answers in C, so that Python stuck in C answers as well.

The rank's probe has had faulthandler open ``stack-RANK.PID`` beside its record and take a signal of its own. Whoever
watches sends that signal and reads the file. A signal that nobody has asked for ends a process, so none is sent before
the kernel says that this very process catches it. A process in state T or D answers only once it goes on.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Sequence
from pathlib import Path

from perdure.errors import CallError, ProtocolError
from perdure.progress.vitals import Vitals, start_ticks

__all__ = ["ask_for_stacks", "catches", "main_frames", "parse_stacks", "read_stacks", "request_stack", "stack_path"]

_MOST_BYTES = 1 << 20
_MOST_FRAMES = 200
_THREAD = re.compile(
    r"^(?:Current thread|Thread) 0x([0-9a-fA-F]{1,16})(?: \[[^\n]{0,64}\])? \(most recent call first\)"
)
_FRAME = re.compile(r'^  File "(.{0,1000})", line (\d{1,9}|\?\?\?) in (.{0,500})$')
_SETTLED_S = 0.05


def stack_path(record: str | os.PathLike[str]) -> Path:
    """Return the file of stacks that belongs to the record at ``record``."""
    path = Path(record)
    return path.with_name("stack-" + path.name.removeprefix("rank-"))


def catches(pid: int, number: int) -> bool:
    """Whether process ``pid`` has a handler for signal ``number``."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            for line in file:
                if line.startswith("SigCgt:"):
                    return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    except (OSError, IndexError, ValueError):
        return False
    return False


def ask_for_stacks(record: str | os.PathLike[str], vitals: Vitals) -> bool:
    """Ask the process of ``vitals`` (read from ``record``) for its stacks; what it wrote before goes.

    Return whether it was asked: not if it takes no such signal, or is gone, also where its number is another's now.
    """
    number = vitals.stack_signal
    if number <= 0 or vitals.start_ticks == 0 or start_ticks(vitals.pid) != vitals.start_ticks:
        return False
    if not catches(vitals.pid, number):
        return False
    try:
        os.truncate(stack_path(record), 0)
        os.kill(vitals.pid, number)
    except OSError:
        return False
    return True


def read_stacks(record: str | os.PathLike[str], vitals: Vitals) -> tuple[tuple[str, ...], ...]:
    """Return the frames of each thread that the process has written so far, its main thread first; empty if nothing."""
    try:
        fd = os.open(stack_path(record), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return ()
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ProtocolError(f"{stack_path(record)} is no file of stacks")
        text = os.pread(fd, _MOST_BYTES, 0).decode("utf-8", "replace")
    finally:
        os.close(fd)
    return parse_stacks(text, main_thread=vitals.main_thread)


def request_stack(record: str | os.PathLike[str], *, within_s: float = 2.0) -> tuple[str, ...]:
    """Ask the process of ``record`` for its stacks and return its main thread's, innermost frame first, each
    ``file:line function``; empty if it does not answer ``within_s`` (as one that is stopped).

    Raises `CallError` if it cannot be asked.
    """
    vitals = Vitals.read(record)
    if not ask_for_stacks(record, vitals):
        raise CallError(f"process {vitals.pid} of {record} is gone or writes no stacks; only a live one can be asked")
    end = time.monotonic() + within_s
    size, since = 0, time.monotonic()
    while time.monotonic() < end:
        now = stack_path(record).stat().st_size
        if now != size:
            size, since = now, time.monotonic()
        elif size and time.monotonic() - since > _SETTLED_S:
            break
        time.sleep(0.005)
    return main_frames(read_stacks(record, vitals))


def main_frames(stacks: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """The frames of the main thread among what `read_stacks` gave."""
    return stacks[0] if stacks else ()


def parse_stacks(text: str, *, main_thread: int) -> tuple[tuple[str, ...], ...]:
    """Read what faulthandler wrote: for each thread its frames, innermost first, each ``file:line function``.

    ``main_thread`` comes first, of several answers the last counts. Lines that are none of faulthandler's are passed
    over; a main thread that is not there is an empty first stack.

    >>> parse_stacks('Thread 0x0a (most recent call first):\\n  File "/a/b.py", line 3 in f\\n', main_thread=10)
    (('/a/b.py:3 f',),)
    """
    threads: dict[int, list[str]] = {}
    frames: list[str] | None = None
    for line in text.splitlines():
        if (thread := _THREAD.match(line)) is not None:
            frames = threads[int(thread[1], 16)] = []
        elif frames is not None and len(frames) < _MOST_FRAMES and (frame := _FRAME.match(line)) is not None:
            frames.append(f"{frame[1]}:{frame[2]} {frame[3]}")
    if not threads:
        return ()
    main = threads.pop(main_thread, [])
    return (tuple(main), *(tuple(each) for each in threads.values()))
