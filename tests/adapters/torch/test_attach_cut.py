"""Where an iteration ends for `attach`, and what it refuses rather than save half of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from perdure.adapters.torch.attach import attach
from perdure.adapters.torch.load import load
from perdure.adapters.torch.run import Run
from perdure.errors import CallError

from .conftest import SHORT

pytestmark = pytest.mark.usefixtures("unhooked")


def attached(model: nn.Module, optimizers: Any, place: Path, **options: Any) -> Run:
    return attach(model, optimizers, to=place, agent=False, deadlines=SHORT, **{"every": 1, **options})


def test_what_follows_an_evaluation_still_belongs_to_its_step(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    after = {"count": torch.zeros(1)}
    run = attached(model, optimizer, tmp_path, extra={"after": after})
    for _ in range(3):
        model(torch.ones(2)).backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            model(torch.ones(2))
        model.train()
        with torch.no_grad():
            model(torch.ones(2))
        after["count"] += 1
    model(torch.ones(2))
    assert run.checkpointer.in_flight[-1].step == 3
    run.checkpointer.in_flight[-1].committed()
    assert load(tmp_path, names="after.*")["after.count"].item() == 3


@pytest.mark.parametrize("listed", [(0, 1), (1, 0)])
def test_a_step_of_several_optimizers_is_complete_when_each_has_done_its_own(
    tmp_path: Path, listed: tuple[int, int]
) -> None:
    models = nn.ModuleList([nn.Linear(1, 1), nn.Linear(1, 1)])
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in models]
    run = attached(models, [optimizers[i] for i in listed], tmp_path)
    for _ in range(2):
        for each, optimizer in zip(models, optimizers, strict=True):
            each(torch.ones(1)).backward()
            optimizer.step()
    assert run.step == 2
    run.close()
    assert run.checkpointer.latest() == 2


def test_with_a_loader_the_iteration_ends_at_its_draw(tmp_path: Path) -> None:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader([torch.ones(1)] * 4, batch_size=1)  # type: ignore[arg-type]
    after = {"count": torch.zeros(1)}
    run = attached(model, optimizer, tmp_path, loader=loader, extra={"after": after})
    for batch in loader:
        model(batch).backward()
        optimizer.step()
        model(batch)  # another forward that trains, before the iteration is over
        after["count"] += 1
    run.close()
    for step in run.checkpointer.steps():
        assert load(tmp_path, names="after.*", step=step)["after.count"].item() == step


def test_a_model_that_was_changed_after_the_loop_is_not_saved_under_its_last_step(tmp_path: Path) -> None:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = attached(model, optimizer, tmp_path)
    for _ in range(2):
        model(torch.ones(1)).backward()
        optimizer.step()
    with torch.no_grad():
        model.weight.fill_(123.0)
    with pytest.raises(CallError, match=r"changed after its last optimizer step.*run\.close\(\)"):
        run.close()
    assert run.checkpointer.latest() == 1


def test_weight_clipping_in_the_loop_belongs_to_the_step(tmp_path: Path) -> None:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = attached(model, optimizer, tmp_path)
    for _ in range(3):
        model(torch.ones(1)).backward()
        optimizer.step()
        with torch.no_grad():
            model.weight.clamp_(-0.01, 0.01)
    run.close()
    assert abs(load(tmp_path, step=3)["model.weight"].item()) <= 0.01


@pytest.mark.parametrize("loader", [[1, 2], iter([1])])
def test_a_loader_whose_position_nobody_knows_is_refused(tmp_path: Path, loader: Any) -> None:
    model = nn.Linear(1, 1)
    with pytest.raises(CallError, match="whose position nobody knows"):
        attached(model, torch.optim.SGD(model.parameters()), tmp_path, loader=loader)


@pytest.mark.parametrize("value", [0.0, [0], "text"])
def test_an_extra_that_cannot_be_put_back_in_place_is_refused(tmp_path: Path, value: Any) -> None:
    model = nn.Linear(1, 1)
    with pytest.raises(CallError, match=r"extra\['best'\] is a .* hold it in a dict"):
        attached(model, torch.optim.SGD(model.parameters()), tmp_path, extra={"best": value})


@pytest.mark.parametrize("step", ["x", 1.5, -1, True, 10**12])
def test_a_step_that_is_no_number_is_refused_at_once(tmp_path: Path, step: Any) -> None:
    model = nn.Linear(1, 1)
    run = attached(model, torch.optim.SGD(model.parameters()), tmp_path)
    with pytest.raises(CallError, match="a step is a whole number"):
        run.checkpointer.save(step, {"model": model})
