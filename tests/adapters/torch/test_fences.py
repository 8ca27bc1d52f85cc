"""What an optimizer is about to change is copied before it does, however it steps; what nobody waits for is found out.

Each test holds the copy back until the step has come to the fence, and asks for the bytes of the moment of the save.
Without the fence the step would get there first: `test_without_the_fence_these_tests_would_fail` shows it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from perdure.adapters.torch import device_copy
from perdure.adapters.torch.attach import attach
from perdure.adapters.torch.checkpointer import Checkpointer
from perdure.adapters.torch.framework import TorchFramework
from perdure.adapters.torch.load import load
from perdure.errors import CallError

from .conftest import SHORT
from .trips import bits

Make = Callable[..., Checkpointer]
HELD_S = 0.1  # long against a step of these models, short against a deadline


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Copies that may wait for the optimizer begin only when the event is set, and by then it has long come."""
    go = threading.Event()
    finish = device_copy._Copying.finish

    def late(copying: Any) -> None:
        go.wait(20)
        time.sleep(HELD_S)
        finish(copying)

    monkeypatch.setattr(device_copy._Copying, "finish", late)
    yield go
    go.set()


def net() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2))


def backward(model: nn.Module) -> torch.Tensor:
    loss: torch.Tensor = model(torch.linspace(-1, 1, 20).reshape(4, 5)).square().sum()
    loss.backward()
    return loss


def state(model: nn.Module, *optimizers: torch.optim.Optimizer) -> dict[str, bytes]:
    """All that an optimizer step changes, by the name under which it is saved."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found = {f"model.{name}": bits(parameter) for name, parameter in model.named_parameters()}
    for i, optimizer in enumerate(optimizers):
        for parameter, entries in optimizer.state.items():
            for entry, value in entries.items():
                if isinstance(value, torch.Tensor):
                    found[f"optimizer{i}.state.{names[id(parameter)]}.{entry}"] = bits(value)
    return found


def saved(place: str, step: int) -> dict[str, bytes]:
    return {name: bits(tensor) for name, tensor in load(place, step=step).items()}


def tree(model: nn.Module, *optimizers: torch.optim.Optimizer) -> dict[str, Any]:
    return {"model": model, **{f"optimizer{i}": each for i, each in enumerate(optimizers)}}


def step_into_the_save(
    ckpt: Checkpointer, place: str, held: threading.Event, given: dict[str, Any], step: Callable[[], Any]
) -> None:
    """Save, then take a step while nothing is copied yet; the saved bytes are those before it."""
    model, optimizers = given["model"], [given[key] for key in given if key != "model"]
    before = state(model, *optimizers)
    handle = ckpt.save(1, given)
    assert not handle.is_staged
    held.set()
    step()
    assert state(model, *optimizers) != before
    handle.committed()
    assert saved(place, 1) == before


KINDS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "AdamW, one by one": lambda p: torch.optim.AdamW(p, foreach=False),
    "AdamW, foreach": lambda p: torch.optim.AdamW(p, foreach=True),
    "AdamW, fused": lambda p: torch.optim.AdamW(p, fused=True),
    "AdamW, amsgrad": lambda p: torch.optim.AdamW(p, amsgrad=True),
    "SGD, fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "RMSprop, foreach": lambda p: torch.optim.RMSprop(p, foreach=True, momentum=0.5),
}


@pytest.mark.parametrize("kind", KINDS)
def test_however_an_optimizer_changes_its_tensors_it_waits(
    checkpointer: Make, ram_url: str, held: threading.Event, kind: str
) -> None:
    model = net()
    optimizer = KINDS[kind](model.parameters())
    backward(model)
    optimizer.step()
    backward(model)
    step_into_the_save(checkpointer(ram_url), ram_url, held, tree(model, optimizer), optimizer.step)


def test_a_step_with_a_closure_waits(checkpointer: Make, ram_url: str, held: threading.Event) -> None:
    model = net()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=3)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        return backward(model)

    before = state(model)
    handle = checkpointer(ram_url).save(1, {"model": model, "optimizer0": optimizer})
    held.set()
    optimizer.step(closure)
    assert state(model) != before
    handle.committed()
    found = saved(ram_url, 1)
    assert {name: found[name] for name in before} == before


def test_the_first_of_several_optimizers_waits_and_so_do_the_others(
    checkpointer: Make, ram_url: str, held: threading.Event
) -> None:
    model = net()
    optimizers = [
        torch.optim.AdamW(model[0].parameters()),
        torch.optim.SGD(model[2].parameters(), lr=0.1, momentum=0.9),
    ]

    def step() -> None:
        for optimizer in reversed(optimizers):
            optimizer.step()

    backward(model)
    step()
    step_into_the_save(checkpointer(ram_url), ram_url, held, tree(model, *optimizers), step)


def test_optimizers_that_step_inside_the_backward_wait(checkpointer: Make, ram_url: str, held: threading.Event) -> None:
    """One optimizer a parameter, each stepping in the hook behind its gradient, to keep few gradients in memory."""
    model = net()
    of = {p: torch.optim.SGD([p], lr=0.1, momentum=0.9) for p in model.parameters()}
    for parameter, optimizer in of.items():

        def step(given: torch.Tensor, optimizer: torch.optim.Optimizer = optimizer) -> None:
            optimizer.step()
            optimizer.zero_grad()

        parameter.register_post_accumulate_grad_hook(step)
    backward(model)
    step_into_the_save(checkpointer(ram_url), ram_url, held, tree(model, *of.values()), lambda: backward(model))


def test_a_step_inside_a_hook_of_the_model_waits(checkpointer: Make, ram_url: str, held: threading.Event) -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    backward(model)
    optimizer.step()
    model.register_forward_pre_hook(lambda *_: optimizer.step())
    step_into_the_save(checkpointer(ram_url), ram_url, held, tree(model, optimizer), lambda: backward(model))


def test_gradients_gather_while_it_is_copied_and_only_the_step_waits(
    checkpointer: Make, ram_url: str, held: threading.Event
) -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    backward(model)
    optimizer.step()
    optimizer.zero_grad()
    before = state(model, optimizer)
    handle = checkpointer(ram_url).save(1, tree(model, optimizer))
    for _ in range(3):
        backward(model)
    assert not handle.is_staged  # forward and backward wait for nothing
    held.set()
    optimizer.step()
    assert handle.is_staged
    handle.committed()
    assert saved(ram_url, 1) == before


@pytest.mark.parametrize("whole", [False, True], ids=["the step", "a function around it"])
def test_a_compiled_step_waits(checkpointer: Make, ram_url: str, held: threading.Event, whole: bool) -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    ckpt = checkpointer(ram_url)
    backward(model)
    optimizer.step()
    held.set()
    ckpt.save(0, tree(model, optimizer)).committed()  # the fence is hooked before the step is compiled
    held.clear()
    compiled = torch.compile((lambda: optimizer.step()) if whole else optimizer.step, backend="eager")
    compiled()
    backward(model)
    step_into_the_save(ckpt, ram_url, held, tree(model, optimizer), compiled)
    torch.compiler.reset()


@pytest.mark.usefixtures("unhooked")
def test_what_the_forward_changes_is_copied_before_save_returns(ram_url: str, held: threading.Event) -> None:
    """Running means, and histories of maxima as FP8 recipes keep them: buffers, plain tensors, an extra state."""

    class Scaled(nn.Linear):
        def __init__(self) -> None:
            super().__init__(5, 5)
            self.register_buffer("amax_history", torch.zeros(4))
            self.scale = torch.ones(1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.amax_history.copy_(self.amax_history.roll(1))
            self.amax_history[0] = x.detach().abs().max()
            self.scale.copy_(self.amax_history.max() / 448)
            return super().forward(x / self.scale)

        def get_extra_state(self) -> torch.Tensor:
            return self.scale

        def set_extra_state(self, state: torch.Tensor) -> None:
            self.scale = state

    torch.manual_seed(0)
    model = nn.Sequential(Scaled(), nn.BatchNorm1d(5), nn.Linear(5, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    meter = {"seen": torch.zeros(1)}
    held.set()
    run = attach(model, optimizer, to=ram_url, every=1, extra={"meter": meter}, agent=False, deadlines=SHORT)
    expected: dict[int, list[bytes]] = {}
    for step in range(4):
        expected[step] = [bits(each) for each in (model[0].amax_history, model[0].scale, model[1].running_mean)]
        expected[step].append(bits(meter["seen"]))
        loss = model(torch.randn(6, 5) * (step + 1)).sum()
        meter["seen"] += 1
        loss.backward()
        optimizer.step()
    run.close()
    for step in range(1, 4):
        found = load(ram_url, step=step)
        names = ["model.0.amax_history", "model.0._extra_state", "model.1.running_mean", "meter.seen"]
        names = [next(name for name in found if name.startswith(wanted)) for wanted in names]
        assert [bits(found[name]) for name in names] == expected[step]


# --- what no fence sees ----------------------------------------------------------------------------------------------


def test_without_the_fence_these_tests_would_fail(
    checkpointer: Make, ram_url: str, held: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the save fails, rather than hold half of a step."""
    monkeypatch.setattr(TorchFramework, "fence", lambda *_: None)
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    backward(model)
    optimizer.step()
    ckpt = checkpointer(ram_url)
    handle = ckpt.save(1, tree(model, optimizer))
    optimizer.step()
    held.set()
    with pytest.raises(CallError, match=r"model\.0\.weight was changed while it was being copied") as caught:
        handle.committed()
    assert caught.value.facts["tensor"] == "model.0.weight"
    assert ckpt.latest() is None
    assert ckpt.save(2, tree(model, optimizer)).committed().slot == 1  # the next one is none the worse


@pytest.mark.parametrize("kind", ["foreach", "fused", "by hand"])
def test_a_change_that_is_no_step_fails_the_save(
    checkpointer: Make, ram_url: str, held: threading.Event, kind: str
) -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), fused=kind == "fused")
    backward(model)
    optimizer.step()
    handle = checkpointer(ram_url).save(1, tree(model, optimizer))
    if kind == "by hand":
        with torch.no_grad():
            model[2].bias.clamp_(-0.1, 0.1)
    else:
        type(optimizer).step.__wrapped__(optimizer)  # type: ignore[attr-defined]  # past all hooks
    held.set()
    with pytest.raises(CallError, match="by something that is no optimizer step"):
        handle.committed()


def test_what_is_changed_after_staged_has_returned_fails_nothing(
    checkpointer: Make, ram_url: str, held: threading.Event
) -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    backward(model)
    optimizer.step()
    before = state(model, optimizer)
    handle = checkpointer(ram_url).save(1, tree(model, optimizer))
    held.set()
    handle.staged()
    with torch.no_grad():
        model[0].weight.zero_()
    handle.committed()
    assert saved(ram_url, 1) == before


def test_parameters_made_for_inference_alone_can_be_saved(checkpointer: Make, ram_url: str) -> None:
    with torch.inference_mode():
        model = net()
    checkpointer(ram_url).save(1, {"model": model}).committed()
    assert saved(ram_url, 1) == state(model)
