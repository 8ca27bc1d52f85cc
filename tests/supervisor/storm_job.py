"""A job of several nodes on this machine that is to be hurt: started as users do, kept alive as a cluster would.

Shape *front*: one `perdure run --nodes N --spares S`; if it is killed it is started again, as a user would. Shape
*joined*: a launcher a node, each started by itself with ``--controller``; one that is killed is started again after a
while, as the machine's init would. All processes carry ``PERDURE_STORM`` in their environment, however they came to
be, so that none of them can hide.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from perdure.clock import Deadline
from perdure.events import Entry, JobFailed, JobSucceeded, read_log
from perdure.process import marked
from perdure.process.ports import ReservedPort
from perdure.supervisor import JobFolder
from perdure.supervisor import messages as m
from perdure.wire import connect_node

__all__ = ["Job", "Process", "Shape", "marks_left"]

HERE = Path(__file__).resolve().parent
SRC = str(HERE.parents[1] / "src")
Shape = Literal["front", "joined"]


@dataclass(frozen=True, slots=True)
class Process:
    """A live process of the job. ``marks`` are those of the attempt that it is of, if of any."""

    pid: int
    parent: int
    argv: tuple[str, ...]
    marks: tuple[str, ...]

    @property
    def is_agent(self) -> bool:
        return "agent" in self.argv[:4]

    @property
    def is_controller(self) -> bool:
        return "controller" in self.argv[:4]

    @property
    def is_rank(self) -> bool:
        return any(word.endswith("storm_train.py") for word in self.argv) and "run" not in self.argv[:4]

    @property
    def node(self) -> str | None:
        """The node whose launcher or agent it is."""
        if "--node-name" in self.argv:
            return self.argv[self.argv.index("--node-name") + 1]
        if self.is_agent:
            return self.argv[self.argv.index("--job") + 1].partition("@")[2] or None
        return None


@dataclass
class Job:
    """``n_nodes`` nodes of ``nproc`` ranks and ``spares`` more, training ``steps`` steps into ``folder``."""

    folder: Path
    n_nodes: int
    nproc: int
    spares: int
    steps: int
    shape: Shape
    pace_s: float
    lease_s: float = 15.0
    "Of an agent that has neither launcher nor rank."
    orphan_s: float = 15.0
    "Within which whatever is to end by itself must have done so."
    token: str = field(default_factory=lambda: uuid.uuid4().hex)
    launchers: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    port: ReservedPort = field(default_factory=ReservedPort)
    notes: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"storm-{self.token[:8]}"

    @property
    def nodes(self) -> list[str]:
        return [f"n{i}" for i in range(self.n_nodes + self.spares)]

    @property
    def world(self) -> int:
        return self.n_nodes * self.nproc

    def note(self, text: str) -> None:
        """Keep what happened, for whoever looks for a reason."""
        self.notes.append(text)
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "notes").open("a") as file:
            print(f"{time.monotonic():.2f} {text}", file=file)

    # --- starting -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        for name in ["front"] if self.shape == "front" else self.nodes:
            self.start_launcher(name)

    def start_launcher(self, name: str) -> None:
        """Start the front, or the launcher of a node."""
        words = [sys.executable, "-m", "perdure", "run", "--job", self.name, "--nproc", str(self.nproc)]
        words += ["--nodes", str(self.n_nodes), "--spares", str(self.spares), "--max-restarts", "100"]
        if self.shape == "joined":
            words += ["--controller", f"127.0.0.1:{self.port.number}", "--node-name", name]
            words += ["--node-index", name.removeprefix("n")]
        words += ["--", sys.executable, str(HERE / "storm_train.py"), str(self.folder)]
        words += ["--to", str(self.folder / "checkpoints"), "--steps", str(self.steps), "--pace", str(self.pace_s)]
        with (self.folder / f"{name}.log").open("ab") as log:
            self.launchers[name] = subprocess.Popen(
                words, env=self._env(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def _env(self) -> dict[str, str]:
        return os.environ | {
            "PYTHONPATH": SRC,
            "PERDURE_STATE": str(self.folder / "state"),
            "PERDURE_EVENTS": str(self.folder / "events"),
            "PERDURE_STORM": self.token,
            "PERDURE_LEASE_S": str(self.lease_s),
            "XDG_RUNTIME_DIR": str(self._runtime()),
        }

    def _runtime(self) -> Path:
        """A short place for sockets, whose names may not be long."""
        path = Path("/tmp") / f"storm-{self.token[:8]}"
        path.mkdir(mode=0o700, exist_ok=True)
        return path

    # --- looking ------------------------------------------------------------------------------------------------------

    def processes(self) -> list[Process]:
        """Every live process of the job."""
        wanted = f"PERDURE_STORM={self.token}".encode()
        found = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                environ = Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
                argv = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
                parent = int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue  # gone
            if wanted in environ:
                marks = [each for each in environ if each.startswith(b"PERDURE_MARK=")]
                tokens = marks[0].decode().partition("=")[2].split(":") if marks else []
                found.append(Process(int(name), parent, tuple(each.decode() for each in argv), tuple(tokens)))
        return found

    def launcher_of(self, node: str) -> Process | None:
        """The process that keeps ``node``."""
        return next((each for each in self.processes() if each.node == node and "run" in each.argv[:4]), None)

    def below(self, pid: int) -> list[Process]:
        """The descendants of ``pid`` that are part of its node: no agent, no controller."""
        everybody, found = self.processes(), []
        parents = {pid}
        while parents:
            parents = {
                each.pid
                for each in everybody
                if each.parent in parents and not each.is_agent and not each.is_controller
            }
            found += [each for each in everybody if each.pid in parents]
        return found

    def events(self) -> list[Entry]:
        path = self.folder / "events"
        return read_log(path) if path.exists() else []

    @property
    def succeeded(self) -> bool:
        return any(isinstance(entry.fact, JobSucceeded) for entry in self.events())

    @property
    def failure(self) -> str | None:
        """Why the job has failed, if it has."""
        return next((entry.fact.reason for entry in self.events() if isinstance(entry.fact, JobFailed)), None)

    # --- keeping alive ------------------------------------------------------------------------------------------------

    def ended(self) -> dict[str, int]:
        """The launchers that have ended, and with what code."""
        return {name: code for name, each in self.launchers.items() if (code := each.poll()) is not None}

    def say(self, message: m.Up) -> str:
        """Tell the controller what a person wants; return why it will not."""
        folder = JobFolder(self.folder / "state", self.name)
        where = folder.where()
        if where is None:
            return "there is no controller"
        deadline = Deadline.after(5.0, "the controller to answer")
        link = connect_node(
            (where.host, where.port),
            name=self.name,
            secret=folder.token(),
            deadline=deadline,
            type=m.Down,
            max_body_bytes=m.MAX_MESSAGE_BYTES,
        )
        try:
            link.send(m.Hello(protocol=m.PROTOCOL, job=self.name), deadline=deadline)
            link.recv(deadline)
            link.send(message, deadline=deadline)
            while not isinstance(answer := link.recv(deadline)[0], m.Done):
                pass
            return answer.error
        finally:
            link.close()

    # --- ending -------------------------------------------------------------------------------------------------------

    def orphans(self) -> list[Process]:
        """Who is still there although all launchers have ended: whoever has not gone once its lease is over."""
        give_up = time.monotonic() + self.lease_s + self.orphan_s
        while (left := self.processes()) and time.monotonic() < give_up:
            time.sleep(0.2)
        return left

    def end(self) -> None:
        """Kill whatever is left."""
        for each in self.launchers.values():
            if each.poll() is None:
                each.kill()
            each.wait()
        for _ in range(3):
            for process in self.processes():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
            time.sleep(0.1)
        self.port.close()
        shutil.rmtree(self._runtime(), ignore_errors=True)


def marks_left(marks: tuple[str, ...]) -> list[int]:
    """The live processes of launchers' runs."""
    return [pid for mark in marks for pid in marked.pids_marked(mark)]
