"""Loaders and scalers with a state of their own: a loop that was killed goes on as one that was not, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, DistributedSampler, IterableDataset, get_worker_info

import perdure
from perdure.adapters.torch.loader import watch_draws
from perdure.errors import CallError

from . import gloo
from .conftest import SHORT
from .trips import bits

torchdata = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed")

pytestmark = [pytest.mark.usefixtures("unhooked"), pytest.mark.filterwarnings("ignore")]
SAMPLES = 22


def sample(i: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.full((3,), float(i)).sin(), torch.tensor([float(i % 5)])


class Mapped(Dataset[Any]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        return sample(i)


class Stream(IterableDataset[Any]):
    """Samples in order, with a state of its own: workers take turns."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        step, first = (worker.num_workers, worker.id) if worker else (1, 0)
        while self.at * step + first < SAMPLES:
            self.at += 1
            yield sample((self.at - 1) * step + first)
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class Stopped(Exception):
    """The process is gone."""


class Loop:
    """Shuffled data, dropout, a scale that overflows at first and grows later."""

    def __init__(self, place: Any, *, workers: int, data: type[Dataset[Any]], seed: int) -> None:
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.4), nn.Linear(8, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.05)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=3)
        self.loader = torchdata.StatefulDataLoader(
            data(), batch_size=4, num_workers=workers, shuffle=data is Mapped, snapshot_every_n_steps=3
        )
        self.trace: list[tuple[int, float, float]] = []
        self.run = perdure.attach(
            self.model, self.optimizer, to=place, every=1, loader=self.loader, extra={"scaler": self.scaler},
            agent=False, deadlines=SHORT,
        )  # fmt: skip

    def go(self, steps: int, *, stop_before: int | None = None) -> Loop:
        while self.run.step < steps:
            for x, y in self.loader:
                loss = (self.model(x) - y).square().mean()
                self.scaler.scale(loss).backward()
                if self.run.step == stop_before:
                    raise Stopped
                self.scaler.step(self.optimizer)  # none where the scale was too large
                self.scaler.update()
                self.optimizer.zero_grad()
                self.trace.append((self.run.step, loss.item(), self.scaler.get_scale()))
                if self.run.step == steps:
                    break
        return self

    def killed(self) -> list[tuple[int, float, float]]:
        """As in a process that was killed: nothing is saved at its end."""
        self.run._failed = True
        self.run.close()
        return self.trace


@pytest.mark.parametrize("data", [Mapped, Stream])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_loop_over_a_stateful_loader_goes_on_bit_for_bit(
    tmp_path: Path, workers: int, data: type[Dataset[Any]]
) -> None:
    """22 samples in batches of 4 and 14 steps: epochs end inside, and the last batches are short."""
    options: dict[str, Any] = {"workers": workers, "data": data}
    whole = Loop(tmp_path / "whole", seed=7, **options).go(14)
    trace: dict[int, tuple[int, float, float]] = {}
    for stop in (2, 6, 11):  # 6: at the end of an epoch
        loop = Loop(tmp_path / "stopped", seed=7 + stop * (stop > 2), **options)
        with pytest.raises(Stopped):
            loop.go(14, stop_before=stop)
        trace |= {each[0]: each for each in loop.killed()}
    last = Loop(tmp_path / "stopped", seed=9, **options)
    assert last.run.step == 11
    last.go(14)
    trace |= {each[0]: each for each in last.trace}
    assert trace == {each[0]: each for each in whole.trace}
    assert len({scale for *_, scale in whole.trace}) > 2
    for one, other in zip(last.model.parameters(), whole.model.parameters(), strict=True):
        assert bits(one) == bits(other)


@pytest.mark.parametrize("rule", [None, "fresh", "modulo"])
def test_a_stateful_loader_in_a_world_of_another_size_does_what_was_declared(tmp_path: Path, rule: Any) -> None:
    def work(expected: int) -> list[Any]:
        data = Mapped()
        share = DistributedSampler(data, shuffle=False)
        loader = torchdata.StatefulDataLoader(data, batch_size=2, sampler=share)
        model = nn.Linear(3, 1)
        given = loader if rule is None else perdure.RankLocal(loader, on_resize=rule)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        try:
            run = perdure.attach(model, optimizer, to=tmp_path, every=1, loader=given, agent=False, deadlines=SHORT)
        except CallError as error:
            return [str(error)]
        assert run.step == expected
        batches = []
        for x, _ in loader:
            batches.append(x[:, 0].tolist())
            if len(batches) == 3:
                break
            model(x).sum().backward()
            for each in model.parameters():
                each.grad = torch.zeros_like(each)
            optimizer.step()
        run.close()
        return batches

    first = gloo.run(2, lambda: work(0))
    again = gloo.run(4, lambda: work(2))
    if rule is None:
        assert all(
            "loader is rank-local and was saved by 2 ranks; it cannot be given to 4" in said for (said,) in again
        )
    else:
        shares = [[[sample(i)[0][0].item() for i in (r + 4 * n, r + 4 * n + 4)] for n in (0, 2, 4)] for r in range(4)]
        at_start = [batches[:1] == share[:1] for batches, share in zip(again, shares, strict=True)]
        assert at_start == [rule == "fresh"] * 4
    assert len(first[0]) == 3


def test_a_loader_that_cannot_be_watched_needs_to_be_told_of() -> None:
    class Custom:
        __slots__ = ("at",)

        def __init__(self) -> None:
            self.at = 0

        def next_batch(self) -> torch.Tensor:
            self.at += 1
            return torch.full((1, 3), float(self.at))

        def state_dict(self) -> dict[str, int]:
            return {"at": self.at}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.at = state["at"]

    assert not watch_draws(Custom(), lambda: None)
    place = "ram://custom-loader"
    for turn in range(2):
        loader, model = Custom(), nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        run = perdure.attach(model, optimizer, to=place, every=1, loader=loader, agent=False, deadlines=SHORT)
        assert (run.step, loader.at) == (2 * turn, 2 * turn)
        model(loader.next_batch()).sum().backward()
        optimizer.step()
        if turn == 0:
            run.cut()
            optimizer.step()
            loader.next_batch()
            run.close()
        else:
            with pytest.raises(CallError, match=r"call run.cut\(\) at the end of each iteration"):
                optimizer.step()
