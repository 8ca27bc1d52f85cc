"""What the storm trains: a small model under FSDP2, from seeds alone, whose every step and end are written down.

`python storm_train.py FOLDER --to CHECKPOINTS --steps N [--pace S]`. Each process of a rank writes
FOLDER/lives/RANK.PID: a line that says its node and attempt, then one a step (monotonic seconds, step, loss). Rank 0
writes FOLDER/final: the digest of all parameters and of the optimizer's state. A rank raises when it finds
FOLDER/raise-RANK, which it takes away.
"""

import argparse
import hashlib
import os
import pathlib
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader, TensorDataset

import perdure

EVERY = 10  # steps between saves
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("folder", type=pathlib.Path)
parser.add_argument("--to", required=True)
parser.add_argument("--steps", type=int, required=True)
parser.add_argument("--pace", type=float, default=0.0, help="seconds that a step takes at least")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Dropout(0.1), nn.Linear(128, 64)) for _ in range(3)
        )
        self.head = nn.Linear(64, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


def digest_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """A digest of every parameter and of all that the optimizer keeps of it. Called by every rank."""
    found = hashlib.sha256()
    for name, parameter in model.named_parameters():
        state = optimizer.state[parameter]
        for key, value in [("", parameter), *sorted(state.items())]:
            whole = value.full_tensor() if isinstance(value, DTensor) else torch.as_tensor(value)
            found.update(f"{name}.{key}".encode())
            found.update(whole.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def main() -> None:
    args = parser.parse_args()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    (args.folder / "lives").mkdir(exist_ok=True)
    life = (args.folder / "lives" / f"{rank}.{os.getpid()}").open("w", buffering=1)
    print(os.environ.get("PERDURE_NODE", "-"), os.environ["PERDURE_ATTEMPT"], file=life)
    torch.manual_seed(0)
    model = Model()
    dist.init_process_group("gloo")
    mesh = dist.init_device_mesh("cpu", (world,))
    for part in [*model.blocks, model]:
        fully_shard(part, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)
    x = torch.randn(4096, 64, generator=torch.Generator().manual_seed(1))
    loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), 8, shuffle=True, drop_last=True)
    torch.manual_seed(1 + rank)  # every rank drops other activations
    run = perdure.attach(model, optimizer, scheduler=scheduler, loader=loader, to=args.to, every=EVERY, keep="last=3")
    wanted = args.folder / f"raise-{rank}"
    next_s = time.monotonic()
    while run.step < args.steps:
        for batch, target in loader:
            if wanted.exists():
                wanted.unlink()
                raise RuntimeError(f"the storm wants rank {rank} to raise after step {run.step}")
            loss = (model(batch) - target).square().mean()
            loss.backward()
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            print(time.monotonic(), run.step, loss.item().hex(), file=life)
            if args.pace:
                next_s = max(next_s + args.pace, time.monotonic() - args.pace)
                time.sleep(max(0.0, next_s - time.monotonic()))
            if run.step >= args.steps:
                break
    digest = digest_of(model, optimizer)
    if rank == 0:
        (args.folder / "final.new").write_text(digest)
        (args.folder / "final.new").rename(args.folder / "final")
    run.close()
    dist.barrier()  # nobody leaves while another rank still talks
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
