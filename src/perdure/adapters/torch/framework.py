"""Describe torch's live objects to the checkpoint system, and put saved state back into them, in place.

A tree is what the user gives to ``save`` and ``restore``: a dict of modules, optimizers, loaders, schedulers, anything
with ``state_dict`` and ``load_state_dict``, tensors, plain values, nested dicts of these, each maybe in `RankLocal`.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader

from perdure.adapters.torch.modules import module_tensors, parameter_names
from perdure.adapters.torch.nested import take_tensors_out
from perdure.adapters.torch.optimizers import capture_optimizer, prepare_optimizer
from perdure.adapters.torch.target import Target, TensorSink
from perdure.errors import CallError, StateMismatch
from perdure.state.index import Catalog
from perdure.state.items import Capture, Held, TensorItem, ValueItem
from perdure.state.scopes import OnResize, RankLocal
from perdure.state.values import encode_value

__all__ = ["TorchFramework"]


class TorchFramework:
    """The `perdure.checkpoint.framework.Framework` of torch; one a checkpointer.

    Describing a tensor costs more than copying a small one, so descriptions are kept as long as the tensor is the same
    object with the same memory; while all are, ``capture`` returns the very same tuple of them.
    """

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        self._last: tuple[TensorItem, ...] = ()

    def capture(self, tree: Mapping[str, Any]) -> Capture:
        """Describe all of ``tree`` as it is now; called on the training thread."""
        sink = _Collect(_owned(tree), parameter_names(tree), self._known)
        for key, value in tree.items():
            sink.add(key, value)
        self._known = sink.now
        if len(sink.tensors) != len(self._last) or any(map(operator.is_not, sink.tensors, self._last)):
            self._last = tuple(sink.tensors)
        return Capture(self._last, tuple(sink.values))

    def prepare(self, tree: Mapping[str, Any], catalog: Catalog) -> Target:
        """Say which live tensors the saved state goes into, making those that do not exist yet (optimizer state)."""
        target = Target()
        names = parameter_names(tree)
        for key, value in tree.items():
            _prepare(target, key, value, catalog, names, tree)
        return target

    def fence(self, tree: Mapping[str, Any], wait: Callable[[], None]) -> None:
        """Call ``wait`` before any optimizer of ``tree`` steps; once an optimizer."""
        for value in tree.values():
            optimizer = value.value if isinstance(value, RankLocal) else value
            if isinstance(optimizer, torch.optim.Optimizer) and not hasattr(optimizer, "_perdure_fence"):
                handle = optimizer.register_step_pre_hook(lambda *_: wait())
                optimizer._perdure_fence = handle  # type: ignore[attr-defined]


def _owned(tree: Mapping[str, Any]) -> set[int]:
    """Ids of the parameters that an optimizer in ``tree`` owns: nothing else changes them."""
    optimizers = (v.value if isinstance(v, RankLocal) else v for v in tree.values())
    return {
        id(parameter)
        for optimizer in optimizers
        if isinstance(optimizer, torch.optim.Optimizer)
        for group in optimizer.param_groups
        for parameter in group["params"]
    }


@dataclass(frozen=True, slots=True)
class _Known:
    """A description that holds as long as the tensor is the same object with the same memory and form."""

    tensor: torch.Tensor
    facts: tuple[Any, ...]
    item: TensorItem


def _facts(tensor: torch.Tensor, *more: Any) -> tuple[Any, ...]:
    local = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
    return (local.data_ptr(), local.shape, local.stride(), local.dtype, tensor.shape, *more)


class _Collect:
    """Gathers items; one pass over the tree."""

    def __init__(self, owned: set[int], names: dict[int, str], known: dict[str, _Known]) -> None:
        self.owned = owned
        self.names = names
        self.known = known
        self.now: dict[str, _Known] = {}
        self.tensors: list[TensorItem] = []
        self.values: list[ValueItem] = []

    def add(self, key: str, value: Any, *, local: bool = False, on_resize: OnResize = "modulo") -> None:
        if isinstance(value, RankLocal):
            self.add(key, value.value, local=True, on_resize=value.on_resize)
        elif isinstance(value, torch.nn.Module):
            groups, extra = module_tensors(key, value)
            for group in groups:
                self.tensor(group.name, group.tensor, group.aliases, local, on_resize)
            for name, state in extra.items():
                self.nested(name, state, local, on_resize)
        elif isinstance(value, torch.optim.Optimizer):
            state = capture_optimizer(key, value, self.names)
            for name, tensor in state.tensors.items():
                self.tensor(name, tensor, (), local, on_resize, owned=True)
            self.value(key, state.value, local, on_resize)
        elif isinstance(value, torch.Tensor):
            self.tensor(key, value, (), local, on_resize)
        elif isinstance(value, dict):
            for name, each in value.items():
                self.add(f"{key}.{_name(name, key)}", each, local=local, on_resize=on_resize)
        elif _stateful(value):
            self.nested(key, value.state_dict(), local, on_resize)
        elif isinstance(value, DataLoader):
            raise CallError(
                f"{key} is a plain DataLoader, whose position nobody knows; let perdure.attach make it resumable, or "
                "give one with state_dict() and load_state_dict()",
                key=key,
            )
        else:
            self.nested(key, value, local, on_resize)

    def nested(self, key: str, state: Any, local: bool, on_resize: OnResize) -> None:
        skeleton, tensors = take_tensors_out(key, state)
        for name, tensor in tensors.items():
            self.tensor(name, tensor, (), local, on_resize)
        self.value(key, skeleton, local, on_resize)

    def value(self, key: str, value: Any, local: bool, on_resize: OnResize) -> None:
        self.values.append(ValueItem(key, encode_value(value, key=key), local, on_resize))

    def tensor(
        self,
        name: str,
        tensor: torch.Tensor,
        aliases: tuple[str, ...],
        local: bool,
        on_resize: OnResize,
        owned: bool = False,
    ) -> None:
        mine = owned or id(tensor) in self.owned
        known = self.known.get(name)
        dense = tensor.layout is torch.strided and not tensor.is_quantized and tensor.device.type == "cpu"
        facts = _facts(tensor, aliases, local, on_resize, mine) if dense else ()
        if known is not None and known.tensor is tensor and known.facts == facts:
            self.now[name] = known
            self.tensors.append(known.item)
            return
        sink = TensorSink.of(name, tensor)
        live = all(part.live for part in sink.parts)
        held = tuple(Held(part.box, part.memory) for part in sink.parts)
        item = TensorItem(name, sink.dtype, sink.shape, held, aliases, local, mine and live, on_resize)
        self.tensors.append(item)
        if live and dense:
            self.now[name] = _Known(tensor, facts, item)


def _prepare(
    target: Target, key: str, value: Any, catalog: Catalog, names: dict[int, str], tree: Mapping[str, Any]
) -> None:
    local, on_resize = False, None
    if isinstance(value, RankLocal):
        local, on_resize, value = True, value.on_resize, value.value
    place = target.within(local=local, on_resize=on_resize or "modulo")
    if isinstance(value, torch.nn.Module):
        groups, extra = module_tensors(key, value)
        for group in groups:
            place.tensor(group.name, group.tensor, aliases=group.aliases)
        for name in extra:
            module = value.get_submodule(name.removeprefix(f"{key}.").rpartition(".")[0])
            place.state(name, module.set_extra_state)
    elif isinstance(value, torch.optim.Optimizer):
        prepare_optimizer(place, key, value, names, catalog)
    elif isinstance(value, torch.Tensor):
        place.tensor(key, value)
    elif isinstance(value, dict):
        for name, each in value.items():
            inner = f"{key}.{_name(name, key)}"
            if _leaf(each):
                place.state(inner, functools.partial(operator.setitem, value, name))
            else:
                wrapped = RankLocal(each, on_resize or "modulo") if local and not isinstance(each, RankLocal) else each
                _prepare(target, inner, wrapped, catalog, names, tree)
    elif _stateful(value):
        place.state(key, value.load_state_dict)
    elif isinstance(value, DataLoader):
        raise CallError(f"{key} is a plain DataLoader; let perdure.attach make it resumable", key=key)
    elif isinstance(tree, dict) and key in tree and not local:
        place.state(key, functools.partial(operator.setitem, tree, key))
    else:
        raise StateMismatch(
            f"{key} cannot be restored in place: give a dict that holds it, or an object with load_state_dict()",
            unexpected=[key],
        )


_PLACES = (RankLocal, torch.nn.Module, torch.optim.Optimizer, torch.Tensor, dict, DataLoader)


def _leaf(value: Any) -> bool:
    return not isinstance(value, _PLACES) and not _stateful(value)


def _stateful(value: Any) -> bool:
    return callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))


def _name(name: Any, key: str) -> str:
    if not isinstance(name, str):
        raise CallError(f"the keys of {key} must be strings to name tensors; {name!r} is none", key=key)
    return name
