"""Capture and refill an optimizer by the names of its parameters, whatever its state is called.

Nothing here knows Adam: every tensor in ``optimizer.state`` is saved under ``key.state.<parameter>.<entry>``, every
other entry and all options of all groups (empty groups too) as values. State that an optimizer makes on its first
step is made here on restore, shaped and placed like its parameter, without stepping.

Where ranks have optimizers over different parameters, or a parameter is a part of several saved tensors, there are no
groups that all ranks share: `perdure.adapters.torch.scattered` takes it parameter by parameter.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from perdure.adapters.torch.nested import take_tensors_out
from perdure.adapters.torch.optimizer_entries import (
    Entry,
    OptimizerState,
    Parts,
    fresh,
    kind_of,
    not_given,
    split_name,
)
from perdure.adapters.torch.scattered import (
    BY_PARAMETER,
    Refill,
    by_parameter,
    capture_by_parameter,
)
from perdure.adapters.torch.target import Place
from perdure.errors import StateMismatch
from perdure.state.index import Catalog
from perdure.state.values import decode_value

__all__ = ["OptimizerState", "capture_optimizer", "prepare_optimizer"]


def capture_optimizer(key: str, optimizer: torch.optim.Optimizer, parts: Parts) -> OptimizerState:
    """Describe ``optimizer`` as it is now. ``parts``: ``id`` of a parameter to what it is in a checkpoint."""
    _check_given(key, optimizer, parts)
    if by_parameter(optimizer, parts):
        return capture_by_parameter(key, optimizer, parts)
    tensors: list[Entry] = []
    options: list[Entry] = []
    state: dict[str, dict[str, Any]] = {}
    groups: list[dict[str, Any]] = []
    for i, group in enumerate(optimizer.param_groups):
        mine: dict[str, Any] = {}
        groups.append(mine)
        for option, value in group.items():
            if option == "params":
                mine[option] = [parts[id(parameter)][0].name for parameter in value]
            elif isinstance(value, torch.Tensor):
                options.append((f"{key}.param_groups.{i}.{option}", value, None, None))
            else:
                mine[option] = value
    for parameter, name in _parameters(optimizer, parts):
        for entry, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, torch.Tensor):
                tensors.append((f"{key}.state.{name}.{entry}", value, None, None))
            else:
                state.setdefault(name, {})[entry] = value
    value, nested = take_tensors_out(
        f"{key}.nested", {"kind": kind_of(optimizer), "param_groups": groups, "state": state}
    )
    options += [(name, tensor, None, None) for name, tensor in nested.items()]
    return OptimizerState(tensors, options, [(key, value, None)])


def prepare_optimizer(place: Place, key: str, optimizer: torch.optim.Optimizer, parts: Parts, catalog: Catalog) -> None:
    """Add the optimizer to a restore; raise `StateMismatch` where its groups or parameters are not the saved ones."""
    _check_given(key, optimizer, parts)
    saved_value = decode_value(catalog.values[key], key=key) if key in catalog.values else None
    if saved_value is not None:  # before a byte is written
        _check_kind(key, optimizer, saved_value)
    if by_parameter(optimizer, parts) or (saved_value is not None and BY_PARAMETER in saved_value):
        Refill(place, key, optimizer, parts, catalog, saved_value).prepare()
        return
    live = {name: parameter for parameter, name in _parameters(optimizer, parts)}
    if saved_value is not None:
        _check_groups(key, optimizer, parts, saved_value["param_groups"])
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
        name, entry = split_name(saved.name.removeprefix(prefix), live)
        if name is None:
            continue  # an unexpected key, reported with all others
        parameter = live[name]
        tensor = optimizer.state.get(parameter, {}).get(entry)
        if not isinstance(tensor, torch.Tensor):
            tensor = fresh(entry, saved, parameter, None, on_device=step_on_device[id(parameter)])
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


def _check_kind(key: str, optimizer: torch.optim.Optimizer, value: dict[str, Any]) -> None:
    if value["kind"] != kind_of(optimizer):
        raise StateMismatch(
            f"{key} is {kind_of(optimizer)} here, {value['kind']} in the checkpoint; use the same optimizer, or "
            "restore the model alone",
            unexpected=[key],
        )


def _check_groups(key: str, optimizer: torch.optim.Optimizer, parts: Parts, saved: list[dict[str, Any]]) -> None:
    live = [[parts[id(parameter)][0].name for parameter in group["params"]] for group in optimizer.param_groups]
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


def _parameters(optimizer: torch.optim.Optimizer, parts: Parts) -> Iterator[tuple[torch.Tensor, str]]:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            yield parameter, parts[id(parameter)][0].name


def _check_given(key: str, optimizer: torch.optim.Optimizer, parts: Parts) -> None:
    for i, group in enumerate(optimizer.param_groups):
        for j, parameter in enumerate(group["params"]):
            if id(parameter) not in parts:
                raise not_given(key, i, j)
