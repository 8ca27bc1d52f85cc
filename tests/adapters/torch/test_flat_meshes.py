"""FSDP1, ZeRO and flat slices in real processes, among the meshes of DTensors: each goes on from what any other saved.

One training goes through many lives, each on another mesh; what is saved after each life is compared, bit for bit, with
a training in one process that was never cut. Ranks all take the same batch, so that means over 2 or 4 ranks are exact;
on 3 ranks, and where tensor parallelism adds in another order, a life restores and saves without a step.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import perdure
from perdure.errors import CallError
from perdure.events import Log

from . import gloo
from .conftest import SHORT
from .trips import bits


class Scale(nn.Module):
    """A weight and a bias an element, with gradients that are the same however many threads a process has.

    Not so those of torch's LayerNorm, which adds its parts in another order then.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.rand(size) + 0.5), nn.Parameter(torch.zeros(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight + self.bias


def small(seed: int) -> nn.Module:
    """Odd sizes, so that shards are uneven and some are empty; two kinds of parameters in two groups."""
    torch.manual_seed(seed)
    model = nn.Sequential()
    model.add_module("up", nn.Linear(5, 6))
    model.add_module("norm", Scale(6))
    model.add_module("down", nn.Linear(6, 3))
    model.register_buffer("seen", torch.tensor([seed, 2]))
    return model


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.1, betas=(0.8, 0.9), foreach=False)


class Life:
    """A training on some mesh: what is saved of it, and how it steps."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer = model, optimizer

    def tree(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer}

    def restored(self) -> None: ...

    def step(self) -> None:
        self.model(torch.arange(10.0).reshape(2, 5)).square().sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def alone(seed: int) -> Life:
    model = small(seed)
    return Life(model, adamw(model))


def fsdp1(seed: int, *, orig: bool, nested: bool = True, **options: Any) -> Life:
    model: nn.Module = small(seed)
    options = {"use_orig_params": orig, "device_id": torch.device("cpu")} | options
    with warnings.catch_warnings(action="ignore"):  # it is deprecated, and used
        if nested:
            model.up = FullyShardedDataParallel(model.up, **options)
        model = FullyShardedDataParallel(model, **options)
    return Life(model, adamw(model))


def fsdp1_hybrid(seed: int) -> Life:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    return fsdp1(seed, orig=True, device_mesh=mesh, sharding_strategy=ShardingStrategy.HYBRID_SHARD)


def fsdp2(seed: int, *shape: int) -> Life:
    model = small(seed)
    names = ("replicate", "shard")[-len(shape) :]
    fully_shard(model, mesh=init_device_mesh("cpu", shape, mesh_dim_names=names))
    return Life(model, adamw(model))


def fsdp2_and_tp(seed: int) -> Life:
    model = small(seed)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    parallelize_module(model, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    fully_shard(model, mesh=mesh["dp"])
    return Life(model, adamw(model))


def zero(seed: int) -> Life:
    model = small(seed)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.1, betas=(0.8, 0.9), foreach=False)
    return Life(model, optimizer)


class Slices(Life):
    """Masters and moments in one flat buffer, of which each rank has a slice, as ZeRO 1 and 2 keep them."""

    def __init__(self, seed: int) -> None:
        model = small(seed)
        rank, world = dist.get_rank(), dist.get_world_size()
        self.named = dict(model.named_parameters())
        whole = torch.cat([each.detach().flatten() for each in self.named.values()])
        self.each = -(-whole.numel() // world)
        self.start = rank * self.each
        padded = torch.cat([whole, torch.zeros(self.each * world - whole.numel())])
        self.flat = nn.Parameter(padded[self.start : self.start + self.each].clone())
        super().__init__(model, torch.optim.AdamW([self.flat], lr=0.1, betas=(0.8, 0.9), foreach=False))

    def tree(self) -> dict[str, Any]:
        shapes = {name: tuple(each.shape) for name, each in self.named.items()}
        state = perdure.FlatSlice(self.flat, shapes, start=self.start)
        return {"model": state, "optimizer": self.optimizer, "model.seen": self.model.seen}

    def restored(self) -> None:
        slices = [torch.empty(self.each) for _ in range(dist.get_world_size())]
        dist.all_gather(slices, self.flat.detach())
        whole, at = torch.cat(slices), 0
        with torch.no_grad():
            for each in self.named.values():
                each.copy_(whole[at : at + each.numel()].view(each.shape))
                at += each.numel()

    def step(self) -> None:
        self.model.zero_grad()
        self.model(torch.arange(10.0).reshape(2, 5)).square().sum().backward()
        whole = torch.cat([each.grad.flatten() for each in self.named.values() if each.grad is not None])
        padded = torch.cat([whole, torch.zeros(self.each * dist.get_world_size() - whole.numel())])
        self.flat.grad = padded[self.start : self.start + self.each].clone()
        self.optimizer.step()
        self.restored()


MESHES: dict[str, tuple[int, Callable[[int], Life]]] = {
    "alone": (1, alone),
    "fsdp1 with original parameters": (2, partial(fsdp1, orig=True)),
    "fsdp1 of 4, original": (4, partial(fsdp1, orig=True, nested=False)),
    "fsdp1, hybrid": (4, lambda seed: fsdp1_hybrid(seed)),
    "fsdp1, gradients alone": (2, partial(fsdp1, orig=False, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)),
    "fsdp1": (2, partial(fsdp1, orig=False)),
    "fsdp1 of 3": (3, partial(fsdp1, orig=False, nested=False)),
    "fsdp1, replicated": (2, partial(fsdp1, orig=True, sharding_strategy=ShardingStrategy.NO_SHARD)),
    "fsdp2": (4, lambda seed: fsdp2(seed, 4)),
    "hsdp": (4, lambda seed: fsdp2(seed, 2, 2)),
    "fsdp2 and tp": (4, fsdp2_and_tp),
    "zero": (2, zero),
    "zero of 4": (4, zero),
    "slices": (2, Slices),
    "slices of 3": (3, Slices),
}
EXACT = (1, 2, 4)


def living(place: Path, make: Callable[[int], Life], turn: int, steps: bool) -> Callable[[], None]:
    def work() -> None:
        life = make(1 if turn == 0 else 2)
        ckpt = perdure.Checkpointer(place, agent=False, deadlines=SHORT, log=Log(stream=io.StringIO()))
        if turn % 2 and steps:  # a model that has been used: its optimizer has state, and FSDP1 its buffers
            life.step()
        assert ckpt.restore(life.tree()) == (turn or None)
        life.restored()
        if steps:
            life.step()
        ckpt.save(turn + 1, life.tree()).committed()
        ckpt.close()

    return work


def contents(life: Life) -> dict[str, str]:
    found = {f"model.{name}": bits(each).hex() for name, each in life.model.state_dict().items()}
    for name, parameter in life.model.named_parameters():
        for entry, value in life.optimizer.state[parameter].items():
            found[f"optimizer.state.{name}.{entry}"] = bits(value).hex()
    return dict(sorted(found.items()))


@pytest.fixture(scope="module", autouse=True)
def warm() -> None:
    """What a first optimizer step imports is imported once, and not by every rank."""
    alone(1).step()


@pytest.mark.parametrize(
    "meshes",
    [
        ["fsdp1 with original parameters", "alone", "fsdp1", "fsdp2", "fsdp1 of 3", "fsdp1 of 4, original"],
        ["zero", "alone", "zero of 4", "hsdp", "slices", "zero"],
        ["slices", "fsdp1, replicated", "slices of 3", "fsdp2 and tp", "fsdp1, gradients alone", "fsdp1, hybrid"],
    ],
    ids=lambda meshes: meshes[0],
)  # fmt: skip
def test_a_training_goes_through_any_meshes_as_if_it_had_been_alone(tmp_path: Path, meshes: list[str]) -> None:
    reference = alone(1)
    for turn, mesh in enumerate(meshes):
        world, make = MESHES[mesh]
        steps = world in EXACT and "tp" not in mesh
        gloo.run(world, living(tmp_path, make, turn, steps))
        if steps:
            reference.step()
        saved = {name: bits(each).hex() for name, each in sorted(perdure.load(tmp_path).items())}
        assert saved == contents(reference), mesh


@pytest.mark.parametrize("orig", [True, False])
def test_attach_watches_over_fsdp1(tmp_path: Path, orig: bool) -> None:
    def work(steps: range) -> list[int]:
        life = fsdp1(1 if steps.start == 0 else 2, orig=orig)
        run = perdure.attach(life.model, life.optimizer, to=tmp_path, every=2, agent=False, deadlines=SHORT)
        assert run.step == steps.start
        for _ in steps:
            life.step()
        run.close()
        return run.checkpointer.steps()

    assert gloo.run(2, partial(work, range(3))) == [[2, 3], [2, 3]]
    assert gloo.run(2, partial(work, range(3, 4))) == [[2, 3, 4], [2, 3, 4]]
    reference = alone(1)
    for _ in range(4):
        reference.step()
    saved = perdure.load(tmp_path, names=["model.*", "optimizer.*"])
    assert {name: bits(each).hex() for name, each in sorted(saved.items())} == contents(reference)


def test_weights_that_are_tied_in_fsdp1_are_saved_once_under_both_names(tmp_path: Path) -> None:
    def tied() -> nn.Module:
        torch.manual_seed(1)
        model = nn.Sequential()
        model.add_module("embed", nn.Embedding(7, 3))
        model.add_module("head", nn.Linear(3, 7, bias=False))
        model.head.weight = model.embed.weight
        return model

    def work(orig: bool, step: int) -> None:
        with warnings.catch_warnings(action="ignore"):
            model = FullyShardedDataParallel(tied(), use_orig_params=orig, device_id=torch.device("cpu"))
        ckpt = perdure.Checkpointer(tmp_path, agent=False, deadlines=SHORT, log=Log(stream=io.StringIO()))
        state = {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}
        assert ckpt.restore(state) == (step - 1 or None)
        ckpt.save(step, state).committed()
        ckpt.close()

    gloo.run(2, partial(work, True, 1))
    gloo.run(2, partial(work, False, 2))
    plain = tied()
    found = perdure.load(tmp_path)
    assert found["model.embed.weight"].data_ptr() == found["model.head.weight"].data_ptr()
    assert bits(found["model.embed.weight"]) == bits(plain.embed.weight)
    ckpt = perdure.Checkpointer(tmp_path, agent=False, deadlines=SHORT, log=Log(stream=io.StringIO()))
    assert ckpt.restore({"model": plain, "optimizer": torch.optim.SGD(plain.parameters(), lr=0.1)}) == 2
    ckpt.close()


def test_a_view_that_would_cut_flat_shards_is_refused_with_what_to_do(tmp_path: Path) -> None:
    def work() -> str:
        life = fsdp1(1, orig=True)
        ckpt = perdure.Checkpointer(tmp_path, agent=False, deadlines=SHORT, log=Log(stream=io.StringIO()))
        with pytest.raises(CallError) as caught:
            ckpt.save(1, {"model": perdure.View(life.model, split={"up": {"a": 3, "b": 3}})})
        ckpt.close()
        return str(caught.value)

    assert all("cannot be split or fused by a view; use fully_shard" in said for said in gloo.run(2, work))


def test_state_that_is_of_no_element_cannot_follow_a_part_of_a_parameter(tmp_path: Path) -> None:
    flat = nn.Parameter(torch.ones(6))
    optimizer = torch.optim.SGD([flat], lr=0.1)
    optimizer.state[flat] = {"rows": torch.ones(2)}
    tree = {"model": perdure.FlatSlice(flat, {"w": (2, 2), "b": (2,)}), "optimizer": optimizer}
    ckpt = perdure.Checkpointer(tmp_path, agent=False)
    with pytest.raises(CallError, match=r"optimizer.state.w.rows has the shape \[2\].*nobody knows which part"):
        ckpt.save(1, tree)
    ckpt.close()
