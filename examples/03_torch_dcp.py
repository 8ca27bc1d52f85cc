"""torch.distributed.checkpoint into a run: `storage_writer=` and `storage_reader=`, and nothing else changes.

torchrun --nproc-per-node 2 examples/03_torch_dcp.py --to checkpoints/dcp     # or any other number, at each start
"""

import argparse

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

import perdure

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--to", default="checkpoints/dcp", help="where the checkpoints are: a path or a store's URL")
parser.add_argument("--steps", type=int, default=12, help="steps of the whole training, over all starts")
args = parser.parse_args()

alone = {} if dist.is_torchelastic_launched() else {"store": dist.HashStore(), "rank": 0, "world_size": 1}
dist.init_process_group("gloo", **alone)
torch.manual_seed(0)
model = fully_shard(torch.nn.Linear(16, 4), mesh=dist.init_device_mesh("cpu", (dist.get_world_size(),)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
reader, state = perdure.dcp.StorageReader(args.to), {"step": 0}
if reader.latest() is not None:
    state["model"], state["optimizer"] = get_state_dict(model, optimizer)
    dcp.load(state, storage_reader=reader)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
for step in range(state["step"] + 1, args.steps + 1):
    loss = model(torch.randn(8, 16, generator=torch.Generator().manual_seed(step))).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step} loss {loss.item()!r}", flush=True)
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments, "step": step}
    dcp.save(state, checkpoint_id=f"step-{step}", storage_writer=perdure.dcp.StorageWriter(args.to))
