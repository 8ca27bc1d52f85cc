"""The part of the closed table that is plain values: what Python and NumPy write for numbers, text and containers.

Each function here takes the place of one that a pickle names, checks what it is given, and makes a value without
behaviour. Nothing is imported and nothing of the file is called.
"""

from __future__ import annotations

import math
import re
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from perdure.adapters.torch.unpickling import Inert, Malformed, State

__all__ = ["VALUES", "finished", "sizes_of"]

_LIMIT = 1 << 62
_MAX_DIMS = 64
_NUMPY_DTYPE = re.compile(r"\A[biufc][0-9]{1,2}\Z")


def finished(value: Any) -> Any:
    """``value``, without what stands for NumPy objects while a pickle is read."""
    return value.value() if isinstance(value, _Array) else value


def sizes_of(value: Any) -> tuple[int, ...]:
    """``value`` as a shape or strides; `Malformed` if it can be neither."""
    sizes = tuple(value) if isinstance(value, tuple) else None
    if sizes is None or len(sizes) > _MAX_DIMS or any(type(n) is not int or not 0 <= n < _LIMIT for n in sizes):
        raise Malformed("a tensor of it has a shape or strides that fit no tensor")
    return sizes


def _size(values: Any = ()) -> torch.Size:
    return torch.Size(sizes_of(tuple(values) if type(values) is list else values))


def _device(kind: Any, index: Any = None) -> torch.device:
    known = index is None or (type(index) is int and 0 <= index < 1024)
    if type(kind) is not str or len(kind) > 40 or not known:
        raise Malformed("it names a device in a way that torch does not")
    try:
        return torch.device(kind) if index is None else torch.device(kind, index)
    except RuntimeError as error:
        raise Malformed(f"it names the device {kind!r}, which this torch does not know") from error


def _layout(name: Any) -> str:
    if type(name) is not str or len(name) > 40:
        raise Malformed("it names a layout in a way that torch does not")
    return name


def _atoms(values: Any) -> list[Any]:
    if type(values) not in (list, tuple):
        raise Malformed("it makes a set of what is no list")
    if any(type(each) not in (str, int, float, bool, bytes, type(None)) for each in values):
        raise Malformed("it makes a set of other than numbers and text")
    return list(values)


def _complex(real: Any, imag: Any) -> complex:
    if type(real) is not float or type(imag) is not float:
        raise Malformed("it makes a complex number of what are no numbers")
    return complex(real, imag)


def _range(*ends: Any) -> range:
    if not 1 <= len(ends) <= 3 or any(type(each) is not int for each in ends) or ends[2:] == (0,):
        raise Malformed("it makes a range of what are no whole numbers")
    return range(*ends)


def _encode(text: Any, encoding: Any) -> bytes:
    """``_codecs.encode``, as protocol 2 spells bytes."""
    if type(text) is not str or encoding != "latin1":
        raise Malformed("it encodes text in a way that pickle does not")
    try:
        return text.encode("latin1")
    except UnicodeEncodeError as error:
        raise Malformed("it encodes text in a way that pickle does not") from error


def _bytearray(data: Any = b"", encoding: Any = None) -> bytearray:
    return bytearray(_encode(data, encoding) if encoding is not None else _bytes(data))


def _bytes(data: Any = b"") -> bytes:
    if type(data) is not bytes:
        raise Malformed("it makes bytes of what are none")
    return data


def _ordered(items: Any = ()) -> OrderedDict[Any, Any]:
    if items != () and items != []:
        raise Malformed("it fills a dict in a way that torch.save does not")
    return OrderedDict()


def _default(factory: Any = None) -> dict[Any, Any]:
    if factory is not None and type(factory) is not Inert:
        raise Malformed("it makes a dict with a default that is no name")
    return {}


@dataclass(slots=True)
class _NumpyDtype(State):
    """``numpy.dtype``, of numbers only."""

    code: str
    order: str = "<"

    def set_state(self, state: Any) -> None:
        plain = type(state) is tuple and len(state) >= 5 and state[1] in ("<", ">", "|", "=")
        if not plain or any(each is not None for each in state[2:5]):
            raise Malformed("it holds a NumPy dtype that is not of plain numbers")
        self.order = state[1]

    @property
    def numpy(self) -> np.dtype[Any]:
        try:
            return np.dtype(self.order + self.code)
        except TypeError as error:
            raise Malformed(f"it holds the unknown NumPy dtype {self.code!r}") from error


@dataclass(slots=True)
class _Array(State):
    """``numpy.ndarray``, while its state is still to come."""

    array: Any = None

    def set_state(self, state: Any) -> None:
        if type(state) is not tuple or len(state) != 5:
            raise Malformed("it holds a NumPy array in a way that NumPy does not write")
        _, shape, dtype, fortran, raw = state
        if type(dtype) is not _NumpyDtype or type(raw) is not bytes or type(fortran) is not bool:
            raise Malformed("it holds a NumPy array that is not of plain numbers")
        sizes = sizes_of(shape)
        if len(sizes) > 32 or max(sizes, default=0) > len(raw) or math.prod(sizes) * dtype.numpy.itemsize != len(raw):
            raise Malformed("it holds a NumPy array whose bytes do not fill its shape")
        self.array = np.frombuffer(raw, dtype.numpy).reshape(sizes, order="F" if fortran else "C").copy()

    def value(self) -> Any:
        """The array itself."""
        if self.array is None:
            raise Malformed("it holds a NumPy array without its bytes")
        return self.array


def _numpy_dtype(code: Any, align: Any = False, copy: Any = True) -> _NumpyDtype:
    if type(code) is not str or not _NUMPY_DTYPE.match(code):
        raise Malformed("it holds a NumPy dtype that is not of plain numbers")
    return _NumpyDtype(code)


def _reconstruct(kind: Any, shape: Any, code: Any) -> _Array:
    if type(kind) is not Inert or kind.name != "numpy.ndarray":
        raise Malformed("it holds an array of a class of its own")
    return _Array()


def _scalar(dtype: Any, raw: Any) -> Any:
    if type(dtype) is not _NumpyDtype or type(raw) is not bytes or dtype.numpy.itemsize != len(raw):
        raise Malformed("it holds a NumPy number whose bytes do not fit")
    return np.frombuffer(raw, dtype.numpy)[0]


_NAMED: tuple[str, ...] = ("numpy.ndarray",)
_CALLED: dict[str, Any] = {
    "torch.Size": _size,
    "torch.device": _device,
    "torch.serialization._get_layout": _layout,
    "collections.OrderedDict": _ordered,
    "collections.defaultdict": _default,
    "_codecs.encode": _encode,
    "numpy.dtype": _numpy_dtype,
    **{f"numpy.{core}.multiarray._reconstruct": _reconstruct for core in ("core", "_core")},
    **{f"numpy.{core}.multiarray.scalar": _scalar for core in ("core", "_core")},
}
for _module in ("builtins", "__builtin__"):
    _CALLED |= {
        f"{_module}.set": lambda values=(): set(_atoms(values)),
        f"{_module}.frozenset": lambda values=(): frozenset(_atoms(values)),
        f"{_module}.complex": _complex,
        f"{_module}.range": _range,
        f"{_module}.xrange": _range,
        f"{_module}.bytes": _bytes,
        f"{_module}.bytearray": _bytearray,
    }
    _NAMED += tuple(f"{_module}.{kind}" for kind in ("list", "dict", "int", "float", "str", "bool", "tuple"))
VALUES: dict[str, Inert] = {n: Inert(n) for n in _NAMED} | {n: Inert(n, f) for n, f in _CALLED.items()}
"""What stands for each name."""
