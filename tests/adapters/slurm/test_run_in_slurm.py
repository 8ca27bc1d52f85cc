"""Whole jobs on a real Slurm: trainings of one gloo rank a node, from `perdure submit` to their end, through deaths."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from perdure.adapters.slurm.step import ask
from perdure.clock import SYSTEM, Deadline
from perdure.testing.slurm import Slurm

from .conftest import install

_TRAINING = Path(__file__).with_name("training.py")
_PERDURE = (sys.executable, "-m", "perdure")
_ENDED = {"COMPLETED", "FAILED", "NODE_FAIL", "CANCELLED", "TIMEOUT"}


@dataclass(frozen=True, slots=True)
class Noted:
    """A step that a rank has noted."""

    node: str
    step: int
    rank: int
    world: int
    pid: int
    attempt: int


class Training:
    """A job in ``folder``, submitted to ``slurm``."""

    def __init__(self, slurm: Slurm, folder: Path) -> None:
        self.slurm, self.folder = slurm, folder
        self.env = slurm.env | {"PERDURE_STATE": str(folder / "state"), "PERDURE_LEASE_S": "5"}
        self.job = 0

    def submit(self, *options: str, steps: int, pause_s: float = 0.1) -> None:
        words = ["--log-dir", str(self.folder / "logs"), *options]
        printed = ask(
            *_PERDURE, "submit", *words, "--", str(_TRAINING), str(self.folder), str(steps), str(pause_s), env=self.env
        )
        self.job = int(printed.split()[1])

    def noted(self) -> list[Noted]:
        found = []
        for file in self.folder.glob("steps.*"):
            for line in file.read_text().splitlines():
                numbers = [int(word) for word in line.split()]
                if len(numbers) == 5:
                    found.append(Noted(file.suffix[1:], *numbers))
        return sorted(found, key=lambda each: (each.attempt, each.step, each.rank))

    def await_step(self, step: int) -> Noted:
        deadline = Deadline.after(100.0, f"step {step}")
        while not (found := [each for each in self.noted() if each.step >= step]):
            assert self.slurm.job(self.job)["JobState"] not in _ENDED, self.log
            deadline.check(self.log)
            SYSTEM.sleep(0.1)
        return found[0]

    def end(self) -> dict[str, str]:
        return self.slurm.wait_job(self.job, _ENDED, timeout_s=150.0)

    def saved(self) -> int:
        """The newest committed step."""
        listed = json.loads(ask(*_PERDURE, "checkpoint", "ls", "--json", str(self.folder / "run"), env=self.env))
        return int(next(each["step"] for each in listed["commits"] if each["what"] == "head"))

    @property
    def log(self) -> str:
        file = self.folder / "logs" / f"slurm-{self.job}.log"
        return file.read_text() if file.exists() else "no log yet"


@pytest.fixture
def training(slurm: Slurm, tmp_path: Path) -> Training:
    return Training(slurm, tmp_path)


def test_a_job_trains_on_the_nodes_of_its_allocation_and_ends(training: Training) -> None:
    training.submit("--nodes", "2", steps=5)

    assert training.end()["JobState"] == "COMPLETED", training.log
    assert {(each.rank, each.world) for each in training.noted()} == {(0, 2), (1, 2)}
    assert {each.node for each in training.noted()} == {"node1", "node2"}
    assert training.noted()[-1].step == 5
    assert training.saved() == 5


@pytest.mark.slow
def test_a_killed_rank_is_started_again_inside_the_allocation(training: Training) -> None:
    training.submit("--nodes", "4", steps=25)
    victim = training.await_step(8)

    os.kill(victim.pid, signal.SIGKILL)

    ended = training.end()
    assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "0"), training.log
    again = [each for each in training.noted() if each.attempt == 1]
    assert min(each.step for each in again) > 5
    assert {each.rank for each in again if each.step == 25} == {0, 1, 2, 3}
    assert {each.node: each.rank for each in again} == {
        each.node: each.rank for each in training.noted() if not each.attempt
    }


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_spare_takes_the_place_of_a_dead_node(training: Training) -> None:
    training.submit("--nodes", "3", "--spares", "1", steps=25)
    step = training.await_step(8)
    used = {each.node for each in training.noted()}
    victim = next(node for node in sorted(used) if node != "node1")

    training.slurm.kill_node(training.slurm.nodes.index(victim) + 1)

    ended = training.end()
    assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "0"), training.log
    again = [each for each in training.noted() if each.attempt == 1]
    assert {each.node for each in again} == set(training.slurm.nodes) - {victim}
    assert min(each.step for each in again) >= step.step - 5
    assert {each.rank for each in again if each.step == 25} == {0, 1, 2}


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_a_job_whose_first_node_dies_goes_on_without_its_batch_script(training: Training) -> None:
    training.submit("--nodes", "2", "--spares", "1", steps=40, pause_s=0.2)
    step = training.await_step(8)

    training.slurm.kill_node(1)
    training.slurm.wait_job(training.job, {"PENDING", "COMPLETED"}, timeout_s=240.0)
    training.slurm.run("scontrol", "update", f"JobId={training.job}", "StartTime=now")

    assert training.end()["JobState"] == "COMPLETED", training.log
    again = [each for each in training.noted() if each.attempt == 1]
    assert {each.node for each in again} == {"node2", "node3"}
    assert min(each.step for each in again) >= step.step - 5
    assert {each.rank for each in again if each.step == 40} == {0, 1}
    assert "has ended with code 0" in training.log  # the script that Slurm started anew has nothing to do but to say so
    assert not list((training.folder / "logs").glob("*.outcome"))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_requeued_job_goes_on_where_it_was_and_is_started_at_once_for_who_waits(training: Training) -> None:
    command = [*_PERDURE, "submit", "--wait", "--log-dir", str(training.folder / "logs"), "--nodes", "2"]
    command += ["--", str(_TRAINING), str(training.folder), "25", "0.1"]
    with subprocess.Popen(
        command, env=training.env, cwd=training.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        training.job = int(process.stdout.readline().split()[1])
        training.await_step(8)
        training.slurm.run("scontrol", "requeue", str(training.job))
        try:
            _, said = process.communicate(timeout=200)
        finally:
            process.kill()

    assert process.returncode == 0, training.log
    assert "may start again at once" in said
    assert training.slurm.job(training.job)["Restarts"] == "1"
    assert training.noted()[-1].step == 25
    assert "restored step" in training.log


@pytest.fixture
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """A Slurm that tracks processes by cgroup, as real clusters do: with a step all of its processes end."""
    install()
    if os.geteuid() != 0 or not Path("/sys/fs/cgroup/freezer").is_dir():
        pytest.skip("NOT TESTED: proctrack/cgroup; it needs root and the freezer of cgroup v1")
    with Slurm(tmp_path_factory.mktemp("strict"), env=os.environ, nodes=2, proctrack="cgroup") as slurm:
        yield slurm


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("how", [("--batch", "--signal=TERM"), ()])
def test_a_job_that_is_told_to_stop_saves_first(strict: Slurm, how: tuple[str, ...], tmp_path: Path) -> None:
    training = Training(strict, tmp_path)
    training.submit("--nodes", "2", steps=1000)
    training.await_step(8)

    strict.run("scancel", *how, str(training.job))

    assert training.end()["JobState"] == ("FAILED" if how else "CANCELLED")
    last = training.noted()[-1].step
    assert training.saved() == last, training.log
    assert last < 1000


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_what_the_agents_hold_is_written_before_the_step_ends(strict: Slurm, tmp_path: Path) -> None:
    training = Training(strict, tmp_path)
    training.submit("--nodes", "2", steps=10)

    assert training.end()["JobState"] == "COMPLETED", training.log
    assert training.saved() == 10
