"""Trees there and back: saved by simulated ranks into packs in memory, restored into other trees."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from perdure.adapters.torch.framework import TorchFramework
from perdure.state.alike import check_alike
from perdure.state.load import LoadReport, load, match
from perdure.testing import ranks
from perdure.testing.ranks import Saved

__all__ = ["DTYPE_NAMES", "assert_same", "bits", "filled", "restore", "save"]

DTYPE_NAMES = sorted({str(each) for each in vars(torch).values() if isinstance(each, torch.dtype)})
DTYPE_NAMES = [name.removeprefix("torch.") for name in DTYPE_NAMES if not name.startswith("torch.q")]


def save(*trees: Mapping[str, Any]) -> Saved:
    """Save one tree a rank."""
    return ranks.save([TorchFramework().capture(tree) for tree in trees])


def restore(saved: Saved, tree: Mapping[str, Any], *, rank: int = 0, world: int = 1) -> LoadReport:
    """Restore ``tree`` as ``rank`` of ``world``, as `perdure.checkpoint.restoring` does."""
    catalog = saved.catalog
    target = TorchFramework().prepare(tree, catalog)
    items = target.items(catalog, rank=rank, world=world)
    matches = match(catalog, items, target.value_keys(), rank=rank, world=world, anew=target.anew)
    check_alike(catalog, matches, target.alike, saved.sources, budget_bytes=1 << 20)
    report = load(catalog, matches, saved.sources)
    target.finish(catalog, rank=rank, world=world)
    return report


def bits(tensor: torch.Tensor) -> bytes:
    """The elements of a tensor as bytes."""
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if local.numel() else b""


def assert_same(one: Any, other: Any, where: str = "") -> None:
    """Equal in type, dtype, device, shape and every bit, at every depth."""
    assert type(one) is type(other), f"{where}: {type(one)} and {type(other)}"
    if isinstance(one, torch.Tensor):
        assert (one.dtype, one.shape, one.device) == (other.dtype, other.shape, other.device), where
        assert bits(one) == bits(other), where
    elif isinstance(one, dict):
        assert one.keys() == other.keys(), f"{where}: {list(one)} and {list(other)}"
        for name in one:
            assert_same(one[name], other[name], f"{where}.{name}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), where
        for i, (mine, theirs) in enumerate(zip(one, other, strict=True)):
            assert_same(mine, theirs, f"{where}[{i}]")
    else:
        assert one == other or (one != one and other != other), f"{where}: {one} and {other}"


def filled(dtype: str, shape: Sequence[int], seed: int = 0) -> torch.Tensor:
    """A tensor of any bytes."""
    kind: torch.dtype = getattr(torch, dtype)
    generator = torch.Generator().manual_seed(seed)
    raw = torch.randint(0, 256, (prod(shape) * kind.itemsize,), dtype=torch.uint8, generator=generator)
    with warnings.catch_warnings(action="ignore"):
        made = torch.empty(tuple(shape), dtype=kind)
    if made.numel():
        made.view(-1).view(torch.uint8).copy_(raw % 2 if dtype == "bool" else raw)
    return made
