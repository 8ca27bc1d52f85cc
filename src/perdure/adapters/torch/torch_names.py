"""The closed table of names that a file of ``torch.save`` may use, and what stands here for each.

Tensors and storages become descriptions (`FoundTensor`, `FoundStorage`) that are checked when they are made: a tensor
lies inside its storage whatever its strides are. Plain values are in
`plain_names`. Every other name is refused; `find` never imports.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from perdure.adapters.torch.plain_names import VALUES, sizes_of
from perdure.adapters.torch.tensors import dtype_name, torch_dtype
from perdure.adapters.torch.unpickling import Inert, Malformed
from perdure.codec.dtypes import DTYPES
from perdure.errors import CallError, FormatRefused

__all__ = ["FoundStorage", "FoundTensor", "Names", "storage_of"]

_LIMIT = 1 << 62


@dataclass(frozen=True, slots=True)
class FoundStorage:
    """A storage of the file: its key there, its element type (None: bytes), and its bytes."""

    key: str
    dtype: str | None
    nbytes: int


@dataclass(frozen=True, slots=True)
class FoundTensor:
    """A tensor that a file describes; ``offset`` and ``stride`` in elements, inside ``storage`` by construction."""

    storage: FoundStorage
    dtype: str
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    conj: bool = False
    neg: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes of its elements, packed."""
        return math.prod(self.shape) * DTYPES[self.dtype].itemsize

    @property
    def place(self) -> tuple[Any, ...]:
        """Equal for two names of one tensor, unequal for two tensors."""
        return (self.storage.key, self.dtype, self.offset, self.shape, self.stride, self.conj, self.neg)


class Names:
    """``find`` for the files of ``torch.save``; ``file`` is named where a name is refused."""

    def __init__(self, file: str) -> None:
        self.file = file

    def __call__(self, name: str) -> Any:
        """What stands for ``module.name``."""
        found: Any = _TABLE.get(name)
        if found is None and name.startswith("torch.") and name.count(".") == 1:
            found = _DTYPES.get(name[6:])
        if found is None:
            why = _UNLIKE.get(name, "a checkpoint is tensors, numbers, text and containers of these")
            raise FormatRefused(
                f"{self.file} wants {name[:200]!r}: {why}; nothing of it was run", file=self.file, name=name[:200]
            )
        return found


def storage_of(saved_id: Any, *, fields: int) -> FoundStorage:
    """The storage that a persistent id of ``fields`` fields stands for; `Malformed` if it is none."""
    if type(saved_id) is not tuple or len(saved_id) != fields or saved_id[0] != "storage":
        raise Malformed("its pickle refers to something outside of it that is no storage")
    kind, key, location, numel = saved_id[1:5]
    if type(kind) is not Inert or kind.name not in _STORAGES or type(key) is not str or type(location) is not str:
        raise Malformed("its pickle describes a storage in a way that torch.save does not")
    dtype = _STORAGES[kind.name]
    width = 1 if dtype is None else DTYPES[dtype].itemsize
    if type(numel) is not int or not 0 <= numel < _LIMIT // 16:
        raise Malformed(f"its storage {key[:40]!r} has an impossible size")
    return FoundStorage(key, dtype, numel * width)


# --- tensors ---------------------------------------------------------------------------------------------------------


def _tensor(storage: Any, offset: Any, shape: Any, stride: Any, dtype: str, metadata: Any) -> FoundTensor:
    if type(storage) is not FoundStorage:
        raise Malformed("a tensor of it has no storage")
    shape, stride = sizes_of(shape), sizes_of(stride)
    if len(shape) != len(stride) or type(offset) is not int or not 0 <= offset < _LIMIT:
        raise Malformed("a tensor of it has strides or an offset that fit no tensor")
    numel = math.prod(shape)
    width = DTYPES[dtype].itemsize
    if numel * width >= _LIMIT:
        raise Malformed("a tensor of it has an impossible size")
    last = offset + sum((extent - 1) * step for extent, step in zip(shape, stride, strict=True))
    if numel and (last + 1) * width > storage.nbytes:
        raise Malformed(f"a tensor of it reaches beyond its storage {storage.key[:40]!r} of {storage.nbytes} bytes")
    if metadata is not None and type(metadata) is not dict:
        raise Malformed("a tensor of it has metadata of an unknown kind")
    marks = {} if metadata is None else metadata
    if any(mark not in ("conj", "neg") or type(on) is not bool for mark, on in marks.items()):
        raise Malformed("a tensor of it has metadata of an unknown kind")
    if marks.get("conj") and not dtype.startswith("complex"):
        raise Malformed("a tensor of it is conjugated without being complex")
    return FoundTensor(storage, dtype, offset, shape, stride, marks.get("conj", False), marks.get("neg", False))


def _rebuild_v2(storage: Any, offset: Any, shape: Any, stride: Any, *rest: Any) -> FoundTensor:
    if len(rest) > 3:  # requires_grad, hooks, metadata
        raise Malformed("a tensor of it is described in a way that torch.save does not")
    if type(storage) is not FoundStorage or storage.dtype is None:
        raise Malformed("a tensor of it has no storage with a dtype")
    return _tensor(storage, offset, shape, stride, storage.dtype, rest[2] if len(rest) == 3 else None)


def _rebuild_v3(
    storage: Any, offset: Any, shape: Any, stride: Any, grad: Any, hooks: Any, dtype: Any, metadata: Any = None
) -> FoundTensor:
    if type(dtype) is not torch.dtype or dtype_name(dtype) not in DTYPES:
        raise Malformed("a tensor of it has no dtype that can be saved")
    return _tensor(storage, offset, shape, stride, dtype_name(dtype), metadata)


def _rebuild_parameter(data: Any, grad: Any, hooks: Any, state: Any = None) -> FoundTensor:
    if type(data) is not FoundTensor:
        raise Malformed("a parameter of it is no tensor")
    return data


def _rebuild_from_type(function: Any, kind: Any, arguments: Any, state: Any) -> Any:
    """A tensor with Python attributes; those are left out."""
    if type(kind) is not Inert or kind.name not in _TENSOR_TYPES or type(function) is not Inert:
        raise Malformed("a tensor of it is of a class of its own, whose bytes only that class knows")
    if function.build not in (_rebuild_v2, _rebuild_v3) or type(arguments) is not tuple:
        raise Malformed("a tensor of it is described in a way that torch.save does not")
    return function.build(*arguments)


# --- the table -------------------------------------------------------------------------------------------------------

_LEGACY = {
    "Double": "float64",
    "Float": "float32",
    "Half": "float16",
    "BFloat16": "bfloat16",
    "Long": "int64",
    "Int": "int32",
    "Short": "int16",
    "Char": "int8",
    "Byte": "uint8",
    "Bool": "bool",
    "ComplexDouble": "complex128",
    "ComplexFloat": "complex64",
}
_STORAGES: dict[str, str | None] = {
    f"{module}.{kind}Storage": dtype for module in ("torch", "torch.cuda") for kind, dtype in _LEGACY.items()
} | {"torch.storage.UntypedStorage": None, "torch.UntypedStorage": None}


def _known_dtypes() -> dict[str, torch.dtype]:
    known = {}
    for name in DTYPES:
        try:
            known[name] = torch_dtype(name)
        except CallError:  # a dtype of another torch
            continue
    return known


_DTYPES = _known_dtypes()
_TENSOR_TYPES = ("torch.Tensor", "torch._tensor.Tensor", "torch.nn.parameter.Parameter", "torch.nn.parameter.Buffer")
_NAMED = (*_STORAGES, *_TENSOR_TYPES)
_CALLED: dict[str, Any] = {
    "torch._utils._rebuild_tensor": _rebuild_v2,
    "torch._utils._rebuild_tensor_v2": _rebuild_v2,
    "torch._utils._rebuild_tensor_v3": _rebuild_v3,
    "torch._utils._rebuild_parameter": _rebuild_parameter,
    "torch._utils._rebuild_parameter_with_state": _rebuild_parameter,
    "torch._tensor._rebuild_from_type_v2": _rebuild_from_type,
}
_TABLE: dict[str, Inert] = {n: Inert(n) for n in _NAMED} | {n: Inert(n, f) for n, f in _CALLED.items()} | VALUES
_UNLIKE = {
    "torch._utils._rebuild_qtensor": "it is a quantized tensor; save it dequantized, or its parts",
    "torch._utils._rebuild_sparse_tensor": "it is a sparse tensor; save its indices and values",
    "torch._utils._rebuild_nested_tensor": "it is a nested tensor; save the tensors that it is made of",
    "torch._utils._rebuild_wrapper_subclass": "it is a tensor of a class of its own; save the tensors it is made of",
    "torch._utils._rebuild_meta_tensor_no_storage": "it is a meta tensor, which has no bytes; materialise it first",
    "torch._utils._rebuild_device_tensor_from_numpy": "it is a tensor of another device; save it from the CPU",
    "torch._utils._rebuild_device_tensor_from_cpu_tensor": "it is a tensor of another device; save it from the CPU",
}
