"""The batch script: what it says to sbatch, and what it does with each exit code, with stand-ins that record."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from perdure.adapters.slurm.submit import Job, script
from perdure.cli.main import main
from perdure.errors import CallError

_SIGNALLED = (
    "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(143)); print('up', flush=True); time.sleep(60)"
)


def _job(folder: Path, *command: str, sbatch: tuple[str, ...] = (), max_requeues: int = 5) -> Job:
    return Job(
        name="a-job",
        folder=str(folder),
        n_nodes=3,
        n_spares=1,
        run=("env",),
        command=command,
        sbatch=sbatch,
        max_requeues=max_requeues,
    )


class _Cluster:
    """Stand-ins for ``scontrol`` and ``squeue`` that note how they were called."""

    def __init__(self, folder: Path, *, left_s: int = 9000) -> None:
        self.folder = folder
        (folder / "bin").mkdir()
        for name, body in (("scontrol", ""), ("squeue", f"date -d '+{left_s} seconds' +%FT%T")):
            program = folder / "bin" / name
            program.write_text(f'#!/bin/sh\necho {name} "$@" >>{folder}/calls\n{body}\n')
            program.chmod(0o755)

    def start(self, job: Job) -> subprocess.Popen[str]:
        file = self.folder / "script.sh"
        file.write_text(script(job).replace("env -- ", "env "))
        env = {**os.environ, "PATH": f"{self.folder}/bin:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}
        return subprocess.Popen(
            ["bash", str(file)], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=self.folder
        )

    def run(self, job: Job) -> int:
        process = self.start(job)
        process.communicate(timeout=60)
        return process.returncode

    @property
    def requeues(self) -> int:
        calls = self.folder / "calls"
        return calls.read_text().count("scontrol requeue 7") if calls.exists() else 0


@pytest.fixture
def cluster(tmp_path: Path) -> _Cluster:
    return _Cluster(tmp_path)


@pytest.mark.parametrize("code", [0, 1, 64, 73, 137])
def test_what_a_restart_cannot_change_ends_the_job(cluster: _Cluster, code: int) -> None:
    assert cluster.run(_job(cluster.folder, "sh", "-c", f"exit {code}")) == code
    assert cluster.requeues == 0


def test_a_job_that_may_work_later_is_requeued_but_not_for_ever(cluster: _Cluster) -> None:
    job = _job(cluster.folder, "sh", "-c", "exit 75", max_requeues=2)
    for requeues in (1, 2, 2):
        assert cluster.run(job) == 75
        assert cluster.requeues == requeues


def test_a_success_in_between_begins_the_count_anew(cluster: _Cluster) -> None:
    for code, requeues in (("75", 1), ("0", 1), ("75", 2)):
        assert cluster.run(_job(cluster.folder, "sh", "-c", f"exit {code}", max_requeues=1)) == int(code)
        assert cluster.requeues == requeues


@pytest.mark.parametrize(("left_s", "requeues"), [(100, 1), (9000, 0)])
def test_a_job_that_was_stopped_goes_on_if_its_time_was_over(tmp_path: Path, left_s: int, requeues: int) -> None:
    cluster = _Cluster(tmp_path, left_s=left_s)
    with cluster.start(_job(tmp_path, sys.executable, "-c", _SIGNALLED)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.terminate()
        process.communicate(timeout=60)

    assert process.returncode == (75 if requeues else 143)
    assert cluster.requeues == requeues


def test_the_outcome_that_a_launcher_wrote_counts_more_than_the_code_of_srun(cluster: _Cluster) -> None:
    job = _job(cluster.folder, "sh", "-c", 'echo 0 >"$PERDURE_SLURM_OUTCOME"; exit 75')
    assert cluster.run(job) == 0
    assert not list(cluster.folder.glob("*.outcome"))


def test_a_job_that_ended_without_its_first_node_is_not_run_again(cluster: _Cluster) -> None:
    (cluster.folder / "7.outcome").write_text("3\n")
    assert cluster.run(_job(cluster.folder, "touch", "again")) == 3
    assert not (cluster.folder / "again").exists()
    assert cluster.run(_job(cluster.folder, "touch", "again")) == 0


def test_options_of_sbatch_come_last_and_keep_their_blanks(tmp_path: Path) -> None:
    text = script(_job(tmp_path, "true", sbatch=("--comment=two words", "-p", "gpu")))
    lines = [line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH")]

    assert shlex.split(lines[-1]) == ["--comment=two words", "-p", "gpu"]
    assert {"--nodes=4", "--no-kill", "--requeue", "--open-mode=append", "--signal=B:TERM@120"} <= set(lines)
    assert "--exclusive" in lines


@pytest.mark.parametrize("share", ["--cpus-per-task=8", "--gpus-per-node=8", "-c"])
def test_whole_nodes_are_asked_for_unless_a_share_is(tmp_path: Path, share: str) -> None:
    assert "--exclusive" not in script(_job(tmp_path, "true", sbatch=(share,)))


@pytest.mark.parametrize("word", ["--array=1-4", "--no-kill=off", "-a"])
def test_options_that_the_script_stands_on_are_refused(tmp_path: Path, word: str) -> None:
    with pytest.raises(CallError, match="not for sbatch"):
        script(_job(tmp_path, "true", sbatch=(word,)))


def test_a_dry_run_prints_the_script_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert (
        main(["submit", "--nodes", "3", "--spares", "1", "--dry-run", "-p", "gpu", "--", "train.py", "--lr", "1"]) == 0
    )

    text = capsys.readouterr().out
    assert "#SBATCH -p gpu" in text
    assert "perdure run" in text
    assert "--nodes 3 --spares 1 -- " in text
    assert text.count("train.py --lr 1") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "says"),
    [(["--nodes", "2"], "no command"), (["--nodes", "0", "--", "a.py"], "one node")],
)
def test_what_cannot_be_submitted_is_said(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["submit", *words]) == 64
    assert says in capsys.readouterr().err
