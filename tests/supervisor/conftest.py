"""Jobs under a real launcher in a process of its own, with a stand-in for the agent that gives each attempt a page."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from perdure.events import Entry, read_log
from perdure.process import marked

SRC = str(Path(__file__).parents[2] / "src")

# argv: folder, nproc, then what `perdure run` is told
LAUNCH = """
import argparse, os, sys
from perdure.cli import run
from perdure.progress import Page

folder, nproc, *words = sys.argv[1:]

class PageAgent:
    def begin_attempt(self, attempt):
        self.pages = getattr(self, "pages", []) + [Page.create(int(nproc))]
        with open(folder + "/page.new", "w") as file:
            file.write(f"/proc/{os.getpid()}/fd/{self.pages[-1].fd}")
        os.rename(folder + "/page.new", folder + "/page")
        with open(folder + "/attempts", "a") as file:
            file.write(attempt + "\\n")
    def page(self): return self.pages[-1] if hasattr(self, "pages") else None
    def poll(self): pass
    def release(self): open(folder + "/released", "w").close()

parser = argparse.ArgumentParser()
run.add_parser(parser.add_subparsers())
sys.exit(run.main(parser.parse_args(["run", "--nproc", nproc, *words]), agent=PageAgent()))
"""

# What every rank's script begins with: `record` is its record, `attempt` counts, `here` is the test's folder.
RANK = """
import os, signal, sys, time
here = os.environ["TEST_FOLDER"]
rank, attempt = int(os.environ["RANK"]), int(os.environ["PERDURE_ATTEMPT"])
def page_record():
    from perdure.progress import Page
    return Page.attach(os.open(open(here + "/page").read(), os.O_RDWR)).rank(rank)
def say(name): open(f"{here}/{name}", "a").write(f"{time.monotonic()}\\n")
"""


class Job:
    """A launcher that runs, and what it wrote."""

    def __init__(self, process: subprocess.Popen[bytes], folder: Path) -> None:
        self.process = process
        self.folder = folder

    def await_files(self, *names: str, within_s: float = 10.0) -> None:
        give_up = time.monotonic() + within_s
        while not all((self.folder / name).exists() for name in names):
            if time.monotonic() > give_up or self.process.poll() not in (None, 0):
                self.process.kill()
                raise AssertionError(f"{names} did not appear: {self.end()}")
            time.sleep(0.005)

    def time_of(self, name: str) -> float:
        return float((self.folder / name).read_text().split()[0])

    def end(self, *, within_s: float = 20.0) -> tuple[int, str, str]:
        """Wait for the launcher; return exit code, stdout, stderr."""
        out, err = self.process.communicate(timeout=within_s)
        return self.process.returncode, out.decode(), err.decode()

    def events(self) -> list[Entry]:
        return read_log(self.folder / "events")

    def marks(self) -> list[str]:
        return (self.folder / "attempts").read_text().split()

    def alive(self) -> list[int]:
        """Every process of any attempt of this job."""
        return marked.pids_marked(self.marks()[0].split(".")[0])


Launch = Callable[..., Job]


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    """Start a job: ``launch(script, nproc=, ...)``; what is left of it is killed after the test."""
    jobs: list[Job] = []

    def start(
        script: str,
        *,
        nproc: int = 2,
        max_restarts: int = 3,
        grace_s: float = 20.0,
        log_dir: str = "-",
        bare: bool = True,
    ) -> Job:
        (tmp_path / "rank.py").write_text(RANK + script)
        options = [str(tmp_path), str(nproc), "--max-restarts", str(max_restarts), "--grace", str(grace_s)]
        options += [] if log_dir == "-" else ["--log-dir", log_dir]
        command = ["--no-python", "--", sys.executable, *(["-S"] if bare else []), str(tmp_path / "rank.py")]
        env = os.environ | {
            "PYTHONPATH": SRC,
            "TEST_FOLDER": str(tmp_path),
            "PERDURE_STATE": str(tmp_path / "state"),
            "PERDURE_EVENTS": str(tmp_path / "events"),
        }
        process = subprocess.Popen(
            [sys.executable, "-c", LAUNCH, *options, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env
        )
        jobs.append(Job(process, tmp_path))
        return jobs[-1]

    yield start
    for job in jobs:
        if job.process.poll() is None:
            job.process.send_signal(signal.SIGKILL)
        job.process.communicate(timeout=10)
        if (tmp_path / "attempts").exists():
            assert marked.sweep(job.marks()[0].split(".")[0], timeout_s=5)[1] == []
