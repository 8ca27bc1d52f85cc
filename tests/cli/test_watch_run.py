"""``perdure watch -- torchrun ...``: real ranks are watched, a stopped one is named, a healthy job is left alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

RANK = """
import os, pathlib, sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
here, rank, x = pathlib.Path(sys.argv[1]), dist.get_rank(), torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(x.parameters(), lr=0.01)
for step in range(100_000):
    on = torch.tensor(0.0 if (here / "finish").exists() else 1.0)
    dist.all_reduce(on, op=dist.ReduceOp.MIN)
    if not on:
        break
    x(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    while step == 3 and rank == 1 and (here / "hang").exists():
        time.sleep(0.05)
    time.sleep(0.01)
    if step == 50:
        (here / f"new-{rank}").write_text(str(os.getpid()))
        (here / f"new-{rank}").rename(here / f"pid-{rank}")
dist.destroy_process_group()
"""


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    (folder / "rank.py").write_text(RANK)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [sys.executable, "-m", "perdure", "watch", *words, "--", *torchrun, str(folder / "rank.py"), str(folder)]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=env, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)


def pid_of(rank: int, folder: Path) -> int:
    give_up = time.monotonic() + 60
    while not (folder / f"pid-{rank}").exists():
        assert time.monotonic() < give_up
        time.sleep(0.05)
    return int((folder / f"pid-{rank}").read_text())


@pytest.mark.timeout(150)
def test_a_stopped_rank_is_named_and_cleared_when_it_goes_on(tmp_path: Path) -> None:
    with start(tmp_path, "run", "--json", str(tmp_path / "verdicts")) as process:
        pid = pid_of(1, tmp_path)
        time.sleep(2.0)
        assert not (tmp_path / "verdicts").read_text()  # a healthy job
        os.kill(pid, signal.SIGSTOP)
        give_up = time.monotonic() + 60
        while not (tmp_path / "verdicts").read_text():
            assert time.monotonic() < give_up
            time.sleep(0.1)
        os.kill(pid, signal.SIGCONT)
        time.sleep(3.0)
        (tmp_path / "finish").touch()
        _, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    told = [json.loads(line) for line in (tmp_path / "verdicts").read_text().splitlines()]
    assert [(each["stage"], each["ranks"], each["incident"]) for each in told] == [
        ("verdict", [1], told[0]["incident"]),
        ("cleared", [1], told[0]["incident"]),
    ]
    explain = [sys.executable, "-m", "perdure", "watch", "explain"]
    why = subprocess.run([*explain, told[0]["incident"], str(tmp_path / "verdicts")], capture_output=True, text=True)
    assert "state T" in why.stdout
    wrong = subprocess.run([*explain, "9.9", str(tmp_path / "verdicts")], capture_output=True, text=True)
    assert (wrong.returncode, f"it has {told[0]['incident']}" in wrong.stderr) == (64, True)
    assert "rank 1" in said
    assert "state T" in said


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_a_hang_in_the_second_after_the_first_step_is_not_taken_for_the_first_step(tmp_path: Path) -> None:
    (tmp_path / "hang").touch()
    told: list[dict[str, object]] = []
    with start(tmp_path, "run", "--phase-deadline", "step=8", "--json", str(tmp_path / "verdicts")) as process:
        give_up = time.monotonic() + 90
        while not any(each["stage"] == "verdict" for each in told) and time.monotonic() < give_up:
            time.sleep(0.2)
            lines = (tmp_path / "verdicts").read_text().splitlines() if (tmp_path / "verdicts").exists() else []
            told = [json.loads(line) for line in lines]
        (tmp_path / "hang").unlink()
        (tmp_path / "finish").touch()
        _, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    sure = [(each["ranks"], each["action"]) for each in told if each["stage"] == "verdict"]
    assert sure == [([1], "restart")], said


@pytest.mark.timeout(150)
def test_a_killed_rank_is_named_not_the_one_that_fell_after_it(tmp_path: Path) -> None:
    with start(tmp_path, "run", "--json", str(tmp_path / "verdicts")) as process:
        os.kill(pid_of(1, tmp_path), signal.SIGKILL)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 1, said
    (told,) = [json.loads(line) for line in (tmp_path / "verdicts").read_text().splitlines()]
    assert (told["stage"], told["ranks"], told["action"]) == ("verdict", [1], "restart")
    assert "rank 1" in said
    assert "was ended by SIGKILL" in said


def test_the_exit_code_is_that_of_the_command_and_what_cannot_be_run_is_said() -> None:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "perdure", "watch", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    ended = run("--", "sh", "-c", "exit 7")
    assert ended.returncode == 7
    assert "no rank was seen" in ended.stderr
    assert run("run", "--", "sh", "-c", "kill -9 $$").returncode == 137
    for words, says in (((), "required"), (("run",), "is missing"), (("--", "/no/such"), "cannot start /no/such")):
        refused = run(*words)
        assert refused.returncode in (2, 64)
        assert says in refused.stderr
