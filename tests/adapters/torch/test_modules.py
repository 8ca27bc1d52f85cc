"""What of a module is saved, under which names, and how it comes back."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from perdure.adapters.torch.framework import TorchFramework
from perdure.adapters.torch.modules import module_state, parameter_parts
from perdure.adapters.torch.views import Part
from perdure.errors import CallError, StateMismatch
from perdure.state.scopes import RankLocal

from .trips import assert_same, bits, restore, save


class Net(nn.Module):
    """A bit of everything."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embed = nn.Embedding(7, 4)
        self.norm = nn.BatchNorm1d(4)
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(2)])
        self.scale = nn.Parameter(torch.randn(()))
        self.register_buffer("steps", torch.tensor(seed))
        self.register_buffer("cache", torch.randn(3), persistent=False)
        self.register_buffer("nothing", None)
        self.frozen = nn.Parameter(torch.randn(2), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers[1](self.norm(self.layers[0](self.embed(x)))) * self.scale


def names_of(module: nn.Module) -> list[str]:
    return [named.name for named in module_state("m", module).tensors]


def test_parameters_and_persistent_buffers_are_saved_and_nothing_else() -> None:
    assert names_of(Net()) == [f"m.{name}" for name in Net().state_dict()]
    assert "m.cache" not in names_of(Net())
    assert "m.steps" in names_of(Net())


def test_a_module_comes_back_in_place_bit_for_bit() -> None:
    saved_net, live = Net(1), Net(2)
    with torch.no_grad():
        saved_net.scale.fill_(float("nan"))
        saved_net.frozen[0] = -0.0
    before = {name: (id(t), t.data_ptr()) for name, t in live.state_dict(keep_vars=True).items()}
    cache = live.cache.clone()
    restore(save({"m": saved_net}), {"m": live})
    assert_same(live.state_dict(), saved_net.state_dict())
    assert {name: (id(t), t.data_ptr()) for name, t in live.state_dict(keep_vars=True).items()} == before
    assert torch.equal(live.cache, cache)
    assert not live.frozen.requires_grad
    assert live.scale.requires_grad


class DataParallelLike(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


@pytest.mark.parametrize(
    "wrap",
    [
        lambda net: net,
        DataParallelLike,
        nn.DataParallel,
        torch.compile,
        lambda net: DataParallelLike(torch.compile(net)),
        lambda net: torch.compile(DataParallelLike(net)),
        lambda net: torch.optim.swa_utils.AveragedModel(net),
    ],
    ids=["bare", "ddp", "dp", "compiled", "ddp of compiled", "compiled ddp", "averaged"],
)
def test_a_wrapper_leaves_the_names_as_they_are(wrap: Any) -> None:
    wrapped = wrap(Net(1))
    found = names_of(wrapped)
    assert found[-len(names_of(Net())) :] == names_of(Net())
    if len(found) == len(names_of(Net())):
        live = Net(2)
        restore(save({"m": wrapped}), {"m": live})
        assert_same(list(live.state_dict().values()), list(wrapped.state_dict().values()))
        again = wrap(Net(3))
        restore(save({"m": live}), {"m": again})
        assert_same(list(again.state_dict().values()), list(live.state_dict().values()))


def test_activation_checkpointing_leaves_the_names_as_they_are() -> None:
    net = Net(1)
    net.layers[1] = checkpoint_wrapper(net.layers[1])
    assert names_of(net) == names_of(Net())


def test_names_that_only_wrappers_keep_apart_are_refused() -> None:
    both = nn.ModuleDict({"a": nn.Linear(1, 1, bias=False)})
    both.register_module("_orig_mod", nn.ModuleDict({"a": nn.Linear(1, 1, bias=False)}))
    with pytest.raises(StateMismatch, match=r"m\.a\.weight") as caught:
        module_state("m", both)
    assert caught.value.unexpected == ["m.a.weight"]


def test_buffers_need_not_be_the_same_on_all_ranks_and_parameters_must() -> None:
    capture = TorchFramework().capture({"m": Net(), "w": torch.zeros(2)})
    unlike = {item.name for item in capture.tensors if not item.alike}
    assert unlike == {f"m.{name}" for name, _ in Net().named_buffers()} - {"m.cache"}


# --- ties ------------------------------------------------------------------------------------------------------------


class Tied(nn.Module):
    def __init__(self, fill: float = 0.0, *, tied: bool = True) -> None:
        super().__init__()
        self.embed = nn.Embedding(3, 2)
        self.head = nn.Linear(2, 3, bias=False)
        if tied:
            self.head.weight = self.embed.weight
        with torch.no_grad():
            self.embed.weight.fill_(fill)


def test_a_tied_weight_is_saved_once_under_both_names() -> None:
    saved = save({"m": Tied(7.0)})
    assert list(saved.catalog.tensors) == ["m.embed.weight"]
    assert saved.catalog.aliases == {"m.head.weight": "m.embed.weight"}


def test_a_tied_weight_fills_tied_and_untied_models() -> None:
    saved = save({"m": Tied(7.0)})
    for live in (Tied(), Tied(tied=False)):
        restore(saved, {"m": live})
        assert (live.embed.weight == 7).all()
        assert (live.head.weight == 7).all()
    assert live.head.weight is not live.embed.weight


def test_weights_that_were_saved_apart_do_not_fill_a_tied_model() -> None:
    live = Tied(5.0)
    with pytest.raises(StateMismatch, match=r"m\.embed\.weight and m\.head\.weight are one tensor here"):
        restore(save({"m": Tied(1.0, tied=False)}), {"m": live})
    assert (live.embed.weight == 5).all()


def test_a_tie_is_found_by_storage_and_not_by_object() -> None:
    net = Tied(tied=False)
    net.head.weight = nn.Parameter(net.embed.weight.detach())
    assert net.head.weight is not net.embed.weight
    (named,) = module_state("m", net).tensors
    assert (named.name, named.aliases) == ("m.embed.weight", ("m.head.weight",))


def test_a_tied_rank_local_module_comes_back_on_its_rank() -> None:
    saved = save(*({"m": RankLocal(Tied(float(rank)))} for rank in range(2)))
    for rank in range(2):
        live = Tied(9.0)
        restore(saved, {"m": RankLocal(live)}, rank=rank, world=2)
        assert (live.head.weight == rank).all()


class Overlapping(nn.Module):
    """Views that share a part of their memory, or all of it in another form."""

    def __init__(self, fill: float) -> None:
        super().__init__()
        self.base = nn.Parameter(torch.full((6,), fill))
        self.register_buffer("quarter", self.base.detach()[:4].view(2, 2))
        self.register_buffer("turned quarter", self.base.detach()[:4].view(2, 2).t())
        self.register_buffer("front", self.base.detach()[:4])
        self.register_buffer("back", self.base.detach()[2:])
        self.register_buffer("square", self.base.detach().view(2, 3))
        self.register_buffer("turned", self.base.detach().view(2, 3).t())


def test_views_that_overlap_are_saved_each_and_come_back_alike() -> None:
    one, live = Overlapping(1.0), Overlapping(2.0)
    with torch.no_grad():
        one.base.copy_(torch.arange(6.0))
    saved = save({"m": one})
    assert len(saved.catalog.tensors) == 7
    restore(saved, {"m": live})
    assert_same(live.state_dict(), one.state_dict())
    assert live.front.data_ptr() == live.base.data_ptr()


def test_empty_parameters_are_told_apart_by_object_and_buffers_by_name() -> None:
    net = nn.Module()
    net.a = nn.Parameter(torch.empty(0))
    net.b = nn.Parameter(torch.empty(0))
    net.c = net.a
    net.register_buffer("d", torch.empty(0, 2))
    net.register_buffer("e", torch.empty(0, 2))
    found = {named.name: named.aliases for named in module_state("m", net).tensors}
    assert found == {"m.a": ("m.c",), "m.b": (), "m.d": (), "m.e": ()}
    restore(save({"m": net}), {"m": copy.deepcopy(net)})


# --- extra state -----------------------------------------------------------------------------------------------------


class Extra(nn.Module):
    def __init__(self, state: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2))
        self.kept = state

    def get_extra_state(self) -> Any:
        return self.kept

    def set_extra_state(self, state: Any) -> None:
        self.kept = state


STATES = [
    {"calls": 3, "names": ("a", "b"), 1: None},
    torch.arange(5, dtype=torch.uint8),
    {"amax": torch.tensor([1.0, float("inf")]), "history": [torch.zeros(2, 2), {"scale": torch.tensor(2.0)}]},
    None,
    b"bytes",
]


@pytest.mark.parametrize("state", STATES, ids=["values", "a tensor", "nested tensors", "none", "bytes"])
@pytest.mark.parametrize(
    "wrap",
    [
        lambda net: net,
        DataParallelLike,
        torch.compile,
        lambda net: nn.Sequential(nn.Identity(), checkpoint_wrapper(net)),
    ],
    ids=["bare", "ddp", "compiled", "checkpointed child"],
)
def test_an_extra_state_comes_back_whatever_it_is_and_whatever_is_around_it(state: Any, wrap: Any) -> None:
    saved = save({"m": wrap(nn.Sequential(Extra(state), Extra("other")))})
    first, second = Extra("live"), Extra("live")
    live = wrap(nn.Sequential(first, second))
    restore(saved, {"m": live})
    assert_same(first.kept, state)
    assert second.kept == "other"


def test_the_extra_state_of_the_module_itself_comes_back() -> None:
    live = Extra(0)
    restore(save({"m": Extra(5)}), {"m": live})
    assert live.kept == 5


def test_a_model_with_an_extra_state_does_not_fit_one_without() -> None:
    plain = nn.Module()
    plain.weight = nn.Parameter(torch.zeros(2))
    with pytest.raises(StateMismatch) as caught:
        restore(save({"m": Extra(1)}), {"m": plain})
    assert caught.value.unexpected == ["m._extra_state"]
    with pytest.raises(StateMismatch) as caught:
        restore(save({"m": plain}), {"m": Extra(1)})
    assert caught.value.missing == ["m._extra_state"]


class OwnEntries(nn.Module):
    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        destination[prefix + "version"] = 3


def test_an_entry_that_nobody_could_put_back_is_refused_when_it_is_saved() -> None:
    with pytest.raises(CallError, match=r"m\.inner\.version.*get_extra_state") as caught:
        save({"m": nn.ModuleDict({"inner": OwnEntries()})})
    assert caught.value.key == "m.inner.version"


# --- names of parameters ---------------------------------------------------------------------------------------------


def test_parameters_have_their_own_names_and_the_modules_key_only_where_two_have_one() -> None:
    a, b = nn.Linear(2, 2), nn.Linear(2, 2, bias=False)
    names = {
        at: of[0].name for at, of in parameter_parts({"a": a, "b": {"inner": DataParallelLike(b)}, "c": 3}).items()
    }
    assert names == {id(a.weight): "a.weight", id(a.bias): "bias", id(b.weight): "b.inner.weight"}


def test_a_parameter_of_two_modules_has_one_name() -> None:
    shared = nn.Linear(2, 2, bias=False)
    assert parameter_parts({"a": shared, "b": nn.Sequential(shared)}) == {id(shared.weight): (Part("weight"),)}


def test_a_tensor_of_a_module_without_plain_bytes_is_refused_by_its_name() -> None:
    net = nn.Linear(2, 2)
    net.register_buffer("graph", torch.eye(2).to_sparse())
    with pytest.raises(CallError, match=r"m\.graph is torch\.sparse_coo"):
        save({"m": net})
    with torch.device("meta"):
        meta = nn.Linear(2, 2)
    with pytest.raises(CallError, match=r"m\.weight is on the meta device"):
        save({"m": meta})
    with pytest.raises(CallError, match=r"m\.weight is on the meta device"):
        restore(save({"m": nn.Linear(2, 2)}), {"m": meta})


def test_what_does_not_fit_is_named_and_changes_nothing() -> None:
    saved = save({"m": nn.Linear(3, 2)})
    for live, key, fact in (
        (nn.Linear(3, 2, bias=False), "m.bias", "unexpected"),
        (nn.Sequential(nn.Linear(3, 2)), "m.0.weight", "missing"),
        (nn.Linear(4, 2), "m.weight", "shape"),
        (nn.Linear(3, 2).to(torch.bfloat16), "m.weight", "dtype"),
    ):
        before = {name: bits(tensor) for name, tensor in live.state_dict().items()}
        with pytest.raises(StateMismatch, match=key.replace(".", r"\.")) as caught:
            restore(saved, {"m": live})
        assert key in caught.value.facts[fact]
        assert {name: bits(tensor) for name, tensor in live.state_dict().items()} == before
