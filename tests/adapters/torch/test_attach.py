"""A loop that `attach` watches over, in one process: stopped and started again, it is the loop that never stopped."""

from __future__ import annotations

import copy
import os
import pickle
import signal
import time
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from perdure.adapters.torch import device_copy
from perdure.adapters.torch.attach import attach
from perdure.adapters.torch.load import load
from perdure.adapters.torch.run import Run
from perdure.errors import BlobMissing, CallError, StateMismatch
from perdure.state.scopes import RankLocal

from .conftest import SHORT
from .trips import bits

pytestmark = pytest.mark.usefixtures("unhooked")

SAMPLES = 22
DATA = [(torch.full((3,), float(i)).sin(), torch.tensor([float(i % 5)])) for i in range(SAMPLES)]


class Stopped(Exception):
    """The process is gone."""


class Loop:
    """A training script: shuffled data, dropout, momentum, a schedule, whatever a test switches on."""

    def __init__(
        self, place: Any, *, every: int = 1, accumulate: int = 1, evaluate: bool = False, two: bool = False
    ) -> None:
        torch.manual_seed(7)
        self.accumulate, self.evaluate = accumulate, evaluate
        self.model = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.4), nn.ReLU(), nn.Linear(8, 1))
        groups = [self.model[0].parameters(), self.model[1:].parameters()] if two else [self.model.parameters()]
        self.optimizers = [torch.optim.AdamW(groups[0], lr=0.05)]
        if two:
            self.optimizers.append(torch.optim.SGD(groups[1], lr=0.01, momentum=0.9))
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizers[0], 20)
        self.loader: Any = DataLoader(DATA, batch_size=4, shuffle=True)  # type: ignore[arg-type]
        self.ema = torch.optim.swa_utils.AveragedModel(self.model)
        self.trace: list[tuple[int, float]] = []
        self.run: Run | None = None
        if place is not None:
            self.run = attach(
                self.model,
                self.optimizers if two else self.optimizers[0],
                to=place,
                every=every,
                scheduler=self.scheduler,
                loader=self.loader,
                extra={"ema": self.ema},
                seed=3,
                agent=False,
                deadlines=SHORT,
            )

    def go(self, steps: int, *, stop_before: int | None = None) -> Loop:
        """Train up to ``steps`` optimizer steps; as if killed in the middle of step ``stop_before``."""
        micro = 0
        while self.step < steps:
            for x, y in self.loader:
                loss = (self.model(x) - y).square().mean() / self.accumulate
                loss.backward()
                micro += 1
                if micro % self.accumulate:
                    continue
                if self.step == stop_before:
                    raise Stopped
                for optimizer in self.optimizers:
                    optimizer.step()
                    optimizer.zero_grad()
                self.trace.append((self.step, loss.item()))
                self.scheduler.step()
                self.ema.update_parameters(self.model)
                if self.evaluate:
                    self.model.eval()
                    with torch.no_grad():
                        self.model(torch.ones(2, 3))
                    self.model.train()
                if self.step == steps:
                    break
        return self

    @property
    def step(self) -> int:
        assert self.run is not None
        return self.run.step

    def state(self) -> list[Any]:
        """Everything that the loop would go on from."""
        loader = self.loader.state_dict()
        return [
            {name: bits(tensor) for name, tensor in self.model.state_dict().items()},
            {name: bits(tensor) for name, tensor in self.ema.state_dict().items()},
            [
                {name: bits(value) for name, value in state.items()}
                for optimizer in self.optimizers
                for state in optimizer.state.values()
            ],
            [group["lr"] for optimizer in self.optimizers for group in optimizer.param_groups],
            self.scheduler.state_dict(),
            loader,
            torch.get_rng_state().tolist(),
        ]


FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "accumulation": {"accumulate": 2},
    "evaluation": {"evaluate": True},
    "two optimizers": {"two": True},
    "all": {"accumulate": 3, "evaluate": True, "two": True},
}


@pytest.mark.parametrize(("form", "every"), [*((form, 1) for form in FORMS), ("plain", 3), ("all", 3)])
def test_a_loop_that_was_killed_goes_on_bit_for_bit(form: str, every: int, ram_url: str) -> None:
    """22 samples in batches of 4 and 13 steps: epochs end inside, and the last batch is short."""
    options = FORMS[form]
    whole = Loop(f"{ram_url}-whole", every=every, **options).go(13)
    trace = []
    for stop in (2, 6, 11):  # 6: at the end of an epoch
        loop = Loop(f"{ram_url}-stopped", every=every, **options)
        with pytest.raises(Stopped):
            loop.go(13, stop_before=stop)
        trace += loop.trace
        assert loop.run is not None
        loop.run._failed = True  # as in a process that was killed: nothing is saved at its end
        loop.run.close()
    last = Loop(f"{ram_url}-stopped", every=every, **options)
    assert last.step == (11 if every == 1 else 9)
    last.go(13)
    assert last.state() == whole.state()
    trace += last.trace
    assert dict(trace) == dict(whole.trace)
    assert all(loss == dict(whole.trace)[step] for step, loss in trace)  # also what was trained twice


def test_what_attach_adds_changes_nothing_in_the_training(ram_url: str) -> None:
    """The same loop with saves at every step and with none."""
    often = Loop(f"{ram_url}-often", every=1).go(9)
    never = Loop(f"{ram_url}-never", every=1000).go(9)
    assert often.trace == never.trace
    assert often.state() == never.state()


def test_a_loop_that_ended_is_found_at_its_end(ram_url: str) -> None:
    first = Loop(ram_url, every=4).go(10)
    assert first.run is not None
    first.run.close()
    again = Loop(ram_url, every=4)
    assert again.step == 10
    assert again.state()[:-1] == first.state()[:-1]  # the generators are set at the first cut
    assert again.go(10).trace == []


def test_steps_are_saved_every_so_often_and_at_the_end(ram_url: str) -> None:
    loop = Loop(ram_url, every=3).go(8)
    assert loop.run is not None
    loop.run.close()
    assert loop.run.checkpointer.steps() == [3, 6, 8]
    loop.run.close()


def test_an_epoch_that_ended_is_over_when_the_loop_goes_on(ram_url: str) -> None:
    per_epoch = -(-SAMPLES // 4)
    first = Loop(f"{ram_url}-a").go(per_epoch)
    assert first.run is not None
    first.run.close()
    again = Loop(f"{ram_url}-a")
    assert again.loader.state_dict()["position"] == SAMPLES
    assert again.loader.state_dict()["epoch"] == 0
    whole = Loop(f"{ram_url}-b").go(per_epoch + 3)
    assert again.go(per_epoch + 3).trace == whole.trace[per_epoch:]


def test_one_step_and_no_other_is_restored_when_it_is_asked_for(ram_url: str) -> None:
    loop = Loop(ram_url, every=2).go(6)
    assert loop.run is not None
    loop.run.close()
    model = Loop(None).model
    again = Loop(None)
    run = attach(
        again.model, again.optimizers[0], to=ram_url, every=2, scheduler=again.scheduler, loader=again.loader,
        extra={"ema": again.ema}, step=4, agent=False, deadlines=SHORT,
    )  # fmt: skip
    assert run.step == 4
    assert bits(again.model[0].weight) == bits(load(ram_url, step=4)["model.0.weight"])
    run.close()
    with pytest.raises(BlobMissing, match="step 3"):
        attach(model, torch.optim.SGD(model.parameters(), lr=0.1), to=ram_url, every=2, step=3, agent=False)


def test_a_slow_copy_does_not_see_the_next_step(ram_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    finish = device_copy._Copying.finish

    def slow(copying: Any) -> None:
        time.sleep(0.05)
        finish(copying)

    monkeypatch.setattr(device_copy._Copying, "finish", slow)
    loop = Loop(ram_url, every=1)
    seen: dict[int, bytes] = {}
    loop.optimizers[0].register_step_post_hook(lambda *_: seen.update({loop.step: bits(loop.model[0].weight)}))
    loop.go(6)
    assert loop.run is not None
    loop.run.close()
    for step in range(1, 7):
        assert bits(load(ram_url, step=step)["model.0.weight"]) == seen[step]


def test_an_optimizer_that_calls_the_model_inside_its_step_is_saved_between_steps(ram_url: str) -> None:
    """LBFGS evaluates its closure while it steps; the cut falls on the first evaluation of the next step."""

    def loop(place: str, steps: int) -> tuple[Run, nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = nn.Linear(3, 1)
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4, history_size=3)
        run = attach(model, optimizer, to=place, every=1, agent=False, deadlines=SHORT)

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = (model(torch.eye(3)) - torch.arange(3.0)[:, None]).square().sum()
            loss.backward()
            return loss

        while run.step < steps:
            optimizer.step(closure)
        return run, model, optimizer

    whole, model, _ = loop(f"{ram_url}-whole", 6)
    expected = bits(model.weight)
    whole.close()
    first, *_ = loop(f"{ram_url}-parts", 3)
    first.close()
    second, model, _ = loop(f"{ram_url}-parts", 6)
    assert bits(model.weight) == expected
    second.close()


# --- signals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_loop_at_the_next_cut_with_its_step_saved(ram_url: str, number: signal.Signals) -> None:
    whole = Loop(f"{ram_url}-whole", every=100).go(9)
    loop = Loop(f"{ram_url}-asked", every=100)

    def ask(*_: Any) -> None:
        if loop.step == 4:
            os.kill(os.getpid(), number)

    loop.optimizers[0].register_step_post_hook(ask)
    with pytest.raises(SystemExit) as caught:
        loop.go(9)
    assert caught.value.code == 128 + number
    again = Loop(f"{ram_url}-asked", every=100)
    assert again.step == 4
    assert again.go(9).state() == whole.state()


# --- copies of the model ---------------------------------------------------------------------------------------------


def test_a_model_can_be_copied_and_pickled_and_the_copy_is_not_watched(ram_url: str) -> None:
    """As for an average of its weights or the best one so far, made after `attach`."""
    model, optimizer = small()
    run = attach(model, optimizer, to=ram_url, every=1, agent=False, deadlines=SHORT)
    copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]  # noqa: S301
    model(torch.ones(1)).backward()
    optimizer.step()
    for each in copies:
        each(torch.ones(1))
    assert run.checkpointer.steps() == []  # a forward of the model itself would have been the cut
    model(torch.ones(1))
    run.close()
    assert run.checkpointer.steps() == [1]


# --- what it takes ---------------------------------------------------------------------------------------------------


def small() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(1, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def test_what_is_rank_local_or_plain_may_be_given_as_extra(ram_url: str) -> None:
    class Counter:
        def __init__(self, n: int) -> None:
            self.n = n

        def state_dict(self) -> dict[str, int]:
            return {"n": self.n}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.n = state["n"]

    for turn in (0, 1):
        model, optimizer = small()
        counter, history = Counter(5 - turn), torch.full((3,), 5.0 - turn)
        extra = {"mine": RankLocal(counter), "history": history, "more": {"best": 5 - turn}}
        run = attach(model, optimizer, to=ram_url, every=1, extra=extra, agent=False, deadlines=SHORT)
        if turn == 0:
            model(torch.ones(1)).backward()
            optimizer.step()
        run.close()
    assert (counter.n, history.tolist(), extra["more"]) == (5, [5.0] * 3, {"best": 5})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"every": 0}, "every=0"),
        ({"extra": {"model": 1}}, "extra may not be called 'model'"),
        ({"extra": {"run": 1}}, "extra may not be called 'run'"),
        ({"extra": {"rng": 1}}, "extra may not be called 'rng'"),
        ({"loader": DataLoader([1], sampler=[0])}, "cannot be resumed exactly"),
    ],
)
def test_a_call_that_cannot_work_says_why(ram_url: str, options: dict[str, Any], words: str) -> None:
    model, optimizer = small()
    with pytest.raises(CallError, match=words):
        attach(model, optimizer, **{"to": ram_url, "every": 1, "agent": False} | options)
    with pytest.raises(CallError, match="at least one optimizer"):
        attach(model, [], to=ram_url, every=1, agent=False)


def test_the_checkpoint_of_another_model_is_refused_and_nothing_is_changed(ram_url: str) -> None:
    model, optimizer = small()
    run = attach(model, optimizer, to=ram_url, every=1, agent=False, deadlines=SHORT)
    model(torch.ones(1)).backward()
    optimizer.step()
    run.close()
    other = nn.Linear(2, 1)
    before = bits(other.weight)
    with pytest.raises(StateMismatch, match=r"model\.weight"):
        attach(other, torch.optim.SGD(other.parameters(), lr=0.1), to=ram_url, every=1, agent=False, deadlines=SHORT)
    assert bits(other.weight) == before
