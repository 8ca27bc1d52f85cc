"""Several nodes on this machine: a launcher each, started by one process that people see.

It passes on what the controller tells and the signals that it gets, and ends with the job's exit code. Its launchers
die with it, and their ranks with them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import BinaryIO

from perdure.clock import SYSTEM, Clock
from perdure.events import Log
from perdure.process.tree import die_with
from perdure.supervisor import messages as m
from perdure.supervisor.controller_link import ControllerLink
from perdure.supervisor.signals import asking_signals
from perdure.supervisor.vocabulary import Asked
from perdure.wire import Address

__all__ = ["Front"]

_LOOK_S = 0.05
_END_S = 10.0


class Front:
    """``commands`` start one launcher each. For the main thread of a process of its own."""

    def __init__(
        self,
        job: str,
        commands: Sequence[Sequence[str]],
        *,
        secret: bytes,
        addresses: Callable[[], list[Address]],
        env: Mapping[str, str],
        log: Log,
        stdout: BinaryIO | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        self._commands, self._env, self._log, self._clock = commands, env, log, clock
        self._stdout = stdout
        self._launchers: list[subprocess.Popen[bytes]] = []
        self._asked: list[int] = []
        self._code: int | None = None
        self._told = 0
        self._link = ControllerLink(
            job=job,
            secret=secret,
            hello=lambda term: m.Hello(protocol=m.PROTOCOL, job=job, term=term, listens=True, told=self._told),
            addresses=addresses,
            clock=clock,
        )

    def run(self) -> int:
        """Run to the end of the job; return its exit code."""
        with asking_signals() as pipe:
            try:
                for command in self._commands:
                    self._launchers.append(
                        subprocess.Popen(
                            list(command),
                            env=dict(self._env),
                            stdin=subprocess.DEVNULL,
                            start_new_session=True,
                            preexec_fn=die_with(os.getpid()),
                        )
                    )
                while any(launcher.poll() is None for launcher in self._launchers):
                    time.sleep(_LOOK_S)
                    self._look(pipe)
                for message in self._link.poll():  # the last words
                    self._hear(message)
            finally:
                self._end()
        return self._exit_code()

    def _look(self, pipe: int) -> None:
        try:
            numbers = list(os.read(pipe, 64))
        except BlockingIOError:
            numbers = []
        self._asked += numbers
        for message in self._link.poll():
            self._hear(message)
        while self._asked and self._link.send(Asked(self._asked[0], "the terminal")):
            self._asked.pop(0)

    def _hear(self, message: object) -> None:
        match message:
            case m.Tell(number=number, sentence=sentence, lines=lines):
                self._told = max(self._told, number)
                if lines:
                    self._log.print("\n".join(lines))
                self._log.print(sentence)
            case m.Release(exit_code=code):
                self._code = code
            case _:
                pass

    def _exit_code(self) -> int:
        """The controller's; else what launchers ended with."""
        if self._code is not None:
            return self._code
        codes = [launcher.returncode for launcher in self._launchers]
        good = [code for code in codes if code is not None and code >= 0]
        return good[0] if good else 128 - min(codes)

    def _end(self) -> None:
        self._link.drop()
        for launcher in self._launchers:
            if launcher.poll() is None:
                launcher.send_signal(signal.SIGTERM)
        until = self._clock.monotonic() + _END_S
        for launcher in self._launchers:
            try:
                launcher.wait(max(0.0, until - self._clock.monotonic()))
            except subprocess.TimeoutExpired:
                launcher.kill()
                launcher.wait()
