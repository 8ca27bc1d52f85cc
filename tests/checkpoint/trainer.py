"""A small training run that prints a digest of everything after each step, and dies where it is told to.

Two ranks or one, FSDP2 over gloo; a state of 4 MB: sharded parameters and moments, a replicated buffer and a tensor
that no optimizer owns, a scheduler, a shuffled loader, dropout, every random generator. A line ``D <step> <digest>``
is all that this rank holds after that step: two runs are the same if all their lines are. With ``--staged`` ranks
hold the stages of a pipeline (`staged.py`) in the place of shards.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import pathlib
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import staged
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import perdure
from perdure.checkpoint.config import Deadlines
from perdure.errors import CallError, StorageFull
from perdure.store import faults

WIDTH, HIDDEN, SAMPLES = 64, 512, 512


class Net(nn.Module):
    """Three layers, dropout, and a buffer that each forward changes."""

    def __init__(self, *, hidden: int, extra_layer: bool, dtype: torch.dtype) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(WIDTH, hidden), nn.ReLU(), nn.Dropout(0.2), nn.Linear(hidden, hidden))
        self.head = nn.Linear(hidden, WIDTH, dtype=dtype)
        self.more = nn.Linear(WIDTH, WIDTH) if extra_layer else None
        self.register_buffer("seen", torch.zeros(1000, dtype=torch.int64))
        self.seen: Tensor

    def forward(self, x: Tensor) -> Tensor:
        self.seen += 1
        y = self.head(self.inner(x).to(self.head.weight.dtype)).float()
        return y if self.more is None else self.more(y)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--to", required=True)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--every", type=lambda text: text if text == "auto" else int(text), default=3)
    parser.add_argument("--memory-every", type=int)
    parser.add_argument("--coding", default="raw")
    parser.add_argument("--staged", action="store_true", help="cut the model in stages, one a rank")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--tiers", nargs="*", default=[])
    parser.add_argument("--remote-every", type=int)
    parser.add_argument("--print-remote", action="store_true", help="wait for the last save's copy, print F STEP")
    parser.add_argument("--hidden", type=int, default=HIDDEN)
    parser.add_argument("--head-dtype", default="float32")
    parser.add_argument("--extra-layer", action="store_true")
    parser.add_argument("--no-agent", action="store_true")
    parser.add_argument(
        "--no-store", action="store_true", help="as if whoever keeps the process group's store had died"
    )
    parser.add_argument("--keep", help="rules of what to keep")
    parser.add_argument("--deadlines", type=json.loads, default={}, help="fields of Deadlines as JSON")
    parser.add_argument("--step-s", type=float, default=0.0, help="seconds that each step takes at least")
    parser.add_argument("--step", type=int, help="restore this step")
    parser.add_argument("--hold", default="", help="STEP:FILE, wait after the step until the file is there")
    parser.add_argument("--print-peer", action="store_true", help="wait for each save to be on a peer, print P STEP")
    parser.add_argument("--explain", action="store_true", help="a digest for each part of the state too")
    parser.add_argument(
        "--whole", action="store_true", help="print W STEP DIGEST of the whole state, all ranks' shards"
    )
    parser.add_argument("--fault", default="", help="WHERE@STEP, once: the file FOLDER/WHERE@STEP says that it was")
    parser.add_argument("--fault-rank", type=int, default=1)
    return parser.parse_args()


def local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, dist.tensor.DTensor) else tensor


def digest(*states: Any) -> str:
    """A hash of nested states: every bit of every tensor that this rank holds, and all values."""
    found = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, Tensor):
            own = local(value.detach()).contiguous()
            found.update(f"{own.dtype}{tuple(own.shape)}".encode())
            found.update(own.reshape(-1).view(torch.uint8).numpy().tobytes())
        elif isinstance(value, dict):
            for key, each in sorted(value.items(), key=lambda pair: str(pair[0])):
                found.update(repr(key).encode())
                add(each)
        elif isinstance(value, list | tuple):
            for each in value:
                add(each)
        else:
            found.update(repr(value).encode())

    add(states)
    return found.hexdigest()[:16]


def whole(value: Any) -> Any:
    """``value`` with the whole tensor in place of each shard; called by all ranks together."""
    if isinstance(value, dict):
        return {key: whole(each) for key, each in value.items()}
    if isinstance(value, list):
        return [whole(each) for each in value]
    return value.full_tensor() if isinstance(value, dist.tensor.DTensor) else value


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Fault:
    """Kills this process, stops it, or makes it misbehave, once, at a place and step."""

    def __init__(self, text: str, *, folder: str, mine: bool) -> None:
        self.where, _, at = text.partition("@")
        self.at = int(at) if at else -1
        self._done = pathlib.Path(folder).with_name(text or "no-fault")
        self._armed = bool(text) and mine and not self._done.exists()

    def due(self, where: str, step: int) -> bool:
        if not self._armed or (where, step) != (self.where, self.at):
            return False
        self._armed = False
        self._done.touch()
        return True

    def arm(self, run: perdure.adapters.torch.run.Run, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        def in_forward(*_: Any) -> None:
            if self.due("forward", run.step):
                die()

        def in_step(*_: Any) -> None:
            if self.due("optimizer", run.step):
                with torch.no_grad():  # the step is half done
                    local(next(model.parameters())).add_(1.0)
                die()

        model.register_forward_hook(in_forward)
        optimizer.register_step_pre_hook(in_step)  # behind the fence of attach
        if self.where in ("copy", "copy-agent"):
            self._break_copies(run)
        if self.where == "disk":
            self._fill_disk(run)
        if self.where == "waiting":
            self._tell_waits(run)

    def _break_copies(self, run: Any) -> None:
        from perdure.checkpoint import copying

        whole = copying.copy_many

        def half(src: Any, dst: Any, nbytes: Any, **options: Any) -> None:
            if threading.current_thread().name == "perdure-copy" and self.due(self.where, run.step):
                some = len(src) // 2
                whole(src[:some], dst[:some], nbytes[:some], **options)
                whole(src[some:], dst[some:], nbytes[some:] // 2, **options)
                if self.where == "copy":
                    die()
                os.kill(run.checkpointer._link.agent_pid, signal.SIGKILL)
            whole(src, dst, nbytes, **options)

        copying.copy_many = half

    def _fill_disk(self, run: Any) -> None:
        """Refuse this rank's pack of the step, on its own way to the store."""
        if not self._armed:
            return
        full = StorageFull("no space is left on the device")
        opened = run.checkpointer._run
        rule = faults.Rule("put", faults.Fail(full), match=f"*{self.at:012d}-*")
        opened._store, opened._run = faults.Faults(opened._store, [rule]), None

    def _tell_waits(self, run: Any) -> None:
        """Make a file once this rank asks for a segment at the step: the test kills it while it waits."""
        link = run.checkpointer._link
        grant: Callable[..., Any] = link.grant

        def told(begin: Any, deadline: Any) -> Any:
            self.due("waiting", begin.step)
            return grant(begin, deadline)

        link.grant = told


def store_that_is_gone() -> dist.PrefixStore:
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    return dist.PrefixStore("gone", dist.TCPStore("127.0.0.1", server.port, is_master=False))


def say(line: str) -> None:
    """Print a line in one write: threads of the same rank write to the same file."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    args = parse()
    torch.set_num_threads(1)
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    fault = Fault(args.fault, folder=args.to, mine=rank == args.fault_rank)
    torch.manual_seed(0)
    if world > 1:
        dist.init_process_group("gloo")
    stages = staged.Stages(rank, world) if args.staged else None
    model = stages or Net(hidden=args.hidden, extra_layer=args.extra_layer, dtype=getattr(torch, args.head_dtype))
    if world > 1 and isinstance(model, Net):
        mesh = dist.init_device_mesh("cpu", (world,))
        for part in (model.inner, model):
            fully_shard(part, mesh=mesh)
    named = stages.named if stages else str
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, foreach=False)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
    data = torch.randn(SAMPLES, WIDTH, generator=torch.Generator().manual_seed(1))
    samples = TensorDataset(data)
    if stages:  # all of which take the same batches
        loader = DataLoader(samples, 4, sampler=DistributedSampler(samples, num_replicas=1, rank=0), drop_last=True)
    else:
        loader = DataLoader(samples, 4, shuffle=True, drop_last=True)
    torch.manual_seed(100 + rank)
    count = torch.zeros(5000)

    def everything() -> dict[str, Any]:
        return {
            "parameters": {named(name): each for name, each in model.named_parameters()},
            "buffers": {named(name): each for name, each in model.named_buffers()},
            "count": count,
            "optimizer": {named(name): optimizer.state.get(each) for name, each in model.named_parameters()},
            "scheduler": scheduler.state_dict(),
            "loader": loader.state_dict() if hasattr(loader, "state_dict") else None,
            "rng": torch.get_rng_state(),
        }

    before = digest({**everything(), "loader": None})
    try:
        run = perdure.attach(
            stages.held() if stages else model,
            optimizer,
            scheduler=scheduler,
            loader=loader,
            extra={"count": count},
            to=args.to,
            every=args.every,
            memory_every=args.memory_every,
            step=args.step,
            agent=not args.no_agent,
            keep=args.keep,
            coding=args.coding,
            tiers=args.tiers,
            remote_every=args.remote_every,
            deadlines=Deadlines(**args.deadlines),
        )
    except CallError:
        say("untouched" if before == digest({**everything(), "loader": None}) else "touched")
        raise
    if args.no_store and run.checkpointer.notes is not None:
        run.checkpointer.notes._store = store_that_is_gone()
    say(f"R {run.step}")

    def print_whole() -> None:
        if args.whole:
            state = {name: value for name, value in everything().items() if name not in ("loader", "rng")}
            say(f"W {run.step} {digest(staged.joined(state) if stages else whole(state))}")

    print_whole()
    fault.arm(run, model, optimizer)
    while run.step < args.steps:
        for (batch,) in loader:
            began = time.monotonic()
            optimizer.zero_grad()
            if stages:
                loss = stages.forward_and_backward(batch)
            else:
                loss = (model(batch) - batch).square().mean()
                loss.backward()
            optimizer.step()
            scheduler.step()
            count += loss.item() if world == 1 else 1.0
            now = {"loss": loss, **everything()}
            say(f"D {run.step} {digest(now)}")
            print_whole()
            if args.explain:
                say(f"  {' '.join(f'{name}={digest(each)}' for name, each in now.items())}")
            if args.print_peer and run._last is not None and run._last.step == run.step - 1:
                run._last.reached("peer", 20.0)
                say(f"P {run._last.step}")
            if fault.due("leave", run.step):
                sys.exit(0)
            if fault.due("value", run.step):
                scheduler.odd = object()  # type: ignore[attr-defined]  # no manifest can hold it
            if fault.due("sleep", run.step):
                time.sleep(30)
            step, _, file = args.hold.partition(":")
            give_up = time.monotonic() + 30
            while step == str(run.step) and not os.path.exists(file) and time.monotonic() < give_up:
                time.sleep(0.01)
            time.sleep(max(0.0, began + args.step_s - time.monotonic()))
            if run.step >= args.steps:
                break
    if args.print_remote and run._last is not None:
        run._last.reached("remote", 20.0)
        say(f"F {run._last.step}")
    if world > 1:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
