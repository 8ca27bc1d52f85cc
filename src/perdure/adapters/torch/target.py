"""Where saved state goes: live tensors that are filled in place, and functions that take saved values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from perdure.adapters.torch.forms import Form, held_blocks, whole_shape
from perdure.adapters.torch.nested import put_tensors_back, references
from perdure.adapters.torch.tensors import LocalBlock, as_integers, dtype_name, held_now, torch_dtype, write_into
from perdure.errors import StateMismatch
from perdure.layout import Box
from perdure.state.alike import not_alike
from perdure.state.index import Catalog, CatalogTensor
from perdure.state.items import Held, Memory, TensorItem
from perdure.state.scopes import OnResize, rank_local_source
from perdure.state.values import decode_value

__all__ = ["Place", "Target", "TensorSink", "check_same"]

_NOTHING: Any = object()


@dataclass(frozen=True, slots=True)
class _Part:
    box: Box
    memory: Memory
    live: bool
    view: torch.Tensor
    compare: bool = False
    """what comes must be what is in the view then; else it goes there"""


@dataclass(frozen=True, slots=True)
class TensorSink:
    """A live tensor and the memory of its blocks; what is not contiguous host memory has a packed copy beside it.

    Several live tensors that are parts of one saved tensor make one sink.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    parts: tuple[_Part, ...]

    @classmethod
    def of(
        cls,
        name: str,
        tensor: torch.Tensor,
        form: Form | None = None,
        *,
        held: Callable[[LocalBlock], tuple[Held, bool]] = held_now,
        compare: bool = False,
    ) -> TensorSink:
        """Describe ``tensor``, which is a part of the tensor ``name`` where ``form`` says so.

        ``held`` says where the bytes of a block are, and whether they are the live ones. ``compare``: it is filled by
        another sink, and what was saved under this name must be the same.
        """
        parts = []
        for block in held_blocks(tensor, form, name=name):
            view = torch.empty_like(block.view, memory_format=torch.contiguous_format) if compare else block.view
            there, live = held(LocalBlock(block.box, view))
            parts.append(_Part(there.box, there.memory, live and not compare, block.view, compare))
        return cls(name, dtype_name(tensor.dtype), whole_shape(tensor, form), tuple(parts))

    def joined(self, other: TensorSink) -> TensorSink:
        """Both together: they are parts of one tensor."""
        if (self.dtype, self.shape) != (other.dtype, other.shape):
            raise StateMismatch(
                f"the parts of {self.name} that are here do not fit: {self.dtype}{list(self.shape)} and "
                f"{other.dtype}{list(other.shape)}",
                shape=[self.name],
            )
        return TensorSink(self.name, self.dtype, self.shape, self.parts + other.parts)

    def write_back(self) -> None:
        """Copy packed blocks into the live tensor, after they have been filled."""
        with torch.no_grad():
            for part in self.parts:
                if not part.live and not part.compare:
                    write_into(part.view, part.memory.owner, name=self.name)

    def check(self, other: str) -> None:
        """Compare what is to be the same as what the sink ``other`` has written; else raise `StateMismatch`."""
        for part in self.parts:
            if part.compare and not torch.equal(as_integers(part.memory.owner), as_integers(part.view.cpu())):
                raise not_alike(self.name, other)


def check_same(name: str, one: torch.Tensor, other: torch.Tensor) -> None:
    """Raise `StateMismatch` unless both hold the same bits: they would be saved as one."""
    same = (one.dtype, one.shape) == (other.dtype, other.shape)
    if not same or not torch.equal(as_integers(one.detach()), as_integers(other.detach())):
        raise StateMismatch(
            f"{name} is to be one tensor in the checkpoint, but is not the same in all that make it up here; save them "
            "apart, without fuse=",
            shape=[name],
        )


@dataclass(slots=True)
class Target:
    """Everything that a restore writes to."""

    sinks: dict[str, tuple[TensorSink, tuple[str, ...], bool, OnResize]] = field(default_factory=dict)
    setters: list[tuple[str, Callable[[Any], None], bool, OnResize]] = field(default_factory=list)
    apart: set[str] = field(default_factory=set)
    """names that other ranks need not hold"""
    alike: dict[str, str] = field(default_factory=dict)
    """name to the name of the tensor that fills it, and must have been saved with the same value"""
    anew: set[str] = field(default_factory=set)
    """keys of rank-local state that begins anew in a world of another size"""

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
                if saved is None and name not in self.sinks:
                    raise _not_saved(name)
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

    def convert(self, name: str, whole: torch.Tensor) -> None:
        """Copy ``whole``, a tensor of another dtype, into what is live of ``name``; floats are rounded to nearest."""
        with torch.no_grad():
            for part in self.sinks[name][0].parts:
                values = whole[tuple(map(slice, part.box.lo, part.box.hi))]
                part.view.copy_(values)
                if not part.live:  # what `finish` writes back
                    as_integers(part.memory.owner).copy_(as_integers(part.view))

    def finish(self, catalog: Catalog, *, rank: int, world: int) -> None:
        """Hand the saved values to their objects; the tensors have been filled."""
        for sink, *_ in self.sinks.values():
            sink.write_back()
        for name, other in self.alike.items():
            self.sinks[name][0].check(other)
        for key, give, local, on_resize in self.setters:
            saved = self._saved(catalog, key, local, on_resize, rank, world)
            if saved is not _NOTHING:
                give(put_tensors_back(decode_value(saved, key=key), self._tensor))

    def _tensor(self, name: str) -> torch.Tensor:
        found = self.sinks.get(name)
        if found is None:
            raise _not_saved(name)
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

    def tensor(
        self,
        name: str,
        tensor: torch.Tensor,
        *,
        aliases: tuple[str, ...] = (),
        form: Form | None = None,
        like: str | None = None,
    ) -> None:
        """Fill ``tensor`` from what was saved as ``name``, or as that part of it that ``form`` says.

        ``like``: it is filled from what was saved under that name, which must be the same.
        """
        if like is not None:
            self.target.alike[name] = like
        sink = TensorSink.of(name, tensor, form, compare=like is not None)
        known = self.target.sinks.get(name)
        if known is not None:
            sink, aliases = known[0].joined(sink), known[1]
        self.target.sinks[name] = (sink, aliases, self.local, self.on_resize)

    def apart(self, name: str) -> None:
        """Not every rank holds ``name``, and others hold what this one does not."""
        self.target.apart.add(name)

    def state(self, key: str, give: Callable[[Any], None]) -> None:
        """Call ``give`` with the value saved as ``key``."""
        self.target.setters.append((key, give, self.local, self.on_resize))


def _not_saved(name: str) -> StateMismatch:
    return StateMismatch(f"the saved state refers to the tensor {name}, which was not saved", missing=[name])


def _saved_tensor(
    catalog: Catalog, name: str, local: bool, on_resize: OnResize, rank: int, world: int
) -> CatalogTensor | None:
    if not local:
        return catalog.find(name)
    source = rank_local_source(on_resize, rank=rank, world=world, saved_world=catalog.world, key=name)
    return None if source is None else catalog.find_local(source, name)
