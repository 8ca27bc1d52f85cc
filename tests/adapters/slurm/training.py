"""A small training for the tests of this folder: one gloo rank a node, each step noted in a file of its node.

training.py FOLDER STEPS SECONDS_A_STEP
"""

import os
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

import perdure

folder, n_steps, pause_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
node, attempt = os.environ["SLURMD_NODENAME"], os.environ["PERDURE_ATTEMPT"]
dist.init_process_group("gloo", timeout=timedelta(seconds=60))
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
run = perdure.attach(model, optimizer, to=f"{folder}/run", every=5)
with open(f"{folder}/steps.{node}", "a", buffering=1) as notes:
    while run.step < n_steps:
        torch.manual_seed(run.step * world + rank)
        loss = (model(torch.randn(16, 8)) - 1).square().mean()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()
        print(run.step, rank, world, os.getpid(), attempt, file=notes)
        time.sleep(pause_s)
run.close()
dist.barrier()
dist.destroy_process_group()
