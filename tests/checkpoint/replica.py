"""A rank that holds what all others of its node hold too: saves it, or restores it and says how much it read.

After a restore it prints ``R <step> <digest>``, ``B <bytes read of packs>``, ``M <bytes of memory that it took for a
while beside the state>``, and each note of the restore. ``--fault``
breaks its reading of packs: ``die``, ``stop`` or ``fail`` at the second read, on ``--fault-rank``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import pathlib
import signal
from typing import Any

import torch
import torch.distributed as dist

import perdure
from perdure.checkpoint.config import Deadlines
from perdure.errors import PerdureError, StorageError
from perdure.events import Fact, Log, Restored


class Reads:
    """The store of a rank, whose reads of packs are counted. Of itself it holds nothing in memory."""

    def __init__(self, store: Any, fault: str, *, near: bool) -> None:
        self._store, self._fault, self.near = store, fault, near
        self.nbytes = self.calls = 0

    def __getattr__(self, name: str) -> Any:
        if name == "resident" and not self.near:
            raise AttributeError(name)
        return getattr(self._store, name)

    def read(self, name: str, *, start: int = 0, nbytes: int | None = None, into: Any = None) -> memoryview:
        self._count(name, nbytes or 0)
        found: memoryview = self._store.read(name, start=start, nbytes=nbytes, into=into)
        return found

    def read_digested(self, name: str, *, start: int, nbytes: int, into: Any, tile_bytes: int) -> bytes:
        self._count(name, nbytes)
        found: bytes = self._store.read_digested(name, start=start, nbytes=nbytes, into=into, tile_bytes=tile_bytes)
        return found

    def _count(self, name: str, nbytes: int) -> None:
        if not name.startswith("packs/"):
            return
        self.nbytes += nbytes
        self.calls += nbytes >= 1 << 20
        if self.calls == 2 and self._fault:
            fault, self._fault = self._fault, ""
            print(f"F {fault}", flush=True)
            if fault == "fail":
                raise StorageError(f"{name} cannot be read: the wire is cut", file=name)
            os.kill(os.getpid(), signal.SIGKILL if fault == "die" else signal.SIGSTOP)


class Facts(Log):
    """Keeps what a restore says."""

    def emit(self, fact: Fact) -> None:
        self.record(fact)

    def record(self, fact: Fact) -> None:
        if isinstance(fact, Restored):
            for note in fact.notes:
                print(f"N {note}", flush=True)
            print(f"S {fact.read_nbytes} {fact.shared_nbytes}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--to", required=True)
    parser.add_argument("--mib", type=int, default=24)
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--coding", default="raw")
    parser.add_argument("--budget", type=int, default=256 << 20)
    parser.add_argument("--near", action="store_true", help="let the store tell what the page cache holds")
    parser.add_argument("--fault", default="")
    parser.add_argument("--fault-rank", type=int, default=1)
    parser.add_argument("--deadlines", type=json.loads, default={})
    args = parser.parse_args()
    dist.init_process_group("gloo")
    generator = torch.Generator().manual_seed(5)
    model = torch.nn.ModuleList(torch.nn.Linear(1024, 1024) for _ in range(args.mib // 4))
    model.to(torch.bfloat16 if args.coding == "lossless" else torch.float32)
    optimizer = torch.optim.AdamW(model.parameters()) if args.coding == "lossless" else None
    tree = {"model": model} | ({"optimizer": optimizer} if optimizer is not None else {})
    ckpt = perdure.Checkpointer(
        args.to,
        agent=False,
        coding=args.coding,
        budget_bytes=args.budget,
        deadlines=Deadlines(**args.deadlines),
        log=Facts(),
    )
    if args.save:
        for parameter in model.parameters():
            parameter.data.copy_(torch.randn(parameter.shape, generator=generator))
            parameter.grad = torch.ones_like(parameter)
        if optimizer is not None:
            optimizer.step()
        ckpt.save(1, tree).committed()
    else:
        mine = dist.get_rank() == args.fault_rank
        ckpt.engage()
        opened = ckpt._run
        store = opened._store = Reads(opened._store, args.fault if mine else "", near=args.near)
        opened._run = None
        pathlib.Path("/proc/self/clear_refs").write_text("5")
        before = most_memory()
        try:
            step = ckpt.restore(tree)
        except PerdureError as error:
            print(f"E {type(error).__name__} {error}", flush=True)
            os._exit(3)
        print(f"M {most_memory() - before}", flush=True)
        print(f"B {store.nbytes}", flush=True)
        print(f"R {step} {digest(tree)}", flush=True)
    ckpt.close()
    print(f"D 1 {digest(tree)}", flush=True)
    dist.barrier()
    os._exit(0)  # what else the interpreter would take down takes long on a busy machine


def most_memory() -> int:
    """The most bytes that were in memory since they were last asked to be counted anew."""
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith("VmHWM")))


def digest(tree: dict[str, Any]) -> str:
    found = hashlib.sha256()
    for parameter in tree["model"].parameters():
        found.update(parameter.detach().view(torch.uint8).numpy().tobytes())
    if "optimizer" in tree:
        for state in tree["optimizer"].state_dict()["state"].values():
            found.update(b"".join(state[key].view(torch.uint8).numpy().tobytes() for key in ("exp_avg", "exp_avg_sq")))
    return found.hexdigest()[:16]


main()
