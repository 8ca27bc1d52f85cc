"""Train a small GPT on the source text of Python's standard library. Kill it at any moment, start it again: it goes on.

Plain PyTorch. The two statements with `perdure` save it every few steps and resume it on as many ranks as there are:
    python examples/01_train_gpt.py --to ckpt                           # one process
    torchrun --nproc-per-node 4 examples/01_train_gpt.py --to ckpt      # FSDP2 over four ranks
"""

import argparse
import os
import pathlib
import random
import sysconfig

import numpy
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset

import perdure

LAYERS, WIDTH, HEADS, CONTEXT, TEXT_BYTES = 4, 240, 6, 128, 4_000_000  # 2.9 million parameters
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--to", default="checkpoints/gpt", help="where the checkpoints are: a path or a store's URL")
parser.add_argument("--steps", type=int, default=200, help="steps of the whole training, over all starts")
parser.add_argument("--schedule", type=int, help="steps over which the learning rate falls (all of them)")
parser.add_argument("--every", type=int, default=10, help="steps between two checkpoints")
parser.add_argument("--batch", type=int, default=2, help="sequences in a step of one rank")
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        options = {"dim_feedforward": 4 * WIDTH, "dropout": 0.0, "batch_first": True, "norm_first": True}
        self.bytes, self.places, self.drop = nn.Embedding(256, WIDTH), nn.Embedding(CONTEXT, WIDTH), nn.Dropout(0.1)
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(WIDTH, HEADS, **options) for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256)

    def forward(self, text: Tensor) -> Tensor:
        x = self.drop(self.bytes(text[:, :-1]) + self.places.weight)
        for block in self.blocks:
            x = block(x, src_mask=nn.Transformer.generate_square_subsequent_mask(CONTEXT), is_causal=True)
        return nn.functional.cross_entropy(self.head(self.drop(self.norm(x))).flatten(0, 1), text[:, 1:].flatten())


rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
for seed in (torch.manual_seed, numpy.random.seed, random.seed):
    seed(args.seed)  # every rank makes the same weights
model = GPT()
if world > 1:
    dist.init_process_group("gloo")
    mesh = dist.init_device_mesh("cpu", (world,))
    for part in [*model.blocks, model]:
        fully_shard(part, mesh=mesh, reshard_after_forward=False)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.schedule or args.steps)
text = b"".join(file.read_bytes() for file in sorted(pathlib.Path(sysconfig.get_path("stdlib")).glob("*.py")))
data = torch.frombuffer(bytearray(text[:TEXT_BYTES]), dtype=torch.uint8).unfold(0, CONTEXT + 1, CONTEXT)
loader = DataLoader(TensorDataset(data), args.batch, shuffle=True, drop_last=True)
torch.manual_seed(args.seed + 1 + rank)  # every rank drops other activations

run = perdure.attach(model, optimizer, scheduler=scheduler, loader=loader, to=args.to, every=args.every)
while run.step < args.steps:
    for (batch,) in loader:
        loss = model(batch.long())
        loss.backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        if rank == 0 and run.step % 10 == 0:
            print(f"step {run.step}  loss {loss.item():.4f}", flush=True)
        if run.step >= args.steps:
            break
if world > 1:
    dist.barrier()  # nobody leaves while another rank still talks
    dist.destroy_process_group()
