"""FSDP, tensor parallelism and both, in real processes: what one mesh saved, any other goes on from."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from perdure.adapters.torch.checkpointer import Checkpointer
from perdure.adapters.torch.load import load
from perdure.errors import ReplicaMismatch
from perdure.events import Log

from . import gloo
from .conftest import SHORT
from .trips import bits

Forms = Callable[[nn.Module], None]


def fsdp(world: int) -> Forms:
    def cut(model: nn.Module) -> None:
        fully_shard(model, mesh=init_device_mesh("cpu", (world,)))

    return cut


def fsdp_and_tp(model: nn.Module) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    parallelize_module(model, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    fully_shard(model, mesh=mesh["dp"])


def tree(cut: Forms | None, seed: int) -> dict[str, Any]:
    """Odd sizes, so that shards are uneven."""
    torch.manual_seed(seed)
    model = nn.Sequential()
    model.add_module("up", nn.Linear(5, 6))
    model.add_module("relu", nn.ReLU())
    model.add_module("down", nn.Linear(6, 3))
    if cut is not None:
        cut(model)
    return {"model": model, "optimizer": torch.optim.AdamW(model.parameters(), lr=0.1, foreach=False)}


def train(of: dict[str, Any]) -> None:
    of["model"](torch.arange(10.0).reshape(2, 5)).square().sum().backward()
    of["optimizer"].step()
    of["optimizer"].zero_grad()


def whole(tensor: torch.Tensor) -> bytes:
    return bits(tensor.full_tensor() if isinstance(tensor, DTensor) else tensor)


def contents(of: dict[str, Any]) -> dict[str, bytes]:
    """Every whole tensor, by name."""
    found = {name: whole(parameter) for name, parameter in of["model"].named_parameters()}
    for name, parameter in of["model"].named_parameters():
        for entry, value in of["optimizer"].state[parameter].items():
            found[f"{name}.{entry}"] = whole(value)
    return dict(sorted(found.items()))


def saving(place: Path, cut: Forms | None, step: int) -> Callable[[], Any]:
    def work() -> Any:
        of = tree(cut, seed=1)
        for _ in range(2):
            train(of)
        ckpt = Checkpointer(place, agent=False, deadlines=SHORT, log=Log(stream=io.StringIO()))
        ckpt.save(step, of).committed()
        ckpt.close()
        return contents(of)

    return work


def restoring(place: Path, cut: Forms | None) -> Callable[[], Any]:
    """Restore, give what came back, and show that training goes on."""

    def work() -> Any:
        of = tree(cut, seed=2)
        ckpt = Checkpointer(place, agent=False, deadlines=SHORT, log=Log(stream=io.StringIO()))
        step = ckpt.restore(of)
        ckpt.close()
        found = contents(of)
        train(of)
        assert contents(of) != found
        return [step, found]

    return work


def run(world: int, work: Callable[[], Any]) -> Any:
    """What all ranks agree on."""
    if world == 1:
        return work()
    found = gloo.run(world, work)
    assert all(each == found[0] for each in found)
    return found[0]


MESHES: dict[str, tuple[int, Forms | None]] = {
    "alone": (1, None),
    "fsdp of 2": (2, fsdp(2)),
    "fsdp of 3": (3, fsdp(3)),
    "fsdp and tp": (4, fsdp_and_tp),
}


@pytest.mark.parametrize(
    ("before", "afters"),
    [
        ("alone", ["fsdp of 2", "fsdp and tp"]),
        ("fsdp of 3", ["fsdp and tp", "alone"]),
        ("fsdp and tp", ["fsdp and tp", "fsdp of 3"]),
    ],
)
def test_what_one_mesh_saved_any_other_goes_on_from(tmp_path: Path, before: str, afters: list[str]) -> None:
    world, cut = MESHES[before]
    saved = run(world, saving(tmp_path, cut, 2))
    for after in afters:
        world, cut = MESHES[after]
        assert run(world, restoring(tmp_path, cut)) == [2, saved], after
    assert bits(load(tmp_path)["model.up.weight"]) == saved["up.weight"]


def test_the_buffers_of_rank_0_are_saved_as_data_parallelism_would_spread_them(tmp_path: Path) -> None:
    def one(step: int) -> dict[str, Any]:
        torch.manual_seed(1)
        model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4)))
        of = {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}
        for turn in range(step):
            ahead(of, turn)
        return of

    def ahead(of: dict[str, Any], turn: int) -> None:
        x = torch.arange(15.0).reshape(3, 5).sin() * (turn + 1 + dist.get_rank())
        of["model"](x).square().sum().backward()
        of["optimizer"].step()
        of["optimizer"].zero_grad()

    def work() -> Any:
        of = one(2)
        ckpt = Checkpointer(tmp_path, agent=False, deadlines=SHORT, log=Log(stream=io.StringIO()))
        ckpt.save(2, of).committed()
        mean = of["model"].module[1].running_mean.tolist()
        ahead(of, 2)
        again = one(0)
        ckpt.restore(again)
        ckpt.close()
        ahead(again, 2)
        states = [each["model"].state_dict().values() for each in (again, of)]
        same = [bits(a) == bits(b) for a, b in zip(*states, strict=True)]
        return [mean, same]

    (mean, same), (other, again) = gloo.run(2, work)
    assert mean != other
    assert all(same)
    assert all(again)
    assert load(tmp_path)["model.1.running_mean"].tolist() == mean


@pytest.mark.parametrize("what", ["value", "tensor"])
def test_without_an_agent_too_ranks_must_agree_on_what_they_hold_in_common(tmp_path: Path, what: str) -> None:
    def work() -> Any:
        ckpt = Checkpointer(tmp_path, agent=False, deadlines=SHORT, log=Log(stream=io.StringIO()))
        held = dist.get_rank() if what == "value" else torch.full((3,), float(dist.get_rank()))
        with pytest.raises(ReplicaMismatch, match="held is not the same on ranks 0 and 1"):
            ckpt.save(1, {"held": held}).committed()
        ckpt.save(2, {"held": 7 if what == "value" else torch.full((3,), 7.0)}).committed()
        ckpt.close()
        return ckpt.steps()

    assert gloo.run(2, work) == [[2], [2]]
