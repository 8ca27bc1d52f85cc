"""A plain loop that saves and restores by itself. Kill it at any moment, start it again: it goes on, bit for bit.

python examples/02_plain_loop.py --to checkpoints/plain
"""

import argparse

import torch
from torch import nn

import perdure

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--to", default="checkpoints/plain", help="where the checkpoints are: a path or a store's URL")
parser.add_argument("--steps", type=int, default=40, help="steps of the whole training, over all starts")
args = parser.parse_args()

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)
state = {"model": model, "optimizer": optimizer, "schedule": schedule, "rng": perdure.RankLocal(perdure.Rng())}

ckpt = perdure.Checkpointer(args.to, keep="last=3")
for step in range((ckpt.restore(state) or 0) + 1, args.steps + 1):
    x = torch.randn(32, 16)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    loss.backward()
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
    print(f"step {step} loss {loss.item()!r}", flush=True)
    if step % 5 == 0:
        ckpt.save(step, state)  # returns when the state is copied; an agent writes it, even if this process dies
ckpt.close()
