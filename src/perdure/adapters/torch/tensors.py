"""Where the bytes of a torch tensor lie, and which block of the whole tensor they are.

A `DTensor` is cut by its placements; how is found by cutting index ranges with the placements themselves, so uneven,
empty and strided (FSDP on top of TP) shards are exact by construction. Any other tensor is whole on this rank.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from perdure.errors import CallError, StateMismatch
from perdure.layout import Box
from perdure.state.items import Held, Memory

__all__ = [
    "LocalBlock",
    "as_integers",
    "blocks_of",
    "dtype_name",
    "held_now",
    "torch_dtype",
    "without_bytes",
    "write_into",
]


# A closed list: looking a name up in torch itself may import modules.
_DTYPES = {str(each).removeprefix("torch."): each for each in vars(torch).values() if isinstance(each, torch.dtype)}


_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, slots=True)
class LocalBlock:
    """``box`` of the whole tensor lies in ``view``, a view of the live tensor (not always contiguous)."""

    box: Box
    view: torch.Tensor


def dtype_name(dtype: torch.dtype) -> str:
    """The dtype's name without ``torch.``.

    >>> dtype_name(torch.bfloat16)
    'bfloat16'
    """
    return str(dtype).removeprefix("torch.")


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype called ``name``; `CallError` if this torch has none."""
    found = _DTYPES.get(name)
    if found is None:
        raise CallError(f"this torch has no dtype {name!r}", dtype=name)
    return found


def without_bytes(local: torch.Tensor) -> str | None:
    """Why a tensor of this rank has no plain bytes; None if it has."""
    if local.is_nested or local.layout is not torch.strided or local.is_quantized:
        form = "nested" if local.is_nested else "quantized" if local.is_quantized else str(local.layout)
        return f"is {form}; only dense tensors can be saved"
    wrapper: bool = is_traceable_wrapper_subclass(local)
    if wrapper:
        return f"is a {type(local).__name__}, whose bytes only its own class knows; save the tensors that it is made of"
    if local.device.type == "meta":
        return "is on the meta device and has no bytes; materialise it first"
    return None


def blocks_of(tensor: torch.Tensor, *, name: str) -> list[LocalBlock]:
    """The blocks of ``tensor`` that this rank holds, as views of its live memory.

    Raises `CallError` naming the tensor for layouts without plain bytes: sparse, quantized, meta, partial sums.
    """
    with torch.no_grad():
        local = tensor.to_local() if isinstance(tensor, DTensor) else tensor.detach()
        why = without_bytes(local)
        if why is not None:
            raise CallError(f"{name} {why}", tensor=name)
        if not isinstance(tensor, DTensor):
            return [LocalBlock(Box((0,) * local.ndim, tuple(local.shape)), local)]
        runs = _runs_of(tensor, name)
        if any(not of_dim for of_dim in runs):
            return []
        blocks = []
        for choice in itertools.product(*runs):
            view = local
            for dim, (_, at, length) in enumerate(choice):
                if length != view.shape[dim]:
                    view = view.narrow(dim, at, length)
            lo = tuple(start for start, _, _ in choice)
            hi = tuple(start + length for start, _, length in choice)
            blocks.append(LocalBlock(Box(lo, hi), view))
        return blocks


def held_now(block: LocalBlock) -> tuple[Held, bool]:
    """The block with the address of its bytes, and whether they are the live ones (else a packed host copy)."""
    view = block.view
    live = view.is_contiguous() and view.device.type == "cpu" and not view.is_conj() and not view.is_neg()
    if view._is_zerotensor():  # all zeros, and in no memory at all
        view, live = view.clone(), False
    if not live:
        view = as_integers(view.resolve_conj().resolve_neg()).to("cpu").contiguous().view(view.dtype)
    nbytes = view.numel() * view.element_size()
    return Held(block.box, Memory(view.data_ptr() if nbytes else 0, nbytes, view)), live


def write_into(view: torch.Tensor, packed: torch.Tensor, *, name: str) -> None:
    """Copy ``packed`` into the live ``view``, bit for bit.

    Elements of an expanded tensor lie in the same place: raises `StateMismatch` if they are not to be the same.
    """
    for dim, (extent, stride) in enumerate(zip(view.shape, view.stride(), strict=True)):
        if extent > 1 and stride == 0:
            one = packed.narrow(dim, 0, 1)
            if not torch.equal(as_integers(packed), as_integers(one.expand_as(packed))):
                raise StateMismatch(
                    f"{name} is expanded along dim {dim} here but was saved with all values", shape=[name]
                )
            view, packed = view.narrow(dim, 0, 1), one
    if view._is_zerotensor():
        if as_integers(packed).any():
            raise StateMismatch(f"{name} has no memory here (all zeros) but was saved with other values", shape=[name])
    elif view.is_conj() or view.is_neg():
        view.copy_(packed)
    else:
        as_integers(view).copy_(as_integers(packed))


def as_integers(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as integers: torch copies and compares those bit for bit, whatever the dtype."""
    kind = _INTEGERS.get(tensor.element_size())
    return tensor if kind is None else tensor.view(kind)


def _runs_of(tensor: DTensor, name: str) -> tuple[tuple[tuple[int, int, int], ...], ...]:
    mesh = tensor.device_mesh
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        return tuple(() for _ in tensor.shape) or ((),)
    cuts: list[tuple[object, int, int]] = []
    for axis, placement in enumerate(tensor.placements):
        if isinstance(placement, Replicate):
            continue
        if not hasattr(placement, "dim") or not hasattr(placement, "_split_tensor"):
            raise CallError(f"{name} is placed as {placement!r}, which holds no plain block of it", tensor=name)
        cuts.append((placement, mesh.size(axis), coordinate[axis]))
    return _runs(tuple(tensor.shape), tuple(cuts))


@functools.lru_cache(maxsize=4096)
def _runs(
    shape: tuple[int, ...], cuts: tuple[tuple[Shard, int, int], ...]
) -> tuple[tuple[tuple[int, int, int], ...], ...]:
    """For each dim the runs ``(global start, local start, length)`` that this rank holds."""
    runs = []
    for dim, extent in enumerate(shape):
        index = torch.arange(extent)
        for placement, parts, coordinate in cuts:
            if placement.dim % len(shape) == dim:
                index = _flat(placement)._split_tensor(index, parts, with_padding=False)[0][coordinate]
        runs.append(tuple(_consecutive(index.tolist())))
    return tuple(runs)


def _flat(placement: Shard) -> Shard:
    """The same cut, of a one-dimensional tensor."""
    factor = getattr(placement, "split_factor", None)
    return Shard(0) if factor is None else type(placement)(0, split_factor=factor)  # type: ignore[call-arg]


def _consecutive(index: Sequence[int]) -> list[tuple[int, int, int]]:
    runs: list[tuple[int, int, int]] = []
    for at, value in enumerate(index):
        if runs and runs[-1][0] + runs[-1][2] == value:
            start, local, length = runs[-1]
            runs[-1] = (start, local, length + 1)
        else:
            runs.append((value, at, 1))
    return runs
