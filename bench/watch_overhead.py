"""What does the probe cost a rank? Steps of about 50 ms of a DDP over gloo, with and without, and an account of it.

    .venv/bin/python bench/watch_overhead.py [--quads 20] [--steps 12] [--ranks 2] [--step-ms 50] [--kind compute|wait]

Two kinds of steps: ``compute`` keeps a core busy all the time, ``wait`` mostly sleeps, as the Python of a job on a GPU
does, and so says more on a busy machine. Of each kind:

* **Pairs.** Blocks of steps with the probe (A) and without (B), in the same processes, in quads A B B A or B A A B, so
  that whatever drifts evenly cancels. Without means that its hooks, patches and thread are gone, not idle. Printed are
  the median of the quads' differences, as a share of the time of a step, and an interval that holds it in 95 of 100
  cases (by order statistics): of the time of a step, and of the processor time that the main thread has used for it,
  which other work disturbs less. (In blocks this short the thread of the probe hardly beats: see the account.)
* **Account.** The processor time that passes inside the probe's hooks, patches and thread, a clock being read on both
  sides of each: its sum over a step, as a share of the step. It sees what noise hides, and counts the reading of the
  clock as well; what it cannot see is what the program loses because the probe has used the caches.
"""

from __future__ import annotations

import argparse
import functools
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

WARM_STEPS = 3
ACCOUNT_STEPS = 100
WIDTH = 512
KINDS = ("wait", "compute")


def main() -> None:
    """Start the ranks, or be one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quads", type=int, default=20)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--step-ms", type=float, default=50.0)
    parser.add_argument("--kind", choices=KINDS)
    args = parser.parse_args()
    if args.quads < 10:
        parser.error("fewer than 10 quads say little")
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

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    layers = [torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU()) for _ in range(4)]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for kind in KINDS if args.kind is None else (args.kind,):
        step = step_of(kind, model, optimizer, args.step_ms)
        ratios = pairs(step, model, args)
        shares = account(step, model, args)
        if dist.get_rank() == 0:
            print(f"{kind}: {args.ranks} ranks, {args.quads} quads of blocks of {args.steps} steps, ", end="")
            print(f"load {os.getloadavg()[0]:.1f}")
            for name, found in zip(("time of a step", "processor time of the main thread"), ratios, strict=True):
                print(f"  {name}: {found}")
            print(f"  inside the probe: {shares}", flush=True)
        dist.barrier()
    dist.destroy_process_group()


def step_of(kind: str, model: Any, optimizer: Any, step_ms: float) -> Callable[[], None]:
    """A step that takes about ``step_ms`` on rank 0, on all ranks of the same size."""
    import torch
    import torch.distributed as dist

    def step(rows: int, sleep_s: float) -> float:
        began = time.perf_counter()
        if sleep_s:
            time.sleep(sleep_s)
        model(batch[:rows]).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        return time.perf_counter() - began

    batch = torch.randn(1 << 14, WIDTH)
    size = torch.tensor([64.0, 0.0])
    for _ in range(5):
        took_ms = 1e3 * statistics.median(step(int(size[0]), float(size[1])) for _ in range(9))
        if kind == "wait":
            size[1] = max(0.0, float(size[1]) + (step_ms - took_ms) / 1e3)
        else:
            size[0] = min(float(len(batch)), max(8.0, float(size[0]) * min(4.0, step_ms / took_ms)))
        dist.broadcast(size, 0)
    return functools.partial(step, int(size[0]), float(size[1]))


def probed(model: Any, args: argparse.Namespace) -> Any:
    """A probe of this rank that runs."""
    import torch.distributed as dist

    from perdure.adapters.torch.probe import Probe
    from perdure.process.environ import ProbeTold

    probe = Probe(ProbeTold(folder=os.environ["PERDURE_BENCH_FOLDER"]), rank=dist.get_rank(), world=args.ranks)
    probe.begin()
    probe.watch(model)
    return probe


def pairs(step: Callable[[], None], model: Any, args: argparse.Namespace) -> tuple[str, str]:
    """What blocks with and without say of a step's time, and of its processor time."""

    def block() -> tuple[float, float]:
        for _ in range(WARM_STEPS):
            step()
        began, used = time.perf_counter(), time.thread_time()
        for _ in range(args.steps):
            step()
        return (time.perf_counter() - began) / args.steps, (time.thread_time() - used) / args.steps

    with_, without = [], []
    for quad in range(args.quads):
        for with_probe in (True, False, False, True) if quad % 2 else (False, True, True, False):
            if with_probe:
                probe = probed(model, args)
                with_.append(block())
                probe.leave()
            else:
                without.append(block())
    steps_s = [each[0] for each in without]
    wall, used = (report([each[i] for each in with_], [each[i] for each in without], steps_s) for i in (0, 1))
    return wall, used


def report(with_: Sequence[float], without: Sequence[float], steps_s: Sequence[float]) -> str:
    """One line: the median of blocks without, and the median of what a quad has more with it, as a share of its steps'
    time, with its interval.
    """

    def of(each: Sequence[float], quad: int) -> float:
        return each[quad] + each[quad + 1]

    quads = range(0, len(with_), 2)
    shares = sorted((of(with_, i) - of(without, i)) / of(steps_s, i) for i in quads)
    n = len(shares)
    low = max(0, int(n / 2 - 0.98 * n**0.5))
    return (
        f"{statistics.median(without) * 1e3:.2f} ms without; with it {statistics.median(shares):+.2%} of a step more "
        f"(95 of 100: {shares[low]:+.2%} to {shares[n - 1 - low]:+.2%})"
    )


def account(step: Callable[[], None], model: Any, args: argparse.Namespace) -> str:
    """What passes inside the probe while it is there, as a share of a step's time."""
    from perdure.adapters.torch import probe, probe_gradients, probe_steps

    spent_ns: dict[str, int] = {}
    clock = time.thread_time_ns

    def timed(name: str, call: Callable[..., Any], sign: int = 1) -> Callable[..., Any]:
        spent_ns.setdefault(name, 0)

        def passes(*args: Any, **kwargs: Any) -> Any:
            began = clock()
            try:
                return call(*args, **kwargs)
            finally:
                spent_ns[name] += sign * (clock() - began)

        return passes

    patch, hook, tick = probe_steps.Steps.patch, probe_gradients._hook, probe.Probe.tick
    before, after = probe_steps.register_optimizer_step_pre_hook, probe_steps.register_optimizer_step_post_hook

    def patch_timed(self: Any, owner: Any, name: str, make: Callable[..., Any]) -> None:
        def both(inner: Callable[..., Any]) -> Callable[..., Any]:
            return timed(name, make(timed(name, inner, -1)))  # what passes in what is patched is not the probe's

        patch(self, owner, name, both)

    swaps: list[tuple[Any, str, Any]] = [
        (probe_steps.Steps, "patch", patch_timed),
        (probe_gradients, "_hook", lambda parameter, call: hook(parameter, timed("gradients", call))),
        (probe_steps, "register_optimizer_step_pre_hook", lambda call: before(timed("before a step", call))),
        (probe_steps, "register_optimizer_step_post_hook", lambda call: after(timed("after a step", call))),
        (probe.Probe, "tick", timed("thread", tick)),
    ]
    kept = [getattr(owner, name) for owner, name, _ in swaps]
    for owner, name, value in swaps:
        setattr(owner, name, value)
    mine = probed(model, args)
    for _ in range(ACCOUNT_STEPS // 2):  # its first beats learn what is there
        step()
    for name in spent_ns:
        spent_ns[name] = 0
    began = time.perf_counter_ns()
    for _ in range(ACCOUNT_STEPS):
        step()
    took_ns = time.perf_counter_ns() - began
    shares = {name: spent / took_ns for name, spent in spent_ns.items() if spent > 0}
    mine.leave()
    for (owner, name, _), value in zip(swaps, kept, strict=True):
        setattr(owner, name, value)
    parts = ", ".join(f"{name} {share:.3%}" for name, share in sorted(shares.items(), key=lambda each: -each[1]))
    return f"{sum(shares.values()):.2%} of a step of {took_ns / ACCOUNT_STEPS / 1e6:.1f} ms ({parts})"


if __name__ == "__main__":
    main()
