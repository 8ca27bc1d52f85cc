"""torchdata's loader with workers and a gradient scaler. Kill it, start it again: it goes on, bit for bit.

python examples/09_stateful_loader.py --to checkpoints/loader
"""

import argparse

import torch
from torch import nn
from torchdata.stateful_dataloader import StatefulDataLoader

import perdure

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--to", default="checkpoints/loader", help="where the checkpoints are: a path or a store's URL")
parser.add_argument("--steps", type=int, default=30, help="steps of the whole training, over all starts")
args = parser.parse_args()

torch.manual_seed(0)
data = [torch.randn(16) for _ in range(100)]
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler("cpu", growth_interval=5)
loader = StatefulDataLoader(data, batch_size=8, shuffle=True, num_workers=2)
run = perdure.attach(model, optimizer, to=args.to, every=5, loader=loader, extra={"scaler": scaler})
while run.step < args.steps:
    for x in loader:
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        print(f"step {run.step} loss {loss.item()!r}", flush=True)
        if run.step >= args.steps:
            break
run.close()
