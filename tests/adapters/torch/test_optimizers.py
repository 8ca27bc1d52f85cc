"""Every optimizer comes back so that training goes on bit for bit, whatever its state is called."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from perdure.errors import CallError, StateMismatch
from perdure.state.scopes import RankLocal

from .trips import assert_same, bits, restore, save

Make = Callable[[Any], torch.optim.Optimizer]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Linear(4, 3)
        self.conv = nn.Conv2d(1, 2, 2).to(memory_format=torch.channels_last)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x).sum() * self.scale + self.conv(x.reshape(1, 1, 2, -1)).square().sum()


def train(net: nn.Module, optimizer: torch.optim.Optimizer, steps: int, *, first: int = 0) -> None:
    for step in range(first, first + steps):
        x = torch.randn(2, 4, generator=torch.Generator().manual_seed(step))

        def closure(x: torch.Tensor = x) -> torch.Tensor:
            optimizer.zero_grad()
            loss = net(x).square()
            loss.backward()
            return loss

        closure()
        if isinstance(optimizer, torch.optim.LBFGS):
            optimizer.step(closure)
        else:
            optimizer.step()


def optim(name: str, **options: Any) -> Make:
    return lambda parameters: getattr(torch.optim, name)(parameters, **options)


OPTIMIZERS: dict[str, Make] = {
    "AdamW": optim("AdamW", lr=1e-2),
    "AdamW amsgrad": optim("AdamW", lr=1e-2, amsgrad=True),
    "AdamW fused": optim("AdamW", lr=1e-2, fused=True),
    "AdamW foreach": optim("AdamW", lr=1e-2, foreach=True),
    "AdamW of a tensor rate": lambda p: torch.optim.AdamW(p, lr=torch.tensor(1e-2)),
    "AdamW of tensor betas": lambda p: torch.optim.AdamW(
        p, lr=torch.tensor(1e-2), betas=(torch.tensor(0.9), torch.tensor(0.99)), foreach=False
    ),
    "SGD": optim("SGD", lr=1e-2),
    "SGD momentum": optim("SGD", lr=1e-2, momentum=0.9, nesterov=True),
    "SGD fused": optim("SGD", lr=1e-2, momentum=0.9, fused=True),
    "Adafactor": optim("Adafactor", lr=1e-2),
    "RMSprop": optim("RMSprop", lr=1e-2, centered=True, momentum=0.5),
    "Adagrad": optim("Adagrad", lr=1e-2),
    "NAdam": optim("NAdam", lr=1e-2),
    "RAdam": optim("RAdam", lr=1e-2),
    "ASGD": optim("ASGD", lr=1e-2),
    "Rprop": optim("Rprop", lr=1e-2),
    "LBFGS": optim("LBFGS", lr=1e-2, history_size=3, max_iter=3),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("warm", [False, True], ids=["into a new one", "into one that has stepped"])
@pytest.mark.filterwarnings("ignore")
def test_training_goes_on_bit_for_bit(name: str, warm: bool) -> None:
    make = OPTIMIZERS[name]
    net = Net()
    optimizer = make(net.parameters())
    train(net, optimizer, 3)
    saved = save({"model": net, "optimizer": optimizer})
    train(net, optimizer, 2, first=3)

    live = Net()
    again = make(live.parameters())
    if warm:
        train(live, again, 1, first=77)
    restore(saved, {"model": live, "optimizer": again})
    train(live, again, 2, first=3)

    assert_same(live.state_dict(), net.state_dict())
    assert_same(again.state_dict(), optimizer.state_dict())


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.filterwarnings("ignore")
def test_fresh_state_is_made_as_the_optimizer_makes_it(name: str) -> None:
    net, live = Net(), Net()
    optimizer, again = OPTIMIZERS[name](net.parameters()), OPTIMIZERS[name](live.parameters())
    train(net, optimizer, 2)
    restore(save({"model": net, "optimizer": optimizer}), {"model": live, "optimizer": again})
    for one, other in zip(net.parameters(), live.parameters(), strict=True):
        for entry, value in optimizer.state.get(one, {}).items():
            mine = again.state[other][entry]
            assert type(mine) is type(value)
            if isinstance(value, torch.Tensor):
                assert (mine.stride(), mine.dtype, mine.device) == (value.stride(), value.dtype, value.device)
                assert not mine.requires_grad


def test_steps_are_counted_where_a_capturable_optimizer_wants_them() -> None:
    """On this machine the device is the CPU too; what matters is that no scalar takes the form of its parameter."""
    net, live = Net(), Net()
    optimizer, again = (torch.optim.AdamW(each.parameters()) for each in (net, live))
    train(net, optimizer, 2)
    for each in (optimizer, again):
        each.param_groups[0]["capturable"] = True
    restore(save({"model": net, "optimizer": optimizer}), {"model": live, "optimizer": again})
    step = again.state[live.scale]["step"]
    assert (step.shape, step.dtype, float(step)) == ((), torch.float32, 2.0)
    assert again.state[live.scale]["exp_avg"].shape == ()


def test_state_that_exists_is_filled_in_place() -> None:
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters())
    train(net, optimizer, 2)
    saved = save({"model": net, "optimizer": optimizer})
    moment = optimizer.state[net.body.weight]["exp_avg"]
    before = bits(moment)
    train(net, optimizer, 1)
    assert bits(moment) != before
    restore(saved, {"model": net, "optimizer": optimizer})
    assert optimizer.state[net.body.weight]["exp_avg"] is moment
    assert bits(moment) == before


@pytest.mark.parametrize("name", ["AdamW", "SGD", "SGD momentum", "Adafactor"])
def test_state_that_was_absent_is_absent_again(name: str) -> None:
    net, live = Net(), Net()
    optimizer, again = OPTIMIZERS[name](net.parameters()), OPTIMIZERS[name](live.parameters())
    train(live, again, 2)
    restore(save({"model": net, "optimizer": optimizer}), {"model": live, "optimizer": again})
    assert_same(again.state_dict(), optimizer.state_dict())
    assert not any(again.state.get(parameter) for parameter in live.parameters())


def test_parameters_without_gradients_have_no_state_while_others_have() -> None:
    net, live = Net(), Net()
    net.conv.requires_grad_(False)
    optimizer, again = torch.optim.AdamW(net.parameters()), torch.optim.AdamW(live.parameters())
    train(net, optimizer, 2)
    train(live, again, 1)
    restore(save({"model": net, "optimizer": optimizer}), {"model": live, "optimizer": again})
    assert live.conv.weight not in again.state
    assert again.state[live.body.weight]["step"] == 2


def groups_of(net: Net) -> list[dict[str, Any]]:
    return [
        {"params": [net.scale, net.body.bias], "weight_decay": 0.0, "tag": "no decay"},
        {"params": []},
        {"params": [net.conv.weight, net.body.weight, net.conv.bias], "lr": 3e-3},
    ]


def test_groups_come_back_with_all_their_options_the_empty_one_too() -> None:
    net, live = Net(), Net()
    optimizer, again = torch.optim.AdamW(groups_of(net)), torch.optim.AdamW(groups_of(live))
    train(net, optimizer, 2)
    optimizer.param_groups[1]["lr"] = 0.5
    optimizer.param_groups[2] |= {"betas": (0.8, 0.88), "extra": [1, ("a", None)]}
    restore(save({"model": net, "optimizer": optimizer}), {"model": live, "optimizer": again})
    assert_same(again.state_dict(), optimizer.state_dict())
    assert again.param_groups[1]["params"] == []
    assert again.param_groups[0]["params"][0] is live.scale


def other_groups(net: Net) -> dict[str, Any]:
    return {
        "one group": [{"params": list(net.parameters())}],
        "another order": [*reversed(groups_of(net))],
        "fewer parameters": [groups_of(net)[0], {"params": []}, {"params": [net.conv.weight]}],
    }


@pytest.mark.parametrize("kind", ["one group", "another order", "fewer parameters"])
def test_other_groups_do_not_fit_and_change_nothing(kind: str) -> None:
    net, live = Net(), Net()
    optimizer = torch.optim.AdamW(groups_of(net))
    train(net, optimizer, 2)
    again = torch.optim.AdamW(other_groups(live)[kind])
    train(live, again, 1)
    before = copy.deepcopy((live.state_dict(), again.state_dict()))
    with pytest.raises(StateMismatch, match="parameter groups of optimizer") as caught:
        restore(save({"model": net, "optimizer": optimizer}), {"model": live, "optimizer": again})
    assert_same((live.state_dict(), again.state_dict()), before)
    if kind == "fewer parameters":
        assert caught.value.unexpected == ["body.weight", "conv.bias"]


def test_an_optimizer_of_parameters_that_would_not_be_saved_is_refused() -> None:
    one = nn.Parameter(torch.ones(3))
    for without in ({}, {"model": nn.Linear(1, 1)}, {"masters": [one]}):
        with pytest.raises(CallError, match="parameter 0 of group 0 of optimizer is in no module"):
            save({"optimizer": torch.optim.SGD([one]), **without})


def test_an_optimizer_of_another_class_is_refused_before_a_byte_is_written() -> None:
    model = nn.Linear(2, 2)
    saved = save({"model": model, "optimizer": torch.optim.AdamW(model.parameters())})
    live = nn.Linear(2, 2)
    before = live.weight.clone()
    with pytest.raises(StateMismatch, match="optimizer is SGD here, AdamW in the checkpoint"):
        restore(saved, {"model": live, "optimizer": torch.optim.SGD(live.parameters())})
    assert torch.equal(live.weight, before)


def test_an_optimizer_of_tensors_that_stand_in_the_tree_goes_by_their_names() -> None:
    one, live = nn.Parameter(torch.ones(3)), nn.Parameter(torch.zeros(3))
    optimizer, again = torch.optim.AdamW([one]), torch.optim.AdamW([live])
    one.grad = torch.ones(3)
    optimizer.step()
    saved = save({"optimizer": optimizer, "weight": one})
    assert "optimizer.state.weight.exp_avg" in saved.catalog.tensors
    restore(saved, {"optimizer": again, "weight": live})
    assert_same(again.state_dict(), optimizer.state_dict())
    assert torch.equal(one, live)


def test_state_is_saved_under_the_names_of_parameters_even_where_one_begins_another() -> None:
    net = nn.Module()
    net.a = nn.Module()
    net.a.exp = nn.Parameter(torch.ones(1))
    net.a.exp_avg = nn.Parameter(torch.ones(2))
    live = copy.deepcopy(net)
    optimizer, again = torch.optim.AdamW(net.parameters()), torch.optim.AdamW(live.parameters())
    for parameter in net.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    restore(save({"m": net, "o": optimizer}), {"m": live, "o": again})
    assert_same(again.state_dict(), optimizer.state_dict())


def test_a_model_and_its_average_have_their_own_names() -> None:
    def trio() -> dict[str, Any]:
        net = Net()
        average = torch.optim.swa_utils.AveragedModel(net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
        return {"model": net, "average": average, "optimizer": torch.optim.AdamW(net.parameters())}

    one, live = trio(), trio()
    for step in range(3):
        train(one["model"], one["optimizer"], 1, first=step)
        one["average"].update_parameters(one["model"])
    saved = save(one)
    assert "optimizer.state.model.body.weight.exp_avg" in saved.catalog.tensors
    restore(saved, live)
    for key in one:
        assert_same(live[key].state_dict(), one[key].state_dict())
    assert int(live["average"].n_averaged) == 3


def test_two_optimizers_of_one_model_are_apart() -> None:
    def pair(net: Net) -> dict[str, Any]:
        body, rest = net.body.parameters(), [net.scale, *net.conv.parameters()]
        return {"model": net, "slow": torch.optim.AdamW(body), "fast": torch.optim.SGD(rest, lr=0.1, momentum=0.9)}

    one, live = pair(Net()), pair(Net())
    for key in ("slow", "fast"):
        train(one["model"], one[key], 2)
    restore(save(one), live)
    for key in one:
        assert_same(live[key].state_dict(), one[key].state_dict())


def test_a_rate_that_was_a_number_does_not_fit_a_tensor() -> None:
    net = Net()
    with pytest.raises(StateMismatch) as caught:
        restore(
            save({"model": net, "optimizer": torch.optim.AdamW(net.parameters(), lr=0.1)}),
            {"model": net, "optimizer": torch.optim.AdamW(net.parameters(), lr=torch.tensor(0.1))},
        )
    assert caught.value.missing == ["optimizer.param_groups.0.lr"]


def test_an_optimizer_in_rank_local_is_refused_with_what_to_do() -> None:
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters())
    local: list[dict[str, Any]] = [
        {"model": net, "opt": RankLocal(optimizer)},
        {"model": net, "all": RankLocal({"opt": optimizer})},
    ]
    for tree, key in zip(local, ("opt", "all.opt"), strict=True):
        with pytest.raises(CallError, match=f"{key} is an optimizer in RankLocal.*give the optimizer itself") as caught:
            save(tree)
        assert caught.value.key == key
        with pytest.raises(CallError, match="RankLocal"):
            restore(save({"model": net}), tree)


def test_an_option_that_cannot_be_saved_is_named() -> None:
    net = Net()
    optimizer = torch.optim.AdamW([{"params": list(net.parameters()), "schedule": lambda step: step}])
    with pytest.raises(CallError, match=r"optimizer\.param_groups\[0\]\.schedule"):
        save({"model": net, "optimizer": optimizer})
