"""Ranks of a benchmark: the same script once more for each, with the variables that a launcher sets; rank 0 reports."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping

import torch
import torch.distributed as dist

from measure import Turn

__all__ = ["be_rank", "in_step", "is_rank", "start_ranks"]


def is_rank() -> bool:
    """Whether this process was started by `start_ranks`."""
    return "PERDURE_BENCH_RANK" in os.environ


def start_ranks(number: int) -> None:
    """Run this script with its arguments as each of ``number`` ranks; exit with the first code that is not 0."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    common = {"WORLD_SIZE": str(number), "LOCAL_WORLD_SIZE": str(number), "MASTER_ADDR": "127.0.0.1"}
    job = {"MASTER_PORT": port, "PERDURE_BENCH_RANK": "1", "TORCHELASTIC_RUN_ID": f"bench-{os.getpid()}"}
    ranks = [
        subprocess.Popen(
            [sys.executable, *sys.argv], env={**os.environ, **common, **job, "RANK": str(i), "LOCAL_RANK": str(i)}
        )
        for i in range(number)
    ]
    sys.exit(next((code for code in [rank.wait() for rank in ranks] if code), 0))


def be_rank(device: str) -> int:
    """Meet the other ranks; this one's number."""
    backend = "gloo" if device == "cpu" else "cpu:gloo,cuda:nccl"
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    dist.init_process_group(backend)
    return dist.get_rank()


def in_step(turn: Turn) -> Turn:
    """``turn`` on all ranks at once; of each metric what the slowest rank took."""

    def together() -> Mapping[str, float]:
        dist.barrier()
        mine = turn()
        taken = torch.tensor(list(mine.values()), dtype=torch.float64)
        dist.all_reduce(taken, op=dist.ReduceOp.MAX)
        return dict(zip(mine, taken.tolist(), strict=True))

    return together
