"""The tensors of a module by canonical name, ties found by storage and not by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from perdure.adapters.torch.tensors import without_bytes
from perdure.adapters.torch.tree import leaves
from perdure.errors import CallError, StateMismatch
from perdure.layout import canonical_name

__all__ = ["ExtraState", "ModuleState", "NamedTensor", "module_state", "modules_of", "parameter_names"]

_EXTRA = "_extra_state"


@dataclass(frozen=True, slots=True)
class NamedTensor:
    """A live tensor under its first name; ``aliases`` are its other names in the same module."""

    name: str
    tensor: torch.Tensor
    aliases: tuple[str, ...]

    @property
    def is_buffer(self) -> bool:
        """Whether it is none of the module's parameters."""
        return not isinstance(self.tensor, torch.nn.Parameter)


@dataclass(frozen=True, slots=True)
class ExtraState:
    """What ``owner`` gives as its extra state; ``name`` ends in ``_extra_state``."""

    name: str
    value: Any
    owner: torch.nn.Module


@dataclass(frozen=True, slots=True)
class ModuleState:
    """What a module's ``state_dict`` names."""

    tensors: tuple[NamedTensor, ...]
    extra: tuple[ExtraState, ...]


def module_state(key: str, module: torch.nn.Module) -> ModuleState:
    """What ``module.state_dict()`` names, as live tensors, and its extra states.

    Raises `StateMismatch` for two tensors of one canonical name, `CallError` for an entry that is neither a tensor nor
    an extra state: nobody would know how to put it back.
    """
    groups: dict[Any, list[str]] = {}
    tensors: dict[Any, torch.Tensor] = {}
    extra: dict[str, Any] = {}
    seen: set[str] = set()
    for given, value in module.state_dict(keep_vars=True).items():
        name = f"{key}.{canonical_name(given)}"
        if name in seen:
            raise StateMismatch(f"two tensors of {key} have the name {name} without their wrappers", unexpected=[name])
        seen.add(name)
        if given.rpartition(".")[2] == _EXTRA:
            extra[name] = value
        elif isinstance(value, torch.Tensor):
            identity = _identity(value, name)
            groups.setdefault(identity, []).append(name)
            tensors.setdefault(identity, value)
        else:
            raise CallError(
                f"{name} is a {type(value).__name__} in the state_dict of a module; give what is no tensor by "
                "get_extra_state() and set_extra_state()",
                key=name,
            )
    found = tuple(NamedTensor(names[0], tensors[identity], tuple(names[1:])) for identity, names in groups.items())
    owners = _owners(key, module) if extra else {}
    return ModuleState(found, tuple(ExtraState(name, value, owners[name]) for name, value in extra.items()))


def modules_of(tree: Mapping[str, Any]) -> dict[str, ModuleState]:
    """The state of each module in ``tree``, by key.

    To be asked for before `parameter_names`: FSDP puts its shards back in their places when it is asked for its state.
    """
    return {key: module_state(key, value) for key, value in leaves(tree) if isinstance(value, torch.nn.Module)}


def parameter_names(tree: Mapping[str, Any]) -> dict[int, str]:
    """``id`` of each parameter in the modules of ``tree`` to its name; with the module's key only where needed.

    A tensor that stands in the tree by itself is called as it is saved. One in a list is not: it comes back as another.
    """
    found: dict[int, tuple[str, str]] = {}
    alone: dict[int, str] = {}
    for key, module in leaves(tree):
        if isinstance(module, torch.nn.Module):
            for name, parameter in module.named_parameters():
                found.setdefault(id(parameter), (key, canonical_name(name)))
        elif isinstance(module, torch.Tensor):
            alone[id(module)] = key
    times = Counter(name for _, name in found.values())
    return alone | {ident: f"{key}.{name}" if times[name] > 1 else name for ident, (key, name) in found.items()}


def _owners(key: str, module: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """Each submodule that has an extra state, by the canonical name of that state."""
    return {
        f"{key}.{canonical_name(f'{name}.{_EXTRA}' if name else _EXTRA)}": each
        for name, each in module.named_modules(remove_duplicate=False)
        if type(each).get_extra_state is not torch.nn.Module.get_extra_state
    }


def _identity(tensor: torch.Tensor, name: str) -> Any:
    """Equal for two names of the same elements in the same memory, and for nothing else."""
    local = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
    if without_bytes(local) is not None or local.numel() == 0:
        return name if not isinstance(tensor, torch.nn.Parameter) else id(tensor)
    return (local.device, local.data_ptr(), tuple(local.shape), local.stride(), local.dtype, tuple(tensor.shape))
