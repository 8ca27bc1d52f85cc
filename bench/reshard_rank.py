"""A rank of the bench of restores by other numbers of ranks (reshard.py): saves, or restores in turns, and times it."""

from __future__ import annotations

import argparse
import json
import pathlib

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

import perdure
from measure import Stopwatch
from perdure.events import Fact, Log, Restored

ROWS = 4096 + 96  # divides by 4, 2, 8; not by 3 and 6
TENSOR_BYTES = ROWS * 1024 * 4


class Facts(Log):
    """Keeps what the last restore told."""

    last: Restored

    def emit(self, fact: Fact) -> None:
        self.record(fact)

    def record(self, fact: Fact) -> None:
        if isinstance(fact, Restored):
            self.last = fact


def make(mib: int) -> dict[str, Tensor]:
    """This rank's rows of tensors of 16 MiB, the same whole tensors whatever the number of ranks."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    generator = torch.Generator().manual_seed(0)
    state = {}
    for number in range(mib * (1 << 20) // TENSOR_BYTES):
        whole = torch.randn((ROWS, 1024), generator=generator)
        state[f"layer{number:03}.weight"] = distribute_tensor(whole, mesh, [Shard(0)], src_data_rank=None)
    return state


def local(tensor: Tensor) -> Tensor:
    return tensor.to_local()  # type: ignore[attr-defined, no-any-return]


def slowest(seconds: float) -> float:
    """The most that any rank took."""
    found = torch.tensor([seconds], dtype=torch.float64)
    dist.all_reduce(found, op=dist.ReduceOp.MAX)
    return float(found)


def total(number: int) -> int:
    """The sum over ranks."""
    found = torch.tensor([number])
    dist.all_reduce(found)
    return int(found)


def save(folder: pathlib.Path, mib: int) -> None:
    """What the others restore: a raw step, a coded one, and DCP's."""
    state = make(mib)
    for coding in ("raw", "lossless"):
        ckpt = perdure.Checkpointer(folder / coding, agent=False, coding=coding, log=Facts())
        ckpt.save(1, {"model": state}).committed()
        ckpt.close()
    dcp.save({"model": state}, checkpoint_id=folder / "dcp")
    for path in folder.rglob("*"):  # into the page cache, past which perdure writes
        if path.is_file() and dist.get_rank() == 0:
            path.read_bytes()


def restore(folder: pathlib.Path, mib: int, *, rounds: int, memory: bool) -> dict[str, object]:
    """Times of all sides, a list each, and how many bytes were read for one that was wanted."""
    state = make(mib)
    kept = {name: local(tensor).clone() for name, tensor in state.items()}
    facts = Facts()
    runs = {"memory": folder / "memory"} if memory else {each: folder / each for each in ("raw", "lossless")}
    ckpts = {name: perdure.Checkpointer(place, agent=memory, log=facts) for name, place in runs.items()}
    if memory:
        ckpts["memory"].save(1, {"model": state}).committed()
    times: dict[str, list[float]] = {}
    read: dict[str, float] = {}
    for _ in range(rounds):
        for side in (*ckpts, "dcp", "memcpy"):
            if side == "dcp" and memory:
                continue
            for tensor in state.values():
                local(tensor).fill_(float("nan"))
            dist.barrier()
            watch = Stopwatch()
            if side == "memcpy":
                for name, tensor in state.items():
                    local(tensor).copy_(kept[name])
            elif side == "dcp":
                dcp.load({"model": state}, checkpoint_id=folder / "dcp")
            else:
                assert ckpts[side].restore({"model": state}) == 1
            times.setdefault(side, []).append(slowest(watch.s()))
            assert all(torch.equal(local(tensor), kept[name]) for name, tensor in state.items()), side
            if side in ckpts:
                read[side] = total(facts.last.read_nbytes) / total(sum(facts.last.tiers.values()))
    for ckpt in ckpts.values():
        ckpt.close()
    return {"times": times, "read": read}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("save", "restore", "memory"))
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--mib", type=int, required=True)
    parser.add_argument("--rounds", type=int, default=4)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    if args.what == "save":
        save(args.folder, args.mib)
    else:
        found = restore(args.folder, args.mib, rounds=args.rounds, memory=args.what == "memory")
        if dist.get_rank() == 0:
            print(json.dumps(found), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
