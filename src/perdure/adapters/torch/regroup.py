"""Loaded tensors under other names: fused ones as their parts, and parts as one."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from perdure.adapters.torch.forms import Section
from perdure.adapters.torch.tensors import as_integers
from perdure.adapters.torch.views import Fuses, Splits, sections, unmet
from perdure.errors import CallError

__all__ = ["regroup"]


def regroup(tensors: Mapping[str, torch.Tensor], *, split: Splits, fuse: Fuses) -> dict[str, torch.Tensor]:
    """``tensors``, those of ``split`` in parts and those of ``fuse`` in one, bit for bit; the rest as they are.

    Parts that lie in one run are views of the fused tensor; all others are copies. Raises `CallError` for a key that
    says nothing of any of them.
    """
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    unused = unmet(shapes, split=split, fuse=fuse)
    if unused is not None:
        raise CallError(unused)
    found: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        parts = sections(name, shapes, split=split, fuse=fuse)
        if not parts:
            found[name] = tensor
        for part in parts:
            assert isinstance(part.form, Section)
            form = part.form
            if len(form.runs) == 1 and form.runs[0][1] == 0 and form.runs[0][2] == form.shape[form.dim]:
                start, _, length = form.runs[0]
                found[part.name] = tensor.narrow(form.dim, start, length)
                continue
            if part.name not in found:
                found[part.name] = torch.empty(form.shape, dtype=tensor.dtype)
            for start, at, length in form.runs:
                there = found[part.name].narrow(form.dim, at, length)
                as_integers(there).copy_(as_integers(tensor.narrow(form.dim, start, length)))
    return found
