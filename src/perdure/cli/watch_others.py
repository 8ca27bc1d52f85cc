"""Watch a job that perdure has not started, by its logs and by the metrics of others: what `perdure watch logs` and
`perdure watch metrics` do.
"""

from __future__ import annotations

import argparse
import resource
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from perdure.cli.watch_outlets import Outlets, add_outlet_flags
from perdure.errors import CallError

if TYPE_CHECKING:
    from perdure.watcher.evidence import Verdict
    from perdure.watcher.job_watch import JobWatch
    from perdure.watcher.log_follow import LogFollow
    from perdure.watcher.samples import NodeLook
    from perdure.watcher.scraping import Exporters

__all__ = ["add_options", "watch"]

_LOOK_S = 1.0
_SCAN_S = 5.0
_REMOTE = 10.0
"So many times longer is waited for logs that nobody on this machine was seen to write."
_READ_AGAIN_BYTES = 64 << 20


def add_options(parser: argparse.ArgumentParser) -> None:
    """What both commands take."""
    add_outlet_flags(parser)
    parser.add_argument("--once", action="store_true", help="look at what there is now, tell, and end")
    parser.add_argument("--every", type=float, default=15.0, metavar="S", help="seconds between two scrapes (15)")
    parser.add_argument(
        "--silent", type=float, default=60.0, metavar="S",
        help="a log that is silent while others go on is suspected after S seconds at the earliest (60)",
    )  # fmt: skip
    parser.add_argument(
        "--quiet", type=float, default=60.0, metavar="S",
        help="the job has ended when no log was written for S seconds (60) and nobody has one open; ten times as long "
        "if nobody on this machine was seen to write them",
    )  # fmt: skip


class _Interrupted(Exception):
    """Ctrl-C, or who sends SIGTERM."""


class _Telling:
    """Verdicts, given out with the nodes that are known."""

    def __init__(self, outlets: Outlets) -> None:
        self._outlets = outlets
        self.incidents: dict[str, Verdict] = {}

    def tell(
        self, verdicts: Iterable[Verdict], *, looks: Sequence[NodeLook], still_open: Sequence[Verdict], now_s: float
    ) -> None:
        from perdure.watcher.log_follow import known_nodes

        told = [known_nodes(each) for each in verdicts]
        self.incidents |= {each.incident: each for each in told}
        self._outlets.give(told, looks=looks, still_open=[known_nodes(each) for each in still_open], now_s=now_s)

    def say(self, sentence: str) -> None:
        self._outlets.say(sentence)


def watch(args: argparse.Namespace, *, where: str | None, urls: list[str]) -> int:
    """Watch by the logs in ``where`` and by the metrics of ``urls``, until the job has ended or Ctrl-C; 0."""
    from perdure.watcher.job_watch import JobWatch
    from perdure.watcher.log_follow import LogFollow
    from perdure.watcher.log_pulse import LogPulse
    from perdure.watcher.scraping import Exporters

    if where is None and not urls:
        raise CallError("what is to be watched is missing: perdure watch --logs DIR, or --metrics URL...")
    if not args.every >= 1 or not args.silent > 0 or not args.quiet > 0:
        raise CallError("--every takes 1 second or more, --silent and --quiet more than 0")
    with ExitStack() as stack:
        name = Path(where).resolve().stem if where is not None else "metrics"
        outlets = stack.enter_context(Outlets.of(args, job=name))
        follow = exporters = None
        pulse = LogPulse(floor_s=args.silent)
        if where is not None:
            _many_files()
            follow = LogFollow(Path(where), pulse=pulse, whole=args.once)
            stack.callback(follow.close)
        if urls:
            exporters = Exporters(urls, every_s=args.every)
            stack.callback(exporters.close)
        job = JobWatch(
            more=(*((pulse,) if follow is not None else ()), *((exporters,) if exporters is not None else ()))
        )
        telling = _Telling(outlets)
        run = _Run(job, follow, exporters, telling)
        began_s = time.monotonic()
        before = _on_signals()
        try:
            run.once() if args.once else run.until_it_has_ended(args.quiet)
        except _Interrupted:
            interrupted = True
        else:
            interrupted = False
        finally:
            _restore(before)
        outlets.close()
        print(run.summary(time.monotonic() - began_s))
        if follow is not None and not interrupted:
            _diagnose(follow)
    return 0


class _Run:
    def __init__(self, job: JobWatch, follow: LogFollow | None, exporters: Exporters | None, telling: _Telling) -> None:
        self._job, self._follow, self._exporters, self._telling = job, follow, exporters, telling
        self._said: dict[str, bool] = {}

    def look(self) -> None:
        """One look at everything."""
        now_s = time.monotonic()
        looks = []
        if self._exporters is not None:
            attempt = 0 if self._follow is None else self._follow.attempt
            looks += self._exporters.look(now_s, attempt=attempt)
            self._tell_problems(self._exporters)
        if self._follow is not None:
            for rank, node in self._exporters.ranks.items() if self._exporters is not None else ():
                self._follow.node_is(rank, node)
            looks += self._follow.look(now_s)
        told = self._job.feed(looks, now_s=now_s)
        self._telling.tell(told, looks=looks, still_open=self._job.open, now_s=now_s)

    def once(self) -> None:
        """Look until all that there is has been read."""
        if self._exporters is not None:
            self._exporters.wait_first()
        self.look()
        while self._follow is not None and not self._follow.caught_up:
            self.look()

    def until_it_has_ended(self, quiet_s: float) -> None:
        """Look each second until nobody writes any more; without logs, for ever."""
        if self._follow is not None:
            self.look()
            what = f"{_some(len(self._follow.files), 'log')} of {_some(len(self._follow.ranks), 'rank')}"
            self._telling.say(f"follows {what}")
        ended = None if self._follow is None else _Ended(self._follow, quiet_s)
        due_s = time.monotonic()
        while True:
            self.look()
            if ended is not None and ended.now(time.monotonic()):
                return
            due_s = max(due_s + _LOOK_S, time.monotonic() + _LOOK_S / 4)
            time.sleep(max(0.0, due_s - time.monotonic()))

    def summary(self, seconds: float) -> str:
        """A line for the end."""
        from perdure.watcher.evidence import Stage

        words = []
        if self._follow is not None:
            ranks = self._follow.ranks
            words.append(f"{_some(len(self._follow.files), 'log')} of {_some(len(ranks), 'rank')}")
        if self._exporters is not None:
            words.append(f"{_some(self._exporters.answered, 'exporter')} that answered")
        told = self._telling.incidents.values()
        cleared = sum(each.stage is Stage.CLEARED for each in told)
        found = f"{_some(len(told), 'incident')}" + (f", {cleared} of them over" if cleared else "")
        at = ""
        if self._follow is not None and self._follow.step is not None:
            loss = self._follow.loss
            at = f"; newest step {self._follow.step}" + ("" if loss is None else f", loss {loss:.4g}")
        left_out = ""
        dropped = None if self._follow is None else self._follow.dropped
        if dropped is not None and (dropped.lines or dropped.nbytes):
            left_out = f"; {dropped.lines} lines and {dropped.nbytes} bytes were too many to look at"
        return f"watched {' and '.join(words)} for {seconds:.0f} s: {found}{at}{left_out}"

    def _tell_problems(self, exporters: Exporters) -> None:
        """An exporter that does not answer is told once, and once when it does again."""
        problems = exporters.problems
        for url in [url for url, failing in self._said.items() if failing and url not in problems]:
            self._said[url] = False
            self._telling.say(f"{url} answers again")
        for url, problem in problems.items():
            if not self._said.get(url):
                self._said[url] = True
                self._telling.say(f"{url} does not answer: {problem}")


class _Ended:
    """Says whether the writers of logs have ended."""

    def __init__(self, follow: LogFollow, quiet_s: float) -> None:
        self._follow, self._quiet_s = follow, quiet_s
        self._began_s = self._scanned_s = time.monotonic()
        self._local = self._open = self._scan()

    def now(self, now_s: float) -> bool:
        """Whether nothing is written, and nobody would."""
        since_s = now_s - (self._follow.wrote_s or self._began_s)
        if since_s < self._quiet_s and self._local:
            return False
        if now_s - self._scanned_s >= _SCAN_S:
            self._scanned_s = now_s
            self._open = self._scan()
            self._local |= self._open
        return not self._open and since_s >= self._quiet_s * (1.0 if self._local else _REMOTE)

    def _scan(self) -> bool:
        from perdure.watcher.log_writers import written_by_someone

        return written_by_someone(self._follow.files)


def _diagnose(follow: LogFollow) -> None:
    from perdure.cli.watch_diagnose import diagnosis, tell

    files: list[Path | None] = [path for path in follow.files if path.exists()]
    if not files:
        raise CallError("there is no log any more to tell what has failed")
    said = diagnosis(files, most_bytes=_READ_AGAIN_BYTES)
    if said is None:
        print("there was nothing to read in the logs")
    else:
        tell(said)


def _many_files() -> None:
    """Each log stays open: allow as many files as the system does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # what is allowed then is what there is
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 1 << 16) if hard > 0 else 1 << 16), hard))


def _on_signals() -> dict[int, Callable[[int, FrameType | None], object] | int | None]:
    def end(number: int, frame: FrameType | None) -> None:
        raise _Interrupted

    return {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}


def _restore(before: dict[int, Callable[[int, FrameType | None], object] | int | None]) -> None:
    for number, handler in before.items():
        signal.signal(number, handler)


def _some(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
