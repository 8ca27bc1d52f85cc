"""Capture and refill an optimizer by the names of its parameters, whatever its state is called.

Nothing here knows Adam: every tensor in ``optimizer.state`` is saved under ``key.state.<parameter>.<entry>``, every
other entry and all options of all groups (empty groups too) as values. State that an optimizer makes on its first
step is made here on restore, shaped and placed like its parameter, without stepping.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from perdure.adapters.torch.nested import take_tensors_out
from perdure.adapters.torch.target import Place
from perdure.adapters.torch.tensors import torch_dtype
from perdure.errors import CallError, StateMismatch
from perdure.state.index import Catalog, CatalogTensor
from perdure.state.values import decode_value

__all__ = ["OptimizerState", "capture_optimizer", "prepare_optimizer"]

_COUNTS = ("step", "mu_product")  # numbers about the steps, which are no parameter's even where that has no dims


@dataclass(frozen=True, slots=True)
class OptimizerState:
    """Live tensors by name, those among the options of its groups apart, and everything else as one value."""

    tensors: dict[str, torch.Tensor]
    options: dict[str, torch.Tensor]
    value: dict[str, Any]


def capture_optimizer(key: str, optimizer: torch.optim.Optimizer, names: dict[int, str]) -> OptimizerState:
    """Describe ``optimizer`` as it is now. ``names``: ``id`` of a parameter to its name."""
    tensors: dict[str, torch.Tensor] = {}
    options: dict[str, torch.Tensor] = {}
    state: dict[str, dict[str, Any]] = {}
    groups: list[dict[str, Any]] = []
    for i, group in enumerate(optimizer.param_groups):
        mine: dict[str, Any] = {}
        groups.append(mine)
        for option, value in group.items():
            if option == "params":
                mine[option] = [_name(key, parameter, names, i, j) for j, parameter in enumerate(value)]
            elif isinstance(value, torch.Tensor):
                options[f"{key}.param_groups.{i}.{option}"] = value
            else:
                mine[option] = value
    for parameter, name in _parameters(key, optimizer, names):
        for entry, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, torch.Tensor):
                tensors[f"{key}.state.{name}.{entry}"] = value
            else:
                state.setdefault(name, {})[entry] = value
    value, nested = take_tensors_out(
        f"{key}.nested", {"kind": _kind(optimizer), "param_groups": groups, "state": state}
    )
    return OptimizerState(tensors, options | nested, value)


def prepare_optimizer(
    place: Place, key: str, optimizer: torch.optim.Optimizer, names: dict[int, str], catalog: Catalog
) -> None:
    """Add the optimizer to a restore; raise `StateMismatch` where its groups or parameters are not the saved ones."""
    live = {name: parameter for parameter, name in _parameters(key, optimizer, names)}
    if key in catalog.values:  # before a byte is written
        _check_kind(key, optimizer, decode_value(catalog.values[key], key=key), names)
    step_on_device = {
        id(parameter): bool(group.get("capturable") or group.get("fused"))
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    prefix = f"{key}.state."
    new: dict[str, dict[str, torch.Tensor]] = {name: {} for name in live}
    for saved in catalog.tensors.values():
        if not saved.name.startswith(prefix):
            continue
        name, entry = _split(saved.name.removeprefix(prefix), live)
        if name is None:
            continue  # an unexpected key, reported with all others
        parameter = live[name]
        tensor = optimizer.state.get(parameter, {}).get(entry)
        if not isinstance(tensor, torch.Tensor):
            tensor = _fresh(entry, saved, parameter, on_device=step_on_device[id(parameter)])
        new[name][entry] = tensor
        place.tensor(saved.name, tensor)
    for i, group in enumerate(optimizer.param_groups):
        for option, value in group.items():
            if option != "params" and isinstance(value, torch.Tensor):
                place.tensor(f"{key}.param_groups.{i}.{option}", value)

    def give(value: dict[str, Any]) -> None:
        for group, saved_group in zip(optimizer.param_groups, value["param_groups"], strict=True):
            for option, saved_value in saved_group.items():
                if option != "params":
                    group[option] = saved_value
        for name, parameter in live.items():
            entries: dict[str, Any] = {**new[name], **value["state"].get(name, {})}
            if entries:
                optimizer.state[parameter] = entries
            else:
                optimizer.state.pop(parameter, None)  # absent state stays absent

    place.state(key, give)


def _kind(optimizer: torch.optim.Optimizer) -> str:
    return type(optimizer).__name__


def _check_kind(key: str, optimizer: torch.optim.Optimizer, value: dict[str, Any], names: dict[int, str]) -> None:
    if value["kind"] != _kind(optimizer):
        raise StateMismatch(
            f"{key} is {_kind(optimizer)} here, {value['kind']} in the checkpoint; use the same optimizer, or restore "
            "the model alone",
            unexpected=[key],
        )
    _check_groups(key, optimizer, names, value["param_groups"])


def _check_groups(
    key: str, optimizer: torch.optim.Optimizer, names: dict[int, str], saved: list[dict[str, Any]]
) -> None:
    live = [
        [_name(key, p, names, i, j) for j, p in enumerate(g["params"])] for i, g in enumerate(optimizer.param_groups)
    ]
    want = [group["params"] for group in saved]
    if live != want:
        missing = sorted({n for g in live for n in g} - {n for g in want for n in g})
        unexpected = sorted({n for g in want for n in g} - {n for g in live for n in g})
        raise StateMismatch(
            f"the parameter groups of {key} are not the saved ones: {len(live)} groups against {len(want)}"
            + (f"; not saved: {', '.join(missing[:5])}" if missing else "")
            + (f"; saved but not here: {', '.join(unexpected[:5])}" if unexpected else ""),
            missing=missing,
            unexpected=unexpected,
        )


def _parameters(
    key: str, optimizer: torch.optim.Optimizer, names: dict[int, str]
) -> Iterator[tuple[torch.Tensor, str]]:
    for i, group in enumerate(optimizer.param_groups):
        for j, parameter in enumerate(group["params"]):
            yield parameter, _name(key, parameter, names, i, j)


def _name(key: str, parameter: torch.Tensor, names: dict[int, str], group: int, at: int) -> str:
    found = names.get(id(parameter))
    if found is None:
        raise CallError(
            f"parameter {at} of group {group} of {key} is in no module and no tensor that is given, so it would not be "
            "saved; give what holds it too (attach: extra={...})",
            key=key,
        )
    return found


def _split(rest: str, live: dict[str, torch.Tensor]) -> tuple[str | None, str]:
    """Split ``<parameter>.<entry>`` at the longest parameter name there is."""
    at = rest.rfind(".")
    while at > 0:
        if rest[:at] in live:
            return rest[:at], rest[at + 1 :]
        at = rest.rfind(".", 0, at)
    return None, rest


def _fresh(entry: str, saved: CatalogTensor, parameter: torch.Tensor, *, on_device: bool) -> torch.Tensor:
    """A tensor for ``entry``, as the optimizer would make it; ``on_device`` where it counts steps on the device."""
    dtype = torch_dtype(saved.dtype)
    if saved.shape == tuple(parameter.shape) and entry not in _COUNTS:
        return torch.zeros_like(parameter, dtype=dtype, requires_grad=False)
    device = parameter.device if on_device or saved.shape else "cpu"
    return torch.zeros(saved.shape, dtype=dtype, device=device)
