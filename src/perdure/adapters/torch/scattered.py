"""An optimizer saved parameter by parameter: where ranks have optimizers over different parameters, or over parts.

Stages of a pipeline, flat slices, ZeRO and fused weights have no parameter groups that all ranks share. So the options
of its group are saved with each parameter, ``key.param_groups.<parameter>``, and its state, ``key.state.<parameter>``,
both under the name that it has in the whole model. On restore the options of a live group are those of its parameters,
which must agree; what was saved in groups is taken from those. A group that is empty here keeps its options.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import torch

from perdure.adapters.torch.forms import FlatRange
from perdure.adapters.torch.nested import take_tensors_out
from perdure.adapters.torch.optimizer_entries import (
    COUNTS,
    Entry,
    OptimizerState,
    Parts,
    fresh,
    holder_of,
    kind_of,
    split_name,
)
from perdure.adapters.torch.target import Place
from perdure.adapters.torch.views import Part
from perdure.errors import CallError, StateMismatch
from perdure.state.index import Catalog
from perdure.state.scopes import Among
from perdure.state.values import encode_value

__all__ = ["BY_PARAMETER", "Refill", "by_parameter", "capture_by_parameter"]

BY_PARAMETER = "by_parameter"
"""the entry of the optimizer's own value that says so"""


def by_parameter(optimizer: torch.optim.Optimizer, parts: Parts) -> bool:
    """Whether there are no groups that all ranks share."""
    if holder_of(optimizer) is not optimizer:
        return True
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            of = parts[id(parameter)]
            if len(of) != 1 or of[0].form is not None or of[0].among is not None or of[0].scattered:
                return True
    return False


def capture_by_parameter(key: str, optimizer: torch.optim.Optimizer, parts: Parts) -> OptimizerState:
    """Describe ``optimizer`` as it is now."""
    holder = holder_of(optimizer)
    found = _Captured(key)
    found.value(key, {"kind": kind_of(optimizer), BY_PARAMETER: True}, None)
    for group, parameter, of in _parameters(optimizer, parts):
        options = {option: value for option, value in group.items() if option != "params"}
        tensors = {option: value for option, value in options.items() if isinstance(value, torch.Tensor)}
        plain = {option: value for option, value in options.items() if option not in tensors}
        for part in of:
            at = f"{key}.param_groups.{part.name}"
            found.options += [(f"{at}.{option}", value, None, part.among) for option, value in tensors.items()]
            found.value(at, plain, part.among)
        state = holder.state.get(parameter, {})
        for part in of:
            among = part.among if holder is optimizer and not part.scattered else Among()
            rest = {entry: value for entry, value in state.items() if not isinstance(value, torch.Tensor)}
            for entry, value in state.items():
                if isinstance(value, torch.Tensor):
                    found.tensors.append(_entry(f"{key}.state.{part.name}.{entry}", value, parameter, part, of, among))
            if rest:
                found.value(f"{key}.state.{part.name}", rest, among)
    return OptimizerState(found.tensors, found.options, list(found.values.values()), in_parts=True)


class _Captured:
    def __init__(self, key: str) -> None:
        self.key = key
        self.tensors: list[Entry] = []
        self.options: list[Entry] = []
        self.values: dict[str, tuple[str, Any, Among | None]] = {}

    def value(self, at: str, value: Any, among: Among | None) -> None:
        """``value`` under ``at``; once, where several parameters are one in the checkpoint."""
        skeleton, nested = take_tensors_out(at, value)
        known = self.values.get(at)
        if known is None:
            self.values[at] = (at, skeleton, among)
            self.options += [(name, tensor, None, among) for name, tensor in nested.items()]
        elif encode_value(known[1], key=at) != encode_value(skeleton, key=at):
            raise CallError(f"the parameters that make up {at} have different options; give them the same", key=at)


def _entry(
    name: str, value: torch.Tensor, parameter: torch.Tensor, part: Part, of: tuple[Part, ...], among: Among | None
) -> Entry:
    """``value`` of the state of ``parameter`` as a part of what is saved as ``name``."""
    like = tuple(value.shape) == tuple(parameter.shape) and name.rpartition(".")[2] not in COUNTS
    if like or (part.form is None and len(of) == 1):
        return (name, value, part.form, among)
    if value.numel() == 1:  # of all of the parameter, so of each of its parts
        return (name, value, None, among)
    raise CallError(
        f"{name} has the shape {list(value.shape)}, and its parameter {list(parameter.shape)}: nobody knows which part "
        "of it belongs to which part of the parameter; use an optimizer that keeps state for each element",
        tensor=name,
    )


class Refill:
    """One optimizer that is to be filled. ``saved`` is its own value in the checkpoint, None if there is none."""

    def __init__(
        self,
        place: Place,
        key: str,
        optimizer: torch.optim.Optimizer,
        parts: Parts,
        catalog: Catalog,
        saved: dict[str, Any] | None,
    ) -> None:
        self._place, self._key, self._optimizer, self._catalog = place, key, optimizer, catalog
        self._parts = parts
        self._holder = holder_of(optimizer)
        self._in_groups: dict[str, int] | None = None  # parameter -> saved group, if it was saved in groups
        self._saved_groups: list[dict[str, Any]] = []
        if saved is not None and BY_PARAMETER not in saved:
            self._saved_groups = saved["param_groups"]
            self._in_groups = {name: i for i, group in enumerate(self._saved_groups) for name in group["params"]}
        self._options: dict[str, dict[str, Any]] = {}
        self._values: dict[str, dict[str, Any]] = {}
        self._new: dict[int, dict[str, torch.Tensor]] = {}
        self._staged = {part.name for _, _, of in _parameters(optimizer, parts) for part in of if part.among}

    def prepare(self) -> None:
        """Add the optimizer to the restore at ``place``: what goes where, before a byte is read.

        Raises `StateMismatch` for a parameter that is in no saved group, and for a group whose parameters were saved
        with different options.
        """
        self._place_options()
        self._place_state()
        self._place.state(self._key, self._give)  # the last: the other values have come then

    def _place_options(self) -> None:
        """The options of each live group, from those of its parameters."""
        for group in self._optimizer.param_groups:
            names = list(self._names_of(group))
            sources = list(dict.fromkeys(self._source(name) for name in names))
            self._check_alike(names)
            if self._in_groups is None:
                for name, source in zip(names, sources, strict=True):
                    self._place.state(source, self._options.setdefault(name, {}).update)
                    if name in self._staged:
                        self._place.apart(source)
            for option, value in group.items():
                if option != "params" and isinstance(value, torch.Tensor):
                    for i, source in enumerate(sources):
                        like = f"{sources[0]}.{option}" if i else None
                        self._place.tensor(f"{source}.{option}", value, like=like)
                        if self._in_groups is None and names[i] in self._staged:
                            self._place.apart(f"{source}.{option}")

    def _place_state(self) -> None:
        """The state of each parameter that this rank has elements of."""
        named: dict[str, list[tuple[torch.Tensor, Part, bool]]] = {}
        for group, parameter, of in self._own():
            on_device = bool(group.get("capturable") or group.get("fused"))
            self._new[id(parameter)] = {}
            for part in of:
                named.setdefault(part.name, []).append((parameter, part, on_device))
                at = f"{self._key}.state.{part.name}"
                if at in self._catalog.values:
                    self._place.state(at, self._values.setdefault(part.name, {}).update)
                    self._apart(at, part)
        prefix = f"{self._key}.state."
        filled: dict[tuple[int, str], str] = {}
        for saved in self._catalog.tensors.values():
            if not saved.name.startswith(prefix):
                continue
            name, entry = split_name(saved.name.removeprefix(prefix), named)
            for parameter, part, on_device in named[name] if name is not None else ():
                new = self._new[id(parameter)]
                tensor = new.get(entry, self._holder.state.get(parameter, {}).get(entry))
                if not isinstance(tensor, torch.Tensor):
                    tensor = fresh(entry, saved, parameter, part.form, on_device=on_device)
                shape = tuple(parameter.shape) if part.form is None else part.form.shape
                like = saved.shape == shape and entry not in COUNTS
                # What is of the whole parameter is saved once for each of its parts, and is to be the same in all.
                first = None if like else filled.get((id(parameter), entry))
                filled.setdefault((id(parameter), entry), saved.name)
                new[entry] = tensor
                self._place.tensor(saved.name, tensor, form=part.form if like else None, like=first)
                self._apart(saved.name, part)

    def _give(self, value: dict[str, Any]) -> None:
        """All tensors are filled, all other values are here, and this is the optimizer's own."""
        for group in self._optimizer.param_groups:
            for name in list(self._names_of(group))[:1]:
                if self._in_groups is None:
                    options = self._options[name]
                else:
                    options = value["param_groups"][self._in_groups[name]]
                group.update({option: each for option, each in options.items() if option != "params"})
        for _, parameter, of in self._own():
            rest = self._values if self._in_groups is None else value["state"]
            entries: dict[str, Any] = {**self._new[id(parameter)], **rest.get(of[0].name, {})}
            if entries:
                self._holder.state[parameter] = entries
            else:
                self._holder.state.pop(parameter, None)  # absent state stays absent

    def _own(self) -> Iterator[tuple[dict[str, Any], torch.Tensor, tuple[Part, ...]]]:
        """The parameters whose state is here: those of this rank's own optimizer that it has elements of."""
        mine = {id(each) for group in self._holder.param_groups for each in group["params"]}
        for group, parameter, of in _parameters(self._optimizer, self._parts):
            empty = parameter.numel() == 0 and any(isinstance(part.form, FlatRange) for part in of)
            if id(parameter) in mine and not empty:  # an optimizer passes what has no element by
                yield group, parameter, of

    def _apart(self, name: str, part: Part) -> None:
        """Of what the optimizer keeps of ``part``."""
        if part.among is not None or part.scattered or self._holder is not self._optimizer:
            self._place.apart(name)

    def _names_of(self, group: dict[str, Any]) -> Iterator[str]:
        yield from dict.fromkeys(part.name for each in group["params"] for part in self._parts[id(each)])

    def _source(self, name: str) -> str:
        """Where the options of a parameter were saved."""
        if self._in_groups is None:
            return f"{self._key}.param_groups.{name}"
        if name not in self._in_groups:
            raise StateMismatch(
                f"the parameter groups of {self._key} are not the saved ones; not saved: {name}", missing=[name]
            )
        return f"{self._key}.param_groups.{self._in_groups[name]}"

    def _check_alike(self, names: list[str]) -> None:
        """The parameters of a live group were saved with the same options."""
        first: tuple[str, str] | None = None
        for name in names:
            if self._in_groups is None:
                source = self._source(name)
                if source not in self._catalog.values:
                    continue  # missing, and told with all that is
                text = msgspec.json.encode(self._catalog.values.get(source)).decode().replace(f'"{source}.', '"')
            else:
                group = self._saved_groups[self._in_groups[name]]
                plain = {option: each for option, each in group.items() if option != "params"}
                text = msgspec.json.encode(encode_value(plain, key=self._key)).decode()
            first = first or (name, text)
            if text != first[1]:
                raise StateMismatch(
                    f"{first[0]} and {name} are in one parameter group of {self._key} here, but were saved with "
                    "different options; put them into groups of their own",
                    unexpected=[name],
                )


def _parameters(
    optimizer: torch.optim.Optimizer, parts: Parts
) -> Iterator[tuple[dict[str, Any], torch.Tensor, tuple[Part, ...]]]:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            yield group, parameter, parts[id(parameter)]
