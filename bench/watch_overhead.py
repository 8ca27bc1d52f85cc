"""What does the probe cost a rank? Steps of about 50 ms of a DDP over gloo, with and without, in interleaved pairs.

    .venv/bin/python bench/watch_overhead.py [--pairs 12] [--steps 20] [--ranks 2] [--width 512] [--step-ms 50]

Every pair is a block of steps with the probe and one without, in the same processes and in an order that changes from
pair to pair; without means that its hooks, patches and thread are gone, not idle. Two things are measured: the time of
a step, which other work on the machine disturbs, and the processor time that the main thread has used for it, which it
hardly does. Printed are the medians, and of the pairs' ratios the median with an interval that holds it in 95 of 100
cases (by order statistics).
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

WARM_STEPS = 4


def main() -> None:
    """Start the ranks, or be one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--step-ms", type=float, default=50.0)
    args = parser.parse_args()
    if args.pairs < 10:
        parser.error("fewer than 10 pairs say little")
    if "PERDURE_BENCH_FOLDER" in os.environ:
        be_rank(args)
        return
    folder = tempfile.mkdtemp(prefix="perdure-bench-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    ranks = []
    try:
        for rank in range(args.ranks):
            env = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(args.ranks), "OMP_NUM_THREADS": "1"}
            env.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, PERDURE_BENCH_FOLDER=folder)
            ranks.append(subprocess.Popen([sys.executable, *sys.argv], env=env))
        codes = [each.wait() for each in ranks]
    finally:
        for each in ranks:
            each.kill()
        shutil.rmtree(folder)
    sys.exit(max(map(abs, codes)))


def be_rank(args: argparse.Namespace) -> None:
    """Train blocks of steps with and without, all ranks in the same order; rank 0 prints."""
    import torch
    import torch.distributed as dist

    from perdure.adapters.torch.probe import Probe
    from perdure.process.environ import ProbeTold

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    width = args.width
    layers = [torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.ReLU()) for _ in range(4)]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def step(batch: torch.Tensor) -> None:
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    rows = 32
    while True:  # as many rows as take a step's time, told by rank 0 to all
        batch = torch.randn(rows, width)
        took = []
        for _ in range(5):
            began = time.thread_time()
            step(batch)
            took.append(time.thread_time() - began)
        enough = torch.tensor([float(statistics.median(took) * 1e3 >= args.step_ms or rows > 1 << 16)])
        dist.broadcast(enough, 0)
        if enough.item():
            break
        rows = int(rows * 1.5)

    def block() -> tuple[float, float]:
        for _ in range(WARM_STEPS):
            step(batch)
        began, used = time.perf_counter(), time.thread_time()
        for _ in range(args.steps):
            step(batch)
        return (time.perf_counter() - began) / args.steps, (time.thread_time() - used) / args.steps

    dice = random.Random(1)
    blocks: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    folder = os.environ["PERDURE_BENCH_FOLDER"]
    for _ in range(args.pairs):
        for probed in dice.sample((True, False), 2):
            if probed:
                probe = Probe(ProbeTold(folder=folder), rank=rank, world=args.ranks)
                probe.begin()
                probe.watch(model)
            blocks[probed].append(block())
            if probed:
                probe.leave()
    if rank == 0:
        with_, without = blocks[True], blocks[False]
        print(f"{args.ranks} ranks, {args.pairs} pairs of {args.steps} steps, load {os.getloadavg()[0]:.1f}")
        for name, i in (("time of a step", 0), ("processor time of the main thread", 1)):
            print(f"{name}: {report([each[i] for each in with_], [each[i] for each in without])}")
    dist.barrier()
    dist.destroy_process_group()


def report(probed: Sequence[float], plain: Sequence[float]) -> str:
    """One line: medians, and the median of the ratios with its interval."""
    ratios = sorted(a / b - 1 for a, b in zip(probed, plain, strict=True))
    n = len(ratios)
    low = max(0, int(n / 2 - 0.98 * n**0.5))
    return (
        f"{statistics.median(plain) * 1e3:.2f} ms without, {statistics.median(probed) * 1e3:.2f} ms with; "
        f"{statistics.median(ratios):+.2%} (95 of 100: {ratios[low]:+.2%} to {ratios[n - 1 - low]:+.2%})"
    )


if __name__ == "__main__":
    main()
