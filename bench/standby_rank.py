"""A rank of standby.py: one step of a small model under FSDP2; prints when it began and when the step was done."""

from __future__ import annotations

import time

BEGAN = time.monotonic()

import torch  # noqa: E402  (the time before it is what is measured)
import torch.distributed as dist  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402


def main() -> None:
    ready = time.monotonic()
    dist.init_process_group("gloo")
    model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(4)))
    mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model(torch.randn(8, 256)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    print(BEGAN, ready, time.monotonic(), flush=True)
    time.sleep(600)  # until it is killed, as in a job whose rank failed


if __name__ == "__main__":
    main()
