"""The Slurm that the tests start is a real one, and nothing of it is left afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from perdure.clock import SYSTEM, Deadline
from perdure.errors import CallError
from perdure.process.tree import kill_attempt
from perdure.testing.slurm import Slurm, missing_programs

from .conftest import install

_LONG = "srun --ntasks=2 --ntasks-per-node=1 sh -c 'echo $SLURMD_NODENAME $$; sleep 300'"


def test_a_job_runs_one_task_on_each_of_four_nodes(slurm: Slurm, tmp_path: Path) -> None:
    out = tmp_path / "out"
    job = slurm.submit("--nodes=4", f"--output={out}", "--wrap", "srun --ntasks-per-node=1 printenv SLURMD_NODENAME")

    assert slurm.wait_job(job, {"COMPLETED", "FAILED"})["JobState"] == "COMPLETED"
    assert sorted(out.read_text().split()) == list(slurm.nodes)
    assert job not in slurm.squeue()


def test_what_slurm_refuses_is_said_in_its_own_words(slurm: Slurm) -> None:
    with pytest.raises(CallError, match="valid node count"):
        slurm.submit("--nodes=many", "--wrap", "true")


def test_missing_programs_are_named() -> None:
    assert set(missing_programs("/nonexistent")) >= {"sbatch", "srun"}


@pytest.mark.slow
def test_a_killed_node_takes_all_its_processes_and_comes_back(slurm: Slurm, tmp_path: Path) -> None:
    out = tmp_path / "out"
    job = slurm.submit("--nodes=2", "--no-requeue", f"--output={out}", "--wrap", _LONG)
    tasks = _tasks(out, 2)

    second = slurm.nodes.index(max(tasks)) + 1
    killed = slurm.kill_node(second)

    assert tasks[max(tasks)] in killed
    assert tasks[min(tasks)] not in killed
    assert slurm.wait_job(job, {"NODE_FAIL", "FAILED"}, timeout_s=90)
    slurm.restore_node(second)
    slurm.wait_idle()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_nothing_is_left_of_it(how: str, tmp_path: Path) -> None:
    install()
    out = tmp_path / "out"
    script = (
        "import os, sys, time; from pathlib import Path; from perdure.testing.slurm import Slurm\n"
        "with Slurm(Path(sys.argv[1]), nodes=2, env=os.environ) as slurm:\n"
        "    slurm.submit('--nodes=2', f'--output={sys.argv[2]}', '--wrap', sys.argv[3])\n"
        "    print(slurm.env['PERDURE_MARK'], flush=True)\n"
        "    sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "slurm"), str(out), _LONG]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        mark = process.stdout.readline().strip()
        try:
            pids = _tasks(out, 2).values()
            if how == "stopped":
                process.stdin.close()
                assert process.wait(60) == 0
            else:
                process.send_signal(signal.SIGKILL)
            deadline = Deadline.after(30, "the tasks and daemons to be gone")
            while any(os.path.exists(f"/proc/{pid}") for pid in pids) or _writers(tmp_path / "slurm"):
                deadline.check()
                SYSTEM.sleep(0.1)
        finally:
            process.kill()
            kill_attempt(mark, sessions=())


def _tasks(out: Path, count: int) -> dict[str, int]:
    """The tasks of a job that prints its node and pid, once they have started."""
    deadline = Deadline.after(60, "the tasks to start")
    while not out.exists() or len(out.read_text().split()) < 2 * count:
        deadline.check()
        SYSTEM.sleep(0.1)
    words = out.read_text().split()
    return dict(zip(words[::2], map(int, words[1::2]), strict=True))


def _writers(folder: Path) -> list[int]:
    """The processes that have a file in ``folder`` open."""
    found = []
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        try:
            files = [os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")]
        except OSError:
            continue
        if any(file.startswith(f"{folder}/") for file in files):
            found.append(pid)
    return found
