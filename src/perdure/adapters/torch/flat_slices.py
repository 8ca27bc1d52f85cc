"""Flat slices, as ZeRO keeps them: one tensor of one dim that holds a part of many tensors laid end to end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from perdure.adapters.torch.forms import FlatRange
from perdure.adapters.torch.views import Part
from perdure.errors import CallError

__all__ = ["FlatSlice", "flat_slices"]


@dataclass(frozen=True)
class FlatSlice:
    """This rank's slice of a flat buffer: ``{"model": perdure.FlatSlice(flat, shapes, start=rank * len(flat))}``.

    ``tensor`` has one dim and is elements ``start`` and on of the buffer that the tensors of ``shapes`` (name to shape,
    in order) make when they are laid end to end; what is beyond the last is padding. They are saved under their own
    names, as those of a module that stood here would be, so any other cut can be restored from them, and so is what an
    optimizer over ``tensor`` keeps. A rank with several buffers gives a list of slices.
    """

    tensor: torch.Tensor
    shapes: Mapping[str, tuple[int, ...]]
    start: int = 0

    def __post_init__(self) -> None:
        if self.tensor.ndim != 1:
            raise CallError(
                "a perdure.FlatSlice is of a tensor with one dim; give tensor.view(-1), or the buffer itself"
            )
        if self.start < 0:
            raise CallError(f"a slice cannot start at element {self.start}")

    def parts(self) -> tuple[Part, ...]:
        """All tensors of the buffer; those that this slice has nothing of are there with no element."""
        found = []
        begin = 0
        for name, shape in self.shapes.items():
            end = begin + prod(shape)
            low, high = max(begin, self.start), min(end, self.start + self.tensor.numel())
            if low < high:
                form = FlatRange(tuple(shape), low - begin, high - begin, low - self.start)
            else:
                form = FlatRange(tuple(shape), 0, 0, 0)
            found.append(Part(name, form))
            begin = end
        return tuple(found)


def flat_slices(value: Any) -> tuple[FlatSlice, ...]:
    """The slices that ``value`` is, or is a list of; none if it is anything else."""
    if isinstance(value, FlatSlice):
        return (value,)
    if isinstance(value, list | tuple) and value and all(isinstance(each, FlatSlice) for each in value):
        return tuple(value)
    return ()
