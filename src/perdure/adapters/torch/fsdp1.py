"""The tensors of modules under torch's first FSDP (`FullyShardedDataParallel`), from its flat parameters.

Its state dicts gather whole parameters, or need their kind set on every module. What a rank holds is a shard of a flat
parameter and the ranges of the parameters in it, so that is read, without a word between ranks; it is the live memory
that the optimizer changes, with ``use_orig_params`` and without.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from perdure.adapters.torch.forms import FlatRange
from perdure.adapters.torch.views import Part

__all__ = ["Shard", "is_fsdp1", "plain_state", "shards"]


@dataclass(frozen=True, slots=True)
class Shard:
    """This rank's shard of one flat parameter, and for each parameter in it its name, form and what is tied to it.

    ``originals`` are the parameters that an optimizer has of it, in the same order; without ``use_orig_params`` it has
    the flat parameter alone, ``flat``.
    """

    flat: torch.Tensor
    local: torch.Tensor
    names: tuple[str, ...]
    forms: tuple[FlatRange, ...]
    aliases: tuple[tuple[str, ...], ...]
    originals: tuple[torch.Tensor, ...]
    others: tuple[torch.Tensor, ...]
    """the parameters that are tied to one of the originals"""

    def part(self, number: int, name: str) -> Part:
        """What the original parameter ``number`` is of the tensor ``name``, as an optimizer holds it."""
        form, original = self.forms[number], self.originals[number]
        if tuple(original.shape) == form.shape:
            return Part(name, scattered=True)
        return Part(name, FlatRange(form.shape, form.start, form.stop, 0), scattered=True)


def is_fsdp1(module: torch.nn.Module) -> bool:
    """Whether ``module`` or a module inside it is wrapped."""
    wrapper = _wrapper()
    return wrapper is not None and any(isinstance(each, wrapper) for each in module.modules())


def shards(module: torch.nn.Module) -> Iterator[Shard]:
    """The shards of all flat parameters of ``module``, with names as its own, wrappers in them."""
    wrapper: Any = _wrapper()
    for prefix, each in module.named_modules():
        handle = each._handle if isinstance(each, wrapper) else None
        if handle is None:
            continue
        flat: Any = handle.flat_param
        forms = []
        for shape, info in zip(flat._shapes, flat._shard_param_infos, strict=True):
            if info.in_shard:
                start = info.intra_param_start_idx
                forms.append(FlatRange(tuple(shape), start, start + info.numel_in_shard, info.offset_in_shard))
            else:
                forms.append(FlatRange(tuple(shape), 0, 0, 0))
        before = f"{prefix}." if prefix else ""
        tied: dict[str, list[str]] = {}
        for name, _, inside, first, _, first_inside in flat._shared_param_infos:
            tied.setdefault(_join(first_inside, first), []).append(before + _join(inside, name))
        yield Shard(
            flat,
            getattr(flat, "_local_shard", flat.data),  # set at the first forward; until then the data is the shard
            tuple(before + name for name in flat._fqns),
            tuple(forms),
            tuple(tuple(tied.get(name, ())) for name in flat._fqns),
            tuple(flat._params or ()),
            tuple(flat._shared_params or ()),
        )


def plain_state(module: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    """What ``module`` has beside flat parameters: as `state_dict` would name it, without asking FSDP for one."""
    of_shards = {id(each) for shard in shards(module) for each in (shard.flat, *shard.originals, *shard.others)}
    for prefix, each in module.named_modules(remove_duplicate=False):
        before = f"{prefix}." if prefix else ""
        for name, parameter in each._parameters.items():
            if parameter is not None and id(parameter) not in of_shards:
                yield before + name, parameter
        for name, buffer in each._buffers.items():
            if buffer is not None and name not in each._non_persistent_buffers_set:
                yield before + name, buffer
        if type(each).get_extra_state is not torch.nn.Module.get_extra_state:
            yield f"{before}_extra_state", each.get_extra_state()


def _join(inside: str, name: str) -> str:
    return f"{inside}.{name}" if inside else name


def _wrapper() -> type | None:
    """The class of the wrapper, if somebody has loaded it: else nothing can be wrapped."""
    found: type | None = getattr(sys.modules.get("torch.distributed.fsdp"), "FullyShardedDataParallel", None)
    return found
