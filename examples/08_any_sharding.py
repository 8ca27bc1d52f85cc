"""FSDP1, FSDP2 or ZeRO, on any number of ranks: each goes on from what any other saved.

perdure run --nproc 2 examples/08_any_sharding.py --by fsdp1     # then --by zero, --by fsdp2, or another number
"""

import argparse
import warnings

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer

import perdure

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--to", default="checkpoints/sharded", help="where the checkpoints are: a path or a store's URL")
parser.add_argument("--steps", type=int, default=12, help="steps of the whole training, over all starts")
parser.add_argument("--by", choices=["fsdp1", "fsdp2", "zero"], default="fsdp1", help="who cuts the state")
args = parser.parse_args()

dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 33), torch.nn.ReLU(), torch.nn.Linear(33, 4))
if args.by == "fsdp1":
    warnings.simplefilter("ignore", FutureWarning)  # torch's, which has FSDP2 now
    model = FullyShardedDataParallel(model, use_orig_params=True, device_id=torch.device("cpu"))
elif args.by == "fsdp2":
    fully_shard(model, mesh=dist.init_device_mesh("cpu", (dist.get_world_size(),)))
adamw = ZeroRedundancyOptimizer if args.by == "zero" else lambda parameters, kind, **more: kind(parameters, **more)
optimizer = adamw(model.parameters(), torch.optim.AdamW, lr=1e-2)
run = perdure.attach(model, optimizer, to=args.to, every=2)
while run.step < args.steps:
    loss = model(torch.randn(8, 16, generator=torch.Generator().manual_seed(run.step))).square().mean()
    loss.backward()  # all ranks have the same batch here
    optimizer.step()
    optimizer.zero_grad()
    _ = print(f"step {run.step} loss {loss.item()!r}", flush=True) if dist.get_rank() == 0 else None
run.close()
