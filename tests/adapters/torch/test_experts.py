"""Expert parallelism in real processes: ranks have some of the experts each, and others go on with others."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

import perdure
from perdure.errors import ReplicaMismatch
from perdure.events import Log
from perdure.layout import shift_layer

from . import gloo
from .conftest import SHORT
from .trips import bits

EXPERTS = 6


def opened(place: Path) -> perdure.Checkpointer:
    return perdure.Checkpointer(place, agent=False, deadlines=SHORT, log=Log(stream=io.StringIO()))


def by_rank(seed: int, ends: tuple[int, ...]) -> dict[str, Any]:
    """Experts ``ends[rank - 1]`` to ``ends[rank]`` in a list that counts from 0; the router on every rank."""
    rank = dist.get_rank() if dist.is_initialized() else 0
    first, last = (0, *ends)[rank], ends[rank]
    torch.manual_seed(seed)
    model = nn.Module()
    model.router = nn.Linear(3, EXPERTS)
    model.experts = nn.ModuleList([nn.Linear(3, 5) for _ in range(EXPERTS)][first:last])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, foreach=False)
    x = torch.arange(6.0).reshape(2, 3)
    loss = model.router(x).square().sum()
    for expert in model.experts:
        loss = loss + expert(x).square().sum()
    loss.backward()
    optimizer.step()
    named = partial(shift_layer, by=first, under="experts")
    stage = perdure.Stage(model, rank, len(ends), names=named, shared=lambda name: not name.startswith("experts."))
    return {"model": stage if len(ends) > 1 else model, "optimizer": optimizer}


def stacked(seed: int, ends: tuple[int, ...]) -> dict[str, Any]:
    """All experts in one tensor, of which a mesh cuts the first dim; the last of four ranks has none of them."""
    torch.manual_seed(seed)
    model = nn.Module()
    model.router = nn.Linear(3, EXPERTS)
    weights = torch.randn(EXPERTS, 5, 3)
    if len(ends) > 1:
        weights = distribute_tensor(weights, init_device_mesh("cpu", (len(ends),), mesh_dim_names=("ep",)), [Shard(0)])
    model.experts = nn.Parameter(weights)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, foreach=False)
    (
        model.router.weight.sum() + (model.experts.to_local() if len(ends) > 1 else model.experts).square().sum()
    ).backward()
    optimizer.step()
    return {"model": model, "optimizer": optimizer}


def saving(place: Path, make: Callable[..., dict[str, Any]], ends: tuple[int, ...], step: int) -> Callable[[], None]:
    """Go on from the step before, if there is one, and save again what came back."""

    def work() -> None:
        tree = make(step, ends)
        ckpt = opened(place)
        assert ckpt.restore(tree) == (step - 1 or None)
        ckpt.save(step, tree).committed()
        ckpt.close()

    return work


@pytest.mark.parametrize("make", [by_rank, stacked])
def test_experts_go_to_any_ranks(tmp_path: Path, make: Callable[..., dict[str, Any]]) -> None:
    make(1, (6,))  # what a first optimizer step imports is imported once, and not by every rank
    first: dict[str, str] = {}
    for step, ends in enumerate([(2, 3, 5, 6), (6,), (4, 4, 6), (3, 6)], 1):
        gloo.run(len(ends), saving(tmp_path, make, ends, step))
        saved = {name: bits(each).hex() for name, each in sorted(perdure.load(tmp_path).items())}
        first = first or saved
        assert saved == first, ends
    assert ("optimizer.state.experts.5.bias.exp_avg" if make is by_rank else "optimizer.state.experts.exp_avg") in first


def test_what_all_ranks_have_beside_their_experts_must_be_the_same(tmp_path: Path) -> None:
    def work() -> None:
        tree = by_rank(1, (3, 6))
        if dist.get_rank():
            with torch.no_grad():
                tree["model"].module.router.bias[2] += 1
        ckpt = opened(tmp_path)
        with pytest.raises(ReplicaMismatch, match=r"model.router.bias is not the same on ranks 0 and 1"):
            ckpt.save(1, tree).committed()
        ckpt.close()

    gloo.run(2, work)
