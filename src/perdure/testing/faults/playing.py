"""Play one case: start the job, have it watched, strike it, wait for the answer, and write down what was said.

The watcher's answers are only recorded here; `perdure.testing.faults.scoring` judges them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from perdure.testing.faults.cases import Case, Outcome, Told
from perdure.testing.faults.job import Job
from perdure.testing.faults.kinds import Family
from perdure.testing.faults.scoring import answered
from perdure.testing.faults.watching import Watcher
from perdure.watcher.samples import NodeSample

__all__ = ["OUTSIDE", "play"]

_START_S = 90.0
_SETTLE_S = 4.0
"""After the answer: whether the same fault is told again."""
_AFTER_END_S = 4.0
_DISK_BYTES = 64 << 20
_FREE = 0.28
"""Of a disk or memory when it begins to fill."""
_FULL_IN_S = 250.0

_XID: Final = "NVRM: Xid (PCI:0000:{bus:02x}:00): {text}"
_ECC = (
    "48, pid='<unknown>', name=<unknown>, DBE (double bit error) ECC error detected",
    "64, pid='<unknown>', name=<unknown>, Row remapper: failed to remap a row",
    "95, pid=4711, name=python3, Uncontained ECC error in SM",
)
_MCE = (
    "mce: [Hardware Error]: CPU 12: Machine Check Exception: 5 Bank 7: be00000000800400",
    "{1}[Hardware Error]: event severity: fatal",
)


class _Struck:
    """A case while it is played: strikes from outside, and what goes on since."""

    def __init__(self, case: Case, job: Job) -> None:
        self.case, self.job = case, job
        self.node = job.node_of(case.victim)
        self.at_s: float | None = None
        self.step = -1
        self._next: list[tuple[float, Callable[[], None]]] = []

    def later(self, seconds: float, does: Callable[[], None]) -> None:
        """Do something so many seconds from now."""
        self._next.append((time.monotonic() + seconds, does))

    def go_on(self) -> None:
        """Do what is due."""
        due = [each for each in self._next if each[0] <= time.monotonic()]
        self._next = [each for each in self._next if each not in due]
        for _, does in due:
            does()

    def note(self) -> None:
        """It is struck now."""
        self.at_s, self.step = time.monotonic(), self.job.step()

    def fill(self) -> None:
        """Write to the disk of the node, a little each second, until the next would not go in."""
        more = int(_DISK_BYTES * _FREE / _FULL_IN_S)
        with open(self.node.disk / "more", "ab") as file:
            file.write(b"\0" * more)
        found = os.statvfs(self.node.disk)
        if found.f_bavail * found.f_frsize > 2 * more:
            self.later(1.0, self.fill)


def _killed(on: _Struck) -> None:
    on.job.signal(on.case.victim, signal.SIGKILL)


def _killed_for_memory(on: _Struck) -> None:
    pid = on.job.processes[on.case.victim].pid
    on.node.kernel_says(
        f"Memory cgroup out of memory: Killed process {pid} (python3) total-vm:9437184kB, anon-rss:8388608kB, "
        "file-rss:12kB, shmem-rss:0kB, UID:0 pgtables:17000kB oom_score_adj:0"
    )
    on.job.signal(on.case.victim, signal.SIGKILL)
    on.node.alters = lambda sample: msgspec.structs.replace(sample, oom_kills=(sample.oom_kills or 0) + 1)


def _node_gone(on: _Struck) -> None:
    on.node.silent = True
    on.job.signal_node(on.node, signal.SIGSTOP)


def _paused(on: _Struck) -> None:
    for node in on.job.nodes:
        on.job.signal_node(node, signal.SIGSTOP)

    def go_on() -> None:
        for node in on.job.nodes:
            on.job.signal_node(node, signal.SIGCONT)

    on.later(5.0, go_on)


def _memory_low(sample: NodeSample) -> NodeSample:
    total = sample.memory_total_bytes or 1 << 34
    return msgspec.structs.replace(sample, memory_total_bytes=total, memory_available_bytes=int(_FREE * total))


def _memory_fills(on: _Struck) -> None:
    began_s = time.monotonic()

    def alters(sample: NodeSample) -> NodeSample:
        total = sample.memory_total_bytes or 1 << 34
        share = max(0.0, _FREE - (time.monotonic() - began_s) * _FREE / _FULL_IN_S)
        return msgspec.structs.replace(_memory_low(sample), memory_available_bytes=int(share * total))

    on.node.alters = alters


def _clock_jumps(on: _Struck) -> None:
    sign = 1 if on.case.plan.variant % 2 else -1
    on.node.clock.offset_s = sign * (2.0 + on.case.plan.variant)


def _xid(*texts: str) -> Callable[[_Struck], None]:
    def say(on: _Struck) -> None:
        variant = on.case.plan.variant
        on.node.kernel_says(_XID.format(bus=variant % 200, text=texts[variant % len(texts)]))

    return say


OUTSIDE: Final[Mapping[str, Callable[[_Struck], None]]] = {
    "killed": _killed,
    "killed-for-memory": _killed_for_memory,
    "stopped": lambda on: on.job.signal(on.case.victim, signal.SIGSTOP),
    "node-gone": _node_gone,
    "neighbour": lambda on: on.job.neighbour(on.node),
    "disk-fills": _Struck.fill,
    "memory-fills": _memory_fills,
    "clock-jump": _clock_jumps,
    "gpu-off-bus": _xid("79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."),
    "gpu-memory": _xid(*_ECC),
    "machine-check": lambda on: on.node.kernel_says(_MCE[on.case.plan.variant % len(_MCE)]),
    "paused": _paused,
}
"""What is done from outside, or is played, by the name of the kind; the other kinds strike from inside."""


def play(case: Case, watcher: Watcher, folder: Path, *, base: Mapping[str, str]) -> Outcome:
    """Play ``case`` below ``folder`` (emptied), watched by ``watcher``; ranks inherit the environment ``base``.

    Takes ten seconds to a minute. What cannot be played here is an outcome with ``troubles``, not an exception.
    """
    began_s = time.monotonic()
    told: list[tuple[float, Told]] = []
    with Job(folder, case.nodes, base=base, pinned=case.kind.pinned) as job:
        on, troubles = _Struck(case, job), []
        try:
            _play(case, watcher, job, on, told, base)
        except (TimeoutError, subprocess.CalledProcessError) as error:
            troubles.append(str(error))
    at_s = on.at_s if on.at_s is not None else began_s
    return Outcome(
        kind=case.kind.name,
        seed=case.seed,
        nodes=case.nodes,
        rank=case.victim,
        node=case.node_of(case.victim),
        step=on.step,
        step_s=case.plan.step_s,
        told=tuple(msgspec.structs.replace(each, after_s=round(when - at_s, 2)) for when, each in told),
        took_s=round(time.monotonic() - began_s, 1),
        load=round(os.getloadavg()[0], 1),
        troubles=tuple(troubles),
    )


def _play(
    case: Case, watcher: Watcher, job: Job, on: _Struck, told: list[tuple[float, Told]], base: Mapping[str, str]
) -> None:
    if case.kind.name == "disk-fills":
        job.mount(on.node, size_bytes=_DISK_BYTES)
        (on.node.disk / "before").write_bytes(b"\0" * int(_DISK_BYTES * (1 - _FREE)))
    if case.kind.name == "memory-fills":
        on.node.alters = _memory_low
    words = watcher.start(job, base=base)
    try:
        plan = case.plan
        if case.kind.name in ("bad-resume", "resume"):
            plan = msgspec.structs.replace(plan, fault="")
        job.start(plan, words)
        _calm(case, watcher, job, on, told)
        if case.kind.name in ("bad-resume", "resume"):
            job.finish()
            _until(watcher, job, told, lambda: job.over, what="the end of the first attempt")
            state = str(job.here / "state.json")
            job.start(msgspec.structs.replace(case.plan, resumes=state), words)
            _until(watcher, job, told, lambda: job.step() >= 0, what="the second attempt")
            on.note()
        does = OUTSIDE.get(case.kind.name)
        if does is not None:
            on.note()
            does(on)
        _answer(case, watcher, job, on, told)
    finally:
        watcher.close()


def _look(watcher: Watcher, job: Job, told: list[tuple[float, Told]]) -> None:
    for each in watcher.verdicts():
        now_s = time.monotonic()
        told.append((now_s, Told(
            after_s=0.0, incident=each.incident, stage=each.stage.value, label=each.label.value,
            action=each.action.value, sentence=each.sentence, ranks=each.ranks, nodes=each.nodes,
            evidence=tuple(" | ".join((f"{one.kind}: {one.sentence}", *one.raw[:4])) for one in each.evidence),
        )))  # fmt: skip
    job.reap()


def _until(watcher: Watcher, job: Job, told: list[tuple[float, Told]], done: Callable[[], bool], *, what: str) -> None:
    give_up_s = time.monotonic() + _START_S
    while not done():
        _look(watcher, job, told)
        if time.monotonic() > give_up_s:
            raise TimeoutError(f"{what} did not come within {_START_S:.0f} s: {_last_words(job)}")


def _calm(case: Case, watcher: Watcher, job: Job, on: _Struck, told: list[tuple[float, Told]]) -> None:
    """Until the job trains; and where it is struck from outside, for a while after that."""
    _until(watcher, job, told, lambda: job.step() >= 0 or job.over, what="the first step")
    until_s = time.monotonic() + case.calm_s
    if case.kind.name not in OUTSIDE and case.kind.name not in ("bad-resume", "resume"):
        return
    _until(watcher, job, told, lambda: time.monotonic() >= until_s, what="some calm")


def _answer(case: Case, watcher: Watcher, job: Job, on: _Struck, told: list[tuple[float, Told]]) -> None:
    healthy = case.kind.family is Family.HEALTHY
    end_s = time.monotonic() + (case.kind.within_s if healthy else _START_S + 2 * case.calm_s)
    over = False
    while time.monotonic() < end_s:
        on.go_on()
        _look(watcher, job, told)
        struck = job.struck() if on.at_s is None else None
        if struck is not None:
            on.at_s, on.step = struck
        if on.at_s is not None and not healthy and not over:
            end_s = min(end_s, on.at_s + case.kind.within_s)
        if job.over and not over:
            over, end_s = True, min(end_s, time.monotonic() + _AFTER_END_S)
        if not healthy and not over and _is_answered(case, told, on):
            over, end_s = True, min(end_s, time.monotonic() + _SETTLE_S)
    if healthy:
        job.finish()
        rest_s = time.monotonic() + 15.0
        while not job.over and case.kind.name != "breakpoint" and time.monotonic() < rest_s:
            _look(watcher, job, told)
        for _ in range(3):
            _look(watcher, job, told)
        failed = [rank for rank, process in job.processes.items() if process.returncode]
        if failed:
            raise TimeoutError(f"ranks {failed} of a healthy job failed: {_last_words(job)}")
    elif on.at_s is None:
        raise TimeoutError(f"it was never struck: {_last_words(job)}")


def _is_answered(case: Case, told: list[tuple[float, Told]], on: _Struck) -> bool:
    return on.at_s is not None and any(
        answered(case.kind, each, rank=case.victim, node=case.node_of(case.victim)) and when >= on.at_s
        for when, each in told
    )


def _last_words(job: Job) -> str:
    words = []
    for node in job.nodes:
        for path in sorted(node.logs.iterdir()):
            lines = path.read_text(errors="replace").splitlines()
            words += [f"{path.name}: {line}" for line in lines[-2:]]
    return " | ".join(words)
