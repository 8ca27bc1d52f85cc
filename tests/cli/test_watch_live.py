"""``perdure watch -- torchrun ...`` with real ranks: one that is slow, one that dies of what it says, talkers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

RANK = """
import os, sys, time, traceback, torch, torch.distributed as dist
mode, steps = sys.argv[1], int(sys.argv[2])
dist.init_process_group("gloo")
rank, x = dist.get_rank(), torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(x.parameters(), lr=0.01)
for step in range(steps):
    time.sleep(0.05 * (1.3 if mode == "slow" and rank == 1 and step >= 250 else 1.0))
    if mode == "raises" and rank == 1 and step == 60:
        open("/no/such/part-7.bin")
    if mode == "out-of-memory" and rank == 1 and step == 60:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 79.15 GiB in total")
    if mode == "talks" and rank == 1:
        try:
            open("/no/such/part-7.bin")
        except OSError:
            traceback.print_exc()
        if step % 50 == 40:
            for item in range(20_000):
                print(f"rank {rank} step {step} error rate {item / 7} CUDA out of memory was avoided", file=sys.stderr)
    if mode == "saves" and step % 60 == 50:
        if rank == 0:
            torch.save(x.state_dict(), os.devnull)
            time.sleep(4)
        dist.barrier()
        with torch.no_grad():
            x.eval()
            for _ in range(40):
                x(torch.ones(1, 4))
                time.sleep(0.05)
            x.train()
    loss = x(torch.ones(1, 4)).pow(2).sum() + 1
    loss.backward()
    for each in x.parameters():
        dist.all_reduce(each.grad)
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""


def watched(folder: Path, mode: str, steps: int) -> tuple[int, list[dict[str, Any]], bytes]:
    """Exit code, verdicts and stderr of two ranks."""
    (folder / "rank.py").write_text(RANK)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [sys.executable, "-m", "perdure", "watch", "run", "--json", str(folder / "verdicts"), "--", *torchrun]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    with open(folder / "stderr", "wb") as stderr:
        ended = subprocess.run(
            [*command, str(folder / "rank.py"), mode, str(steps)], env=env, stderr=stderr, timeout=140
        )
    told = [json.loads(line) for line in (folder / "verdicts").read_text().splitlines()]
    return ended.returncode, told, (folder / "stderr").read_bytes()


@pytest.mark.timeout(150)
@pytest.mark.parametrize(
    ("mode", "label", "says"),
    [
        ("raises", "sw.user_code", "FileNotFoundError: [Errno 2] No such file or directory: '/no/such/part-7.bin'"),
        pytest.param("out-of-memory", "sw.gpu_oom", "CUDA out of memory", marks=pytest.mark.slow),
    ],
)
def test_a_rank_that_raises_has_the_label_of_what_it_said(tmp_path: Path, mode: str, label: str, says: str) -> None:
    code, told, said = watched(tmp_path, mode, 10_000)
    assert code == 1
    final = _without_neighbours(told)[-1]
    assert (final["stage"], final["label"], final["ranks"], final["action"]) == ("verdict", label, [1], "stop_user")
    assert says in final["sentence"]
    assert says.encode() in said
    assert b"perdure watch: verdict: rank 1" in said


def _without_neighbours(told: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """This machine may really be busy with something else."""
    return [each for each in told if each["label"] != "sw.contention"]


@pytest.mark.timeout(150)
@pytest.mark.slow
@pytest.mark.parametrize("mode", [pytest.param("talks", marks=pytest.mark.slow), "saves"])
def test_a_healthy_rank_may_print_what_it_likes_and_save_and_evaluate(tmp_path: Path, mode: str) -> None:
    code, told, said = watched(tmp_path, mode, 160)
    assert (code, _without_neighbours(told)) == (0, [])
    if mode == "talks":
        assert said.count(b"FileNotFoundError") == 160
        assert said.count(b"was avoided") == 3 * 20_000


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_a_rank_whose_own_work_takes_a_third_longer_is_named(tmp_path: Path) -> None:
    code, told, _ = watched(tmp_path, "slow", 750)
    assert code == 0
    told = [each for each in told if each["stage"] == "verdict"]
    (only,) = _without_neighbours(told)
    assert (only["label"], only["action"], only["ranks"]) == ("hw.straggler", "warn", [1])
