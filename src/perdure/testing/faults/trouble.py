"""What goes wrong inside a rank of the suite: the places of `perdure.testing.faults.train` ask here, by the plan.

A plan without a fault does nothing anywhere. The first moment of the fault is written into ``struck`` beside the plan:
CLOCK_MONOTONIC and the step, once, by whichever rank it strikes first.
"""

from __future__ import annotations

import ctypes
import os
import pdb  # noqa: T100
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec

__all__ = ["Plan", "Trouble", "burn"]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """All that a rank of the suite is told: how it trains, and what goes wrong. Times are seconds, steps from 0."""

    folder: str
    "Of this attempt: marks, states and the log."
    disk: str = ""
    "Where checkpoints go; ``folder`` if empty."
    seed: int = 0
    step_s: float = 0.05
    work: str = "device"
    "``device``: a step waits as for a device; ``cpu``: it takes processor time."
    uneven: float = 0.0
    "By how much the work of one batch differs from that of another, on each rank by itself."
    save_every: int = 0
    save_s: float = 0.0
    evaluate_every: int = 0
    evaluate_s: float = 0.2
    compiles: str = ""
    "A backend of torch.compile."
    resumes: str = ""
    "The state that an attempt before has left."
    steps: int = 1_000_000
    fault: str = ""
    victims: tuple[int, ...] = ()
    at_step: int = 0
    lasts_steps: int = 1_000_000
    variant: int = 0
    size: float = 0.0
    "How bad: a share of work, a number of seconds or lines."


def burn(seconds: float) -> None:
    """Take ``seconds`` of processor time."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


class Trouble:
    """The fault of one rank. Each method is a place in the training; it returns at once where nothing is planned."""

    def __init__(self, plan: Plan, rank: int) -> None:
        self.plan, self.rank = plan, rank
        self._mine = rank in plan.victims
        self._step = -1

    def _now(self, *faults: str) -> bool:
        plan = self.plan
        return self._mine and plan.fault in faults and 0 <= self._step - plan.at_step < plan.lasts_steps

    def _once(self, *faults: str) -> bool:
        return self._now(*faults) and self._step == self.plan.at_step

    def strike(self) -> None:
        """Say when it was, the first time."""
        path = Path(self.plan.folder) / "struck"
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        except FileExistsError:
            return
        os.write(fd, msgspec.json.encode([time.monotonic(), self._step]))
        os.close(fd)

    def starting(self, place: str) -> None:
        """Before torch is imported, and before the ranks meet."""
        if self._mine and (self.plan.fault, place) in (("slow-import", "import"), ("slow-start", "meet")):
            time.sleep(self.plan.size)

    def begin(self, step: int) -> None:
        """A step begins: what ends the process, or holds all of it."""
        self._step = step
        if not self._once(
            "exit", "raise", "segfault", "gil", "hang-compute", "breakpoint", "out-of-memory", "log-storm"
        ):
            return
        fault = self.plan.fault
        self.strike()
        if fault == "exit":
            os._exit(3 + self.plan.variant)
        if fault == "raise":
            raise (ValueError, KeyError, ZeroDivisionError)[self.plan.variant % 3]("the batch makes no sense")
        if fault == "out-of-memory":
            import torch

            text = "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 79.15 GiB of which"
            raise torch.OutOfMemoryError(f"{text} 1.06 GiB is free.")
        if fault == "segfault":
            ctypes.string_at(0)
        if fault == "gil":
            _hold_the_gil()
        if fault == "hang-compute":
            (_spin, _sleep, _wait_for_nobody)[self.plan.variant % 3]()
        if fault == "log-storm":
            for number in range(int(self.plan.size)):
                print(f"warning: sample {number} is longer than the context and was cut", file=sys.stderr)
        if fault == "breakpoint":
            pdb.set_trace()  # noqa: T100 (that is what the fault is)

    def load(self) -> None:
        """In the data set, once a batch."""
        if self._once("hang-loader"):
            self.strike()
            _sleep()
        if self._once("short-stall"):
            time.sleep(self.plan.size)

    def batch(self, x: Any, y: Any) -> tuple[Any, Any]:
        """The batch of this step."""
        if self._now("nan-batch"):
            self.strike()
            x = x.clone()
            x[0, 0] = float("nan")
        if self._now("diverges", "spike"):
            self.strike()
            y = y + self.plan.size * y.new_empty(y.shape).normal_()
        return x, y

    def work_s(self, seconds: float) -> float:
        """How long the own work of this step takes."""
        if self._now("slow-rank", "slow-node", "slow-job"):
            self.strike()
            return seconds * (1 + self.plan.size)
        return seconds

    def gradient(self, number: int, of: int, grad: Any) -> Any:
        """The own gradient of parameter ``number`` of ``of``, as the backward has computed it."""
        again = self.plan.variant % 2 and self._now(
            "flip-gradient"
        )  # a machine that computes wrong rarely does it once
        if number != self.plan.variant % of or not (again or self._once("inf-gradient", "flip-gradient")):
            return None
        self.strike()
        grad = grad.clone()
        flat = grad.view(-1)
        flat[0] = float("inf") if self.plan.fault == "inf-gradient" else _with_bit(flat[0], 30)
        return grad

    def parameters(self, parameters: list[Any]) -> None:
        """The optimizer has stepped."""
        if self._once("flip-parameter"):
            self.strike()
            flat = parameters[self.plan.variant % len(parameters)].data.view(-1)
            flat[0] = _with_bit(flat[0], 12 + self.plan.variant % 8)

    def collectives(self) -> str:
        """What this rank does where ranks put their metrics together: ``skip``, ``extra``, an odd call, or nothing."""
        odd = ("other-operation", "other-shape")[self.plan.variant % 2]
        for fault, does in (("skip-collective", "skip"), ("extra-collective", "extra"), ("odd-collective", odd)):
            if self._once(fault):
                self.strike()
                return does
        return ""

    def before_waiting(self) -> None:
        """All are about to wait for one another."""
        plan = self.plan
        if plan.fault != "stop-inside" or self._step != plan.at_step:
            return
        if not self._mine:
            time.sleep(0.6)  # so that the victim is inside by then, and alone

        def stop() -> None:
            time.sleep(0.2)
            self.strike()
            os.kill(os.getpid(), signal.SIGSTOP)

        if self._mine:
            threading.Thread(target=stop, daemon=True).start()

    def save(self, path: Path) -> Path:
        """Where this rank writes its part of the checkpoint."""
        if not (self._mine and self.plan.fault == "hang-io" and self._step >= self.plan.at_step):
            return path
        self.strike()
        if self.plan.variant % 2:
            one, _other = socket.socketpair()
            with one.makefile("rb") as answer:
                answer.readline()
        pipe = path.with_suffix(".pipe")
        os.mkfifo(pipe)
        return pipe  # nobody reads it

    def loses_metric(self) -> bool:
        """Whether a metric is left out of the log."""
        if self._now("metric-lost"):
            self.strike()
            return True
        return False


def _with_bit(value: Any, bit: int) -> float:
    number = ctypes.c_float(float(value))
    word = ctypes.c_uint32.from_buffer(number)
    word.value ^= 1 << bit
    return number.value


def _hold_the_gil() -> None:
    """A deadlock in C that never gives Python's lock back; no signal ends it."""
    mutex = ctypes.create_string_buffer(64)
    lock = ctypes.PyDLL(None).pthread_mutex_lock
    lock(mutex)
    lock(mutex)


def _spin() -> None:
    while True:
        sum(range(1000))


def _sleep() -> None:
    while True:
        time.sleep(1000)


def _wait_for_nobody() -> None:
    threading.Event().wait()
