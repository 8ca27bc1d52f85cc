"""Name the tensors and values of a foreign object as `Checkpointer.save` would name those of the same tree.

Dicts with text for keys become dotted names; what else holds tensors becomes a value that refers to them. Tensors at
one place in one storage are one tensor with several names. The object may be hostile: shared references could unfold to
any size and cycles have no end, so what is visited is counted, and so are the bytes that tensors unfold to.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from perdure.adapters.torch.foreign import Crc, ForeignTensor
from perdure.adapters.torch.nested import TensorRef
from perdure.adapters.torch.plain_names import finished
from perdure.adapters.torch.tensors import LocalBlock
from perdure.adapters.torch.torch_names import FoundStorage, FoundTensor
from perdure.adapters.torch.unpickling import Inert, State
from perdure.errors import FormatRefused

__all__ = ["flatten"]

MAX_DEPTH = 50
MAX_VALUES = 200_000  # and one more for each 64 bytes of the file
MAX_VALUE_BYTES = 64 << 20
_UNFOLDED_BYTES = 64 << 20  # beside four times the file


def flatten(
    root: Any, block: Callable[[FoundTensor], tuple[LocalBlock, Crc]], *, file: str, file_nbytes: int
) -> tuple[tuple[ForeignTensor, ...], dict[str, Any]]:
    """The tensors and values of ``root``; ``block`` gives the memory of a tensor. What is no dict is ``data``."""
    walk = _Walk(block, file, file_nbytes)
    walk.tree("", root if isinstance(root, dict) and _named(root) else {"data": root}, 0)
    tensors = tuple(
        ForeignTensor(name, found.dtype, found.shape, (held,), tuple(walk.aliases[name]), (crc,))
        for name, (found, (held, crc)) in walk.tensors.items()
    )
    return tensors, walk.values


def _named(tree: dict[Any, Any]) -> bool:
    return all(type(name) is str and name for name in tree)


class _Walk:
    def __init__(self, block: Callable[[FoundTensor], tuple[LocalBlock, Crc]], file: str, file_nbytes: int) -> None:
        self.block, self.file = block, file
        self.tensors: dict[str, tuple[FoundTensor, tuple[LocalBlock, Crc]]] = {}
        self.aliases: dict[str, list[str]] = {}
        self.values: dict[str, Any] = {}
        self._first: dict[Any, str] = {}
        self._names: set[str] = set()
        self._left = self._values = MAX_VALUES + file_nbytes // 64
        self._value_bytes = MAX_VALUE_BYTES
        self._tensor_bytes = 4 * file_nbytes + _UNFOLDED_BYTES

    def refuse(self, why: str) -> NoReturn:
        raise FormatRefused(f"{self.file} is refused: {why}", file=self.file, why=why)

    def tree(self, prefix: str, tree: dict[str, Any], depth: int) -> None:
        for name, value in tree.items():
            key = f"{prefix}{name}"
            self.count(depth, len(key))
            if type(value) is FoundTensor:
                self.tensor(key, value)
            elif isinstance(value, dict) and _named(value):
                self.tree(f"{key}.", value, depth + 1)
            else:
                skeleton = self.value(key, value, depth + 1)
                if key in self.values:
                    self.refuse(f"two values of it would both be called {key[:80]!r}")
                self.values[key] = skeleton

    def count(self, depth: int, nbytes: int) -> None:
        """One more object, ``nbytes`` long where it is text."""
        self._left -= 1
        self._value_bytes -= nbytes
        if depth > MAX_DEPTH:
            self.refuse(f"its objects are nested deeper than {MAX_DEPTH}")
        if self._left < 0 or self._value_bytes < 0:
            self.refuse(f"it unfolds to more than {self._values:,} values or {MAX_VALUE_BYTES >> 20} MiB of them")

    def tensor(self, name: str, found: FoundTensor) -> None:
        if name in self._names:
            self.refuse(f"two tensors of it would both be called {name[:80]!r}")
        self._names.add(name)
        first = self._first.setdefault(found.place, name) if found.nbytes else name
        if first != name:
            self.aliases[first].append(name)
            return
        self._tensor_bytes -= found.nbytes
        if self._tensor_bytes < 0:
            self.refuse(f"its tensors unfold to far more bytes than it has; {name[:80]!r} is expanded, save it whole")
        self.tensors[name] = found, self.block(found)
        self.aliases[name] = []

    def value(self, path: str, value: Any, depth: int) -> Any:
        """``value`` with references in the place of tensors."""
        value = finished(value)
        kind = type(value)
        self.count(depth, len(value) if kind in (str, bytes, bytearray) else 0)
        if kind is FoundTensor:
            name = path
            while name in self._names:  # two paths that read alike
                name = f"{name}#{len(self._names)}"
            self.tensor(name, value)
            return TensorRef(name)
        if kind in (dict, OrderedDict):
            pairs = [(name, each) for name, each in value.items()]
            return kind((name, self.value(f"{path}.{_shown(name)}", each, depth + 1)) for name, each in pairs)
        if kind in (list, tuple):
            return kind(self.value(f"{path}.{i}", each, depth + 1) for i, each in enumerate(value))
        if kind in (set, frozenset):
            self._left -= len(value)
            self.count(depth, sum(len(each) for each in value if type(each) in (str, bytes)))
        elif isinstance(value, np.ndarray):
            self.count(depth, value.nbytes)
        elif isinstance(value, Inert | State | FoundStorage):
            what = value.name if isinstance(value, Inert) else "half an object"
            self.refuse(f"{path[:80]} is {what}, which is no value")
        return value


def _shown(name: Any) -> str:
    return name if type(name) is str else repr(name)
