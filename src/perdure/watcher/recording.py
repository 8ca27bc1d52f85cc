"""What a watcher has seen and said, kept in a folder: for the console, and for whoever looks later.

| file | what |
|---|---|
| ``heat.json`` | what ranks did over time: a `perdure.watcher.heat.HeatRecord`, replaced every few seconds |
| ``watch.prom`` | the page of metrics (`perdure.watcher.exposition`), replaced as often |
| ``verdicts.jsonl`` | each verdict as it was told, a line of JSON, with ``wall_s`` |

The first two do not grow. A thread writes, so a disk that is full or hangs holds up nobody; ``problem`` says so.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import msgspec

from perdure.clock import SYSTEM, Clock
from perdure.errors import CallError
from perdure.watcher.evidence import Verdict
from perdure.watcher.exposition import MetricsPage
from perdure.watcher.heat import Heat
from perdure.watcher.line_writer import LineWriter
from perdure.watcher.samples import NodeLook

__all__ = ["HEAT", "METRICS", "VERDICTS", "WatchRecord", "dated", "read_verdicts"]

HEAT: Final = "heat.json"
METRICS: Final = "watch.prom"
VERDICTS: Final = "verdicts.jsonl"
_SHARE: Final = 20
"The thread rests this many times as long as a write took."
_MOST_READ: Final = 16 << 20


def dated(verdict: Verdict, *, now_s: float, wall_s: float) -> Verdict:
    """``verdict`` with the wall time of its ``at_s``; ``now_s`` on its clock and ``wall_s`` are the same moment."""
    return msgspec.structs.replace(verdict, wall_s=wall_s - (now_s - verdict.at_s))


def read_verdicts(path: Path) -> tuple[list[Verdict], int]:
    """The verdicts in a file of lines of JSON, the oldest first, and how many lines could not be read.

    Of a file of more than 16 MiB only the end is read. Raises `OSError` if there is no such file.
    """
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _MOST_READ))
        lines = file.read(_MOST_READ).split(b"\n")
    if size > _MOST_READ:
        del lines[0]
    told, unread = [], 0
    decode = msgspec.json.Decoder(Verdict).decode
    for line in lines:
        if not line.strip():
            continue
        try:
            told.append(decode(line))
        except (msgspec.MsgspecError, UnicodeDecodeError):
            unread += 1
    return told, unread


class WatchRecord:
    """Keeps what `give` is given in ``folder``, which is made if it is not there. ``heat`` may be looked at, too.

    ``every_s`` is the time between two writes of what is replaced. Raises `CallError` if ``folder`` cannot be written.
    """

    def __init__(self, folder: Path, *, job: str, every_s: float = 2.0, clock: Clock = SYSTEM) -> None:
        self._folder, self._every_s, self._clock = folder, every_s, clock
        self.heat = Heat(job=job)
        self._page = MetricsPage(job=job)
        self._now_s: float | None = None
        self._problem = ""
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._lines: LineWriter | None = None
        self._stack = ExitStack()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            probe = folder / f".{HEAT}.{os.getpid()}"
            probe.write_bytes(b"")
            probe.unlink()
        except OSError as error:
            raise CallError(f"cannot write into {folder}: {error.strerror}") from error
        self._thread = threading.Thread(target=self._run, name="perdure-record", daemon=True)
        self._thread.start()

    @property
    def problem(self) -> str:
        """Why what was given last could not be written; empty if it was."""
        return self._problem or (self._lines.problem if self._lines is not None else "")

    def give(
        self,
        told: Sequence[Verdict] = (),
        *,
        looks: Sequence[NodeLook] = (),
        still_open: Sequence[Verdict] = (),
        now_s: float,
    ) -> None:
        """Take what is new: verdicts, the looks they were made from, and all incidents that are open. Never waits long.

        ``now_s`` is CLOCK_MONOTONIC, the clock of the verdicts' ``at_s``. Verdicts without ``wall_s`` get it.
        """
        with self._lock:
            self._now_s = now_s
            self.heat.feed([sample for each in looks for sample in each.samples], now_s=now_s)
        self._page.give(told, looks=looks, still_open=still_open, now_s=now_s)
        for each in told:
            whole = each if each.wall_s is not None else dated(each, now_s=now_s, wall_s=self._clock.wall())
            self._write_line(msgspec.json.encode(whole))

    def _write_line(self, line: bytes) -> None:
        if self._lines is None:
            try:
                with open(self._folder / VERDICTS, "ab", buffering=0) as file:
                    self._lines = LineWriter(file.fileno())
            except OSError as error:
                self._problem = error.strerror or "it failed"
                return
            self._stack.callback(self._lines.close)
        self._lines.write(line)

    def _run(self) -> None:
        took_s = 0.0
        while not self._ending.wait(max(self._every_s, _SHARE * took_s)):
            began_s = time.monotonic()
            self._write()
            took_s = time.monotonic() - began_s

    def _write(self) -> None:
        with self._lock:
            if self._now_s is None:
                return
            record = self.heat.record(
                now_s=self._now_s, wall_s=self._clock.wall() - (self._clock.monotonic() - self._now_s)
            )
        try:
            self._replace(HEAT, msgspec.json.encode(record))
            self._replace(METRICS, self._page.text().encode())
            self._problem = ""
        except OSError as error:
            self._problem = error.strerror or "it failed"

    def _replace(self, name: str, data: bytes) -> None:
        fresh = self._folder / f".{name}.{os.getpid()}"
        fresh.write_bytes(data)
        os.replace(fresh, self._folder / name)

    def close(self) -> None:
        """Write what is left, for a few seconds at most, and end."""
        self._ending.set()
        self._thread.join(3.0)
        if not self._thread.is_alive():
            last = threading.Thread(target=self._write, name="perdure-record-end", daemon=True)
            last.start()
            last.join(3.0)
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
