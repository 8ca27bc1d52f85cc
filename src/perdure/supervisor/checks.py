"""Checks of a node: small probes, each in a process of its own, with a deadline and a sentence.

Theory. What is being tested may hang for ever: a read of a dead disk or a call into a lost GPU waits in the kernel,
where not even SIGKILL ends it. So nothing is probed in the process that must answer. Each probe is a child that prints
one line of JSON; one that is late is killed, and one that does not even die is left behind by name. A probe that dies,
or says what nobody understands, is a problem too: the machine could not do something simple.

`run` is called by `perdure doctor`, which a launcher starts with the mark of its attempt, so that whatever is left
behind is found by `perdure.process.marked` like everything else of that attempt.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from perdure.clock import Deadline
from perdure.errors import CallError
from perdure.process.marked import stat_fields

__all__ = ["PROBES", "Context", "Probe", "Result", "Word", "run", "worst"]

Word = Literal["ok", "note", "problem"]

_KILL_S = 1.0
_START_S = 1.0
_HANGS = "what it needs hangs: look into the kernel log, and restart the node if nothing is found"
_MORE = 3.0  # times its deadline has a probe that others keep from the processor
_TAIL = 400


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What a check found: ``problem`` if the node should not be used, ``note`` if it can be but people should know."""

    check: str
    word: Word
    says: str
    do: str = ""
    facts: dict[str, Any] = {}

    def __post_init__(self) -> None:
        if not self.says or (self.word == "problem" and not self.do):
            raise CallError(f"check {self.check} has no sentence, or a problem without what to do about it")


class Context(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What probes are told. All of it may be left out; what is not said is not checked."""

    folder: str | None = None
    "A folder that the job writes to; for ``disk``."
    disk_bytes: int = 16 << 20
    "How much ``disk`` writes and reads."
    memory_bytes: int = 256 << 20
    "How much ``memory`` fills, at most; it takes no more than an eighth of what is free."
    need_memory_bytes: int = 0
    "Memory that the job needs on this node; for ``free-memory``."
    gpus: int | None = None
    "GPUs that the node must have."
    need_gpu_bytes: int = 0
    "Memory that must be free on each GPU; for ``gpu-memory``."
    gone: tuple[int, ...] = ()
    "Processes that have been ended and must hold no GPU memory any more."
    wall_s: float | None = None
    "What the controller's clock said, in seconds since 1970; for ``clock``."
    wall_seen_s: float = 0.0
    "When it said so, on this machine's monotonic clock."
    wall_error_s: float = 0.0
    "Half of the time that its answer took."
    xid_window_s: float = 3600.0
    "How far back errors of GPUs in the kernel's log count."


@dataclass(frozen=True, slots=True)
class Probe:
    """A function from `Context` to `Result`: where it is (``module:function``), and how long it may take."""

    where: str
    deadline_s: float
    about: str


_HERE = "perdure.supervisor.check_"

PROBES: Mapping[str, Probe] = {
    "cpu": Probe(f"{_HERE}compute:cpu", 30.0, "matrix products on each core against a known digest"),
    "memory": Probe(f"{_HERE}memory:memory", 30.0, "patterns written to memory and read again"),
    "free-memory": Probe(f"{_HERE}memory:free_memory", 5.0, "free memory and /dev/shm"),
    "disk": Probe(f"{_HERE}disk:disk", 30.0, "write, fsync and read in the job's folder"),
    "descriptors": Probe(f"{_HERE}host:descriptors", 5.0, "how many files a process may open"),
    "clock": Probe(f"{_HERE}host:clock", 10.0, "the clock against the controller's, and that time only goes forward"),
    "gpu": Probe(f"{_HERE}gpu:gpu", 20.0, "ECC errors, Xid errors, rows to be remapped, slowed clocks"),
    "gpu-memory": Probe(f"{_HERE}gpu:gpu_memory", 20.0, "GPU memory that ended processes still hold"),
}
"""Those that need no heavy library; `perdure doctor` adds those of the adapters."""

_left_behind: list[subprocess.Popen[bytes]] = []


def run(
    names: Sequence[str], context: Context, deadline: Deadline, *, probes: Mapping[str, Probe] = PROBES
) -> Iterator[Result]:
    """Run the probes ``names`` at once, and give each result as soon as it is there: one for each name, always.

    ``deadline`` bounds all of them; each also has its own. Raises `CallError` for a name that is none.
    """
    for name in names:
        if name not in probes:
            raise CallError(f"there is no check {name!r}; there are: {', '.join(probes)}", check=name)
    _left_behind[:] = [process for process in _left_behind if process.poll() is None]
    results: queue.SimpleQueue[Result] = queue.SimpleQueue()
    told = msgspec.json.encode(context).decode()
    threads = [
        threading.Thread(
            target=lambda name=name: results.put(_examine(name, probes[name], told, deadline)),
            name=f"check {name}",
            daemon=True,
        )
        for name in dict.fromkeys(names)
    ]
    for thread in threads:
        thread.start()
    waiting = dict.fromkeys(names)
    allowed_s = max((min(probes[name].deadline_s, deadline.left()) for name in names), default=0.0)
    answers = Deadline.after(allowed_s + _KILL_S + _START_S, "checks")
    while waiting:
        try:
            result = results.get(timeout=answers.left())
        except queue.Empty:  # not even a process could be started: the disk with the interpreter hangs
            for name in waiting:
                yield _problem(name, f"no process started for it within {allowed_s:.3g} s", _HANGS)
            return
        del waiting[result.check]
        yield result


def worst(results: Sequence[Result]) -> Word:
    """The worst word among ``results``; ``ok`` if there are none."""
    words = {result.word for result in results}
    return "problem" if "problem" in words else "note" if "note" in words else "ok"


def _examine(name: str, probe: Probe, context: str, deadline: Deadline) -> Result:
    """Run one probe. The child lives no longer than this thread (`perdure.supervisor.check_child`)."""
    allowed_s = min(probe.deadline_s, deadline.left())
    command = [sys.executable, "-P", "-m", "perdure.supervisor.check_child", name, probe.where, context]
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
    except OSError as error:
        return _problem(
            name, f"no process could be started for it: {error.strerror}", "look at `ulimit -u` and free memory"
        )
    began = time.monotonic()
    try:
        out, err = process.communicate(timeout=allowed_s)
    except subprocess.TimeoutExpired:
        more_s = min(_MORE * allowed_s, deadline.left()) if _starved(process.pid, allowed_s) else 0.0
        try:
            out, err = process.communicate(timeout=more_s)
        except subprocess.TimeoutExpired:
            return _given_up(name, process, allowed_s + more_s)
    if process.returncode == 0:
        with contextlib.suppress(msgspec.DecodeError, IndexError, CallError):
            result = msgspec.json.decode(out.splitlines()[-1], type=Result)
            facts = {**result.facts, "seconds": round(time.monotonic() - began, 3)}
            return msgspec.structs.replace(result, check=name, facts=facts)
    tail = err.decode(errors="replace").strip()[-_TAIL:]
    how = _ended(process.returncode)
    return _problem(
        name,
        f"its process {how}" + (f": {tail.splitlines()[-1]}" if tail else ""),
        f"run `perdure doctor --checks {name}` there; if it dies again, replace the node",
        exit=process.returncode,
        stderr=tail,
    )


def _starved(pid: int, allowed_s: float) -> bool:
    """Whether a probe is late because others had the processor: it could run, and was let for less than half of it."""
    fields = stat_fields(pid)
    if fields is None or fields[0] != b"R":
        return False
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") < allowed_s / 2


def _given_up(name: str, process: subprocess.Popen[bytes], allowed_s: float) -> Result:
    """Kill a probe that is late, and say where it hung; if even that does not end it, leave it."""
    facts: dict[str, Any] = {"pid": process.pid, "deadline_s": round(allowed_s, 3), **_where_it_hangs(process.pid)}
    process.kill()
    died = True
    try:
        process.communicate(timeout=_KILL_S)
    except subprocess.TimeoutExpired:
        died = process.poll() is not None
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
        if not died:
            _left_behind.append(process)
    says = f"no answer within {allowed_s:.3g} s; given up"
    if not died:
        says += f", and process {process.pid} cannot be killed (state {facts.get('state', 'unknown')})"
    return _problem(
        name,
        says,
        _HANGS,
        killed=died,
        **facts,
    )


def _where_it_hangs(pid: int) -> dict[str, str]:
    """State and place in the kernel of a process, as far as /proc tells."""
    found = {}
    with contextlib.suppress(OSError, IndexError):
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            found["state"] = file.read().rpartition(")")[2].split()[0]
    with contextlib.suppress(OSError):
        with open(f"/proc/{pid}/wchan", encoding="ascii", errors="replace") as file:
            found["in_kernel"] = file.read().strip()
    return found


def _ended(code: int) -> str:
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with {code}" if code else "ended without a result"


def _problem(name: str, says: str, do: str, **facts: Any) -> Result:
    return Result(check=name, word="problem", says=says, do=do, facts=facts)
