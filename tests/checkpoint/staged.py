"""A model that is cut in stages over the ranks of `trainer.py`: activations go from rank to rank, gradients back."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import perdure
from perdure.layout import shift_layer

SIZES = (64, 512, 512, 256, 64)  # four layers: a state of 5 MB
LAYERS = len(SIZES) - 1


class Layer(nn.Module):
    """One layer, with a buffer that each forward changes."""

    def __init__(self, inside: int, out: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inside, out)
        self.register_buffer("seen", torch.zeros(1000, dtype=torch.int64))
        self.seen: Tensor

    def forward(self, x: Tensor) -> Tensor:
        self.seen += 1
        return nn.functional.dropout(torch.tanh(self.linear(x)), 0.2)


class Stages(nn.Module):
    """The layers that ``rank`` of ``world`` holds, under numbers that count from 0 here."""

    def __init__(self, rank: int, world: int) -> None:
        super().__init__()
        self.rank, self.world = rank, world
        self.first = LAYERS * rank // world
        every = [Layer(inside, out) for inside, out in pairwise(SIZES)]  # most is thrown away
        self.layers = nn.ModuleList(every[self.first : LAYERS * (rank + 1) // world])

    def named(self, name: str) -> str:
        """The name in the whole model."""
        return shift_layer(name, by=self.first)

    def held(self) -> nn.Module | perdure.Stage:
        """What is saved and restored."""
        return self if self.world == 1 else perdure.Stage(self, self.rank, self.world, names=self.named)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x

    def forward_and_backward(self, batch: Tensor) -> Tensor:
        """The loss, where it is known; 0 on all ranks but the last."""
        x = batch
        if self.rank > 0:
            x = torch.empty(len(batch), SIZES[self.first])
            dist.recv(x, self.rank - 1)
            x.requires_grad_()
        y = self(x)
        loss = torch.zeros(())
        if self.rank == self.world - 1:
            loss = (y - batch).square().mean()
            loss.backward()
        else:
            dist.send(y.detach(), self.rank + 1)
            gradient = torch.empty_like(y)
            dist.recv(gradient, self.rank + 1)
            y.backward(gradient)
        if self.rank > 0:
            assert x.grad is not None
            dist.send(x.grad, self.rank - 1)
        return loss.detach()


def joined(state: dict[str, Any]) -> dict[str, Any]:
    """``state`` with what all stages hold; called by all ranks together."""
    if not dist.is_initialized():
        return state
    found: list[dict[str, Any]] = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(found, state)
    whole: dict[str, Any] = {}
    for part in found:
        for name, value in part.items():
            whole[name] = {**whole.get(name, {}), **value} if isinstance(value, dict) else value
    return whole
