"""Limits of processes, and clocks."""

from __future__ import annotations

import os
import resource
import time

from perdure.supervisor.checks import Context, Result

__all__ = ["clock", "clock_verdict", "descriptors", "descriptors_verdict"]

_NEED_FILES = 256
_WANT_FILES = 4096
_NOTE_S = 1.0
_PROBLEM_S = 300.0
_EARLIEST_S = 1_700_000_000.0  # November 2023: before any release of perdure
_WATCH_S = 0.2


def descriptors(context: Context) -> Result:
    """How many files a process may open, and how many the machine has left."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        with open("/proc/sys/fs/file-nr", encoding="ascii") as file:
            taken, _, most = map(int, file.read().split())
    except (OSError, ValueError):  # not Linux, or hidden: the limit of the process is what is known
        taken, most = 0, resource.RLIM_INFINITY
    return descriptors_verdict(_bounded(soft), _bounded(hard), _bounded(most) - taken)


def descriptors_verdict(soft: int, hard: int, left: int) -> Result:
    """The result for a soft and a hard limit of a process, and what the whole machine has left."""
    facts = {"soft": soft, "hard": hard, "machine_left": left}
    says = f"a process may open {_many(soft)} files"
    if left < _NEED_FILES:
        return Result(
            check="descriptors",
            word="problem",
            says=f"only {left} more files can be opened on the whole machine",
            do="find what holds them (lsof), or raise fs.file-max",
            facts=facts,
        )
    if soft < _NEED_FILES:
        return Result(
            check="descriptors",
            word="problem",
            says=f"{says}; a rank needs more",
            do=f"raise `ulimit -n` to {_WANT_FILES} or more",
            facts=facts,
        )
    if soft < _WANT_FILES:
        do = f"raise `ulimit -n` to {_WANT_FILES}: data loaders and links between many nodes need it"
        return Result(check="descriptors", word="note", says=says, do=do, facts=facts)
    return Result(check="descriptors", word="ok", says=says, facts=facts)


def clock(context: Context) -> Result:
    """Compare the clock with the controller's, and watch on each core in turn that time goes forward, alike."""
    offset_s = None
    if context.wall_s is not None:
        offset_s = time.time() - (context.wall_s + time.monotonic() - context.wall_seen_s)
    back_s, drift_s = _watch()
    return clock_verdict(offset_s, context.wall_error_s, back_s=back_s, drift_s=drift_s, wall_s=time.time())


def clock_verdict(
    offset_s: float | None, error_s: float, *, back_s: float, drift_s: float, wall_s: float, watched_s: float = _WATCH_S
) -> Result:
    """The result for an offset from the controller (None: it was not told) that is known to ``error_s``.

    ``back_s``: how far monotonic time ever went back; ``drift_s``: by how much wall and monotonic time went apart.
    """
    facts = {"offset_s": offset_s, "error_s": error_s, "back_s": back_s, "drift_s": drift_s}
    if back_s > 0:
        return Result(
            check="clock",
            word="problem",
            says=f"monotonic time went back by {back_s:.3g} s",
            do="no deadline holds on this node: take it out (look for `clocksource` in the kernel log)",
            facts=facts,
        )
    far = 0.0 if offset_s is None else max(0.0, abs(offset_s) - error_s)
    set_clock = "set the clock (chrony or ntp must run)"
    if wall_s < _EARLIEST_S or far > _PROBLEM_S:
        by = f"{offset_s:+.3g} s from the controller's" if far > _PROBLEM_S else "years in the past"
        says = f"the clock is {by}: certificates and signed requests to object stores are refused"
        return Result(check="clock", word="problem", says=says, do=set_clock, facts=facts)
    if abs(drift_s) > watched_s / 2:
        says = f"the clock jumped by {drift_s:+.3g} s while it was watched"
        return Result(check="clock", word="note", says=says, do=set_clock, facts=facts)
    if offset_s is None:
        says = "time goes forward; there is no controller to compare the clock with"
        return Result(check="clock", word="ok", says=says, facts=facts)
    says = f"the clock is {offset_s:+.3g} s from the controller's (known to {error_s:.2g} s)"
    if far > _NOTE_S:
        do = f"logs of the nodes will not line up: {set_clock}"
        return Result(check="clock", word="note", says=says, do=do, facts=facts)
    return Result(check="clock", word="ok", says=says, facts=facts)


def _watch() -> tuple[float, float]:
    """Seconds that monotonic time went back, at worst, and by which wall time and it went apart."""
    cores = sorted(os.sched_getaffinity(0))
    first_wall, first = time.time(), time.monotonic()
    last, back, turn = first, 0.0, 0
    try:
        while last - first < _WATCH_S and turn < 1_000_000:
            os.sched_setaffinity(0, {cores[turn % len(cores)]})
            now = time.monotonic()
            back, last, turn = max(back, last - now), now, turn + 1
    finally:
        os.sched_setaffinity(0, cores)
    return back, (time.time() - first_wall) - (time.monotonic() - first)


def _bounded(limit: int) -> int:
    return limit if limit >= 0 else (1 << 63) - 1  # RLIM_INFINITY is -1


def _many(count: int) -> str:
    return "any number of" if count >= 1 << 62 else str(count)
