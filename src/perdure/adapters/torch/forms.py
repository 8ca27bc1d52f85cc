"""How a live tensor lies in the tensor that it is a part of in a checkpoint, where it is not that tensor itself.

A form is geometry: the shape of the whole tensor, and which blocks of it a live tensor holds, as views of its memory.
No form at all means that the live tensor is the saved one, whole or placed by its `DTensor` placements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch.distributed.tensor import DTensor

from perdure.adapters.torch.tensors import LocalBlock, blocks_of, without_bytes
from perdure.errors import CallError
from perdure.layout import Box, flat_boxes

__all__ = ["FlatRange", "Form", "Section", "held_blocks", "runs_of", "whole_shape"]


@dataclass(frozen=True, slots=True)
class FlatRange:
    """Elements ``start <= i < stop`` of the flattened tensor lie in a row in a flat live tensor, from ``at`` on."""

    shape: tuple[int, ...]
    start: int
    stop: int
    at: int

    def blocks(self, tensor: torch.Tensor, *, name: str) -> list[LocalBlock]:
        """The blocks as views of ``tensor``, which has one dim."""
        with torch.no_grad():
            flat = tensor.detach()
            why = without_bytes(flat)
            if why is None and (flat.ndim != 1 or self.at + self.stop - self.start > flat.numel()):
                why = f"is to lie in a flat tensor of shape {list(flat.shape)}, which does not hold it"
            if why is not None or isinstance(tensor, DTensor):
                raise CallError(f"{name} {why or 'is to lie in a flat tensor, but that is a DTensor'}", tensor=name)
            found = []
            at = self.at
            for box in flat_boxes(self.shape, start=self.start, stop=self.stop):
                found.append(LocalBlock(box, flat.narrow(0, at, box.size).view(box.shape)))
                at += box.size
            return found


@dataclass(frozen=True, slots=True)
class Section:
    """Runs of rows, ``(live start, whole start, length)`` along ``dim``, are what a live tensor has of the whole one.

    A fused live tensor has several such sections, one for each tensor that is in it; a live tensor that is saved as a
    part of a fused one has one.
    """

    shape: tuple[int, ...]
    dim: int
    runs: tuple[tuple[int, int, int], ...]

    def blocks(self, tensor: torch.Tensor, *, name: str) -> list[LocalBlock]:
        """The blocks as views of ``tensor``, under whatever placements that has."""
        found = []
        for block in blocks_of(tensor, name=name):
            low, high = block.box.lo[self.dim], block.box.hi[self.dim]
            for live, whole, length in self.runs:
                start, stop = max(low, live), min(high, live + length)
                if start < stop:
                    lo = _with(block.box.lo, self.dim, start - live + whole)
                    hi = _with(block.box.hi, self.dim, stop - live + whole)
                    with torch.no_grad():
                        part = block.view.narrow(self.dim, start - low, stop - start)
                    found.append(replace(block, box=Box(lo, hi), view=part))
        return found


Form: TypeAlias = FlatRange | Section


def whole_shape(tensor: torch.Tensor, form: Form | None) -> tuple[int, ...]:
    """The shape of the whole tensor that ``tensor`` is a part of."""
    return tuple(tensor.shape) if form is None else form.shape


def held_blocks(tensor: torch.Tensor, form: Form | None, *, name: str) -> list[LocalBlock]:
    """The blocks of the whole tensor ``name`` that ``tensor`` holds on this rank."""
    return blocks_of(tensor, name=name) if form is None else form.blocks(tensor, name=name)


def runs_of(sizes: Sequence[int], repeat: int) -> list[tuple[tuple[int, int, int], ...]]:
    """For parts of ``sizes`` that are fused in ``repeat`` turns: ``(start in the fused, start in the part, length)``.

    >>> runs_of([4, 2], 2)
    [((0, 0, 2), (3, 2, 2)), ((2, 0, 1), (5, 1, 1))]
    """
    stride = sum(sizes) // repeat
    found: list[tuple[tuple[int, int, int], ...]] = []
    before = 0
    for size in sizes:
        unit = size // repeat
        found.append(tuple((turn * stride + before, turn * unit, unit) for turn in range(repeat)))
        before += unit
    return found


def _with(numbers: tuple[int, ...], dim: int, value: int) -> tuple[int, ...]:
    return (*numbers[:dim], value, *numbers[dim + 1 :])
