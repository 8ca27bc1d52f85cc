"""Loaders at the edges of an epoch: saved before its first batch, at its end, right after a resume."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import perdure
from perdure.adapters.torch.loader import make_resumable

from .conftest import SHORT
from .trips import bits, restore, save

pytestmark = [pytest.mark.usefixtures("unhooked"), pytest.mark.filterwarnings("ignore")]
PER_EPOCH = 3  # 10 samples in batches of 4: the last one is short


class Numbers(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 10

    def __getitem__(self, i: int) -> torch.Tensor:
        return torch.full((3,), float(i)).sin()


def plain() -> Any:
    return DataLoader(Numbers(), batch_size=4, shuffle=True)


def stateful() -> Any:
    torchdata = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed")
    return torchdata.StatefulDataLoader(Numbers(), batch_size=4, shuffle=True)


def by_loop(loader: Any) -> Iterator[torch.Tensor]:
    while True:
        yield from loader


def by_hand(loader: Any) -> Iterator[torch.Tensor]:
    """As loops do that count steps: whenever the loader is exhausted they begin it again."""
    batches = iter(loader)
    while True:
        try:
            yield next(batches)
        except StopIteration:
            batches = iter(loader)


@pytest.mark.parametrize("draws", [0, 1, PER_EPOCH, PER_EPOCH + 1], ids=["none", "one", "all", "exhausted"])
@pytest.mark.parametrize("kind", [plain, stateful])
def test_a_loader_goes_on_where_it_was_saved_also_if_it_is_saved_again_at_once(
    kind: Callable[[], Any], draws: int
) -> None:
    def made(seed: int) -> Any:
        torch.manual_seed(seed)
        return make_resumable(kind(), seed=seed, rank=0, world=1)

    one, live, again = made(3), made(4), made(5)
    batches = iter(one) if draws else iter(())
    for _ in range(draws):
        next(batches, None)
    restore(save({"loader": one}), {"loader": live})
    restore(save({"loader": live}), {"loader": again})
    rest = [bits(each) for each in (batches if draws else one)]
    assert len(rest) == max(PER_EPOCH - draws, 0)
    for loader in (live, again):
        epochs = [list(loader) for _ in range(3)]
        if rest:
            assert [bits(each) for each in epochs.pop(0)] == rest
        for whole in filter(None, epochs):  # where the epoch was over a loader may begin with an empty one
            assert sorted(torch.cat(whole)[:, 0].tolist()) == sorted(Numbers()[i][0].item() for i in range(10))
        assert all(epochs[1:])


@pytest.mark.parametrize("drawn", [by_loop, by_hand])
@pytest.mark.parametrize("kind", [plain, stateful])
def test_a_loop_that_is_killed_at_an_edge_goes_on_bit_for_bit(
    tmp_path: Path, kind: Callable[[], Any], drawn: Callable[[Any], Iterator[torch.Tensor]]
) -> None:
    """Before its first step, right after a resume, at the end of an epoch: twice each."""

    def train(place: Path, seed: int, *, stop_before: int) -> dict[int, float]:
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.4), nn.Linear(8, 1))
        optimizer, loader = torch.optim.SGD(model.parameters(), lr=0.1), kind()
        run = perdure.attach(model, optimizer, to=place, every=1, loader=loader, agent=False, deadlines=SHORT)
        losses: dict[int, float] = {}
        for batch in drawn(loader):
            loss = model(batch).square().mean()
            if run.step == stop_before:
                break
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses[run.step] = loss.item()
        run._failed = True  # as in a process that was killed: nothing is saved at its end
        run.close()
        return losses

    whole = train(tmp_path / "whole", 7, stop_before=11)
    found: dict[int, float] = {}
    for turn, stop in enumerate((0, 0, 1, 1, PER_EPOCH, PER_EPOCH, 2 * PER_EPOCH + 1, 11)):
        found |= train(tmp_path / "stopped", 7 if stop < 2 else 8 + turn, stop_before=stop)
    assert found == whole
