"""A real job on this machine, of several nodes, whose ranks only count steps: for tests of what looks at jobs.

Launchers and controller are the real ones; an agent is played by a page of memory. A rank goes on from the last step
that was saved (every fifth one, and that at which it is told to stop) and ends when the job is told to finish.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import msgspec

from perdure.clock import Deadline
from perdure.errors import PerdureError
from perdure.process import marked
from perdure.supervisor import JobFolder, Spec, Waits
from perdure.supervisor.asking import Asker, Seen
from perdure.supervisor.messages import View

__all__ = ["SteppingJob"]

_LAUNCH: Final = """
import argparse, os, sys
from perdure.cli import run
from perdure.progress import Page

folder, node, nproc, *words = sys.argv[1:]

class PageAgent:
    pages = []
    def begin_attempt(self, attempt):
        self.pages.append(Page.create(int(nproc)))
        with open(f"{folder}/page-{node}.new", "w") as file:
            file.write(f"/proc/{os.getpid()}/fd/{self.pages[-1].fd}")
        os.rename(f"{folder}/page-{node}.new", f"{folder}/page-{node}")
        with open(f"{folder}/marks", "a") as file:
            file.write(attempt + "\\n")
    def page(self): return self.pages[-1] if self.pages else None
    def poll(self): pass
    def release(self): pass

os.makedirs(f"{folder}/run", exist_ok=True)
os.environ.update(TEST_FOLDER=folder, TEST_NODE=node, XDG_RUNTIME_DIR=f"{folder}/run")  # jobs of one name may meet
parser = argparse.ArgumentParser()
run.add_parser(parser.add_subparsers())
args = parser.parse_args(["run", "--node-name", node, "--nproc", nproc, *words])
sys.exit(run.main(args, agent=PageAgent()))
"""

_RANK: Final = """
import os, signal, sys, time
from pathlib import Path
from perdure.progress import Page, Phase

here, rank = Path(os.environ["TEST_FOLDER"]), int(os.environ["RANK"])
page = Page.attach(os.open((here / f"page-{os.environ['TEST_NODE']}").read_text(), os.O_RDWR))
record = page.rank(int(os.environ["LOCAL_RANK"]))
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
try:
    step = int((here / "saved").read_text())
except FileNotFoundError:
    step = 0
record.claim(rank=rank, step=step)
print(f"rank {rank} goes on from step {step}", flush=True)

def save():
    if rank == 0:
        (here / "saved.new").write_text(str(step))
        os.rename(here / "saved.new", here / "saved")

every = float(sys.argv[1])
while not (here / "finish").exists():
    record.enter(Phase.FORWARD)
    time.sleep(every - time.monotonic() % every)  # so that ranks stay together
    step += 1
    record.step = step
    record.enter(Phase.STEP)
    if step % 5 == 0 or asked:
        save()
    if asked:
        sys.exit(0)
record.enter(Phase.FINISHED)
"""


class SteppingJob:
    """A job of ``nodes`` and ``spares`` nodes of ``nproc`` ranks below ``folder``. Use as a context manager."""

    def __init__(
        self,
        folder: Path,
        *,
        name: str = "train",
        home: Path | None = None,
        nodes: int = 2,
        spares: int = 1,
        nproc: int = 2,
        step_s: float = 0.02,
    ) -> None:
        self.name, self.folder, self.home = name, folder, home or folder / "state"
        self.log_dir = folder / "logs"
        script = folder / "count.py"
        script.write_text(_RANK)
        command = (sys.executable, str(script), str(step_s))
        job = JobFolder(self.home, name)
        job.make()
        job.token()
        spec = Spec(
            name=name,
            start=uuid.uuid4().hex,
            command=command,
            min_nodes=nodes,
            max_nodes=nodes,
            spares=spares,
            grace_s=10.0,
            log_dir=str(self.log_dir),
            waits=Waits(join_s=30.0),
        )
        job.replace("spec.json", msgspec.json.encode(spec))
        words = ["--folder", str(job.path), "--job", name, "--nodes", str(nodes), "--spares", str(spares)]
        words += ["--log-dir", str(self.log_dir), "--no-python", "--", *command]
        self.asker = Asker(name, folder=job)
        self._launchers: dict[str, subprocess.Popen[bytes]] = {}
        for i in range(nodes + spares):
            own = [f"n{i}", str(nproc), "--node-index", str(i), *words]
            with open(folder / f"launcher-n{i}.log", "ab") as log:
                self._launchers[f"n{i}"] = subprocess.Popen(
                    [sys.executable, "-c", _LAUNCH, str(folder), *own],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=log,
                    start_new_session=True,
                )

    def wait_for(self, what: str, done: Callable[[View], bool], *, within_s: float = 90.0) -> Seen:
        """Look at the job until ``done(view)``; return it. Raises `DeadlineExceeded` with what there is instead."""
        deadline = Deadline.after(within_s, what)
        while True:
            with contextlib.suppress(PerdureError):  # it has not begun yet
                seen = self.asker.look()
                if done(seen.view):
                    return seen
            deadline.check(self.said())
            time.sleep(0.05)

    def wait_for_step(self, step: int, *, attempt: int = 0) -> Seen:
        """Wait until an attempt, ``attempt`` or a later one, has completed ``step``."""
        return self.wait_for(
            f"step {step} of attempt {attempt}",
            lambda view: (
                view.job.best_step >= step and view.job.attempt >= attempt and view.job.state.value == "execute"
            ),
        )

    def kill_rank(self, rank: int) -> None:
        """``kill -9`` a rank."""
        view = self.asker.look().view
        pids = {node.base + each.local_rank: each.pid for node in view.nodes for each in node.ranks}
        os.kill(pids[rank], signal.SIGKILL)

    def kill_launchers_and_controllers(self) -> None:
        """``kill -9`` all of them, so that no controller sees a launcher die, and no launcher starts another one.

        Ranks die with their launchers.
        """
        for launcher in self._launchers.values():
            launcher.send_signal(signal.SIGSTOP)
        for pid in self._controllers():  # also those that were started too late to become one and now would
            with contextlib.suppress(ProcessLookupError):  # it has ended
                os.kill(pid, signal.SIGKILL)
        for launcher in self._launchers.values():
            launcher.kill()
            launcher.wait(10)

    def _controllers(self) -> list[int]:
        words = [b"controller", b"--folder", os.fsencode(self.home / self.name)]
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):  # it has ended
                if path.read_bytes().split(b"\0")[3:6] == words:
                    found.append(int(path.parent.name))
        return found

    def finish(self) -> list[int]:
        """Let the ranks finish; return the launchers' exit codes."""
        (self.folder / "finish").touch()
        return self.exit_codes()

    def exit_codes(self, *, within_s: float = 90.0) -> list[int]:
        """Wait for the launchers; return their exit codes."""
        deadline = Deadline.after(within_s, f"the launchers of job {self.name}")
        return [launcher.wait(timeout=max(deadline.left(), 0.1)) for launcher in self._launchers.values()]

    def said(self) -> str:
        """What launchers and controller have printed."""
        logs = [*self.folder.glob("launcher-*.log"), self.home / self.name / "controller.log"]
        return "".join(path.read_text(errors="replace") for path in logs if path.exists())

    def close(self) -> None:
        """Leave nothing behind."""
        self.kill_launchers_and_controllers()
        if (self.folder / "marks").exists():
            for mark in {line.split(".")[0] for line in (self.folder / "marks").read_text().split()}:
                marked.sweep(mark, timeout_s=5)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
