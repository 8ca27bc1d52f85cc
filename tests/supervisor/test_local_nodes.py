"""Several nodes on this machine, with real processes: nodes and controllers that die, places taken, no orphan."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from perdure.events import Entry, Fact, JobSucceeded, NodeLost, PlaceTaken, read_log
from perdure.process import marked

SRC = str(Path(__file__).parents[2] / "src")

RANK = """
import os, signal, sys, time
here, attempt, rank = os.environ["TEST_FOLDER"], int(os.environ["PERDURE_ATTEMPT"]), int(os.environ["RANK"])
node = os.environ.get("PERDURE_NODE", "")
def say(name): open(f"{here}/{name}", "a").write(f"{os.getpid()}\\n")
say(f"up-{attempt}-{rank}-of-{os.environ['WORLD_SIZE']}-on-{node}")
while not os.path.exists(f"{here}/go-{attempt}"): time.sleep(0.02)
"""


class Job:
    """A job of several local nodes; `await_files` and the rest look at what its ranks have written."""

    def __init__(self, folder: Path, *words: str, env: dict[str, str] | None = None) -> None:
        self.folder, self.name = folder, f"job-{folder.name}"[:60]
        (folder / "rank.py").write_text(RANK)
        self.env = os.environ | {
            "PYTHONPATH": SRC,
            "TEST_FOLDER": str(folder),
            "PERDURE_STATE": str(folder / "state"),
            "PERDURE_EVENTS": str(folder / "events"),
        }
        self.env |= env or {}
        self.processes: list[subprocess.Popen[bytes]] = []
        self.start(*words)

    def start(self, *words: str, **env: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "perdure", "run", "--job", self.name, *words]
        command += ["--no-python", "--", sys.executable, "-S", str(self.folder / "rank.py")]
        with open(self.folder / "output", "ab") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output, env=self.env | env)
        self.processes.append(process)
        return process

    def await_files(self, *names: str, within_s: float = 60.0) -> None:
        give_up = time.monotonic() + within_s
        while not all((self.folder / name).exists() for name in names):
            assert time.monotonic() < give_up, f"{names} did not appear:\n{self.output()}"
            time.sleep(0.02)

    def await_that(self, holds: Callable[[], bool], *, within_s: float = 30.0) -> None:
        give_up = time.monotonic() + within_s
        while not holds():
            assert time.monotonic() < give_up, self.output()
            time.sleep(0.02)

    def output(self) -> str:
        return (self.folder / "output").read_text()

    def go(self, attempt: int) -> None:
        (self.folder / f"go-{attempt}").touch()

    def end(self, *, within_s: float = 60.0) -> int:
        return self.processes[0].wait(within_s)

    def controller(self, state: str = "state") -> int:
        give_up = time.monotonic() + 30
        while time.monotonic() < give_up:
            try:
                text = (self.folder / state / self.name / "controller.json").read_text()
                return int(json.loads(text)["pid"])
            except (OSError, ValueError):
                time.sleep(0.02)
        raise AssertionError(f"no controller:\n{self.output()}")

    def launcher(self, node: str) -> int:
        """The process of the launcher of ``node``."""
        for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if node.encode() in words and b"--node-name" in words and self.name.encode() in words:
                return pid
        raise AssertionError(f"there is no launcher of {node}")

    def facts(self, kind: type[Fact]) -> list[Fact]:
        entries: list[Entry] = read_log(self.folder / "events")
        return [entry.fact for entry in entries if isinstance(entry.fact, kind)]

    def pids(self) -> list[int]:
        """All processes that ranks have said they are and that still live."""
        said = [int(line) for path in self.folder.glob("up-*") for line in path.read_text().split()]
        return [pid for pid in said if os.path.exists(f"/proc/{pid}") and not marked.zombies([pid])]

    def nothing_is_left(self, *, within_s: float = 20.0) -> None:
        give_up = time.monotonic() + within_s
        while self.pids():
            assert time.monotonic() < give_up, f"{self.pids()} still live"
            time.sleep(0.05)

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait(10)
        for path in (self.folder).glob(f"*/{self.name}/controller.json"):
            pid = int(json.loads(path.read_text())["pid"])
            if os.path.exists(f"/proc/{pid}"):
                os.kill(pid, signal.SIGKILL)


Start = Callable[..., Job]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    jobs: list[Job] = []

    def begin(*words: str, **env: str) -> Job:
        jobs.append(Job(tmp_path, *words, env=env))
        return jobs[-1]

    yield begin
    for job in jobs:
        job.close()
        job.nothing_is_left()


def test_a_spare_takes_the_place_of_a_node_whose_launcher_is_killed(start: Start) -> None:
    job = start("--nodes", "2", "--spares", "1", "--nproc", "2", "--checks", "none")
    job.await_files(*(f"up-0-{rank}-of-4-on-n{rank // 2}" for rank in range(4)))
    before = job.pids()
    os.kill(job.launcher("n0"), signal.SIGKILL)
    job.await_files("up-1-0-of-4-on-n2", "up-1-1-of-4-on-n2", "up-1-2-of-4-on-n1", "up-1-3-of-4-on-n1")
    assert not set(before) & set(job.pids())
    job.go(1)
    assert job.end() == 0
    assert [fact.node for fact in job.facts(NodeLost)] == ["n0"]
    assert job.facts(PlaceTaken) == [PlaceTaken(place=0, node="n2", before="n0")]
    assert "node n2 takes place 0 of node n0" in job.output()


def test_a_killed_controller_is_replaced_and_no_rank_notices(start: Start) -> None:
    job = start("--nodes", "2", "--nproc", "1", "--checks", "none")
    job.await_files("up-0-0-of-2-on-n0", "up-0-1-of-2-on-n1")
    for _ in range(2):
        first = job.controller()
        os.kill(first, signal.SIGKILL)
        give_up = time.monotonic() + 30
        while job.controller() == first:
            assert time.monotonic() < give_up
            time.sleep(0.05)
    job.go(0)
    assert job.end() == 0
    assert job.facts(JobSucceeded)[0].attempts == 1
    assert len(list(job.folder.glob("up-*"))) == 2


def test_a_failure_while_there_is_no_controller_is_heard_by_the_next(start: Start) -> None:
    job = start("--nodes", "2", "--nproc", "1", "--checks", "none")
    job.await_files("up-0-0-of-2-on-n0", "up-0-1-of-2-on-n1")
    os.kill(job.controller(), signal.SIGKILL)
    os.kill(job.pids()[0], signal.SIGKILL)
    job.await_files("up-1-0-of-2-on-n0", "up-1-1-of-2-on-n1")
    job.go(1)
    assert job.end() == 0


def test_nothing_is_left_when_front_and_controller_are_killed(start: Start) -> None:
    job = start("--nodes", "2", "--nproc", "2", "--checks", "none")
    job.await_files(*(f"up-0-{rank}-of-4-on-n{rank // 2}" for rank in range(4)))
    job.await_that(lambda: len(job.pids()) == 4)  # a file is there before what is in it
    controller = job.controller()
    job.processes[0].kill()
    os.kill(controller, signal.SIGKILL)
    job.nothing_is_left()


def test_a_controller_without_launchers_goes(start: Start) -> None:
    job = start("--nodes", "2", "--nproc", "1", "--checks", "none", "--orphan", "1")
    job.await_files("up-0-0-of-2-on-n0", "up-0-1-of-2-on-n1")
    controller = job.controller()
    job.processes[0].kill()
    job.nothing_is_left()
    give_up = time.monotonic() + 30
    while os.path.exists(f"/proc/{controller}") and not marked.zombies([controller]):
        assert time.monotonic() < give_up, "the controller lives on"
        time.sleep(0.1)


def test_a_job_that_was_killed_whole_goes_on_when_it_is_started_again(start: Start) -> None:
    words = ("--nproc", "1")
    job = start(*words)
    job.await_files("up-0-0-of-1-on-")
    os.kill(job.controller(), signal.SIGKILL)
    job.processes[0].kill()
    job.nothing_is_left()
    again = job.start(*words)
    job.await_files("up-1-0-of-1-on-")  # the next attempt of the same run: its budget has not been forgotten
    job.go(1)
    assert again.wait(60) == 0


def test_a_job_cannot_be_started_twice_at_once(start: Start) -> None:
    job = start("--nproc", "1")
    job.await_files("up-0-0-of-1-on-")
    twin = job.start("--nproc", "1")
    assert twin.wait(30) == 64
    assert "runs here already" in job.output()
    job.go(0)
    assert job.end() == 0


def test_sigterm_to_the_front_stops_all_nodes(start: Start) -> None:
    job = start("--nodes", "2", "--nproc", "1", "--checks", "none", "--grace", "5")
    job.await_files("up-0-0-of-2-on-n0", "up-0-1-of-2-on-n1")
    job.processes[0].send_signal(signal.SIGTERM)
    assert job.end() == 143
    assert "the job stopped on SIGTERM" in job.output()
    job.nothing_is_left()


@pytest.mark.parametrize(
    "pause_s", [pytest.param(8.0, id="for a while", marks=pytest.mark.slow), pytest.param(None, id="for good")]
)
def test_a_controller_that_is_stopped_is_ended_and_no_rank_notices(start: Start, pause_s: float | None) -> None:
    job = start("--nproc", "1")
    job.await_files("up-0-0-of-1-on-")
    first = job.controller()
    os.kill(first, signal.SIGSTOP)
    if pause_s is not None:
        time.sleep(pause_s)
        with contextlib.suppress(ProcessLookupError):  # it has been ended, as it should
            os.kill(first, signal.SIGCONT)
    give_up = time.monotonic() + 30
    while job.controller() == first:
        assert time.monotonic() < give_up, job.output()
        time.sleep(0.05)
    job.go(0)
    assert job.end() == 0
    assert job.facts(JobSucceeded)[0].attempts == 1
    assert "the controller gave no sign of life and was ended" in job.output()


@pytest.mark.slow
def test_ranks_that_a_launcher_ended_for_want_of_a_controller_start_again(start: Start) -> None:
    job = joined(start)
    controller = job.controller()
    os.kill(job.launcher("m0"), signal.SIGSTOP)  # or it would end the controller, which is on its machine
    os.kill(controller, signal.SIGSTOP)
    time.sleep(6)  # longer than the lease
    os.kill(controller, signal.SIGCONT)
    os.kill(job.launcher("m0"), signal.SIGCONT)
    job.await_files("up-1-1-of-3-on-m1")
    for attempt in (1, 2, 3):
        job.go(attempt)
    assert [process.wait(60) for process in job.processes] == [0, 0, 0]


def test_what_a_stopped_launcher_ran_is_ended_before_its_place_is_taken(start: Start) -> None:
    job = start("--nodes", "2", "--spares", "1", "--nproc", "1", "--checks", "none")
    job.await_files("up-0-0-of-2-on-n0", "up-0-1-of-2-on-n1")
    launcher = job.launcher("n1")
    rank = int((job.folder / "up-0-1-of-2-on-n1").read_text())
    os.kill(launcher, signal.SIGSTOP)
    job.await_files("up-1-0-of-2-on-n0", "up-1-1-of-2-on-n2")
    fields = marked.stat_fields(rank)
    assert fields is not None  # nobody has reaped it
    assert fields[0] == b"Z"
    os.kill(launcher, signal.SIGCONT)
    job.go(1)
    assert job.end() == 0
    assert job.facts(JobSucceeded)[0].attempts == 2
    job.nothing_is_left()


def test_a_job_that_is_started_again_with_more_nodes_gets_them(start: Start) -> None:
    job = start("--nproc", "1")
    job.await_files("up-0-0-of-1-on-")
    job.processes[0].kill()
    job.nothing_is_left()
    again = job.start("--nodes", "2", "--nproc", "1", "--checks", "none")
    job.await_files("up-1-0-of-2-on-n0", "up-1-1-of-2-on-n1")
    job.await_that(lambda: "taking up the run that was left in " in job.output())
    assert job.output().count("attempt 0 started") == 1
    job.go(1)
    assert again.wait(60) == 0


def test_logs_that_cannot_be_written_are_found_out_before_anything_begins(start: Start) -> None:
    job = start("--nproc", "1", "--log-dir", "/proc/nope")
    assert job.end() == 64
    assert "cannot write logs in /proc/nope" in job.output()
    assert not (job.folder / "events").exists()


def joined(start: Start, *, orphan_s: float = 10.0) -> Job:
    """Three nodes that stand for machines: each has a state of its own, and the first one the controller."""
    port = _free_port()
    words = ("--nodes", "2:3", "--nproc", "1", "--controller", f"127.0.0.1:{port}", "--checks", "none")
    words += ("--orphan", str(orphan_s))
    job = start(*words, "--node-index", "0", "--node-name", "m0", PERDURE_TOKEN="secret")
    for i in (1, 2):
        own = {"PERDURE_STATE": str(job.folder / f"state{i}")}
        job.start(*words, "--node-index", str(i), "--node-name", f"m{i}", **own)
    job.await_files(*(f"up-0-{rank}-of-3-on-m{rank}" for rank in range(3)))
    return job


def test_a_majority_starts_another_controller_when_the_first_ones_node_is_gone(start: Start) -> None:
    job = joined(start)
    controller = job.controller()
    job.processes[0].kill()
    job.processes[0].wait(10)
    os.kill(controller, signal.SIGKILL)
    job.await_files("up-1-0-of-2-on-m1", "up-1-1-of-2-on-m2")
    job.go(1)
    assert [process.wait(60) for process in job.processes[1:]] == [0, 0]
    assert "the controller is gone; starting another one here" in job.output()


def test_a_minority_starts_none_and_ends_its_ranks(start: Start) -> None:
    job = joined(start, orphan_s=4.0)
    controller = job.controller()
    for process in job.processes[:2]:
        process.kill()
        process.wait(10)
    os.kill(controller, signal.SIGKILL)
    assert job.processes[2].wait(60) == 75
    assert "starting another one here" not in job.output()
    job.nothing_is_left()


def test_a_launcher_without_the_secret_is_not_let_in(start: Start) -> None:
    job = joined(start)
    port = json.loads((job.folder / "state" / job.name / "controller.json").read_text())["port"]
    words = ("--nodes", "2:3", "--nproc", "1", "--controller", f"127.0.0.1:{port}", "--node-name", "thief")
    thief = job.start(*words, "--node-index", "7", PERDURE_TOKEN="guess", PERDURE_STATE=str(job.folder / "thief"))
    time.sleep(7.0)
    job.go(0)
    assert [process.wait(60) for process in job.processes[:3]] == [0, 0, 0]
    thief.kill()
    assert "node thief: no controller yet" in job.output()
    assert "the token is another than its own" in job.output()
    assert "node thief joined" not in job.output()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
