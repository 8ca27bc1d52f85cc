"""The ranks of a job, one after another in this process: each sees a mesh as its own rank, and no message is sent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

__all__ = ["rank_of"]


@contextmanager
def rank_of(shape: Sequence[int], rank: int) -> Iterator[DeviceMesh]:
    """Be ``rank`` of a mesh of ``shape``."""
    world = 1
    for extent in shape:
        world *= extent
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
    try:
        yield init_device_mesh("cpu", tuple(shape), mesh_dim_names=("dp", "tp", "pp")[: len(shape)])
    finally:
        dist.destroy_process_group()
