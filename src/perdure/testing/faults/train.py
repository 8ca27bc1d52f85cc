"""A training as people write them: ``python -m perdure.testing.faults.train PLAN RANK WORLD``.

DDP over gloo, an optimizer, a data loader, metrics that are averaged and logged, checkpoints, evaluation. It knows
nothing of a watcher. RANK, WORLD_SIZE and MASTER_* are set by `perdure.testing.faults.job`.
"""

from __future__ import annotations

import ctypes
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from perdure.testing.faults.trouble import Plan, Trouble, burn

__all__ = ["main"]

_GIVE_UP_S = 600.0
_PR_SET_PDEATHSIG = 1


def main(plan: Plan, rank: int, world: int) -> None:
    """Train as ``plan`` says, until it is done or ``finish`` lies in its folder."""
    trouble = Trouble(plan, rank)
    trouble.starting("import")
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, IterableDataset

    trouble.starting("meet")
    dist.init_process_group("gloo", timeout=timedelta(seconds=_GIVE_UP_S))
    metrics = dist.new_group()  # of its own, so that a call that is missing or too many hangs instead of meeting DDP's
    folder = Path(plan.folder)
    torch.manual_seed(plan.seed)
    truth = torch.randn(32, 1)
    model: Any = torch.nn.Sequential(torch.nn.Linear(32, 48), torch.nn.Tanh(), torch.nn.Linear(48, 1))
    torch.manual_seed(1000 * plan.seed + rank + 1)
    first_step = _restore(model, plan) if plan.resumes else 0
    parameters = list(model.parameters())
    ddp: Any = DistributedDataParallel(model)
    forward = torch.compile(ddp, backend=plan.compiles) if plan.compiles else ddp
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.02)
    dice = random.Random(plan.seed * 977 + rank)

    class Samples(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            while True:
                trouble.load()
                x = torch.randn(64, 32)
                yield x, torch.tanh(x @ truth) + 0.1 * torch.randn(64, 1)

    def evaluate() -> float:
        ddp.eval()
        until, errors = time.monotonic() + plan.evaluate_s, []
        with torch.no_grad():
            while time.monotonic() < until:
                x = torch.randn(64, 32)
                errors.append(float(((model(x) - torch.tanh(x @ truth)) ** 2).mean()))
        ddp.train()
        return sum(errors) / max(1, len(errors))

    for number, parameter in enumerate(parameters):
        parameter.register_hook(partial(trouble.gradient, number, len(parameters)))
    progress = os.open(folder / "progress", os.O_WRONLY | os.O_CREAT) if rank == 0 else -1
    batches = iter(DataLoader(Samples(), batch_size=None))
    for step in range(first_step, plan.steps):
        trouble.begin(step)
        x, y = trouble.batch(*next(batches))
        work_s = plan.step_s * (1 + plan.uneven * (2 * dice.random() - 1))
        (burn if plan.work == "cpu" else time.sleep)(trouble.work_s(work_s))
        loss: Any = torch.nn.functional.mse_loss(forward(x), y)
        optimizer.zero_grad()
        trouble.before_waiting()
        loss.backward()
        norm = torch.nn.utils.get_total_norm([each.grad for each in parameters])
        optimizer.step()
        trouble.parameters(parameters)
        finish = float((folder / "finish").exists())
        stats = torch.tensor([float(loss.detach()), finish])
        odd = trouble.collectives()
        if odd == "extra":
            dist.all_reduce(torch.zeros(2), group=metrics)
        if odd == "other-shape":
            dist.all_reduce(torch.zeros(7), group=metrics)
        elif odd == "other-operation":
            dist.all_gather([torch.zeros(2) for _ in range(world)], stats, group=metrics)
        elif odd != "skip":
            dist.all_reduce(stats, group=metrics)
        stats /= world
        if rank == 0:
            os.pwrite(progress, b"%10d" % step, 0)
        if step % 5 == 0:
            said = "" if trouble.loses_metric() else f" grad_norm {float(norm):.4f}"
            print(f"step {step} loss {stats[0]:.4f}{said} lr 0.02", flush=True)
        if plan.save_every and step % plan.save_every == plan.save_every - 1:
            save_checkpoint(ddp, trouble, Path(plan.disk or plan.folder) / f"part-{rank}.pt", plan.save_s)
            dist.barrier()
        if plan.evaluate_every and step % plan.evaluate_every == plan.evaluate_every - 1:
            print(f"step {step} evaluation {evaluate():.4f}", flush=True)
        if stats[1] > 0:
            break
    if rank == 0:
        _keep(model, step + 1, folder / "state.json")
    dist.destroy_process_group()


class _Slow:
    """A file that takes its time, as remote storage does."""

    def __init__(self, path: Path, seconds: float) -> None:
        self._file, self._seconds = open(path, "wb"), seconds  # noqa: SIM115 (closed by whoever writes)

    def write(self, data: bytes) -> int:
        time.sleep(min(self._seconds, 0.2))
        self._seconds = max(0.0, self._seconds - 0.2)
        return self._file.write(data)

    def flush(self) -> None:
        while self._seconds > 0:
            time.sleep(0.1)
            self._seconds -= 0.1
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def save_checkpoint(model: Any, trouble: Trouble, path: Path, seconds: float) -> None:
    """Write this rank's part, in about ``seconds``."""
    import torch

    file: Any = _Slow(trouble.save(path), seconds)
    torch.save(model.state_dict(), file)  # noqa: TID251 (what users do; nothing here reads it)
    file.close()


def _keep(model: Any, step: int, path: Path) -> None:
    state = {name: each.tolist() for name, each in model.state_dict().items()}
    path.write_bytes(msgspec.json.encode([step, state]))


def _restore(model: Any, plan: Plan) -> int:
    """Take the state that was kept; return its step. A bad one leaves out most of it."""
    import torch

    step, state = msgspec.json.decode(Path(plan.resumes).read_bytes())
    if plan.fault != "bad-resume":
        model.load_state_dict({name: torch.tensor(each) for name, each in state.items()})
    return int(step)


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # no rank outlives the suite
    main(msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Plan), int(sys.argv[2]), int(sys.argv[3]))
