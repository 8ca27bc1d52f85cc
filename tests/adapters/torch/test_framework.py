"""Trees of all that a training script keeps: what is saved of each kind, in which scope, and how it comes back."""

from __future__ import annotations

import gc
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from math import prod
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader

from perdure.adapters.torch.framework import TorchFramework
from perdure.errors import CallError, NotSerializable, StateMismatch
from perdure.state.scopes import RankLocal
from perdure.testing import ranks

from .fake import rank_of
from .trips import assert_same, bits, restore, save


class Keeper:
    """Anything with a state."""

    def __init__(self, state: Any = None) -> None:
        self.state = state

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state: Any) -> None:
        self.state = state


# --- what has a state of its own -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "state",
    [
        {"step": 3, "best": float("inf"), "history": [1.5, (2, None)]},
        {"shadow": {"w": torch.arange(3.0), "b": [torch.zeros(2), torch.tensor(float("nan"))]}, "decay": 0.99},
        OrderedDict([("w", torch.ones(2, dtype=torch.bfloat16)), ("b", OrderedDict(c=torch.zeros(())))]),
        {1: torch.zeros(1), (2, "x"): "tuple key"},
        {},
        None,
        [torch.zeros(0, 3)],
        torch.arange(4),
    ],
    ids=["values", "tensors", "ordered", "odd keys", "empty", "none", "a list", "a tensor"],
)
def test_whatever_has_a_state_gets_it_back(state: Any) -> None:
    live = Keeper("live")
    restore(save({"keeper": Keeper(state)}), {"keeper": live})
    assert_same(live.state, state)


def test_the_tensors_of_a_restored_state_are_its_own() -> None:
    saved = save({"keeper": Keeper({"w": torch.ones(2)})})
    one, other = Keeper(), Keeper()
    for live in (one, other):
        restore(saved, {"keeper": live})
    one.state["w"].zero_()
    assert other.state["w"].tolist() == [1, 1]


SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda step: 0.9**step),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda step: 0.9),
    "StepLR": lambda o: lr_scheduler.StepLR(o, 2),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [2, 4, 4]),
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o, total_iters=3),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, total_iters=8),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 8),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.2, total_steps=12),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.2, step_size_up=3),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=1),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o), lr_scheduler.ExponentialLR(o, 0.9)], milestones=[3]
    ),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o, total_iters=3), lr_scheduler.ExponentialLR(o, 0.9)]
    ),
    "SWALR": lambda o: torch.optim.swa_utils.SWALR(o, 0.05, anneal_epochs=4),
}


def scheduled(kind: str, *, tensor_rate: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    rate = torch.tensor(0.1) if tensor_rate else 0.1
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    return {"model": model, "optimizer": optimizer, "scheduler": SCHEDULERS[kind](optimizer)}


def go(tree: dict[str, Any], steps: range) -> list[float]:
    rates = []
    for step in steps:
        loss = tree["model"](torch.full((1, 3), step + 1.0)).square().sum()
        loss.backward()
        tree["optimizer"].step()
        tree["optimizer"].zero_grad()
        plateau = isinstance(tree["scheduler"], lr_scheduler.ReduceLROnPlateau)
        tree["scheduler"].step(*([1.0] if plateau else []))
        rates.append(float(tree["optimizer"].param_groups[0]["lr"]))
    return rates


@pytest.mark.parametrize("tensor_rate", [False, True], ids=["number", "tensor"])
@pytest.mark.parametrize("kind", SCHEDULERS)
@pytest.mark.filterwarnings("ignore")
def test_a_schedule_goes_on_where_it_was(kind: str, tensor_rate: bool) -> None:
    for cut in (0, 2, 5):
        whole, live = scheduled(kind, tensor_rate=tensor_rate), scheduled(kind, tensor_rate=tensor_rate)
        go(whole, range(cut))
        saved = save(whole)
        expected = go(whole, range(cut, 10))
        restore(saved, live)
        assert go(live, range(cut, 10)) == expected
        assert_same(live["model"].state_dict(), whole["model"].state_dict())


def test_a_gradient_scaler_comes_back() -> None:
    one, live = (torch.amp.GradScaler("cpu", init_scale=scale) for scale in (8.0, 2.0))
    one.scale(torch.ones(()))  # makes its tensors
    one._growth_tracker.fill_(3)  # type: ignore[union-attr]
    restore(save({"scaler": one}), {"scaler": live})
    live.scale(torch.ones(()))
    assert one.get_scale() == 8.0
    assert_same(live.state_dict(), one.state_dict())


# --- trees -----------------------------------------------------------------------------------------------------------


def test_a_tree_may_be_nested_and_is_filled_in_place() -> None:
    def tree(fill: float) -> dict[str, Any]:
        return {
            "nets": {"a": nn.Linear(1, 1), "deeper": {"b": nn.Linear(1, 1)}},
            "w": torch.full((2,), fill),
            "numbers": {"step": int(fill), "best": fill, "t": torch.full((), fill), "none": None, "words": ("x", fill)},
            "plain": [fill, torch.full((1,), fill)],
        }

    one, live = tree(1.0), tree(2.0)
    w, t, net = live["w"], live["numbers"]["t"], live["nets"]["deeper"]["b"]
    saved = save(one)
    assert "nets.deeper.b.weight" in saved.catalog.tensors
    restore(saved, live)
    for key in ("w", "numbers", "plain"):
        assert_same(live[key], one[key])
    assert live["w"] is w
    assert live["numbers"]["t"] is t
    assert live["nets"]["deeper"]["b"] is net
    assert_same(net.state_dict(), one["nets"]["deeper"]["b"].state_dict())


VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "transposed": lambda t: t.t(),
    "strided": lambda t: t[::2, 1:],
    "expanded": lambda t: t[:1].expand(3, 4),
    "conjugate": lambda t: torch.view_as_complex(t.reshape(-1, 2)).conj(),
    "negative": lambda t: torch.view_as_complex(t.reshape(-1, 2)).conj().imag,
}


@pytest.mark.parametrize("form", VIEWS)
def test_views_of_any_form_are_filled_in_place(form: str) -> None:
    one, live = (VIEWS[form](torch.arange(first, first + 24.0).reshape(6, 4)) for first in (1, 100))
    place = live.data_ptr()
    restore(save({"w": one}), {"w": live})
    assert live.data_ptr() == place
    assert torch.equal(live, one)


def test_an_empty_tree_is_saved_and_restored() -> None:
    restore(save({}), {})
    restore(save({"a": {}}), {"a": {}})


@pytest.mark.parametrize(
    "tree",
    [
        {"a": {"b": torch.zeros(1)}, "a.b": torch.zeros(1)},
        {"a": {"b": 1}, "a.b": 2},
        {"m": nn.Linear(1, 1), "m.weight": torch.zeros(1)},
        {"k": Keeper({"w": torch.zeros(1)}), "k.w": torch.zeros(1)},
    ],
    ids=["tensors", "values", "a module", "a state"],
)
def test_two_entries_of_one_name_are_refused(tree: dict[str, Any]) -> None:
    with pytest.raises(CallError, match="two entries"):
        save(tree)


def test_names_that_are_not_text_are_refused() -> None:
    for tree in ({"a": {1: torch.zeros(1)}}, {"a": RankLocal({2: 3})}):
        with pytest.raises(CallError, match="the keys of a must be strings"):
            save(tree)


def test_a_value_that_cannot_be_saved_is_named_with_its_place() -> None:
    with pytest.raises(NotSerializable) as caught:
        save({"config": {"model": [1, {"activation": torch.relu}]}})
    assert caught.value.key == "config.model[1].activation"


def test_a_dict_that_grows_comes_back_from_a_list_that_holds_it() -> None:  # docs/training.md says so
    live: dict[str, Any] = {"note": {"history": [{}]}}
    restore(save({"note": {"history": [{"a": 1, "b": {"c": 2.5}}]}}), live)
    assert live == {"note": {"history": [{"a": 1, "b": {"c": 2.5}}]}}


def test_what_holds_itself_or_has_no_end_is_refused_by_its_key() -> None:
    mine: dict[str, Any] = {"w": torch.zeros(1)}
    mine["again"] = mine
    row: list[Any] = [1]
    row.append(row)
    for tree in ({"c": mine}, {"c": RankLocal(mine)}, {"c": row}, {"c": Keeper({"state": row})}):
        with pytest.raises(NotSerializable, match=r"^c\..*or holds itself"):
            save(tree)
    with pytest.raises(NotSerializable, match=r"^c\.again"):
        restore(save({}), {"c": mine})


@pytest.mark.parametrize(
    "tree",
    [{"\ud800": torch.zeros(1)}, {"\ud800": 1}, {"a": {"\udfff": 1}}, {"k": Keeper({"\ud800": torch.zeros(1)})}],
    ids=["a tensor", "a value", "inside", "a state"],
)
def test_a_key_that_is_no_text_is_refused_with_what_it_is(tree: dict[str, Any]) -> None:
    with pytest.raises(NotSerializable, match=r"\\u(d800|dfff)' is no valid Unicode text; rename it"):
        save(tree)


def test_a_plain_loader_is_refused_with_what_to_do() -> None:
    for tree in ({"loader": DataLoader([1, 2])}, {"data": {"loader": DataLoader([1, 2])}}):
        with pytest.raises(CallError, match=r"plain DataLoader.*perdure\.attach"):
            save(tree)
        with pytest.raises(CallError, match=r"plain DataLoader.*perdure\.attach"):
            restore(save({}), tree)


def test_what_does_not_fit_is_named_and_nothing_is_changed() -> None:
    keeper, w = Keeper("live"), torch.zeros(3)
    with pytest.raises(StateMismatch) as caught:
        restore(save({"keeper": Keeper({"t": torch.ones(1)}), "w": torch.ones(2)}), {"keeper": keeper, "w": w})
    assert caught.value.shape == ["w"]
    assert keeper.state == "live"
    assert not w.any()
    with pytest.raises(StateMismatch) as caught:
        restore(save({"w": torch.ones(3), "v": 3}), {"w": w, "keeper": keeper})
    assert (caught.value.missing, caught.value.unexpected) == (["keeper"], ["v"])
    assert not w.any()


def test_tensors_inside_a_state_that_is_not_wanted_are_named_too() -> None:
    with pytest.raises(StateMismatch) as caught:
        restore(save({"keeper": Keeper({"t": torch.ones(1)}), "w": torch.ones(2)}), {"w": torch.zeros(2)})
    assert caught.value.unexpected == ["keeper.t", "keeper"]


# --- rank-local ------------------------------------------------------------------------------------------------------


def local_tree(rank: int) -> dict[str, Any]:
    return {
        "keeper": RankLocal(Keeper({"rank": rank, "t": torch.full((rank + 1,), rank)})),
        "w": RankLocal(torch.full((2,), rank)),
        "all": RankLocal({"n": rank, "deep": {"w": torch.full((1,), rank)}}, on_resize="fresh"),
        "n": RankLocal(rank),
        "group": {"mine": RankLocal(("plain", rank)), "ours": "shared"},
    }


@pytest.mark.parametrize("world", [3, 2, 5])
def test_every_rank_gets_its_own(world: int) -> None:
    saved = save(*(local_tree(rank) for rank in range(3)))
    for rank in range(world):
        live = local_tree(77)
        live["group"]["ours"] = "live"
        restore(saved, live, rank=rank, world=world)
        like = local_tree(rank % 3)
        assert_same(live["keeper"].value.state, like["keeper"].value.state)
        assert_same(live["w"].value, like["w"].value)
        assert live["n"] == RankLocal(rank % 3)
        assert live["group"] == {"mine": RankLocal(("plain", rank % 3)), "ours": "shared"}
        assert_same(live["all"].value, (local_tree(77) if world != 3 else like)["all"].value)


@pytest.mark.parametrize("state", [{"n": 5}, {"t": torch.ones(3), "more": [torch.zeros(2)]}])
def test_what_begins_anew_asks_nothing_of_what_was_saved(state: dict[str, Any]) -> None:
    def tree(state: Any, inner: Any) -> dict[str, Any]:
        return {"keeper": RankLocal(Keeper(state), on_resize="fresh"), "all": RankLocal(inner, on_resize="fresh")}

    saved = save(*(tree({"rank": rank, "deep": {"t": torch.ones(2)}}, {"w": torch.ones(1)}) for rank in range(2)))
    live = tree(state, {"v": torch.ones(4), "n": 3})
    report = restore(saved, live, rank=2, world=3)
    assert report.wanted_nbytes == 0
    assert_same((live["keeper"].value.state, live["all"].value), (state, {"v": torch.ones(4), "n": 3}))
    with pytest.raises(StateMismatch, match=r"all\.w"):
        restore(saved, live, rank=1, world=2)  # a world of the same size takes what was saved


def test_what_is_local_does_not_fit_what_is_shared() -> None:
    w = torch.zeros(2)
    with pytest.raises(StateMismatch) as caught:
        restore(save({"w": RankLocal(torch.ones(2))}), {"w": w})
    assert (caught.value.missing, caught.value.unexpected) == (["w"], ["w"])


def test_a_world_of_another_size_may_be_refused() -> None:
    saved = save(*({"n": RankLocal(rank, on_resize="error")} for rank in range(2)))
    with pytest.raises(CallError, match="n is rank-local and was saved by 2 ranks"):
        restore(saved, {"n": RankLocal(0, on_resize="error")}, rank=0, world=3)


# --- what an optimizer owns ------------------------------------------------------------------------------------------


def owned_in(tree: dict[str, Any]) -> set[str]:
    return {item.name for item in TorchFramework().capture(tree).tensors if item.owned}


def stepped(model: nn.Module, **options: Any) -> torch.optim.Optimizer:
    optimizer = torch.optim.AdamW(model.parameters(), **options)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return optimizer


def test_only_what_nothing_but_an_optimizer_step_changes_is_owned() -> None:
    model, other = nn.BatchNorm1d(2), nn.Linear(1, 1)
    optimizer = stepped(model, lr=torch.tensor(0.1))
    found = owned_in({"model": model, "other": other, "optimizer": optimizer, "w": torch.zeros(1)})
    moments = {
        f"optimizer.state.{name}.{kind}" for name in ("weight", "bias") for kind in ("exp_avg", "exp_avg_sq", "step")
    }
    moments = {name.replace(".state.", ".state.model.") for name in moments}  # both modules have such names
    assert found == {"model.weight", "model.bias"} | moments
    assert "optimizer.param_groups.0.lr" not in found  # a scheduler changes it between two steps


def test_without_the_optimizer_in_the_tree_nothing_is_owned() -> None:
    model = nn.Linear(1, 1)
    stepped(model)
    assert owned_in({"model": model}) == set()


def test_what_an_optimizer_inside_a_dict_owns_is_owned_too() -> None:
    model = nn.Linear(1, 1)
    assert "nets.a.weight" in owned_in({"nets": {"a": model}, "optimizers": {"a": stepped(model)}})


def test_what_is_not_contiguous_is_packed_at_once_and_so_never_owned() -> None:
    model = nn.Linear(2, 2)
    model.weight = nn.Parameter(torch.zeros(2, 2).t())
    found = owned_in({"model": model, "optimizer": stepped(model)})
    assert "model.weight" not in found
    assert "model.bias" in found


def test_every_optimizer_of_a_tree_waits_before_it_steps_and_once() -> None:
    models = [nn.Linear(1, 1) for _ in range(3)]
    a, b, outside = (stepped(model) for model in models)
    tree = {"a": a, "more": {"b": b, "deeper": {"a again": a}}, "models": dict(enumerate(models))}
    framework, waits = TorchFramework(), []
    for _ in range(3):
        framework.fence(tree, lambda: waits.append(bits(models[0].weight)))
    before = bits(models[0].weight)
    outside.step()
    assert waits == []
    a.step()
    assert waits == [before]
    b.step()
    assert len(waits) == 2


def test_each_checkpointer_has_a_fence_of_its_own() -> None:
    optimizer = stepped(nn.Linear(1, 1))
    waits: list[str] = []
    for name in ("one", "other"):
        TorchFramework().fence({"optimizer": optimizer}, lambda name=name: waits.append(name))
    optimizer.step()
    assert waits == ["one", "other"]


def test_a_framework_does_not_keep_optimizers_alive() -> None:
    framework = TorchFramework()
    optimizer = stepped(nn.Linear(1, 1))
    framework.fence({"optimizer": optimizer}, lambda: None)
    gone = weakref.ref(optimizer)
    del optimizer
    gc.collect()
    assert gone() is None


# --- descriptions that are kept --------------------------------------------------------------------------------------


def test_a_tree_that_has_not_changed_gives_the_very_same_description() -> None:
    framework, model = TorchFramework(), nn.Linear(2, 2)
    tree = {"model": model, "optimizer": stepped(model), "n": 1}
    first = framework.capture(tree)
    assert framework.capture(tree).tensors is first.tensors


@pytest.mark.parametrize(
    "change",
    [
        lambda tree: setattr(tree["model"].weight, "data", torch.ones(2, 2)),
        lambda tree: (tree.pop("optimizer"), setattr(tree["model"], "weight", nn.Parameter(torch.ones(2, 2)))),
        lambda tree: tree["model"].to(torch.float64),
        lambda tree: tree.__setitem__("w", torch.zeros(3)),
        lambda tree: tree.__setitem__("w", tree["w"].t()),
        lambda tree: tree["w"].resize_(1, 2),
        lambda tree: tree["w"].transpose_(0, 1),
        lambda tree: tree.pop("w"),
        lambda tree: tree.__setitem__("w", RankLocal(tree["w"])),
        lambda tree: tree.pop("optimizer"),
        lambda tree: tree["model"].register_buffer("more", torch.zeros(1)),
        lambda tree: setattr(tree["model"], "tied", tree["model"].weight),
        lambda tree: tree.__setitem__("c", tree["c"].conj()),
    ],
    ids=range(13),
)
def test_any_change_of_a_tensor_gives_another_description(change: Callable[[dict[str, Any]], Any]) -> None:
    framework, model = TorchFramework(), nn.Linear(2, 2)
    tree = {"model": model, "optimizer": stepped(model), "w": torch.arange(6.0).reshape(2, 3)}
    tree["c"] = torch.tensor([1 + 2j])
    first = framework.capture(tree)
    change(tree)
    second = framework.capture(tree)
    fresh = TorchFramework().capture(tree)
    assert second.tensors is not first.tensors
    assert [(i.name, i.dtype, i.shape, i.aliases, i.local, i.owned) for i in second.tensors] == [
        (i.name, i.dtype, i.shape, i.aliases, i.local, i.owned) for i in fresh.tensors
    ]
    for mine, theirs in zip(second.tensors, fresh.tensors, strict=True):
        assert [bytes(held.memory.view()) for held in mine.held] == [bytes(held.memory.view()) for held in theirs.held]


def test_a_tensor_that_is_packed_is_packed_anew_at_every_save() -> None:
    framework, base = TorchFramework(), torch.zeros(2, 3)
    for value in (1.0, 2.0):
        base.fill_(value)
        (item,) = framework.capture({"w": base.t()}).tensors
        assert set(torch.frombuffer(bytearray(item.held[0].memory.view()), dtype=torch.float32).tolist()) == {value}


# --- other meshes ----------------------------------------------------------------------------------------------------

WHOLES = {
    "w": torch.arange(7 * 6.0).reshape(7, 6),
    "b": torch.arange(5.0) - 9,
    "s": torch.tensor(3.5),
    "big": torch.arange(60, dtype=torch.int16).reshape(12, 5),
}
Cuts = tuple[tuple[int, ...], dict[str, list[Placement]]]
ROWS: Cuts = ((3,), {"w": [Shard(0)], "b": [Shard(0)], "s": [Replicate()], "big": [Shard(0)]})
COLUMNS: Cuts = ((2,), {"w": [Shard(1)], "b": [Shard(0)], "s": [Replicate()], "big": [Shard(1)]})
COPIES: Cuts = ((2,), {name: [Replicate()] for name in WHOLES})
FSDP_AND_TP: Cuts = (
    (2, 2),
    {
        "w": [_StridedShard(0, split_factor=2), Shard(0)],
        "b": [Shard(0), Replicate()],
        "s": [Replicate(), Replicate()],
        "big": [_StridedShard(0, split_factor=2), Shard(0)],
    },
)
TP_ROWS: Cuts = ((2, 2), {name: [Replicate(), Shard(0) if name != "s" else Replicate()] for name in WHOLES})
ALONE: Cuts = ((1,), {})


def sharded(mesh: Any, cuts: Cuts, fill: float | None = None) -> dict[str, torch.Tensor]:
    found = {}
    for name, whole in WHOLES.items():
        full = whole.clone() if fill is None else torch.full_like(whole, fill)
        placements = cuts[1].get(name)
        found[name] = full if placements is None else distribute_tensor(full, mesh, placements, src_data_rank=None)
    return found


@pytest.mark.parametrize("before", [ROWS, COLUMNS, COPIES, FSDP_AND_TP, TP_ROWS, ALONE])
@pytest.mark.parametrize("after", [ROWS, COLUMNS, COPIES, FSDP_AND_TP, TP_ROWS, ALONE])
def test_what_is_sharded_on_one_mesh_is_restored_on_any_other(before: Cuts, after: Cuts) -> None:
    captures = []
    for rank in range(prod(before[0])):
        with rank_of(before[0], rank) as mesh:
            captures.append(TorchFramework().capture({"tensors": sharded(mesh, before)}))
    saved = ranks.save(captures)
    for rank in range(prod(after[0])):
        with rank_of(after[0], rank) as mesh:
            live = sharded(mesh, after, fill=1.0)
            restore(saved, {"tensors": live}, rank=rank, world=prod(after[0]))
            assert_same(live, sharded(mesh, after))


# --- FSDP ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("one_rank")
def test_parameters_keep_their_names_when_fsdp_has_gathered_them_for_an_evaluation() -> None:
    def tree() -> dict[str, Any]:
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
        mesh = init_device_mesh("cpu", (1,))
        fully_shard(model[0], mesh=mesh)
        fully_shard(model, mesh=mesh)
        return {"model": model, "optimizer": torch.optim.AdamW(model.parameters())}

    one, live = tree(), tree()
    one["model"](torch.ones(2, 4)).sum().backward()
    one["optimizer"].step()
    named = set(save(one).catalog.tensors)
    owned = owned_in(one)
    assert "optimizer.state.1.weight.exp_avg" in named
    with torch.no_grad():
        one["model"](torch.ones(2, 4))  # leaves the root's parameters gathered
    assert owned_in(one) == owned
    with torch.no_grad():
        one["model"](torch.ones(2, 4))
        live["model"](torch.ones(2, 4))
    saved = save(one)
    assert set(saved.catalog.tensors) == named
    restore(saved, live)
    for key in one:
        assert_same(live[key].state_dict(), one[key].state_dict())
