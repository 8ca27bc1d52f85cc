"""The zygote: a standby interpreter that has imported what a rank needs, and forks a rank when it is asked to.

The launcher's side; the process itself is `perdure.process.zygote_child`, and what it is to import is found by
`perdure.process.zygote_modules`. Requests go over a socket of the two, with the rank's pipes and one more socket, over
which the rank itself reports: it is marked, in a session of its own, a child of the launcher, and bound to die with it.
Only then it is told to go on; if the launcher has given up by then, it exits. So `Zygote.fork` gives what `Rank.start`
gives, or nothing.

Whatever goes wrong with a zygote costs time only: the launcher starts ranks cold.
"""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import socket
import subprocess
import termios
import threading
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

from perdure.clock import Deadline
from perdure.errors import Bug, CallError, DeadlineExceeded, LinkLost, StorageError
from perdure.process import zygote_child
from perdure.process.environ import MARK
from perdure.process.tree import Ending, die_with, is_subreaper
from perdure.process.zygote_modules import PythonCommand, modules_of

__all__ = ["Zygote", "modules_of"]

_ROOM = "PERDURE_STANDBY_ROOM"
_ROOM_BYTES = 32 << 10  # for the variables in which a rank's environment differs from the zygote's
_TITLE_BYTES = 2048
_LAST_WORDS_BYTES = 64 << 10

# What tells ranks and attempts apart. In all else a rank has the zygote's environment: libraries read it as they load.
_OF_A_RANK = frozenset(
    [
        *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME"),
        *("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"),
        *("MASTER_ADDR", "MASTER_PORT"),
    ]
)
_OF_A_RANK_TOO = ("PERDURE_", "TORCHELASTIC_")
_READ_LATER = "CUDA_VISIBLE_DEVICES"  # by the first call of CUDA, which a zygote never makes


class Zygote:
    """A standby interpreter of one command on one node. Made with `start`; used from the main thread alone."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        control: socket.socket,
        command: PythonCommand,
        env: Mapping[str, str],
        cwd: str,
    ) -> None:
        self.pid = process.pid
        self._process = process
        self._control = control
        self._python = (command.python, command.options)
        self._env = env
        self._cwd = cwd
        self._heard = b""
        self._ready = False
        self._refusal: str | None = None

    @classmethod
    def start(
        cls,
        command: Sequence[str],
        *,
        preload: Sequence[str],
        env: Mapping[str, str],
        cwd: str | None = None,
        calls: str | None = None,
    ) -> Zygote:
        """Start the interpreter of ``command``, with its options, let it import ``preload``, and return at once.

        ``calls`` is a ``module:function`` that is imported after them, and called in each rank once it has its own
        environment and before its script; what it raises reaches nobody.

        ``env`` is what `environ.child_env` gives to any of the ranks; what tells ranks and attempts apart is left out.
        Its mark should be one of the launcher's run but of no attempt (``<run>.standby``), so that the guard ends the
        zygote and the end of an attempt does not. This process must be a subreaper (`tree.become_subreaper`), and keep
        `pid` from `tree.reap_orphans`.
        Raises `CallError` if the command is not plain Python (`modules_of` gives None).
        """
        if threading.current_thread() is not threading.main_thread() or not is_subreaper():
            raise Bug("a zygote must be started from the main thread of a subreaper")
        folder = os.getcwd() if cwd is None else cwd
        parsed = PythonCommand.parse(command, cwd=folder)
        if parsed is None:
            raise CallError(f"there can be no standby interpreter for {shlex.join(command)}: it is not plain Python")
        base = {name: value for name, value in env.items() if not _tells_apart(name)}
        last = {MARK: env[MARK]} if MARK in env else {}
        control, theirs = socket.socketpair()
        try:
            process = subprocess.Popen(
                [
                    parsed.python,
                    *parsed.options,
                    str(zygote_child.__file__),
                    str(theirs.fileno()),
                    str(os.getpid()),
                    "-" * _TITLE_BYTES,
                ],
                # The order is kept: the last two are the memory over which ranks write their own environment.
                env={**base, **last, _ROOM: "-" * _ROOM_BYTES},
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                bufsize=0,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                preexec_fn=die_with(os.getpid()),
            )
        except OSError as error:
            control.close()
            raise StorageError(f"cannot start a standby interpreter: {error.strerror}", errno=error.errno) from error
        finally:
            theirs.close()
        zygote = cls(process, control, parsed, base, folder)
        try:
            deadline = Deadline.after(10.0, "a standby interpreter to start")
            zygote._send({"preload": list(preload), "calls": calls}, (), deadline)
        except OSError:
            pass  # it has died already, and `refusal` says so
        return zygote

    def ready(self) -> bool:
        """Whether it has imported all and can fork; never blocks."""
        self._look()
        return self._ready and self._refusal is None

    def refusal(self) -> str | None:
        """Return a sentence if it cannot be used, now or later: an import failed or started a thread, or it died."""
        self._look()
        return self._refusal

    def fork(
        self, command: Sequence[str], *, env: Mapping[str, str], stdout: int, stderr: int, deadline: Deadline
    ) -> int:
        """Fork a rank that runs ``command`` with the environment ``env``; return its pid.

        The rank is a child of this process, in a session of its own, carries the mark in ``env``, dies with this
        process, and runs in the folder of the zygote. Its stdin is empty, its output goes to ``stdout`` and ``stderr``,
        which stay the caller's. Waits for imports that go on. If it raises, there is no rank, and ranks can be started
        cold: `CallError` if this zygote cannot be that rank (another interpreter, another environment),
        `DeadlineExceeded` and `LinkLost` if it does not answer; these end it.
        """
        request = self._request(command, env)
        if (refusal := self.refusal()) is not None:
            raise LinkLost(refusal)
        ours, theirs = socket.socketpair()
        with ours:
            try:
                with theirs:
                    self._send(request, (stdout, stderr, theirs.fileno()), deadline)
                answer = _line(ours, deadline)
                if answer is not None and "pid" in answer:
                    ours.sendall(b"g")
                    return int(answer["pid"])
            except TimeoutError:
                self._refuse(f"the standby interpreter {self.pid} has not forked a rank in time")
                raise DeadlineExceeded(f"gave up waiting for {deadline.what}", what=deadline.what) from None
            except OSError as error:
                self._refuse(f"the standby interpreter {self.pid} cannot be reached: {error.strerror}")
                raise LinkLost(str(self._refusal)) from error
        if answer is not None:
            raise CallError(str(answer["refusal"]))
        if (refusal := self.refusal()) is None:
            self._refuse(refusal := f"a rank that the standby interpreter {self.pid} forked ended before it began")
        raise LinkLost(refusal)

    def close(self) -> None:
        """Kill it; its ranks live on. Twice is fine."""
        if self._refusal is None:
            self._refusal = "the standby interpreter has been closed"
        self._control.close()
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _request(self, command: Sequence[str], env: Mapping[str, str]) -> dict[str, object]:
        """Return what the child has to know of a rank; raise `CallError` if it cannot become that rank."""
        parsed = PythonCommand.parse(command, cwd=self._cwd)
        if parsed is None or (parsed.python, parsed.options) != self._python:
            raise CallError(f"the standby interpreter was not started for {shlex.join(command)}")
        for name in sorted(self._env.keys() | env.keys()):
            if self._env.get(name) != env.get(name) and not (_tells_apart(name) or name == _READ_LATER):
                raise CallError(
                    f"the rank is to have another {name} than the standby interpreter, whose libraries may have read it"
                )
        names = sorted(env, key=lambda name: name != MARK)
        shown = "".join(f"{name}={env[name]}\0" for name in names if self._env.get(name) != env[name])
        if len(os.fsencode(shown)) > _ROOM_BYTES:
            raise CallError("the rank's environment differs too much from the standby interpreter's")
        return {
            "command": list(command),
            "script": parsed.script,
            "module": parsed.module,
            "arguments": parsed.arguments,
            "folder": parsed.folder(self._cwd),
            "env": dict(env),
            "shown": shown,
        }

    def _send(self, request: Mapping[str, object], fds: Sequence[int], deadline: Deadline) -> None:
        """Send a request; raise `OSError` if the zygote has gone, `TimeoutError` if it does not read."""
        body = json.dumps(request).encode()
        self._control.settimeout(max(deadline.left(), 0.001))
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", fds))] if fds else []
        self._control.sendmsg([len(body).to_bytes(zygote_child.HEADER_BYTES, "little")], ancillary)
        self._control.sendall(body)

    def _look(self) -> None:
        """Take note of what the zygote has said, and of its death."""
        if self._refusal is not None:
            return
        self._control.setblocking(False)
        while not self._ready and b"\n" not in self._heard:
            try:
                chunk = self._control.recv(1 << 16)
            except (BlockingIOError, ConnectionError):
                break
            if not chunk:
                break
            self._heard += chunk
        if not self._ready and b"\n" in self._heard:
            self._ready = True
            refusal = json.loads(self._heard)["refusal"]
            if refusal is not None:
                self._refuse(str(refusal))
                return
        code = self._process.poll()
        if code is not None:
            ending = Ending(code=code) if code >= 0 else Ending(signal=-code)
            how = f"by signal {ending.signal}" if ending.code is None else f"with code {ending.code}"
            self._refuse(f"the standby interpreter {self.pid} ended {how}{self._last_words()}")

    def _last_words(self) -> str:
        """Return what an interpreter printed that could not even start, as a tail of a sentence."""
        stream = self._process.stdout
        if stream is None:
            return ""
        waiting = array("i", [0])
        fcntl.ioctl(stream, termios.FIONREAD, waiting)
        printed = os.read(stream.fileno(), min(waiting[0], _LAST_WORDS_BYTES)) if waiting[0] else b""
        lines = printed.decode(errors="replace").strip().splitlines()
        fatal = [line for line in lines if line.startswith("Fatal Python error")]
        return f": {(fatal or lines)[-1]}" if lines else ""

    def _refuse(self, sentence: str) -> None:
        """Keep the first reason, and end the process: it is of no more use."""
        if self._refusal is None:
            self._refusal = sentence
        self._process.kill()


def _tells_apart(name: str) -> bool:
    return name in _OF_A_RANK or name.startswith(_OF_A_RANK_TOO)


def _line(source: socket.socket, deadline: Deadline) -> dict[str, Any] | None:
    """Return the JSON line that arrives, None at the end without one; raise `TimeoutError`."""
    heard = b""
    while not heard.endswith(b"\n"):
        left = deadline.left()
        if left <= 0:
            raise TimeoutError
        source.settimeout(left)
        chunk = source.recv(4096)
        if not chunk:
            return None
        heard += chunk
    return dict(json.loads(heard))
