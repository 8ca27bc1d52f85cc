"""A small model in stages, trained as pipelines are: activations forward, gradients back, from rank to rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import perdure
from perdure.layout import shift_layer

from .trips import bits

__all__ = ["LAYERS", "Piped", "Plain", "contents", "optimizer_of", "plan"]

LAYERS = 6
WIDTH, WORDS = 4, 7


class Plain(nn.Module):
    """Layers ``first`` to ``last`` of the model, counted from 0; with the embedding, norm and head if it has an end."""

    def __init__(self, first: int = 0, last: int = LAYERS, *, seed: int = 1) -> None:
        super().__init__()
        self.first, self.starts, self.ends = first, first == 0, last == LAYERS
        made: dict[str, nn.Module] = {}
        with torch.random.fork_rng():
            torch.manual_seed(seed)  # all of the model is made on each rank, and most of it thrown away
            made["embed"] = nn.Embedding(WORDS, WIDTH)
            layers = [nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]
            made["norm"] = nn.LayerNorm(WIDTH)
        if self.starts:
            self.embed = made["embed"]
        self.layers = nn.ModuleList(layers[first:last])
        if self.ends:
            self.norm = made["norm"]
            self.head = nn.Linear(WIDTH, WORDS, bias=False)
            self.head.weight = made["embed"].weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x) if self.starts else x
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.head(self.norm(x)) if self.ends else x

    @property
    def tied(self) -> torch.Tensor | None:
        """The weight that the first and the last stage have alike."""
        return self.embed.weight if self.starts else self.head.weight if self.ends else None


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    """Two groups, of which a stage may have the second one empty."""
    decay = [each for each in model.parameters() if each.ndim > 1]
    rest = [each for each in model.parameters() if each.ndim == 1]
    groups = [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0, "betas": (0.8, 0.99)}]
    return torch.optim.AdamW(groups, lr=0.05, foreach=False)


def plan(*ends: int) -> list[tuple[int, int]]:
    """Stages that end at these layers."""
    return list(zip((0, *ends[:-1]), ends, strict=True))


class Piped:
    """This rank's stage of a pipeline, one of ``dp`` alike; ranks of one pipeline follow each other."""

    def __init__(
        self,
        stages: Sequence[tuple[int, int]],
        *,
        dp: int = 1,
        seed: int = 1,
        change: Callable[[Plain], None] = lambda model: None,
    ) -> None:
        rank = dist.get_rank() if dist.is_initialized() else 0
        self.pp, self.stage = len(stages), rank % len(stages)
        self.base = rank - self.stage
        self.first, last = stages[self.stage]
        self.model = Plain(self.first, last, seed=seed)
        change(self.model)
        self.optimizer = optimizer_of(self.model)
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)
        ends = [[of * self.pp, of * self.pp + self.pp - 1] for of in range(dp)]
        made = [dist.new_group(each) for each in ends] if self.pp > 1 else []
        self.ends = made[self.base // self.pp] if made else None

    def tree(self, **more: Any) -> dict[str, Any]:
        """The state to save; ``more`` changes the declaration of the stage."""
        model: Any = self.model
        if self.pp > 1:
            options = {"names": partial(shift_layer, by=self.first), "tied": {"head.weight": "embed.weight"}} | more
            model = perdure.Stage(model, self.stage, self.pp, **options)
        return {"model": model, "optimizer": self.optimizer, "schedule": self.schedule}

    def train(self, step: int) -> None:
        """One step on the batch of ``step``, the same in every pipeline."""
        ids = (torch.arange(10).reshape(5, 2) * 3 + step) % WORDS
        x: torch.Tensor = ids
        if not self.model.starts:
            x = torch.empty(5, 2, WIDTH)
            dist.recv(x, self.base + self.stage - 1)
            x.requires_grad_()
        out = self.model(x)
        if self.model.ends:
            nn.functional.cross_entropy(out.flatten(0, 1), (ids.flatten() + 1) % WORDS).backward()
        else:
            dist.send(out.detach(), self.base + self.stage + 1)
            gradient = torch.empty_like(out)
            dist.recv(gradient, self.base + self.stage + 1)
            out.backward(gradient)
        if not self.model.starts:
            assert x.grad is not None
            dist.send(x.grad, self.base + self.stage - 1)
        if self.ends is not None and self.model.tied is not None:
            dist.all_reduce(self.model.tied.grad, group=self.ends)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.schedule.step()

    def contents(self) -> dict[str, str]:
        """All that this rank holds, under the names of the whole model."""
        return contents(self.model, self.optimizer, partial(shift_layer, by=self.first)) | {
            "schedule": repr(self.schedule.state_dict()),
            "options": repr([{k: v for k, v in g.items() if k != "params"} for g in self.optimizer.param_groups]),
        }


def contents(model: nn.Module, optimizer: torch.optim.Optimizer, names: Callable[[str], str]) -> dict[str, str]:
    """Parameters and what the optimizer keeps of them, in hex."""
    found = {}
    for name, parameter in model.named_parameters():
        whole = names(name).replace("head.weight", "embed.weight")
        found[whole] = bits(parameter).hex()
        for entry, value in optimizer.state[parameter].items():
            found[f"{whole}.{entry}"] = bits(value).hex()
    return found
