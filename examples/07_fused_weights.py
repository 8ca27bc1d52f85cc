"""Weights that were trained apart and are wanted in one, and the other way round: q, k and v, gate and up.

python examples/07_fused_weights.py --to checkpoints/fused
"""

import argparse

import torch
from torch import nn

import perdure

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--to", default="checkpoints/fused", help="where the checkpoints go: a path or a store's URL")
args = parser.parse_args()

SIZES = {"q": 32, "k": 8, "v": 8}
apart = nn.ModuleDict({"attn": nn.ModuleDict({name: nn.Linear(16, size) for name, size in SIZES.items()})})
fused = nn.ModuleDict({"attn": nn.ModuleDict({"qkv": nn.Linear(16, 48)})})

with_optimizer = {"model": apart, "optimizer": torch.optim.AdamW(apart.parameters())}
ckpt = perdure.Checkpointer(args.to, agent=False)
ckpt.save(1, with_optimizer).committed()

# What is one tensor here is three in the checkpoint; moments and step counts follow their parameters.
view = perdure.View(fused, split={"qkv": SIZES})
ckpt.restore({"model": view, "optimizer": torch.optim.AdamW(fused.parameters())})
weights = [apart["attn"][name].weight for name in SIZES]
print("restored as one:", torch.equal(fused["attn"]["qkv"].weight, torch.cat(weights)))

# A checkpoint that has one: what is three here is one there.
ckpt.save(2, {"model": fused}).committed()
ckpt.restore({"model": perdure.View(apart, fuse={"qkv": ["q", "k", "v"]})})
print("restored apart:", torch.equal(apart["attn"]["k"].weight, fused["attn"]["qkv"].weight[32:40]))

print("loaded apart:", sorted(perdure.load(args.to, names="model.*weight", split={"qkv": SIZES})))
print("loaded as one:", sorted(perdure.load(args.to, names="model.*weight", step=1, fuse={"qkv": list(SIZES)})))
ckpt.close()
