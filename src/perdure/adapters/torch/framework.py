"""Describe torch's live objects to the checkpoint system, and put saved state back into them, in place.

A tree is what the user gives to ``save`` and ``restore``: a dict of modules, optimizers, loaders, schedulers, anything
with ``state_dict`` and ``load_state_dict``, tensors, plain values, nested dicts of these, each maybe in `RankLocal`.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

import torch
from torch.distributed.tensor import DTensor
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from perdure.adapters.torch.device_copy import TorchCopier, held_for_saving
from perdure.adapters.torch.forms import Form
from perdure.adapters.torch.hooks import never_compiled
from perdure.adapters.torch.modules import ModuleState, NamedTensor, modules_of, parameter_parts
from perdure.adapters.torch.nested import take_tensors_out
from perdure.adapters.torch.optimizer_entries import Entry, Parts
from perdure.adapters.torch.optimizers import capture_optimizer, prepare_optimizer
from perdure.adapters.torch.target import Target, TensorSink, check_same
from perdure.adapters.torch.tree import inner_key, is_stateful, leaves
from perdure.errors import CallError, NotSerializable, StateMismatch
from perdure.state.index import Catalog
from perdure.state.items import Capture, Held, TensorItem, ValueItem
from perdure.state.scopes import Among, OnResize, RankLocal
from perdure.state.values import decode_value, encode_value

__all__ = ["TorchFramework"]


class TorchFramework:
    """The `perdure.checkpoint.framework.Framework` of torch; one a checkpointer.

    Describing a tensor costs more than copying a small one, so descriptions are kept as long as the tensor is the same
    object with the same memory; while all are, ``capture`` returns the very same tuple of them.
    """

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        self._last: tuple[TensorItem, ...] = ()
        self._fenced: WeakSet[torch.optim.Optimizer] = WeakSet()

    def capture(self, tree: Mapping[str, Any]) -> Capture:
        """Describe all of ``tree`` as it is now; called on the training thread."""
        _check_tree(tree)
        modules = modules_of(tree)  # first: see there
        sink = _Collect(modules, _owned(tree), parameter_parts(tree), self._known)
        for key, value in tree.items():
            sink.add(key, value)
        self._known = sink.now
        if len(sink.tensors) != len(self._last) or any(map(operator.is_not, sink.tensors, self._last)):
            self._last = tuple(sink.tensors)
        return Capture(self._last, tuple(sink.values))

    def prepare(self, tree: Mapping[str, Any], catalog: Catalog) -> Target:
        """Say which live tensors the saved state goes into, making those that do not exist yet (optimizer state)."""
        _check_tree(tree)
        modules = modules_of(tree)  # first: see there
        plan = _Preparation(modules, parameter_parts(tree), catalog)
        for key, value in tree.items():
            plan.add(tree, key, key, value)
        return plan.target

    def fence(self, tree: Mapping[str, Any], wait: Callable[[], None]) -> None:
        """Call ``wait`` before any optimizer of ``tree`` steps; once an optimizer."""
        for optimizer in _optimizers(tree):
            if optimizer not in self._fenced:
                optimizer.register_step_pre_hook(never_compiled(lambda *_: wait()))
                self._fenced.add(optimizer)

    def copier(self, tell: Callable[[str], None]) -> TorchCopier:
        """Copies tensors of the host and of CUDA devices."""
        return TorchCopier(tell)


def _optimizers(tree: Mapping[str, Any]) -> list[torch.optim.Optimizer]:
    return [value for _, value in leaves(tree) if isinstance(value, torch.optim.Optimizer)]


def _owned(tree: Mapping[str, Any]) -> set[int]:
    """Ids of the parameters that an optimizer in ``tree`` owns: nothing else changes them."""
    groups = (group for optimizer in _optimizers(tree) for group in optimizer.param_groups)
    return {id(parameter) for group in groups for parameter in group["params"]}


@dataclass(frozen=True, slots=True)
class _Known:
    """A description that holds as long as the tensor is the same object with the same memory and form."""

    tensor: torch.Tensor
    facts: tuple[Any, ...]
    item: TensorItem


def _facts(tensor: torch.Tensor, more: tuple[Any, ...]) -> tuple[Any, ...]:
    """What may change of a tensor while it is the same object; only for those that have plain bytes."""
    local = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
    return (local.data_ptr(), local.device, local.shape, local.stride(), local.dtype, tensor.shape, more)


class _Collect:
    """Gathers items; one pass over the tree."""

    def __init__(
        self, modules: dict[str, ModuleState], owned: set[int], parts: Parts, known: dict[str, _Known]
    ) -> None:
        self.modules = modules
        self.owned = owned
        self.parts = parts
        self.known = known
        self.now: dict[str, _Known] = {}
        self.tensors: list[TensorItem] = []
        self.values: list[ValueItem] = []
        self._taken: set[str] = set()

    def add(self, key: str, value: Any, *, local: bool = False, on_resize: OnResize = "modulo") -> None:
        if isinstance(value, RankLocal):
            self.add(key, value.value, local=True, on_resize=value.on_resize)
        elif key in self.modules:
            self.module(self.modules[key], local, on_resize)
        elif isinstance(value, torch.optim.Optimizer):
            self.optimizer(key, value, local)
        elif isinstance(value, torch.Tensor):
            self.tensor(key, value, local, on_resize, owned=id(value) in self.owned)
        elif isinstance(value, dict):
            for name, each in value.items():
                self.add(inner_key(key, name), each, local=local, on_resize=on_resize)
        elif is_stateful(value):
            self.nested(key, value.state_dict(), local, on_resize)
        elif isinstance(value, DataLoader):
            raise _no_loader(key)
        else:
            self.nested(key, value, local, on_resize)

    def module(self, state: ModuleState, local: bool, on_resize: OnResize) -> None:
        together: dict[str, list[NamedTensor]] = {}
        for each in state.tensors:
            if each.form is not None:
                together.setdefault(each.name, []).append(each)
                continue
            self.tensor(
                each.name,
                each.tensor,
                local,
                on_resize,
                aliases=each.aliases,
                owned=each.owner in self.owned,
                alike=not each.is_buffer,
                among=each.among,
            )
        for name, parts in together.items():
            first, *others = parts
            self.tensor(
                name,
                first.tensor,
                local,
                on_resize,
                form=first.form,
                rest=[(each.tensor, each.form) for each in others],
                aliases=first.aliases,
                owned=all(each.owner in self.owned for each in parts),
                alike=not first.is_buffer,
                among=first.among,
            )
        for extra in state.extra:
            self.nested(extra.name, extra.value, local, on_resize, among=extra.among)

    def optimizer(self, key: str, optimizer: torch.optim.Optimizer, local: bool) -> None:
        if local:
            raise _no_local_optimizer(key)
        state = capture_optimizer(key, optimizer, self.parts)
        for owned, entries in ((True, state.tensors), (False, state.options)):  # a scheduler changes options too
            if not state.in_parts:
                for name, tensor, _, _ in entries:
                    self.tensor(name, tensor, False, "modulo", owned=owned)
                continue
            together: dict[str, list[Entry]] = {}
            for entry in entries:
                together.setdefault(entry[0], []).append(entry)
            for name, ((_, tensor, form, among), *others) in together.items():
                rest = [(each, part) for _, each, part, _ in others]
                self.tensor(name, tensor, False, "modulo", form=form, rest=rest, owned=owned, among=among)
        for at, value, among in state.values:
            self.value(at, value, False, "modulo", among)

    def nested(self, key: str, state: Any, local: bool, on_resize: OnResize, among: Among | None = None) -> None:
        skeleton, tensors = take_tensors_out(key, state)
        for name, tensor in tensors.items():
            self.tensor(name, tensor, local, on_resize, owned=id(tensor) in self.owned, among=among)
        self.value(key, skeleton, local, on_resize, among)

    def value(self, key: str, value: Any, local: bool, on_resize: OnResize, among: Among | None = None) -> None:
        self._take(f"value {key}", key)
        self.values.append(ValueItem(key, encode_value(value, key=key), local, on_resize, among))

    def _take(self, entry: str, key: str) -> None:
        if not key.isascii() and any("\ud800" <= letter <= "\udfff" for letter in key):
            raise NotSerializable(f"the key {key!a} is no valid Unicode text; rename it", key=ascii(key), type="str")
        if entry in self._taken:
            raise CallError(f"two entries would both be saved as {key}; rename one", key=key)
        self._taken.add(entry)

    def tensor(
        self,
        name: str,
        tensor: torch.Tensor,
        local: bool,
        on_resize: OnResize,
        *,
        form: Form | None = None,
        rest: Sequence[tuple[torch.Tensor, Form | None]] = (),
        aliases: tuple[str, ...] = (),
        owned: bool = False,
        alike: bool = True,
        among: Among | None = None,
    ) -> None:
        """One tensor of the checkpoint; with ``rest`` ``tensor`` is a part of it, and others are the rest."""
        self._take(f"tensor {name}", name)
        more = (form, aliases, local, on_resize, owned, alike, among)
        known = self.known.get(name)
        if known is not None and not rest and known.tensor is tensor and known.facts == _facts(tensor, more):
            self.now[name] = known
            self.tensors.append(known.item)
            return
        sink = TensorSink.of(name, tensor, form, held=held_for_saving)
        for other, part in rest:
            if part is None:  # of what has no parts there is one, whatever parameters it is kept with
                check_same(name, tensor, other)
            else:
                sink = sink.joined(TensorSink.of(name, other, part, held=held_for_saving))
        live = all(part.live for part in sink.parts)
        held = tuple(Held(part.box, part.memory) for part in sink.parts)
        item = TensorItem(name, sink.dtype, sink.shape, held, aliases, local, owned and live, on_resize, alike, among)
        self.tensors.append(item)
        if live and not rest:
            self.now[name] = _Known(tensor, _facts(tensor, more), item)


class _Preparation:
    """Fills a `Target`; one pass over the tree."""

    def __init__(self, modules: dict[str, ModuleState], parts: Parts, catalog: Catalog) -> None:
        self.modules = modules
        self.parts = parts
        self.catalog = catalog
        self.target = Target()

    def add(self, of: Mapping[str, Any], at: str, key: str, value: Any, scope: RankLocal | None = None) -> None:
        """``value`` stands in ``of`` at ``at``; its key is ``key``; ``scope`` is the `RankLocal` around it."""
        if isinstance(value, RankLocal):
            if value.on_resize == "fresh":
                self.target.anew.add(key)
            self.add(of, at, key, value.value, value)
            return
        place = self.target.within(local=scope is not None, on_resize="modulo" if scope is None else scope.on_resize)
        if key in self.modules:
            for named in self.modules[key].tensors:
                place.tensor(named.name, named.tensor, aliases=named.aliases, form=named.form)
                if named.among is not None:
                    place.apart(named.name)
            for extra in self.modules[key].extra:
                place.state(extra.name, extra.owner.set_extra_state)
                if extra.among is not None:
                    place.apart(extra.name)
        elif isinstance(value, torch.optim.Optimizer):
            if scope is not None:
                raise _no_local_optimizer(key)
            prepare_optimizer(place, key, value, self.parts, self.catalog)
        elif isinstance(value, torch.Tensor):
            place.tensor(key, value)
        elif isinstance(value, dict):
            for name, each in value.items():
                self.add(value, name, inner_key(key, name), each, scope)
        elif is_stateful(value):
            if isinstance(value, LRScheduler):
                _check_schedule(key, value, self.catalog)
            place.state(key, value.load_state_dict)
        elif isinstance(value, DataLoader):
            raise _no_loader(key)
        elif isinstance(of, dict):
            inside = of[at]
            place.state(key, functools.partial(_put, of, at, inside if isinstance(inside, RankLocal) else None))
        else:
            raise StateMismatch(
                f"{key} cannot be restored in place: give a dict that holds it, or an object with load_state_dict()",
                unexpected=[key],
            )


def _check_schedule(key: str, scheduler: LRScheduler, catalog: Catalog) -> None:
    """Another class of scheduler takes the state of any other without a word; what they keep differs, though."""
    saved = decode_value(catalog.values[key], key=key) if key in catalog.values else None
    if not isinstance(saved, dict):
        return
    live = {name for name in scheduler.state_dict() if not name.startswith("_")}
    there = {name for name in saved if isinstance(name, str) and not name.startswith("_")}
    if live - there and there - live:
        raise StateMismatch(
            f"{key} is a {type(scheduler).__name__} here, which keeps {', '.join(sorted(live - there))}; that in the "
            f"checkpoint keeps {', '.join(sorted(there - live))}: use the same scheduler, or restore without it",
            unexpected=[key],
        )


def _put(of: dict[str, Any], at: str, scope: RankLocal | None, value: Any) -> None:
    of[at] = value if scope is None else RankLocal(value, scope.on_resize)


def _no_loader(key: str) -> CallError:
    return CallError(
        f"{key} is a plain DataLoader, whose position nobody knows; let perdure.attach make it resumable, or "
        "give one with state_dict() and load_state_dict()",
        key=key,
    )


def _no_local_optimizer(key: str) -> CallError:
    return CallError(
        f"{key} is an optimizer in RankLocal, which this release does not save; give the optimizer itself: what it "
        "keeps of sharded parameters is saved sharded",
        key=key,
    )


def _check_tree(tree: Any) -> None:
    if not isinstance(tree, Mapping):
        raise CallError(
            f'a state is a dict of names to what is saved, such as {{"model": model}}; this is a {type(tree).__name__}'
        )
    for key in tree:
        if not isinstance(key, str):
            raise CallError(f"a state's names are text; {key!r} is a {type(key).__name__}", key=repr(key))
