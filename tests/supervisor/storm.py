"""Faults that strike a job, what is done about them outside the job, and what was wrong in the end."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from storm_job import Job, Process, marks_left
from storm_lives import Life, all_steps, read_lives

from perdure.errors import PerdureError
from perdure.supervisor import vocabulary as v

__all__ = ["FAULTS", "Fault", "Outcome", "Storm", "at_random"]

Fault = Literal[
    "rank killed",
    "rank stopped",
    "rank raised",
    "agent killed",
    "controller killed",
    "launcher killed",
    "node killed",
    "node stopped",
    "front killed",
    "node drained",
]
FAULTS: tuple[Fault, ...] = get_args(Fault)
WEIGHTS = {"rank killed": 3, "launcher killed": 2, "node killed": 2, "controller killed": 2}
_SEEK_S = 10.0  # for somebody who can be struck, or a node that can be left
_AGAIN_S = 3.0  # after which a front is started again
_LEAVE_S = 30.0  # for launchers to leave once the job is over


@dataclass
class Outcome:
    """What became of the job. All lists but ``faults`` are of what must not be."""

    faults: list[tuple[float, Fault, str]] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    orphans: list[str] = field(default_factory=list)


class Storm:
    """Runs ``job`` to its end; ``draw`` gives the next fault and when it strikes, in seconds after the one before."""

    def __init__(self, job: Job, *, dice: random.Random, draw: Callable[[], tuple[float, Fault] | None]) -> None:
        self._job, self._dice, self._draw = job, dice, draw
        self._later: list[tuple[float, str, Callable[[], None]]] = []
        self._healing: set[str] = set()
        self.outcome = Outcome()

    def run(self, *, within_s: float) -> Outcome:
        """Start the job, strike it until it is over, look for what it left. What is left is killed."""
        job = self._job
        give_up = time.monotonic() + within_s
        try:
            job.start()
            self._await_first_step(give_up)
            next_fault = self._next_fault()
            while not self._over():
                if time.monotonic() > give_up:
                    self.outcome.lost.append(f"it was at step {all_steps(read_lives(job.folder))} after {within_s:g} s")
                    break
                time.sleep(0.1)
                self._do_what_is_due()
                if next_fault is not None and self._struck(*next_fault):
                    next_fault = self._next_fault()
            self._leave()
        finally:
            self._let_go_on()
            job.end()
        return self.outcome

    def _next_fault(self) -> tuple[float, Fault] | None:
        drawn = self._draw()
        return None if drawn is None else (time.monotonic() + drawn[0], drawn[1])

    def _struck(self, at_s: float, fault: Fault) -> bool:
        """Strike, once it is time to; whether it was done, or has been tried for long enough."""
        now = time.monotonic()
        return now >= at_s and (self._strike(fault) or now > at_s + _SEEK_S)

    def _await_first_step(self, give_up: float) -> None:
        while not all_steps(read_lives(self._job.folder)) and time.monotonic() < give_up:
            time.sleep(0.1)

    # --- outside the job ----------------------------------------------------------------------------------------------

    def _in(self, seconds: float, what: str, act: Callable[[], None]) -> None:
        self._later.append((time.monotonic() + seconds, what, act))

    def _do_what_is_due(self) -> None:
        now = time.monotonic()
        due = [each for each in self._later if each[0] <= now]
        self._later = [each for each in self._later if each[0] > now]
        for _, what, act in due:
            self._job.note(what)
            act()

    def _over(self) -> bool:
        """Whether the job has ended; launchers that end before it are started again."""
        job = self._job
        ended = job.ended()
        if not ended:
            return False
        if job.succeeded:
            return True
        if (failure := job.failure) is not None:
            self.outcome.lost.append(failure)
            return True
        for name, code in ended.items():
            if name not in self._healing:
                job.note(f"launcher {name} ended with {code} before the job did")
                self._heal(name, _AGAIN_S)
        return False

    def _heal(self, name: str, seconds: float) -> None:
        def start() -> None:
            self._healing.discard(name)
            if not self._job.succeeded:
                self._job.start_launcher(name)

        self._healing.add(name)
        self._in(seconds, f"start {name} again", start)

    def _let_go_on(self) -> None:
        for each in [each for each in self._later if each[1] == "go on"]:
            self._later.remove(each)
            each[2]()

    def _leave(self) -> None:
        """Let what is stopped go on, wait for launchers to leave, look for orphans."""
        job = self._job
        self._let_go_on()
        for at_s, what, act in self._later:
            if what == "look for orphans":
                time.sleep(max(0.0, at_s - time.monotonic()))
                act()
        self._later = []
        give_up = time.monotonic() + _LEAVE_S
        while len(job.ended()) < len(job.launchers) and time.monotonic() < give_up:
            time.sleep(0.1)
        for name, code in job.ended().items():
            if code not in (0, -signal.SIGKILL) and job.succeeded:
                job.note(f"launcher {name} ended with {code}, and the job had succeeded")
        self.outcome.orphans += [f"{' '.join(each.argv)} (process {each.pid})" for each in job.orphans()]

    # --- faults -------------------------------------------------------------------------------------------------------

    def _strike(self, fault: Fault) -> bool:
        how = self._how(fault)
        if how is None:
            time.sleep(0.4)
            return False
        self._job.note(f"{fault}: {how}")
        self.outcome.faults.append((time.monotonic(), fault, how))
        return True

    def _how(self, fault: Fault) -> str | None:
        match fault:
            case "rank killed" | "rank stopped" | "rank raised":
                return self._strike_rank(fault)
            case "agent killed" | "controller killed":
                found = [each for each in self._job.processes() if _is(each, fault)]
                return None if not found else self._kill([self._dice.choice(found)])
            case "launcher killed" | "node killed":
                return self._kill_node(whole=fault == "node killed")
            case "node stopped":
                node = self._dice.choice(self._job.nodes)
                pids = [each.pid for each in self._of_node(node)]
                return self._stop(pids, self._seconds(), node) if pids else None
            case "front killed":
                return self._kill_front()
            case "node drained":
                return self._drain()

    def _seconds(self) -> float:
        """Shorter than the lease, or longer."""
        return self._dice.uniform(0.5, 2.0) if self._dice.random() < 0.5 else self._dice.uniform(4.0, 10.0)

    def _live(self) -> list[Life]:
        here = {each.pid for each in self._job.processes()}
        return [life for life in read_lives(self._job.folder) if life.pid in here]

    def _strike_rank(self, fault: Fault) -> str | None:
        live = self._live()
        if not live:
            return None
        life = self._dice.choice(sorted(live, key=lambda each: each.rank))
        name = f"rank {life.rank} of {life.node}, attempt {life.attempt}"
        if fault == "rank raised":
            (self._job.folder / f"raise-{life.rank}").touch()
        elif fault == "rank killed":
            _send([life.pid], signal.SIGKILL)
        else:
            return self._stop([life.pid], self._seconds(), name)
        return name

    def _kill(self, processes: Sequence[Process]) -> str:
        _send([each.pid for each in processes], signal.SIGKILL)
        return ", ".join(f"{' '.join(each.argv[3:5])} ({each.pid})" for each in processes)

    def _of_node(self, node: str) -> list[Process]:
        """All processes of a node: its launcher first."""
        job = self._job
        launcher = job.launcher_of(node)
        if launcher is None:
            return []
        agents = [each for each in job.processes() if each.is_agent and each.node == node]
        controllers = [each for each in job.processes() if each.is_controller] if self._decides(node) else []
        return [launcher, *job.below(launcher.pid), *agents, *controllers]

    def _decides(self, node: str) -> bool:
        """Whether the controller is on this node."""
        return self._job.shape == "joined" and node == "n0"

    def _kill_node(self, *, whole: bool) -> str | None:
        job = self._job
        alive = [node for node in job.nodes if job.launcher_of(node) is not None]
        if job.shape == "front" and len(alive) <= job.n_nodes:
            return self._kill_front()
        if not alive:
            return None
        node = self._dice.choice(alive)
        processes = self._of_node(node)
        if not processes:
            return None
        self._expect_gone(processes[:1])
        self._kill(processes if whole else processes[:1])
        if job.shape == "joined":
            self._heal(node, self._dice.uniform(2.0, 12.0))
        return f"{node} ({processes[0].pid})"

    def _expect_gone(self, launchers: Sequence[Process]) -> None:
        """Look later whether the ranks of launchers that die now have gone with them."""
        below = [each for launcher in launchers for each in self._job.below(launcher.pid)]
        marks = tuple({mark.partition(".")[0] for each in below for mark in each.marks})
        if marks:
            self._in(self._job.orphan_s, "look for orphans", lambda: self._look_for(marks))

    def _look_for(self, marks: tuple[str, ...]) -> None:
        left = marks_left(marks)
        if left:
            self.outcome.orphans.append(f"{left} of a launcher that was killed {self._job.orphan_s:g} s before")

    def _kill_front(self) -> str | None:
        front = self._job.launchers.get("front")
        if front is None or front.poll() is not None:
            return None
        self._expect_gone([each for each in self._job.below(front.pid) if each.node is not None])
        front.kill()
        self._heal("front", _AGAIN_S)
        return f"front ({front.pid})"

    def _stop(self, pids: Sequence[int], seconds: float, what: str) -> str:
        handles = _open(pids)
        for handle in handles:
            _signal(handle, signal.SIGSTOP)

        def go_on() -> None:
            for handle in handles:
                _signal(handle, signal.SIGCONT)
                os.close(handle)

        self._in(seconds, "go on", go_on)
        return f"{what} for {seconds:.1f} s"

    def _drain(self) -> str | None:
        job = self._job
        node = self._dice.choice([node for node in job.nodes if job.launcher_of(node) is not None] or job.nodes)
        refusal = self._tell(v.Drain(node, "the storm"))
        if refusal:
            job.note(f"{node} is not drained: {refusal}")
            return None
        self._in(self._dice.uniform(8.0, 16.0), f"take {node} back", lambda: self._take_back(node))
        return node

    def _take_back(self, node: str) -> None:
        if self._tell(v.Uncordon(node)):
            self._in(2.0, f"take {node} back", lambda: self._take_back(node))

    def _tell(self, message: v.Drain | v.Uncordon) -> str:
        try:
            return self._job.say(message)
        except PerdureError as error:  # no controller just now
            return str(error)


def _is(process: Process, fault: Fault) -> bool:
    return process.is_agent if fault == "agent killed" else process.is_controller


def _send(pids: Sequence[int], number: int) -> None:
    for handle in _open(pids):
        _signal(handle, number)
        os.close(handle)


def _open(pids: Sequence[int]) -> list[int]:
    handles = []
    for pid in pids:
        try:
            handles.append(os.pidfd_open(pid))
        except ProcessLookupError:
            pass  # it is gone
    return handles


def _signal(handle: int, number: int) -> None:
    try:
        signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        pass  # it is gone


def at_random(dice: random.Random, *, mean_s: float, front: bool) -> Callable[[], tuple[float, Fault]]:
    """Faults of all kinds, after waits whose mean is ``mean_s``."""
    kinds = [each for each in FAULTS if each != "front killed" or front]
    weights = [WEIGHTS.get(each, 1) for each in kinds]
    return lambda: (dice.expovariate(1 / mean_s), dice.choices(kinds, weights)[0])
