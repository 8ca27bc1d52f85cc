"""A pipeline: each rank holds some layers of a model, and any number of ranks goes on from what they saved.

perdure run --nproc 3 examples/06_pipeline.py --to checkpoints/pipeline     # or any other number, at each start
"""

import argparse

import torch
import torch.distributed as dist

import perdure

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--to", default="checkpoints/pipeline", help="where the checkpoints are: a path or a store's URL")
parser.add_argument("--steps", type=int, default=12, help="steps of the whole training, over all starts")
args = parser.parse_args()

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
first, last = 6 * rank // world, 6 * (rank + 1) // world
torch.manual_seed(0)  # all ranks make the same layers and keep some of them, which count from 0 there
model = torch.nn.Sequential(*[torch.nn.Linear(16, 16) for _ in range(6)][first:last])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
stage = perdure.Stage(model, rank, world, names=lambda name: f"layers.{first + int(name[0])}{name[1:]}")
run = perdure.attach(stage, optimizer, to=args.to, every=2)
while run.step < args.steps:
    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(run.step))
    _ = dist.recv(x, rank - 1) if rank > 0 else None
    y = model(x.requires_grad_())
    loss, gradient = y.square().sum(), y.detach() * 2
    if rank < world - 1:
        dist.send(y.detach(), rank + 1)
        dist.recv(gradient, rank + 1)
    y.backward(gradient)
    _ = dist.send(x.grad, rank - 1) if rank > 0 else None
    optimizer.step(), optimizer.zero_grad()
    _ = print(f"step {run.step} loss {loss.item()!r}", flush=True) if rank == world - 1 else None
    run.cut()  # the iteration ends here: there is no loader that would say so
run.close()
