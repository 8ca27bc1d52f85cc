"""The tensors of a module by canonical name, ties found by storage and not by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from perdure.errors import StateMismatch
from perdure.layout import canonical_name
from perdure.state.scopes import RankLocal

__all__ = ["NamedTensor", "module_tensors", "parameter_names"]


@dataclass(frozen=True, slots=True)
class NamedTensor:
    """A live tensor under its first name; ``aliases`` are its other names in the same module."""

    name: str
    tensor: torch.Tensor
    aliases: tuple[str, ...]


def module_tensors(key: str, module: torch.nn.Module) -> tuple[list[NamedTensor], dict[str, Any]]:
    """What ``module.state_dict()`` names, as live tensors, and its extra states (by name)."""
    groups: dict[Any, list[str]] = {}
    tensors: dict[Any, torch.Tensor] = {}
    extra: dict[str, Any] = {}
    seen: set[str] = set()
    for given, value in module.state_dict(keep_vars=True).items():
        name = f"{key}.{canonical_name(given)}"
        if name in seen:
            raise StateMismatch(
                f"two tensors of {key} have the name {name} once wrappers are left out", unexpected=[name]
            )
        seen.add(name)
        if not isinstance(value, torch.Tensor):
            extra[name] = value
            continue
        identity = _identity(value, name)
        groups.setdefault(identity, []).append(name)
        tensors.setdefault(identity, value)
    found = [NamedTensor(names[0], tensors[identity], tuple(names[1:])) for identity, names in groups.items()]
    return found, extra


def parameter_names(tree: Mapping[str, Any]) -> dict[int, str]:
    """``id`` of each parameter in the modules of ``tree`` to its name; with the module's key only where needed."""
    found: dict[int, tuple[str, str]] = {}
    for key, value in tree.items():
        module = value.value if isinstance(value, RankLocal) else value
        if isinstance(module, torch.nn.Module):
            for name, parameter in module.named_parameters():
                found.setdefault(id(parameter), (key, canonical_name(name)))
    short = [name for _, name in found.values()]
    clash = {name for name in short if short.count(name) > 1} if len(set(short)) < len(short) else set()
    return {ident: f"{key}.{name}" if name in clash else name for ident, (key, name) in found.items()}


def _identity(tensor: torch.Tensor, name: str) -> Any:
    """Equal for two names of the same elements in the same memory, and for nothing else."""
    local = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
    if local.layout is not torch.strided or local.is_quantized or local.device.type == "meta" or local.numel() == 0:
        return name if not isinstance(tensor, torch.nn.Parameter) else id(tensor)
    return (local.device, local.data_ptr(), tuple(local.shape), local.stride(), local.dtype, tuple(tensor.shape))
