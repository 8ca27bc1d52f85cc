"""Follow the kernel's log: /dev/kmsg where it may be read, else a file that a service writes it to.

A record of /dev/kmsg is ``priority,sequence,microseconds,flags;text`` and lines of keys that begin with a space.
Numbers that are missing between two records were overwritten before they were read, and are counted. In files the heads
that syslog, journald and dmesg put in front of the text go, so that rules see the same text whatever wrote it. Programs
may write to the log as well, marked as theirs; what they say is left out unless it is asked for.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path
from typing import Final

from perdure.watcher.samples import LogLine
from perdure.watcher.tailing import FileTail, plain

__all__ = ["KernelLog", "headless", "record_of"]

_RECORD_BYTES: Final = 1 << 14
_MOST_RECORDS: Final = 2000
_MOST_LINES: Final = 1000
_TRIES_S: Final = 30.0
_HEADS: Final = (
    re.compile(r"<\d{1,3}>"),
    re.compile(r"\w{2,8}\s*:\w{2,8}\s*: (?=[\[\d])"),  # dmesg --decode: kern  :warn  :
    re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[.,]?\d*(?:Z|[+-]\d\d:?\d\d)? "),
    re.compile(r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?:\.\d+)? "),
    re.compile(r"\[[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4}\] "),
    re.compile(r"[\w.-]{1,255} kernel(?:\[\d+\])?: "),
    re.compile(r"\[ *\d+\.\d+\](?:\[[ \w]{1,8}\])? ?"),
)


def headless(line: str) -> str:
    """The kernel's text of a line of syslog, journald's short forms or dmesg's.

    >>> headless("Feb 23 16:24:18 gpu-7 kernel: [ 1234.567890] NVRM: Xid (PCI:0000:9b:00): 79, pid=1")
    'NVRM: Xid (PCI:0000:9b:00): 79, pid=1'
    >>> headless("kern  :warn  : 2025-01-21T04:41:44,283302+00:00 Out of memory: Killed process 7 (python)")
    'Out of memory: Killed process 7 (python)'
    """
    for _ in _HEADS:
        for head in _HEADS:
            found = head.match(line)
            if found is not None:
                line = line[found.end() :]
                break
        else:
            break
    return line


def record_of(data: bytes, *, programs: bool = False) -> tuple[int, float, str] | None:
    """Number, seconds since boot and text of a record. If a program wrote it: no text; if it is none: None.

    >>> record_of(b"4,901,7000000,-;NVRM: GPU has fallen off the bus.\\n SUBSYSTEM=pci\\n")
    (901, 7.0, 'NVRM: GPU has fallen off the bus.')
    """
    head, _, rest = data.partition(b";")
    parts = head.split(b",")
    if len(parts) < 3 or not all(part.isdigit() and len(part) < 20 for part in parts[:3]):
        return None
    text = plain(rest.partition(b"\n")[0])
    if int(parts[0]) >> 3 != 0 and not programs:
        return int(parts[1]), int(parts[2]) / 1e6, ""
    return int(parts[1]), int(parts[2]) / 1e6, text


class KernelLog:
    """New lines of the kernel's log; `read` is called about once a second and never waits.

    ``path`` is a device such as /dev/kmsg, or a file of text, which may be rotated. Of a device the records of the last
    ``past_s`` before the first call are given too, of a file all (without ``past_s`` what is added after it).
    ``programs``: also what programs have written to the log, as those do that inject faults. `problem` says why nothing
    can be read, `lost` counts records that were overwritten, or left out of a storm.
    """

    def __init__(
        self, path: str | Path = "/dev/kmsg", *, node: str = "", past_s: float = 0.0, programs: bool = False
    ) -> None:
        self._path = Path(path)
        self._node = node
        self._past_s = past_s
        self._programs = programs
        self._fd = -1
        self._tail: FileTail | None = None
        self._next: int | None = None
        self._since_s: float | None = None
        self._next_try_s = float("-inf")
        self.problem = ""
        self.lost = 0

    def read(self, now_s: float) -> list[LogLine]:
        """What the kernel has said since the call before, at ``now_s`` on the monotonic clock."""
        if self._since_s is None:
            self._since_s = now_s - self._past_s
        if self._fd < 0 and self._tail is None and not self._open(now_s):
            return []
        if self._tail is not None:
            before = self._tail.dropped.lines
            lines = self._tail.read(now_s, most_lines=_MOST_LINES)
            self.lost += self._tail.dropped.lines - before
            return [self._line(headless(text), now_s) for text in lines if text]
        return self._records(now_s)

    def close(self) -> None:
        """Forget the log."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if self._tail is not None:
            self._tail.close()
            self._tail = None

    def _line(self, text: str, at_s: float) -> LogLine:
        return LogLine(text=text, at_s=at_s, node=self._node, source="kernel")

    def _open(self, now_s: float) -> bool:
        if now_s < self._next_try_s:
            return False
        self._next_try_s = now_s + _TRIES_S
        try:
            mode = os.stat(self._path).st_mode
            if stat.S_ISREG(mode):
                self._tail = FileTail(self._path, from_end=self._past_s == 0.0, links=True)
            else:
                self._fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            self.problem = (
                f"the kernel's log {self._path} cannot be read ({error.strerror}); give CAP_SYSLOG, or name a file "
                "that it is written to"
            )
            return False
        self.problem = ""
        return True

    def _records(self, now_s: float) -> list[LogLine]:
        lines = []
        for _ in range(_MOST_RECORDS):
            try:
                data = os.read(self._fd, _RECORD_BYTES)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno in (errno.EPIPE, errno.EINVAL):  # overwritten, or too long: the next read goes on after
                    continue
                self.problem = f"the kernel's log {self._path} cannot be read any more ({error.strerror})"
                self.close()
                break
            if not data:
                break
            record = record_of(data, programs=self._programs)
            if record is None:
                continue
            number, at_s, text = record
            if self._next is not None and number > self._next:
                self.lost += number - self._next
            self._next = number + 1
            if text and at_s >= (self._since_s or 0.0):
                lines.append(self._line(text, min(at_s, now_s)))
        return lines
