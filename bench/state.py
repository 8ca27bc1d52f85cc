"""The state that the checkpoint benchmarks save and load: a dict of float32 tensors of one size, from a seed."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["change", "copy_into", "make_state", "size_bytes"]

TENSOR_MIB = 16


def make_state(mib: int, *, seed: int = 0) -> dict[str, Tensor]:
    """``mib`` MiB of normal random float32 numbers, in tensors of 16 MiB."""
    generator = torch.Generator().manual_seed(seed)
    shape = (TENSOR_MIB * 256, 1024)
    return {f"layer{i:03}.weight": torch.randn(shape, generator=generator) for i in range(max(1, mib // TENSOR_MIB))}


def change(state: dict[str, Tensor]) -> None:
    """Change every tensor in every tile, as a step of training does; a save may refer to what has not changed."""
    for tensor in state.values():
        tensor.view(-1)[::1024].add_(1.0)


def size_bytes(state: dict[str, Tensor]) -> int:
    """The bytes of all tensors of ``state``."""
    return sum(tensor.numel() * tensor.element_size() for tensor in state.values())


def copy_into(target: dict[str, Tensor], source: dict[str, Tensor]) -> None:
    """The yardstick: memcpy of every tensor into memory that is there already."""
    for name, tensor in source.items():
        target[name].copy_(tensor)
