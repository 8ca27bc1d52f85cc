"""``perdure run`` watches its ranks: real jobs that hang, compute what is no number, or are well."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure.events import AttemptStarted, JobSucceeded, Notice, VerdictTold, read_log
from perdure.progress.probing import records_folder

pytestmark = pytest.mark.timeout(200)

RANK = """
import os, sys, time, pathlib, torch, torch.distributed as dist
dist.init_process_group("gloo")
here, rank, attempt = pathlib.Path(sys.argv[1]), dist.get_rank(), int(os.environ["PERDURE_ATTEMPT"])
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def say(name, text):
    (here / f"{name}.new").write_text(text)
    os.rename(here / f"{name}.new", here / name)
say(f"told-{attempt}-{rank}", os.environ.get("PERDURE_PROBE", ""))
for step in range(100_000):
    on = torch.tensor(0.0 if (here / f"finish-{attempt}").exists() else 1.0)
    dist.all_reduce(on, op=dist.ReduceOp.MIN)
    if not on:
        break
    loss = model(torch.ones(1, 4)).sum()
    if (here / f"nan-{attempt}-{rank}").exists():
        loss = loss * float("nan")
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.02)
    if step == 20:
        say(f"pid-{attempt}-{rank}", str(os.getpid()))
dist.destroy_process_group()
"""


class Run:
    """A job that trains until it is told to finish."""

    def __init__(self, folder: Path, *words: str, **env: str) -> None:
        self.folder, self.words = folder, words
        (folder / "rank.py").write_text(RANK)
        self.env = os.environ | {"PERDURE_STATE": str(folder / "state"), "PERDURE_EVENTS": str(folder / "events")} | env
        command = [sys.executable, "-m", "perdure", "run", "--job", self.name, *words]
        with open(folder / "output", "wb") as output:
            self.process = subprocess.Popen(
                [*command, "--", str(folder / "rank.py"), str(folder)], env=self.env, stdout=output, stderr=output
            )

    @property
    def name(self) -> str:
        return f"watched-{self.folder.name}"[:60]

    def said(self, name: str, *, within_s: float = 90.0) -> str:
        give_up = time.monotonic() + within_s
        while not (self.folder / name).exists():
            assert time.monotonic() < give_up, f"no {name}:\n{self.output()}"
            assert self.process.poll() is None, self.output()
            time.sleep(0.05)
        return (self.folder / name).read_text()

    def output(self) -> str:
        return (self.folder / "output").read_text()

    def facts(self, kind: type[Any]) -> list[Any]:
        return [entry.fact for entry in read_log(self.folder / "events") if isinstance(entry.fact, kind)]

    def verdicts(self) -> list[VerdictTold]:
        """All that was said of the job; that others take the processors of the machine of the tests may be true."""
        return [fact for fact in self.facts(VerdictTold) if fact.label != "sw.contention"]

    def finish(self, attempt: int) -> None:
        (self.folder / f"finish-{attempt}").touch()
        assert self.process.wait(60) == 0, self.output()
        assert len(self.facts(JobSucceeded)) == 1

    def tool(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "perdure", *words]
        return subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=60)

    def controller(self) -> int:
        return int(json.loads((self.folder / "state" / self.name / "controller.json").read_text())["pid"])

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(10)


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[list[Run]]:
    jobs: list[Run] = []
    yield jobs
    for job in jobs:
        job.close()


def start(runs: list[Run], folder: Path, *words: str, **env: str) -> Run:
    runs.append(Run(folder, *words, **env))
    return runs[-1]


def test_a_rank_that_is_frozen_on_one_of_two_nodes_is_named_and_the_job_starts_again(
    tmp_path: Path, runs: list[Run]
) -> None:
    job = start(runs, tmp_path, "--nodes", "2", "--nproc", "1", "--checks", "none", "--phase-deadline", "step=4")
    pid = int(job.said("pid-0-1"))
    job.said("pid-0-0")
    os.kill(pid, signal.SIGSTOP)
    job.said("pid-1-0")
    first, second = Path(job.said("told-0-1")), Path(job.said("told-0-0"))
    assert first != second  # a folder for each node
    assert sorted(path.name.partition(".")[0] for path in first.glob("rank-*")) == ["rank-1"]  # of this attempt alone
    job.finish(1)
    acted = [fact for fact in job.verdicts() if fact.action == "restart" and fact.stage == "verdict"]
    assert [(fact.ranks, fact.label, fact.incident) for fact in acted] == [
        ((1,), "transient.unknown", job.verdicts()[0].incident)
    ]
    (notice,) = [fact.text for fact in job.facts(Notice) if "starting all ranks again" in fact.text]
    assert notice.startswith("rank 1 on n1 is stopped as a process (state T)")
    assert [fact.attempt for fact in job.facts(AttemptStarted)] == [0, 1]
    assert not first.exists()
    assert not second.exists()
    why = job.tool("watch", "explain", acted[0].incident.partition("-")[2], "--job", job.name)
    assert "state T" in why.stdout, why
    shown = job.tool("job", "show", job.name)
    assert acted[0].incident in shown.stdout


def test_a_rank_that_computes_what_is_no_number_is_named_and_the_job_goes_back_before_that_step(
    tmp_path: Path, runs: list[Run]
) -> None:
    job = start(runs, tmp_path, "--nproc", "4")
    for rank in range(4):
        job.said(f"pid-0-{rank}")
    time.sleep(3.0)
    (tmp_path / "nan-0-2").touch()
    job.said("pid-1-2")
    job.finish(1)
    verdict = next(fact for fact in job.verdicts() if fact.stage == "verdict")
    assert (verdict.label, verdict.action, verdict.ranks) == ("train.nan", "rollback", (2,))
    assert verdict.step is not None
    (notice,) = [fact.text for fact in job.facts(Notice) if "starting all ranks again" in fact.text]
    assert f"roll back to before step {verdict.step};" in notice


def test_nothing_is_said_of_a_job_that_is_well_and_its_records_are_gone_in_the_end(
    tmp_path: Path, runs: list[Run]
) -> None:
    job = start(runs, tmp_path, "--nproc", "2")
    for rank in range(2):
        job.said(f"pid-0-{rank}")
    folder = Path(job.said("told-0-0"))
    assert len(list(folder.glob("rank-*"))) == 2
    assert folder.stat().st_mode & 0o777 == 0o700
    time.sleep(5.0)
    mute = job.tool("watch", "mute", "--job", job.name, "--label", "sw.contention", "--for", "10m")
    assert "nothing is told of sw.contention" in mute.stdout, mute
    unknown = job.tool("watch", "acknowledge", "--job", job.name, "9.9")
    assert (unknown.returncode, "there is no open incident 9.9" in unknown.stderr) == (64, True)
    for words in ((), ("--label", "no.label"), ("--rank", "1", "--for", "soon")):
        assert job.tool("watch", "mute", "--job", job.name, *words).returncode == 64
    job.finish(0)
    assert job.verdicts() == []
    assert not folder.exists()
    assert [fact.text for fact in job.facts(Notice)] == []


@pytest.mark.slow
@pytest.mark.slow
def test_a_controller_that_is_killed_is_followed_by_one_that_watches(tmp_path: Path, runs: list[Run]) -> None:
    job = start(runs, tmp_path, "--nproc", "2", "--phase-deadline", "step=3")
    pid = int(job.said("pid-0-1"))
    time.sleep(2.0)
    killed = job.controller()
    os.kill(killed, signal.SIGKILL)
    give_up = time.monotonic() + 60
    while "taking up the run" not in job.output():
        assert time.monotonic() < give_up, job.output()
        time.sleep(0.1)
    time.sleep(3.0)
    os.kill(pid, signal.SIGSTOP)
    job.said("pid-1-1")
    job.finish(1)
    assert [fact.ranks for fact in job.verdicts() if (fact.stage, fact.action) == ("verdict", "restart")] == [(1,)]


@pytest.mark.slow
def test_a_watcher_that_dies_is_started_again_and_costs_no_rank(tmp_path: Path, runs: list[Run]) -> None:
    job = start(runs, tmp_path, "--nproc", "2")
    job.said("pid-0-0")
    for module in ("watch_eye", "watch_judge"):
        os.kill(beside(module, job), signal.SIGKILL)
    give_up = time.monotonic() + 60
    while "the watch over its ranks has ended" not in job.output() or "over the job has ended" not in job.output():
        assert time.monotonic() < give_up, job.output()
        time.sleep(0.1)
    job.finish(0)
    assert [fact.attempt for fact in job.facts(AttemptStarted)] == [0]


def beside(module: str, job: Run) -> int:
    """The process of ``module`` that belongs to ``job``."""
    owners = {job.process.pid, job.controller()}
    give_up = time.monotonic() + 60
    while time.monotonic() < give_up:
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if f"perdure.cli.{module}".encode() in words and parent in owners:
                return int(pid)
        time.sleep(0.1)
    raise AssertionError(f"there is no {module}")


@pytest.mark.parametrize("how", ["flag", pytest.param("variable", marks=pytest.mark.slow)])
def test_a_user_may_do_without(tmp_path: Path, runs: list[Run], how: str) -> None:
    words, env = (("--no-watch",), {}) if how == "flag" else ((), {"PERDURE_PROBE": "off"})
    job = start(runs, tmp_path, "--nproc", "2", *words, **env)
    job.said("pid-0-0")
    assert job.said("told-0-0") == ("" if how == "flag" else "off")
    (tmp_path / "nan-0-1").touch()
    time.sleep(5.0)
    refused = job.tool("watch", "mute", "--job", job.name, "--rank", "1")
    assert (refused.returncode, "is not watched" in refused.stderr) == (64, True)
    job.finish(0)
    assert job.facts(VerdictTold) == []


def test_a_folder_of_records_is_private_and_one_that_nobody_holds_is_removed() -> None:
    first, held = records_folder()
    left, lock = records_folder()
    os.close(lock)  # as if its launcher had been killed
    second, last = records_folder()
    try:
        assert (first.exists(), left.exists(), second.stat().st_mode & 0o777) == (True, False, 0o700)
    finally:
        first.rmdir()
        second.rmdir()
        os.close(held)
        os.close(last)
