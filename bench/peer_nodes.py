"""Nodes on this machine, one rank and one agent each, for `bench/peer_restore.py` and `bench/peer_save.py`.

What both benchmarks share: the state, attempts on named nodes, and how ranks take turns together.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from measure import Turn
from perdure.checkpoint.link import socket_prefix
from perdure.process.lock import FileLock

__all__ = ["attempt", "kill_agent", "local", "make_sharded", "nodes", "together"]

TENSOR_MIB = 16
WIDTH = 1024
JOB = "bench-peer"
PATIENCE_S = 600.0


def make_sharded(mib: int, ranks: int, *, seed: int | None) -> dict[str, DTensor]:
    """float32 of ``mib`` MiB on each of the first ``ranks`` ranks, in tensors of 16 MiB a rank; zero if no seed.

    Sharded by rows over all ranks; the shards of those that come after are empty.
    """
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    mine = dist.get_rank() < ranks
    elements = TENSOR_MIB * 256 * WIDTH
    generator = None if seed is None else torch.Generator().manual_seed(seed + dist.get_rank())
    state = {}
    for number in range(max(1, mib // TENSOR_MIB)):
        shape = (1 if mine else 0, elements)
        shard = torch.zeros(shape) if generator is None else torch.randn(shape, generator=generator)
        whole = torch.Size((ranks, elements))
        state[f"layer{number:03}.weight"] = DTensor.from_local(
            shard, mesh, [Shard(0)], run_check=False, shape=whole, stride=(elements, 1)
        )
    return state


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor of the state."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def together(turn: Callable[[], Mapping[str, float]]) -> Turn:
    """A turn that all ranks begin at once; its seconds are those of the slowest rank."""

    def both() -> Mapping[str, float]:
        dist.barrier()
        mine = dict(turn())
        slowest = torch.tensor([mine[name] for name in sorted(mine)], dtype=torch.float64)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        return dict(zip(sorted(mine), slowest.tolist(), strict=True))

    return both


@contextlib.contextmanager
def nodes(folder: str | None) -> Iterator[pathlib.Path]:
    """A folder for all files; what runs there is ended with it."""
    with tempfile.TemporaryDirectory(dir=folder, prefix="perdure-bench-") as name:
        os.environ["XDG_RUNTIME_DIR"] = name
        os.environ["PERDURE_LEASE_S"] = "600"
        try:
            yield pathlib.Path(name)
        finally:
            for lock in (pathlib.Path(name) / "perdure").glob("*.lock"):
                _kill(FileLock.holder(lock))


def attempt(script: str, argv: Sequence[str], *, on: Sequence[str], number: int) -> str:
    """Run ``script`` as one rank on each node of ``on``; what rank 0 printed."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    ranks = []
    for rank, node in enumerate(on):
        placed = {
            "RANK": str(rank), "WORLD_SIZE": str(len(on)), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
            "GROUP_RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1",
            "PERDURE_JOB": JOB, "PERDURE_ATTEMPT": str(number), "PERDURE_MARK": f"{JOB}.{number}",
            "PERDURE_NODE": node,
        }  # fmt: skip
        out = subprocess.PIPE if rank == 0 else subprocess.DEVNULL
        ranks.append(subprocess.Popen([sys.executable, script, *argv], env=os.environ | placed, stdout=out, text=True))
    try:
        said, _ = ranks[0].communicate(timeout=PATIENCE_S)
        codes = [rank.wait(timeout=60) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert codes == [0] * len(on), f"ranks ended with {codes}"
    return said


def kill_agent(node: str) -> None:
    """The node is gone with all its memory."""
    runtime = pathlib.Path(os.environ["XDG_RUNTIME_DIR"]) / "perdure"
    (lock,) = runtime.glob(f"{socket_prefix(f'{JOB}@{node}')}*.lock")
    pid = FileLock.holder(lock)
    assert pid is not None, f"no agent on {node}"
    _kill(pid)
    give_up = time.monotonic() + 10
    while FileLock.holder(lock) is not None and time.monotonic() < give_up:
        time.sleep(0.01)


def _kill(pid: int | None) -> None:
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
