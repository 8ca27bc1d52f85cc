"""Say how a module's own names stand to those of the whole model: stages of a pipeline, fused weights, other names.

A view changes no tensor. It is given in the place of its module, to ``save`` and to ``restore``, and says under which
names, and as which parts of them, the module's tensors are in a checkpoint.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

import torch

from perdure.adapters.torch.forms import Form, Section, runs_of
from perdure.errors import CallError
from perdure.state.scopes import Among

__all__ = ["Fused", "Fuses", "Part", "Splits", "Stage", "View", "sections", "unmet"]

Shape: TypeAlias = tuple[int, ...]
Splits: TypeAlias = "Mapping[str, Mapping[str, int] | Fused]"
Fuses: TypeAlias = "Mapping[str, Sequence[str] | Fused]"


@dataclass(frozen=True, slots=True)
class Fused:
    """How tensors lie in the one that they are fused into: end to end along ``dim``, in ``repeat`` turns.

    ``parts`` are their names and sizes along ``dim`` in elements (all turns together), or their names alone where the
    tensors themselves are at hand. ``repeat`` is 1 for q, then k, then v. It is the number of groups where each group
    of heads has its q, k and v beside each other, or of tensor-parallel ranks where each has its own gate and up.
    """

    parts: Mapping[str, int] | Sequence[str]
    dim: int = 0
    repeat: int = 1


@dataclass(frozen=True, slots=True)
class Part:
    """What a live tensor is in a checkpoint: all of the tensor ``name``, or under ``form`` a part of it.

    ``scattered``: what an optimizer keeps of it is on those ranks alone that have elements of it.
    """

    name: str
    form: Form | None = None
    among: Among | None = None
    aliases: tuple[str, ...] = ()
    scattered: bool = False


@dataclass(frozen=True)
class View:
    """``module`` under other names: ``ckpt.restore({"model": perdure.View(model, split={"qkv": {"q": 64, ...}})})``.

    ``names`` turns a name of the module (without wrappers) into the one in the checkpoint. ``split`` says that a tensor
    here is several in the checkpoint: ``{"qkv": {"q": 512, "k": 128, "v": 128}}`` saves ``attn.qkv.weight`` as
    ``attn.q.weight``, ``attn.k.weight`` and ``attn.v.weight``, with so many rows each. ``fuse`` says that several here
    are one there: ``{"gate_up": ["gate", "up"]}``. Keys and parts are what stands between two dots of a name, or
    several such pieces. Give a `Fused` where the parts lie along another dim or take turns. What an optimizer keeps of
    a parameter follows it. ``split`` and ``fuse`` come first, then ``names``.

    Raises `CallError`, when it is used, for sizes that do not make up the tensor and for parts that are not there.
    """

    module: torch.nn.Module
    names: Callable[[str], str] | None = field(default=None, kw_only=True)
    split: Splits = field(default_factory=dict, kw_only=True)
    fuse: Fuses = field(default_factory=dict, kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.module, torch.nn.Module):
            raise CallError(f"perdure.{type(self).__name__} is for a module; a {type(self.module).__name__} is none")

    def parts(self, entry: str, shapes: Mapping[str, Shape]) -> dict[str, tuple[Part, ...]]:
        """What each tensor of the module is in a checkpoint. ``shapes``: canonical name to the whole tensor's shape."""
        if type(self) is View and self.names is None and not self.changes_shapes:
            return {name: _itself(name) for name in shapes}
        found = {}
        for name in shapes:
            parts = sections(name, shapes, split=self.split, fuse=self.fuse) or [Part(name)]
            found[name] = tuple(self._named(entry, part) for part in parts)
        return found

    def part(self, entry: str, name: str) -> Part:
        """What ``name`` is called in a checkpoint, of what is neither split nor fused."""
        return self._named(entry, Part(name))

    @property
    def changes_shapes(self) -> bool:
        """Whether it does more than rename."""
        return bool(self.split or self.fuse)

    def _named(self, entry: str, part: Part) -> Part:
        return Part(self._renamed(part.name), part.form)

    def _renamed(self, name: str) -> str:
        new: Any = name if self.names is None else self.names(name)
        if not isinstance(new, str) or not new:
            raise CallError(f"names={self.names!r} makes {new!r} of the name {name}; give a function that returns text")
        return str(new)


@dataclass(frozen=True)
class Stage(View):
    """A module that is stage ``index`` (from 0) of ``of``: its rank holds these tensors, other ranks hold others.

    ``{"model": perdure.Stage(model, pp_rank, pp_size, names=...)}``, on every rank, with the same optimizer classes.
    ``names`` gives layers the numbers that they have in the whole model, if they count from 0 here:
    ``lambda name: perdure.layout.shift_layer(name, by=12)``. Ranks of one stage (data parallelism) hold the same names,
    stages hold none in common but those of ``tied`` and ``shared``; whatever else is a `StateMismatch` that names it.

    ``tied={"head.weight": "embed.weight"}``: what is called head.weight on one stage is the tensor that is embed.weight
    on another, and both names in a model that is not cut into stages. ``shared`` are patterns (or a function) of names
    that several stages hold alike, as ranks with other experts do of all the rest of a model. Both are saved once, and
    compared between the stages at each save.
    """

    index: int
    of: int
    tied: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    shared: Sequence[str] | Callable[[str], bool] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.index < self.of:
            raise CallError(f"there is no stage {self.index} of {self.of}; count stages from 0")
        if isinstance(self.shared, str):
            raise CallError(f"shared={self.shared!r} is one text; give a list of patterns, or a function")

    def _named(self, entry: str, part: Part) -> Part:
        renamed = self._renamed(part.name)
        name = self.tied.get(renamed, renamed)
        others = tuple(other for other, target in self.tied.items() if target == name and other != name)
        among = Among(entry, self.index, self.of, bool(others) or self._is_shared(name))
        return Part(name, part.form, among, others)

    def _is_shared(self, name: str) -> bool:
        if callable(self.shared):
            return self.shared(name)
        return any(fnmatchcase(name, pattern) for pattern in self.shared)


@functools.lru_cache(maxsize=1 << 16)
def _itself(name: str) -> tuple[Part, ...]:
    return (Part(name),)


def sections(name: str, shapes: Mapping[str, Shape], *, split: Splits, fuse: Fuses) -> list[Part]:
    """What the tensor ``name`` becomes: the parts that it is split into, or its part of a fused one; else nothing."""
    return _split(name, shapes[name], split) or _fuse(name, shapes, fuse)


def unmet(names: Iterable[str], *, split: Splits, fuse: Fuses) -> str | None:
    """What is wrong with the first key that says nothing of any of ``names``; None if each does."""
    there = list(names)
    for key in split:
        if not any(_put(name, key, key) for name in there):
            return f"split={{{key!r}: ...}}: no tensor here has {key!r} between the dots of its name"
    for key, given in fuse.items():
        parts = list((given if isinstance(given, Fused) else Fused(given)).parts)
        if not any(_put(name, part, part) for name in there for part in parts):
            told = " or ".join(map(repr, parts))
            return f"fuse={{{key!r}: ...}}: no tensor here has {told} between the dots of its name"
    return None


def _split(name: str, shape: Shape, split: Splits) -> list[Part]:
    for key, given in split.items():
        if _put(name, key, key) is None:
            continue
        fused = given if isinstance(given, Fused) else Fused(given)
        if not isinstance(fused.parts, Mapping):
            raise CallError(f"split={{{key!r}: ...}} needs the size of each part, as a dict of name to size")
        sizes = list(fused.parts.values())
        dim = _dim(name, shape, fused, sizes)
        if sum(sizes) != shape[dim]:
            raise CallError(
                f"{name} has the shape {list(shape)}; parts of {' + '.join(map(str, sizes))} do not make up its "
                f"dim {dim}",
                tensor=name,
            )
        names = [_put(name, key, part) or "" for part in fused.parts]
        wholes = [(*shape[:dim], size, *shape[dim + 1 :]) for size in sizes]
        runs = runs_of(sizes, fused.repeat)
        return [Part(new, Section(whole, dim, run)) for new, whole, run in zip(names, wholes, runs, strict=True)]
    return []


def _fuse(name: str, shapes: Mapping[str, Shape], fuse: Fuses) -> list[Part]:
    for key, given in fuse.items():
        fused = given if isinstance(given, Fused) else Fused(given)
        order = list(fused.parts)
        for at, part in enumerate(order):
            new = _put(name, part, key)
            if new is None:
                continue
            beside = [_put(name, part, other) or "" for other in order]
            gone = [each for each in beside if each not in shapes]
            if gone:
                raise CallError(f"{name} is to be a part of {new}, but {', '.join(gone)} is not there", tensor=name)
            sizes = [shapes[each][_dim(each, shapes[each], fused, [])] for each in beside]
            dim = _dim(name, shapes[name], fused, sizes)
            rest = {(*shapes[each][:dim], *shapes[each][dim + 1 :]) for each in beside}
            if len(rest) > 1:
                raise CallError(f"{', '.join(beside)} differ in more than dim {dim}, so they cannot be one tensor")
            whole = (*shapes[name][:dim], sum(sizes), *shapes[name][dim + 1 :])
            runs = runs_of(sizes, fused.repeat)[at]
            return [Part(new, Section(whole, dim, tuple((own, there, n) for there, own, n in runs)))]
    return []


def _put(name: str, old: str, new: str) -> str | None:
    """``name`` with ``new`` in the place of ``old``, where that stands between dots; None if it does not."""
    pattern = rf"(^|\.){re.escape(old)}(?=\.|$)"
    changed, times = re.subn(pattern, lambda found: found[1] + new, name, count=1)
    return changed if times else None


def _dim(name: str, shape: Shape, fused: Fused, sizes: Sequence[int]) -> int:
    if not -len(shape) <= fused.dim < len(shape):
        raise CallError(f"{name} has {len(shape)} dims, so nothing of it lies along dim {fused.dim}", tensor=name)
    if fused.repeat < 1 or any(size % fused.repeat for size in sizes):
        raise CallError(f"parts of {list(sizes)} of {name} do not come in {fused.repeat} equal turns", tensor=name)
    return fused.dim % len(shape)
