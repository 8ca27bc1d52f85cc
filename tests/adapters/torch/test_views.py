"""Fused weights and other names: what was saved under some names and cuts comes back under others, bit for bit."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import perdure
from perdure.errors import CallError, StateMismatch
from perdure.events import Log

from . import gloo
from .conftest import SHORT
from .trips import bits, restore, save

SIZES = {"q": 8, "k": 2, "v": 4}
QKV = {"qkv": SIZES}
NAMES = {"qkv": ["q", "k", "v"]}


class Attention(nn.Module):
    """Projections of 5 to 14, in one or in three, and one that is neither."""

    def __init__(self, fused: bool, seed: int = 1) -> None:
        super().__init__()
        torch.manual_seed(seed)
        if fused:
            self.qkv = nn.Linear(5, 14)
        else:
            self.q, self.k, self.v = (nn.Linear(5, size) for size in SIZES.values())
        self.out = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        whole = self.qkv(x) if hasattr(self, "qkv") else torch.cat([self.q(x), self.k(x), self.v(x)], -1)
        return self.out(whole[..., :8]) * whole[..., 8:13].tanh() + whole[..., 13:]


def of(fused: bool, seed: int = 1, **view: Any) -> dict[str, Any]:
    """A tree of two layers, trained for a step where the seed is 1; with a view where there is something to say."""
    model = nn.ModuleDict({"layers": nn.ModuleList([Attention(fused, seed), Attention(fused, seed + 1)])})
    rest = [each for name, each in model.named_parameters() if "out" in name]
    main = [each for name, each in model.named_parameters() if "out" not in name]
    optimizer = torch.optim.AdamW([{"params": main, "lr": 0.03}, {"params": rest}], lr=0.1, foreach=False)
    if seed == 1:
        train(model, optimizer)
    return {"model": perdure.View(model, **view) if view else model, "optimizer": optimizer}


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    x = torch.linspace(-1, 1, 15).reshape(3, 5)
    for layer in model["layers"]:
        x = layer(x)
    x.square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def together(tree: Mapping[str, Any]) -> dict[str, bytes]:
    """Everything under separate names, whatever it is here."""
    model = tree["model"].module if isinstance(tree["model"], perdure.View) else tree["model"]
    found: dict[str, bytes] = {}
    for name, parameter in model.named_parameters():
        state = tree["optimizer"].state[parameter]
        for entry, value in {"": parameter, **state}.items():
            value = value.full_tensor() if hasattr(value, "full_tensor") else value
            parts = value.split(list(SIZES.values())) if "qkv" in name and value.ndim else [value] * 3
            for part, each in zip(SIZES, parts, strict=True):
                found[f"{name.replace('qkv', part)}.{entry}"] = bits(each)
    groups = tree["optimizer"].param_groups
    groups = [{key: value for key, value in group.items() if key != "params"} for group in groups]
    return {**dict(sorted(found.items())), "groups": repr(groups).encode()}


WAYS = {
    "separate": (False, {}),
    "fused, saved as separate": (True, {"split": QKV}),
    "fused": (True, {}),
    "separate, saved as fused": (False, {"fuse": NAMES}),
}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("separate", "fused, saved as separate"),
        ("fused, saved as separate", "separate"),
        ("fused", "separate, saved as fused"),
        ("separate, saved as fused", "fused"),
        ("separate, saved as fused", "separate, saved as fused"),
    ],
)
def test_what_was_saved_apart_comes_back_fused_and_the_other_way_round(before: str, after: str) -> None:
    fused, view = WAYS[before]
    one = of(fused, 1, **view)
    fused, view = WAYS[after]
    other = of(fused, 2, **view)
    expected = together(one)
    assert together(other) != expected
    restore(save(one), other)
    assert together(other) == expected


def test_training_goes_on_through_fused_and_separate_weights(tmp_path: Path) -> None:
    ckpt = perdure.Checkpointer(tmp_path, agent=False, deadlines=SHORT, log=Log(stream=io.StringIO()))
    ckpt.save(1, of(False)).committed()
    fused = of(True, 2, split=QKV)
    assert ckpt.restore(fused) == 1
    train(fused["model"].module, fused["optimizer"])
    ckpt.save(2, fused).committed()
    back = of(False, 2)
    assert ckpt.restore(back) == 2
    ckpt.close()
    assert together(back) == together(fused)
    whole = perdure.load(tmp_path, names="model.*", fuse=NAMES)
    assert whole.keys() == {f"model.{name}" for name in fused["model"].module.state_dict()}
    assert bits(whole["model.layers.1.qkv.weight"]) == bits(fused["model"].module["layers"][1].qkv.weight)


@pytest.mark.parametrize("dim", [0, -1])
@pytest.mark.parametrize("repeat", [1, 2])
def test_parts_lie_along_any_dim_and_take_turns(dim: int, repeat: int) -> None:
    whole = torch.arange(84.0).reshape(14, 6) if dim == 0 else torch.arange(84.0).reshape(6, 14)
    parts = {name: [] for name in SIZES}
    at = 0
    for _ in range(repeat):
        for name, size in SIZES.items():
            parts[name].append(whole.narrow(dim, at, size // repeat))
            at += size // repeat
    expected = {name: torch.cat(each, dim) for name, each in parts.items()}

    module = nn.Module()
    module.register_buffer("qkv", whole.clone())
    fused = perdure.Fused(SIZES, dim=dim, repeat=repeat)
    saved = save({"m": perdure.View(module, split={"qkv": fused})})
    apart = nn.Module()
    for name in SIZES:
        apart.register_buffer(name, torch.zeros_like(expected[name]))
    restore(saved, {"m": apart})
    assert all(bits(getattr(apart, name)) == bits(expected[name]) for name in SIZES)

    saved = save({"m": perdure.View(apart, fuse={"qkv": perdure.Fused(list(SIZES), dim=dim, repeat=repeat)})})
    module.qkv.zero_()
    restore(saved, {"m": module})
    assert bits(module.qkv) == bits(whole)

    ckpt = perdure.Checkpointer(url := "ram://turns", agent=False)
    ckpt.save(1, {"m": module}).committed()
    ckpt.save(2, {"m": apart}).committed()
    for step, options in ((1, {"split": {"qkv": fused}}), (2, {})):
        found = perdure.load(url, step=step, **options)
        assert {name: bits(each) for name, each in found.items()} == {
            f"m.{name}": bits(each) for name, each in expected.items()
        }
    again = perdure.load(url, step=2, fuse={"qkv": perdure.Fused(list(SIZES), dim=dim, repeat=repeat)})
    assert bits(again["m.qkv"]) == bits(whole)
    ckpt.close()


def test_fused_weights_are_cut_by_meshes_of_any_size(tmp_path: Path) -> None:
    def sharded(world: int, *args: Any, **view: Any) -> dict[str, Any]:
        torch.manual_seed(9)
        model = nn.Sequential()
        model.add_module("layers", nn.Sequential(Attention(*args), Attention(*args)))
        fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, foreach=False)
        for each in model.parameters():
            each.grad = each.detach().clone()
        optimizer.step()
        return {"model": perdure.View(model, **view) if view else model, "optimizer": optimizer}

    def life(step: int, make: Callable[[], dict[str, Any]]) -> None:
        tree = make()
        ckpt = perdure.Checkpointer(tmp_path, agent=False, deadlines=SHORT, log=Log(stream=io.StringIO()))
        assert ckpt.restore(tree) == (step - 1 or None)
        ckpt.save(step, tree).committed()
        ckpt.close()

    of(False)  # what a first optimizer step imports is imported once, and not by every rank
    gloo.run(2, partial(life, 1, partial(sharded, 2, True, 1, split=QKV)))
    gloo.run(3, partial(life, 2, partial(sharded, 3, False, 2)))
    gloo.run(4, partial(life, 3, partial(sharded, 4, True, 3, split=QKV)))
    first, *others = ({name: bits(each) for name, each in perdure.load(tmp_path, step=n).items()} for n in (1, 2, 3))
    assert first.keys() >= {"model.layers.0.q.weight", "optimizer.state.layers.1.v.bias.exp_avg"}
    assert all(each == first for each in others)


def test_names_alone_may_differ() -> None:
    saved = save(of(False))
    other = of(False, 2, names=lambda name: name)
    renamed = nn.ModuleDict({"blocks": other["model"].module["layers"]})
    other["model"] = perdure.View(renamed, names=lambda name: name.replace("blocks", "layers"))
    restore(saved, other)
    assert {name.replace("blocks", "layers"): each for name, each in together(other).items()} == together(of(False))


def test_a_count_that_differs_between_the_parts_is_refused() -> None:
    tree = of(False)
    tree["optimizer"].state[tree["model"]["layers"][1].k.bias]["step"] += 1
    with pytest.raises(StateMismatch, match=r"layers.1.k.bias.step was saved with another value"):
        restore(save(tree), other := of(True, 2, split=QKV))
    assert together(other) == together(of(True, 2, split=QKV))  # nothing is written before all is compared
    tree["model"] = perdure.View(tree["model"], fuse=NAMES)
    with pytest.raises(StateMismatch, match=r"layers.1.qkv.bias.step is to be one tensor in the checkpoint, but"):
        save(tree)


def test_a_restore_that_cannot_end_well_has_written_nothing(tmp_path: Path) -> None:
    tree = of(False)
    tree["optimizer"].state[tree["model"]["layers"][1].k.bias]["step"] += 1
    with contextlib.closing(perdure.Checkpointer(tmp_path, agent=False)) as ckpt:
        ckpt.save(1, tree).committed()
        other = of(True, 2, split=QKV)
        before = together(other)
        for restore_it in (ckpt.restore, lambda tree: perdure.load_into(tmp_path, tree)):
            with pytest.raises(
                StateMismatch, match=r"^(?!.*half written).*layers.1.q.bias.step was saved with another"
            ):
                restore_it(other)
            assert together(other) == before


def test_parts_with_other_options_do_not_fit_one_parameter() -> None:
    tree = of(False)
    k = tree["model"]["layers"][0].k.bias
    group = tree["optimizer"].param_groups[0]
    group["params"] = [each for each in group["params"] if each is not k]
    tree["optimizer"].add_param_group({"params": [k], "lr": 0.5})
    with pytest.raises(StateMismatch, match=r"are in one parameter group of optimizer here, but were saved with diff"):
        restore(save(tree), of(True, 2, split=QKV))
    tree["model"] = perdure.View(tree["model"], fuse=NAMES)
    with pytest.raises(CallError, match=r"make up optimizer.param_groups.layers.0.qkv.bias have different options"):
        save(tree)


@pytest.mark.parametrize(
    ("fused", "view", "said"),
    [
        (True, {"split": {"qkv": {"q": 8, "k": 2}}}, r"parts of 8 \+ 2 do not make up its dim 0"),
        (True, {"split": {"qkv": ["q", "k"]}}, "needs the size of each part"),
        (True, {"split": {"qkv": perdure.Fused(SIZES, dim=1)}}, "do not make up its dim 1"),
        (True, {"split": {"qkv": perdure.Fused(SIZES, dim=2)}}, "has 2 dims, so nothing of it lies along dim 2"),
        (True, {"split": {"qkv": perdure.Fused(SIZES, repeat=4)}}, "do not come in 4 equal turns"),
        (False, {"fuse": {"qkv": ["q", "k", "w"]}}, r"is to be a part of .*qkv.weight, but .*w.weight is not there"),
        (False, {"fuse": {"all": ["q", "out"]}}, "differ in more than dim 0"),
        (False, {"names": lambda name: ""}, "give a function that returns text"),
    ],
)
def test_a_view_that_does_not_fit_says_so(fused: bool, view: dict[str, Any], said: str) -> None:
    with pytest.raises(CallError, match=said):
        save(of(fused, 2, **view))


def test_what_is_no_module_has_no_view() -> None:
    with pytest.raises(CallError, match="is for a module; a dict is none"):
        perdure.View({})  # type: ignore[arg-type]
    with pytest.raises(CallError, match="there is no stage 4 of 4; count stages from 0"):
        perdure.Stage(nn.Linear(1, 1), 4, 4)
    with pytest.raises(CallError, match="is one text; give a list of patterns"):
        perdure.Stage(nn.Linear(1, 1), 0, 4, shared="embed.weight")
