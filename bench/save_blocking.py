"""How long does a save keep the training loop from going on, and when is it durable?

perdure's `save` against torch.distributed.checkpoint (DCP) on the same state: parameters and both moments of AdamW,
each rank with its own shard. DCP's `save`, `async_save` as it comes, and `async_save` with staging memory that is kept
from save to save. The yardstick is one warm copy of the bytes of one rank (from a GPU: into pinned memory).

"at once": the optimizer steps right after the save; what `save` and the wait before the step take. "overlapped": a
forward and backward of --step-ms lie between; what `save` and the wait take of the loop's time without them. "durable":
from the save until the step is on disk. Of several ranks the slowest counts.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before torch: one thread copies, on every side

import itertools
import pathlib
import shutil
import tempfile
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

import perdure
from measure import Stopwatch, Turn, arguments, report, take_turns
from perdure.checkpoint.saved import Saved
from ranks import be_rank, in_step, is_rank, start_ranks

OURS = "perdure save"
TENSOR_MIB = 16
PATIENCE_S = 300.0


class Training:
    """``mib`` MiB of parameters and moments on each rank, and a loop that is long where it has to be."""

    def __init__(self, mib: int, *, device: str, step_ms: float) -> None:
        mesh = init_device_mesh(device, (dist.get_world_size(),))
        generator = torch.Generator().manual_seed(dist.get_rank())
        self.device, self._step_s = device, step_ms / 1000
        self.model = nn.Module()
        for i in range(max(1, mib // TENSOR_MIB // 3)):
            part = torch.randn((TENSOR_MIB * 256, 1024), generator=generator).to(device)
            whole = DTensor.from_local(part, mesh, [Shard(0)], run_check=False)
            self.model.register_parameter(f"layer{i:03}", nn.Parameter(whole))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, foreach=False)
        for parameter in self.model.parameters():
            parameter.grad = torch.ones_like(parameter)
        self.optimizer.step()
        self._x = torch.randn((256, 256), device=device, requires_grad=True)

    def tensors(self) -> dict[str, Tensor]:
        """All that is saved, by name."""
        found: dict[str, Tensor] = dict(self.model.named_parameters())
        for name, parameter in self.model.named_parameters():
            state = self.optimizer.state[parameter]
            found |= {f"{name}.{entry}": state[entry] for entry in ("exp_avg", "exp_avg_sq")}
        return found

    def change(self) -> None:
        """Change every tensor in every tile, as a step does; a save may refer to what has not changed."""
        with torch.no_grad():
            for tensor in self.tensors().values():
                local(tensor).view(-1)[::1024].add_(1.0)
        self.finish()

    def forward_backward(self) -> float:
        """Compute for about a step's time; return what it took."""
        watch = Stopwatch()
        while watch.s() < self._step_s:
            for _ in range(8):
                (self._x @ self._x).square().mean().backward()
            self.finish()
        return watch.s()

    def finish(self) -> None:
        """Until the device has done all."""
        if self.device == "cuda":
            torch.cuda.synchronize()


def local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def memcpy_turn(training: Training) -> Turn:
    pinned = training.device == "cuda"
    warm = {n: torch.zeros(local(t).shape, pin_memory=pinned) for n, t in training.tensors().items()}

    def turn() -> Mapping[str, float]:
        training.change()
        watch = Stopwatch()
        with torch.no_grad():
            for name, tensor in training.tensors().items():
                warm[name].copy_(local(tensor), non_blocking=pinned)
        training.finish()
        taken = watch.s()
        return {"at once": taken, "overlapped": taken}

    return turn


def perdure_turn(training: Training, folder: str, coding: str) -> tuple[Turn, perdure.Checkpointer]:
    ckpt = perdure.Checkpointer(os.path.join(folder, "perdure"), coding=coding)
    steps = itertools.count(1)
    tree = {"model": training.model, "optimizer": training.optimizer}

    def save() -> tuple[float, Saved, Stopwatch]:
        training.change()
        watch = Stopwatch()
        saved = ckpt.save(next(steps), tree)
        return watch.s(), saved, watch

    def turn() -> Mapping[str, float]:
        _, saved, watch = save()
        ckpt.fence()
        training.finish()
        at_once = watch.s()
        saved.committed()
        durable = watch.s()
        returned, saved, _ = save()
        training.forward_backward()
        watch = Stopwatch()
        ckpt.fence()
        training.finish()
        waited = watch.s()
        saved.committed()
        return {"at once": at_once, "overlapped": returned + waited, "durable": durable}

    return turn, ckpt


def dcp_turn(training: Training, folder: str, *, kept_staging: bool | None) -> Turn:
    """DCP's save if ``kept_staging`` is None, else its async_save; there is nothing to overlap: staged is copied."""
    place = pathlib.Path(folder) / f"dcp-{kept_staging}"
    on_gpu = training.device == "cuda"
    options = StagingOptions(
        use_pinned_memory=on_gpu, use_shared_memory=True, use_async_staging=False, use_non_blocking_copy=on_gpu
    )
    stager = DefaultStager(options) if kept_staging else None
    group = dist.new_group(backend="gloo")

    def turn() -> Mapping[str, float]:
        if dist.get_rank() == 0:
            shutil.rmtree(place, ignore_errors=True)
        dist.barrier(group)
        training.change()
        state: dict[str, Any] = {"state": training.tensors()}
        watch = Stopwatch()
        if kept_staging is None:
            dcp.save(state, checkpoint_id=place, process_group=group)
            return dict.fromkeys(("at once", "overlapped", "durable"), watch.s())
        upload = dcp.async_save(state, checkpoint_id=place, async_stager=stager, process_group=group)
        blocking = watch.s()
        upload.result(timeout=PATIENCE_S)
        return {"at once": blocking, "overlapped": blocking, "durable": watch.s()}

    return turn


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--mib", type=int, default=384, help="MiB of state on each rank")
    parser.add_argument("--ranks", type=int, default=1, help="ranks on this machine")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where the state lies")
    parser.add_argument("--step-ms", type=float, default=500, help="length of a forward and backward")
    parser.add_argument("--coding", choices=("raw", "lossless"), default="raw", help="how perdure stores tensors")
    parser.add_argument("--dir", help="where to write; a temporary folder unless given")
    parser.add_argument("--peers-only", action="store_true", help="leave perdure out")
    args = parser.parse_args()
    if not is_rank():
        start_ranks(args.ranks)
    torch.set_num_threads(1)
    rank = be_rank(args.device)
    training = Training(args.mib, device=args.device, step_ms=args.step_ms)
    with tempfile.TemporaryDirectory(dir=args.dir, prefix="perdure-bench-") as name:
        told = [name]
        dist.broadcast_object_list(told, src=0)
        folder = told[0]
        sides: dict[str, Turn] = {
            "one warm memcpy": memcpy_turn(training),
            "dcp.save": dcp_turn(training, folder, kept_staging=None),
            "dcp.async_save": dcp_turn(training, folder, kept_staging=False),
            "dcp.async_save, staging kept": dcp_turn(training, folder, kept_staging=True),
        }
        ckpt = None
        if not args.peers_only:
            turn, ckpt = perdure_turn(training, folder, args.coding)
            sides = {OURS: turn, **sides}
        measured = take_turns({side: in_step(turn) for side, turn in sides.items()}, rounds=args.rounds)
        if ckpt is not None:
            ckpt.close()
        nbytes = sum(local(tensor).numel() * 4 for tensor in training.tensors().values())
        facts = {"state_bytes_a_rank": nbytes, "dtype": "float32", "ranks": args.ranks, "device": args.device}
        facts |= {"step_ms": args.step_ms, "coding": args.coding, "torch": torch.__version__}
        if rank == 0:
            ours = dict.fromkeys(measured, OURS)
            report(__doc__.splitlines()[0], measured, ours=ours, facts=facts, as_json=args.json)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
