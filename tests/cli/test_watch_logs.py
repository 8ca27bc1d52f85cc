"""``perdure watch logs``: jobs that others have started, followed by what their real processes write."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data" / "watch"

RANK = """
import math, os, pathlib, random, sys, time
rank, here, at = int(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3:]
noise = random.Random(rank)
say = lambda text: print(text, flush=True)
(here / f"pid-{rank}").write_text(str(os.getpid()))
step = 0
while not (here / "finish").exists():
    step += 1
    loss = 2.0 + noise.gauss(0, 0.01)
    if "nan" in at and (here / "fault").exists():
        loss = math.nan
    norm = noise.uniform(0.9, 1.1)
    say(f"[rank{rank}]: step {step}/100000 | loss: {loss:.5f} | grad norm: {norm:.3f} | step time (ms): 20.0")
    if "crash" in at and (here / "fault").exists():
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
    if "storm" in at:
        say("\\n".join(f"debug {n} " + "x" * 80 for n in range(1500)))
    time.sleep(0.05)
"""


class Job:
    """Processes that write as ranks do, each into a file of its own."""

    def __init__(self, folder: Path, name_of: Callable[[int], str], n_ranks: int, *words: str) -> None:
        self.folder, self.logs = folder, folder / "logs"
        script = folder / "rank.py"
        script.write_text(RANK)
        self.ranks = []
        for rank in range(n_ranks):
            path = self.logs / name_of(rank)
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab") as file:
                command = [sys.executable, str(script), str(rank), str(folder), *words]
                self.ranks.append(subprocess.Popen(command, stdout=file, stderr=file))

    def fault(self) -> None:
        (self.folder / "fault").touch()

    def end(self) -> None:
        (self.folder / "finish").touch()
        for process in self.ranks:
            process.send_signal(signal.SIGCONT)
            process.wait(30)


@contextmanager
def job(folder: Path, name_of: Callable[[int], str], n_ranks: int, *words: str) -> Iterator[Job]:
    running = Job(folder, name_of, n_ranks, *words)
    try:
        yield running
    finally:
        running.end()


@contextmanager
def watching(*words: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "perdure", "watch", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_for(says: Callable[[list[dict[str, object]]], bool], file: Path, *, seconds: float = 60.0) -> None:
    give_up = time.monotonic() + seconds
    while not (file.exists() and says(told(file))):
        assert time.monotonic() < give_up, file.read_text() if file.exists() else "nothing was told"
        time.sleep(0.1)


def told(file: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def torchrun(rank: int) -> str:
    return f"none_abc/attempt_0/{rank}/stdout.log"


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "perdure", "watch", *words], capture_output=True, text=True, timeout=100
    )


@pytest.mark.timeout(150)
@pytest.mark.parametrize(
    "name_of",
    [
        pytest.param(torchrun, id="torchrun", marks=pytest.mark.slow),
        pytest.param(lambda rank: f"slurm-77_{rank}.out", id="slurm", marks=pytest.mark.slow),
    ],
)
def test_a_rank_whose_log_falls_silent_is_suspected_and_nothing_is_done(
    tmp_path: Path, name_of: Callable[[int], str]
) -> None:
    out = tmp_path / "verdicts"
    with job(tmp_path, name_of, 4) as running:
        with watching("--logs", str(running.logs), "--json", str(out), "--silent", "4", "--quiet", "2") as watch:
            time.sleep(10)
            assert out.read_text() == ""  # a healthy job
            running.ranks[2].send_signal(signal.SIGSTOP)
            wait_for(lambda said: any(each["ranks"] == [2] for each in said), out)
            running.end()
            stdout, stderr = watch.communicate(timeout=60)
    assert watch.returncode == 0, stderr
    (said,) = [each for each in told(out) if each["stage"] != "cleared"]
    assert (said["stage"], said["action"], said["ranks"], said["nodes"]) == ("suspicion", "warn", [2], [])
    assert "3 others go on" in stderr
    assert "watched 4 logs of 4 ranks" in stdout
    assert "nothing failed" in stdout


@pytest.mark.timeout(150)
def test_a_loss_that_is_not_finite_is_told_while_the_job_runs(tmp_path: Path) -> None:
    out = tmp_path / "verdicts"
    with job(tmp_path, torchrun, 2, "nan") as running:
        with watching("logs", str(running.logs), "--json", str(out)) as watch:
            time.sleep(4)
            running.fault()
            wait_for(lambda said: any(each["label"] == "train.nan" for each in said), out)
            watch.send_signal(signal.SIGINT)
            stdout, stderr = watch.communicate(timeout=30)
    assert watch.returncode == 0, stderr
    assert "watched 2 logs of 2 ranks" in stdout
    assert "loss nan" in stdout
    assert "Traceback" not in stderr


@pytest.mark.timeout(150)
def test_when_all_writers_have_ended_the_job_is_diagnosed(tmp_path: Path) -> None:
    with job(tmp_path, lambda rank: f"train.rank{rank}.log", 2, "crash") as running:
        with watching("--logs", str(running.logs), "--quiet", "2") as watch:
            time.sleep(3)
            running.fault()
            stdout, stderr = watch.communicate(timeout=60)
    assert watch.returncode == 0, stderr
    assert "CUDA error: an illegal memory access" in stdout
    assert "at fault" in stdout


@pytest.mark.timeout(150)
def test_a_storm_does_not_hide_the_losses_and_is_bounded(tmp_path: Path) -> None:
    out = tmp_path / "verdicts"
    with job(tmp_path, torchrun, 2, "storm", "nan") as running:
        with watching("logs", str(running.logs), "--json", str(out)) as watch:
            time.sleep(5)
            running.fault()
            wait_for(lambda said: any(each["label"] == "train.nan" for each in said), out)
            peak = [line for line in Path(f"/proc/{watch.pid}/status").read_text().splitlines() if "VmHWM" in line]
            watch.send_signal(signal.SIGTERM)
            stdout, _ = watch.communicate(timeout=30)
    assert int(peak[0].split()[1]) < 300_000  # KiB
    assert "too many to look at" in stdout


@pytest.mark.timeout(150)
def test_a_log_that_is_rotated_or_cut_is_followed_on(tmp_path: Path) -> None:
    out, log = tmp_path / "verdicts", tmp_path / "train.log"
    log.write_text("".join(f"step {n} loss: {2 + n % 7 / 100}\n" for n in range(100)))
    with watching("logs", str(log), "--json", str(out)) as watch:
        time.sleep(3)
        log.rename(tmp_path / "train.log.1")
        log.write_text("".join(f"step {n} loss: {2 + n % 7 / 100}\n" for n in range(100, 140)))
        time.sleep(3)
        with log.open("r+") as file:
            file.truncate(0)
        log.write_text("step 141 loss: nan\n")
        wait_for(lambda said: [each["label"] for each in said] == ["train.nan"], out)
        watch.send_signal(signal.SIGINT)
        watch.communicate(timeout=30)


def test_what_was_written_is_judged_at_once(tmp_path: Path) -> None:
    losses = [2 + n % 7 / 100 for n in range(400)]
    losses[300:303] = 4.0, 3.5, 2.8
    log = tmp_path / "job.out"
    log.write_text("".join(f"{{'loss': {loss}, 'grad_norm': 0.5, 'epoch': 0.1}}\n" for loss in losses))
    ended = run("--logs", str(tmp_path), "--once", "--json", str(tmp_path / "out.json"))
    assert ended.returncode == 0, ended.stderr
    assert "came back" in ended.stderr
    assert "train.spike_recovered" in ended.stdout
    assert {each["label"] for each in told(tmp_path / "out.json")} == {"train.spike_recovered"}


def test_a_loss_that_is_another_after_a_restart_is_told(tmp_path: Path) -> None:
    for attempt, (first, level) in enumerate(((0, 2.0), (200, 2.6))):
        folder = tmp_path / f"run_x/attempt_{attempt}/0"
        folder.mkdir(parents=True)
        lines = [f"iteration {n}/ 1000 | lm loss: {level + n % 7 / 100:.6E}\n" for n in range(first, first + 260)]
        (folder / "stdout.log").write_text("".join(lines[:10]))
        if attempt == 0:
            before = lines
    out = tmp_path / "verdicts"
    (tmp_path / "run_x/attempt_1").rename(tmp_path / "later")
    log = tmp_path / "run_x/attempt_0/0/stdout.log"
    log.write_text("".join(before))
    with watching("logs", str(tmp_path / "run_x"), "--json", str(out)) as watch:
        time.sleep(3)
        (tmp_path / "later").rename(tmp_path / "run_x/attempt_1")
        wait_for(lambda said: [each["label"] for each in said] == ["train.bad_resume"], out)
        watch.send_signal(signal.SIGINT)
        watch.communicate(timeout=30)


@pytest.mark.skipif(not SHARED.is_dir(), reason="NOT TESTED: logs of real jobs; shared data are missing")
@pytest.mark.parametrize(
    ("name", "label"),
    [("bloom_spike_31214.log", "train.spike_recovered"), ("bloom_slowdown_42780.log", "hw.straggler")],
)
def test_logs_of_a_real_job_are_understood(name: str, label: str) -> None:
    ended = run("--logs", str(SHARED / name), "--once")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[1].startswith(label)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("logs",), "is missing"),
        (("--logs", "/no/such"), "there is no folder /no/such"),
        (("--logs", "/tmp", "--", "true"), "leave out either"),
        (("logs", "/tmp", "--quiet", "0"), "more than 0"),
        (("logs", "/tmp", "--json", "/no/such/file"), "cannot write"),
    ],
)
def test_what_cannot_be_watched_is_said(words: tuple[str, ...], says: str) -> None:
    refused = run(*words)
    assert refused.returncode == 64
    assert says in refused.stderr
