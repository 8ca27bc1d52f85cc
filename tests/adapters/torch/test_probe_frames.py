"""What frames say: a real data loader, a real save, a real evaluation, each looked at from inside."""

from __future__ import annotations

import io
import sys
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from perdure.adapters.torch.probe_frames import Doing, look
from perdure.adapters.torch.probe_gradients import Budget, Small


def here() -> frozenset[Doing]:
    return look(sys._getframe())


class Looks(Dataset[Any]):
    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> list[Doing]:
        return list(here())


class Module(torch.nn.Module):
    def forward(self) -> frozenset[Doing]:
        return here()


def test_nothing_is_told_of_a_thread_that_does_nothing_known() -> None:
    assert here() == frozenset()
    assert look(None) == frozenset()


def test_a_data_loader_loads() -> None:
    (found,) = DataLoader(Looks(), batch_size=None)
    assert found == [Doing.LOADING]


def test_saving_and_restoring_are_told_apart() -> None:
    seen: list[frozenset[Doing]] = []

    class File(io.BytesIO):
        def write(self, data: Any) -> int:
            seen.append(here())
            return super().write(data)

        def read(self, size: int | None = -1) -> bytes:
            seen.append(here())
            return super().read(size)

    file = File()
    torch.save({"a": torch.ones(3)}, file)
    assert set(seen) == {frozenset({Doing.SAVING})}
    seen.clear()
    file.seek(0)
    torch.load(file, weights_only=True)
    assert frozenset({Doing.RESTORING}) in seen


def test_a_module_evaluates_in_evaluation_mode_alone() -> None:
    module = Module()
    assert module() == frozenset()
    assert module.eval()() == {Doing.EVALUATING}


def test_a_few_small_gradients_are_looked_at_for_numbers_that_are_not_finite_or_far_too_large() -> None:
    sizes = [(100, 1000), (4,), (7, 7), (1,), (9,), (11,)]
    parameters = [torch.nn.Parameter(torch.zeros(size)) for size in sizes]
    assert Small.among(parameters) is None  # no gradients yet
    for each in parameters:
        each.grad = torch.ones_like(each)
    small = Small.among(parameters)
    assert small is not None
    for number, wrong in ((1, float("inf")), (3, float("nan")), (4, -1e30), (5, 3e38)):
        gradient = parameters[number].grad
        assert gradient is not None
        assert small.is_finite()
        gradient[0] = wrong
        assert not small.is_finite()
        gradient[0] = 1.0
    parameters[1].grad = None
    assert small.is_finite()


def test_a_budget_looks_as_often_as_its_share_allows() -> None:
    budget = Budget(share=0.01)
    looked = []
    for step in range(1, 1001):
        if budget.due(step):
            looked.append(step)
            budget.done(step, 1_000_000, 10_000_000)  # a tenth of a step
    assert looked[0] == 2
    assert budget.every == 10
    assert 95 <= len(looked) <= 101
    busy = Budget(share=0.01)
    for cost_ns in [100_000] * 20 + [5_000_000] + [100_000] * 2:  # once somebody else had the processor meanwhile
        busy.done(2, cost_ns, 10_000_000)
    assert busy.every <= 2
    cheap = Budget(share=0.01)
    cheap.done(2, 10_000, 10_000_000)
    assert cheap.every == 1
    assert cheap.due(3)
