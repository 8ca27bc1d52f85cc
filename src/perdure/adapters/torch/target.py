"""Where saved state goes: live tensors that are filled in place, and functions that take saved values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from perdure.adapters.torch.nested import put_tensors_back, references
from perdure.adapters.torch.tensors import LocalBlock, blocks_of, dtype_name, held_now, torch_dtype, write_into
from perdure.errors import StateMismatch
from perdure.layout import Box
from perdure.state.index import Catalog, CatalogTensor
from perdure.state.items import Held, Memory, TensorItem
from perdure.state.scopes import OnResize, rank_local_source
from perdure.state.values import decode_value

__all__ = ["Place", "Target", "TensorSink"]

_NOTHING: Any = object()


@dataclass(frozen=True, slots=True)
class _Part:
    box: Box
    memory: Memory
    live: bool
    view: torch.Tensor


@dataclass(frozen=True, slots=True)
class TensorSink:
    """A live tensor and the memory of its blocks; what is not contiguous host memory has a packed copy beside it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    parts: tuple[_Part, ...]

    @classmethod
    def of(
        cls, name: str, tensor: torch.Tensor, *, held: Callable[[LocalBlock], tuple[Held, bool]] = held_now
    ) -> TensorSink:
        """Describe ``tensor``; ``held`` says where the bytes of a block are, and whether they are the live ones."""
        parts = []
        for block in blocks_of(tensor, name=name):
            there, live = held(block)
            parts.append(_Part(there.box, there.memory, live, block.view))
        return cls(name, dtype_name(tensor.dtype), tuple(tensor.shape), tuple(parts))

    def write_back(self) -> None:
        """Copy packed blocks into the live tensor, after they have been filled."""
        with torch.no_grad():
            for part in self.parts:
                if not part.live:
                    write_into(part.view, part.memory.owner, name=self.name)


@dataclass(slots=True)
class Target:
    """Everything that a restore writes to."""

    sinks: dict[str, tuple[TensorSink, tuple[str, ...], bool, OnResize]] = field(default_factory=dict)
    setters: list[tuple[str, Callable[[Any], None], bool, OnResize]] = field(default_factory=list)

    def within(self, *, local: bool, on_resize: OnResize) -> Place:
        """A view of this target for one top-level entry of the tree."""
        return Place(self, local, on_resize)

    def items(self, catalog: Catalog, *, rank: int, world: int) -> tuple[TensorItem, ...]:
        """The live tensors to fill, and fresh ones for the tensors inside saved nested states."""
        fresh: list[TensorItem] = []
        for key, _, local, on_resize in self.setters:
            value = self._saved(catalog, key, local, on_resize, rank, world)
            for name in references(decode_value(value, key=key)) if value is not _NOTHING else ():
                saved = _saved_tensor(catalog, name, local, on_resize, rank, world)
                if saved is not None and name not in self.sinks:
                    whole = torch.empty(saved.shape, dtype=torch_dtype(saved.dtype))
                    self.sinks[name] = (TensorSink.of(name, whole), (), local, on_resize)
        for sink, aliases, local, on_resize in self.sinks.values():
            held = tuple(Held(part.box, part.memory) for part in sink.parts)
            fresh.append(TensorItem(sink.name, sink.dtype, sink.shape, held, aliases, local, on_resize=on_resize))
        return tuple(fresh)

    def value_keys(self) -> tuple[tuple[str, bool, OnResize], ...]:
        """``(key, local, on_resize)`` of every value that is wanted."""
        return tuple((key, local, on_resize) for key, _, local, on_resize in self.setters)

    def finish(self, catalog: Catalog, *, rank: int, world: int) -> None:
        """Hand the saved values to their objects; the tensors have been filled."""
        for sink, *_ in self.sinks.values():
            sink.write_back()
        for key, give, local, on_resize in self.setters:
            saved = self._saved(catalog, key, local, on_resize, rank, world)
            if saved is not _NOTHING:
                give(put_tensors_back(decode_value(saved, key=key), self._tensor))

    def _tensor(self, name: str) -> torch.Tensor:
        found = self.sinks.get(name)
        if found is None:
            raise StateMismatch(f"the saved state refers to the tensor {name}, which was not saved", missing=[name])
        return found[0].parts[0].view

    @staticmethod
    def _saved(catalog: Catalog, key: str, local: bool, on_resize: OnResize, rank: int, world: int) -> Any:
        """The value saved as ``key``, or `_NOTHING` where the live one is to stay."""
        if not local:
            return catalog.values.get(key, _NOTHING)
        source = rank_local_source(on_resize, rank=rank, world=world, saved_world=catalog.world, key=key)
        return _NOTHING if source is None else catalog.local_values.get((source, key), _NOTHING)


@dataclass(frozen=True, slots=True)
class Place:
    """Adds to a `Target` under one scope."""

    target: Target
    local: bool
    on_resize: OnResize

    def tensor(self, name: str, tensor: torch.Tensor, *, aliases: tuple[str, ...] = ()) -> None:
        """Fill ``tensor`` from what was saved as ``name``."""
        self.target.sinks[name] = (TensorSink.of(name, tensor), aliases, self.local, self.on_resize)

    def state(self, key: str, give: Callable[[Any], None]) -> None:
        """Call ``give`` with the value saved as ``key``."""
        self.target.setters.append((key, give, self.local, self.on_resize))


def _saved_tensor(
    catalog: Catalog, name: str, local: bool, on_resize: OnResize, rank: int, world: int
) -> CatalogTensor | None:
    if not local:
        return catalog.find(name)
    source = rank_local_source(on_resize, rank=rank, world=world, saved_world=catalog.world, key=name)
    return None if source is None else catalog.find_local(source, name)
