"""The tensors of a module by canonical name, ties found by storage and not by name.

A module may stand in a tree by itself, or in a `View` that says what its tensors are in a checkpoint.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from perdure.adapters.torch import fsdp1
from perdure.adapters.torch.flat_slices import flat_slices
from perdure.adapters.torch.forms import Form
from perdure.adapters.torch.tensors import without_bytes
from perdure.adapters.torch.tree import leaves
from perdure.adapters.torch.views import Part, View
from perdure.errors import CallError, StateMismatch
from perdure.layout import canonical_name
from perdure.state.scopes import Among

__all__ = ["ExtraState", "ModuleState", "NamedTensor", "module_state", "modules_of", "parameter_parts", "view_of"]

_EXTRA = "_extra_state"


@dataclass(frozen=True, slots=True)
class NamedTensor:
    """A live tensor under its first name; ``aliases`` are its other names in the same module.

    ``form`` says which part of the tensor of that name it is, None that it is that tensor. Several may have one name,
    and are then parts of it. ``owner`` is the ``id`` of the parameter that an optimizer has of it.
    """

    name: str
    tensor: torch.Tensor
    aliases: tuple[str, ...] = ()
    form: Form | None = None
    among: Among | None = None
    owner: int = 0
    is_buffer: bool = False
    """whether it is none of the module's parameters"""


@dataclass(frozen=True, slots=True)
class ExtraState:
    """What ``owner`` gives as its extra state; ``name`` ends in ``_extra_state``."""

    name: str
    value: Any
    owner: torch.nn.Module
    among: Among | None = None


@dataclass(frozen=True, slots=True)
class ModuleState:
    """What a module's ``state_dict`` names."""

    tensors: tuple[NamedTensor, ...]
    extra: tuple[ExtraState, ...]


def view_of(value: Any) -> View | None:
    """``value`` as a view, if it is one or a module."""
    if isinstance(value, View):
        return value
    return View(value) if isinstance(value, torch.nn.Module) else None


def module_state(key: str, of: torch.nn.Module | View) -> ModuleState:
    """What ``module.state_dict()`` names, as live tensors, and its extra states.

    Raises `StateMismatch` for two tensors of one canonical name, `CallError` for an entry that is neither a tensor nor
    an extra state: nobody would know how to put it back.
    """
    view = of if isinstance(of, View) else View(of)
    module = view.module
    groups: dict[Any, list[str]] = {}
    tensors: dict[Any, torch.Tensor] = {}
    extra: dict[str, Any] = {}
    seen: set[str] = set()
    wrapped = fsdp1.is_fsdp1(module)
    for given, value in fsdp1.plain_state(module) if wrapped else module.state_dict(keep_vars=True).items():
        name = canonical_name(given)
        _once(key, name, seen)
        if given.rpartition(".")[2] == _EXTRA:
            extra[name] = value
        elif isinstance(value, torch.Tensor):
            identity = _identity(value, name)
            groups.setdefault(identity, []).append(name)
            tensors.setdefault(identity, value)
        else:
            raise CallError(
                f"{key}.{name} is a {type(value).__name__} in the state_dict of a module; give what is no tensor by "
                "get_extra_state() and set_extra_state()",
                key=f"{key}.{name}",
            )
    shapes = {name: tuple(tensors[identity].shape) for identity, names in groups.items() for name in names}
    parts = view.parts(key, shapes)
    found: list[NamedTensor] = []
    for identity, names in groups.items():
        value = tensors[identity]
        for at, part in enumerate(parts[names[0]]):
            others = (parts[other][at] for other in names[1:])
            found.append(_named(key, part, others, value, buffer=not isinstance(value, torch.nn.Parameter)))
    if wrapped:
        found += _of_shards(key, view, seen)
    owners = _owners(module) if extra else {}
    extras = []
    for name, value in extra.items():
        part = view.part(key, name)
        extras.append(ExtraState(f"{key}.{part.name}", value, owners[name], part.among))
    return ModuleState(tuple(found), tuple(extras))


def _of_shards(key: str, view: View, seen: set[str]) -> list[NamedTensor]:
    """The ranges of parameters in the flat shards of a wrapped module."""
    found = []
    for shard in fsdp1.shards(view.module):
        for number, given in enumerate(shard.names):
            names = [canonical_name(each) for each in (given, *shard.aliases[number])]
            for name in names:
                _once(key, name, seen)
            parts = _renamed(key, view, names)
            owner = id(shard.originals[number] if shard.originals else shard.flat)
            part = replace(parts[0], form=shard.forms[number])
            found.append(_named(key, part, parts[1:], shard.local, owner=owner))
    return found


def _renamed(key: str, view: View, names: list[str]) -> list[Part]:
    if view.changes_shapes:
        raise CallError(
            f"{key} is wrapped in FullyShardedDataParallel, whose flat shards cannot be split or fused by a view; use "
            "fully_shard, or restore without split= and fuse=",
            key=key,
        )
    return [view.part(key, name) for name in names]


def _named(
    key: str,
    part: Part,
    others: Iterable[Part],
    tensor: torch.Tensor,
    *,
    owner: int | None = None,
    buffer: bool = False,
) -> NamedTensor:
    aliases = dict.fromkeys(part.aliases)
    for other in others:
        aliases |= dict.fromkeys((other.name, *other.aliases))
    aliases.pop(part.name, None)
    return NamedTensor(
        f"{key}.{part.name}",
        tensor,
        tuple(f"{key}.{alias}" for alias in aliases) if aliases else (),
        part.form,
        part.among,
        id(tensor) if owner is None else owner,
        buffer,
    )


def _once(key: str, name: str, seen: set[str]) -> None:
    if name in seen:
        name = f"{key}.{name}"
        raise StateMismatch(f"two tensors of {key} have the name {name} without their wrappers", unexpected=[name])
    seen.add(name)


def modules_of(tree: Mapping[str, Any]) -> dict[str, ModuleState]:
    """The state of each module in ``tree``, and of what holds tensors as a module would, by key.

    To be asked for before `parameter_parts`: FSDP puts its shards back in their places when it is asked for its state.
    """
    found = {}
    for key, value in leaves(tree):
        view = view_of(value)
        if view is not None:
            found[key] = module_state(key, view)
        elif flat_slices(value):
            named = [_named(key, part, (), each.tensor) for each in flat_slices(value) for part in each.parts()]
            found[key] = ModuleState(tuple(named), ())
    return found


def parameter_parts(tree: Mapping[str, Any]) -> dict[int, tuple[Part, ...]]:
    """``id`` of each parameter in the modules of ``tree`` to what it is in a checkpoint; with the module's key only
    where needed.

    A tensor that stands in the tree by itself is called as it is saved. One in a list is not: it comes back as another.
    """
    found: dict[int, tuple[str, tuple[Part, ...]]] = {}
    alone: dict[int, tuple[Part, ...]] = {}
    for key, value in leaves(tree):
        view = view_of(value)
        if view is not None:
            for ident, parts in _parameters(key, view).items():
                found.setdefault(ident, (key, parts))
        elif flat_slices(value):
            for each in flat_slices(value):
                found.setdefault(id(each.tensor), (key, each.parts()))
        elif isinstance(value, torch.Tensor):
            alone[id(value)] = (Part(key),)
    if len({key for key, _ in found.values()}) < 2:  # nothing to tell apart
        return alone | {ident: parts for ident, (_, parts) in found.items()}
    times = Counter(name for _, name in {(key, part.name) for key, parts in found.values() for part in parts})
    return alone | {
        ident: tuple(replace(part, name=f"{key}.{part.name}") if times[part.name] > 1 else part for part in parts)
        for ident, (key, parts) in found.items()
    }


def _parameters(key: str, view: View) -> dict[int, tuple[Part, ...]]:
    found: dict[int, tuple[Part, ...]] = {}
    if fsdp1.is_fsdp1(view.module):
        for shard in fsdp1.shards(view.module):
            names = [_renamed(key, view, [canonical_name(name)])[0] for name in shard.names]
            if not shard.originals:
                forms = zip(names, shard.forms, strict=True)
                found[id(shard.flat)] = tuple(replace(part, form=form, scattered=True) for part, form in forms)
            for number, original in enumerate(shard.originals):
                of = shard.part(number, names[number].name)
                found[id(original)] = (replace(of, among=names[number].among),)
    live = {canonical_name(name): each for name, each in view.module.named_parameters() if id(each) not in found}
    parts = view.parts(key, {name: tuple(each.shape) for name, each in live.items()})
    for name, each in live.items():
        found.setdefault(id(each), parts[name])
    return found


def _owners(module: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """Each submodule that has an extra state, by the canonical name of that state."""
    return {
        canonical_name(f"{name}.{_EXTRA}" if name else _EXTRA): each
        for name, each in module.named_modules(remove_duplicate=False)
        if type(each).get_extra_state is not torch.nn.Module.get_extra_state
    }


def _identity(tensor: torch.Tensor, name: str) -> Any:
    """Equal for two names of the same elements in the same memory, and for nothing else."""
    local = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
    if without_bytes(local) is not None or local.numel() == 0:
        return name if not isinstance(tensor, torch.nn.Parameter) else id(tensor)
    return (local.device, local.data_ptr(), tuple(local.shape), local.stride(), local.dtype, tuple(tensor.shape))
