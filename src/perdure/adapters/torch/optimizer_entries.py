"""What both ways to save an optimizer share: its class, its entries, and tensors for state that does not exist yet."""

from __future__ import annotations

import sys
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from perdure.adapters.torch.forms import FlatRange, Form
from perdure.adapters.torch.tensors import torch_dtype
from perdure.adapters.torch.views import Part
from perdure.errors import CallError
from perdure.state.index import CatalogTensor
from perdure.state.scopes import Among

__all__ = ["COUNTS", "Entry", "OptimizerState", "Parts", "fresh", "holder_of", "kind_of", "not_given", "split_name"]

COUNTS = ("step", "mu_product")  # numbers about the steps, which are no parameter's even where that has no dims

Parts: TypeAlias = Mapping[int, tuple[Part, ...]]
"""``id`` of a parameter to what it is in a checkpoint."""


Entry: TypeAlias = tuple[str, torch.Tensor, Form | None, Among | None]
"""The name that a live tensor is saved under, the tensor, which part of the saved one it is, and who holds that."""


@dataclass(frozen=True, slots=True)
class OptimizerState:
    """Live tensors, those among the options of its groups apart, and everything else as values by key."""

    tensors: list[Entry]
    options: list[Entry]
    values: list[tuple[str, Any, Among | None]]
    in_parts: bool = False
    """whether several tensors may be parts of one"""


def holder_of(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """The optimizer that has the state: under `ZeroRedundancyOptimizer` the one of this rank's own parameters."""
    zero = getattr(
        sys.modules.get("torch.distributed.optim.zero_redundancy_optimizer"), "ZeroRedundancyOptimizer", None
    )
    if zero is None or not isinstance(optimizer, zero):
        return optimizer
    inner = getattr(optimizer, "optim", None)
    if not isinstance(inner, torch.optim.Optimizer):
        raise CallError(
            "a ZeroRedundancyOptimizer with overlap_with_ddp=True has no state that can be saved; make it without"
        )
    return inner


def kind_of(optimizer: torch.optim.Optimizer) -> str:
    """The name of the class that does the stepping."""
    return type(holder_of(optimizer)).__name__


def not_given(key: str, group: int, at: int) -> CallError:
    """The error for a parameter that nobody would save."""
    return CallError(
        f"parameter {at} of group {group} of {key} is in no module and no tensor that is given, so it would not be "
        "saved; give what holds it too (attach: extra={...})",
        key=key,
    )


def split_name(rest: str, live: Container[str]) -> tuple[str | None, str]:
    """Split ``<parameter>.<entry>`` at the longest parameter name there is."""
    at = rest.rfind(".")
    while at > 0:
        if rest[:at] in live:
            return rest[:at], rest[at + 1 :]
        at = rest.rfind(".", 0, at)
    return None, rest


def fresh(
    entry: str, saved: CatalogTensor, parameter: torch.Tensor, form: Form | None, *, on_device: bool
) -> torch.Tensor:
    """A tensor for ``entry``, as the optimizer would make it; ``on_device`` where it counts steps on the device."""
    dtype = torch_dtype(saved.dtype)
    whole = tuple(parameter.shape) if form is None else form.shape
    if saved.shape == whole and entry not in COUNTS:
        flat = isinstance(form, FlatRange)
        return torch.zeros_like(parameter.detach() if flat else parameter, dtype=dtype, requires_grad=False)
    device = parameter.device if on_device or saved.shape else "cpu"
    return torch.zeros(saved.shape, dtype=dtype, device=device)
