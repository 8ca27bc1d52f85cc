"""Read the steps of a run as files, with fsspec and safetensors alone: no Checkpointer, no process group.

python examples/04_fsspec.py --to checkpoints/files
"""

import argparse
import json

import fsspec
import safetensors.torch
import torch

import perdure

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--to", default="checkpoints/files", help="where the run is: a path or a store's URL")
args = parser.parse_args()

model = torch.nn.Linear(4, 2)  # a training, in three steps
ckpt = perdure.Checkpointer(args.to)
done = ckpt.latest() or 0
for step in range(done + 1, done + 4):
    ckpt.save(step, {"model": model, "note": f"written at step {step}"}).committed()
ckpt.close()

files = fsspec.filesystem("perdure", run=args.to)  # an evaluation, somewhere else
for path in files.find(""):
    print(path, files.size(path), "bytes")
with fsspec.open("perdure://newest/values.json", "r", run=args.to) as file:
    print(json.load(file)["note"])
with files.open("newest/model.safetensors") as file:
    weights = safetensors.torch.load(file.read())  # every byte was compared with its digest
other = torch.nn.Linear(4, 2)
other.load_state_dict(weights)
print("the same weights:", all(map(torch.equal, model.parameters(), other.parameters())))
