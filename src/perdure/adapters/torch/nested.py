"""Take the tensors out of a nested state and put them back: what remains is plain, tagged JSON with references."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from perdure.adapters.torch.tensors import dtype_name, torch_dtype
from perdure.adapters.torch.tree import MAX_DEPTH, nested_too_deep
from perdure.errors import CallError, FormatRefused
from perdure.state.values import register_tag

__all__ = ["TensorRef", "put_tensors_back", "references", "take_tensors_out"]


@dataclass(frozen=True, slots=True)
class TensorRef:
    """Stands for the saved tensor ``name`` in a nested state."""

    name: str


def take_tensors_out(key: str, state: Any) -> tuple[Any, dict[str, torch.Tensor]]:
    """Return ``state`` with a `TensorRef` for each tensor, and the tensors by name (``key.path.to.it``)."""
    found: dict[str, torch.Tensor] = {}

    def take(path: str, value: Any, depth: int) -> Any:
        if isinstance(value, torch.Tensor):
            name = path
            while name in found:  # two paths that read alike
                name = f"{name}#{len(found)}"
            found[name] = value
            return TensorRef(name)
        if type(value) not in (dict, OrderedDict, list, tuple):
            return value
        if depth > MAX_DEPTH:
            raise nested_too_deep(path, type(value).__name__)
        if isinstance(value, dict):
            return type(value)((name, take(f"{path}.{name}", each, depth + 1)) for name, each in value.items())
        return type(value)(take(f"{path}.{i}", each, depth + 1) for i, each in enumerate(value))

    return take(key, state, 0), found


def references(skeleton: Any) -> list[str]:
    """The names of all tensors that ``skeleton`` refers to."""
    found: list[str] = []
    put_tensors_back(skeleton, found.append)
    return found


def put_tensors_back(skeleton: Any, tensor: Callable[[str], Any]) -> Any:
    """Return ``skeleton`` with ``tensor(name)`` in the place of each reference."""
    if isinstance(skeleton, TensorRef):
        return tensor(skeleton.name)
    if type(skeleton) in (dict, OrderedDict):
        return type(skeleton)((name, put_tensors_back(each, tensor)) for name, each in skeleton.items())
    if type(skeleton) in (list, tuple):
        return type(skeleton)(put_tensors_back(each, tensor) for each in skeleton)
    return skeleton


def _size(text: str) -> torch.Size:
    return torch.Size(int(part) for part in text.split(",") if part)


def _device(text: str) -> torch.device:
    try:
        return torch.device(text)
    except RuntimeError as error:
        raise FormatRefused(f"a saved value is the device {text!r}, which this torch does not know") from error


def _dtype(text: str) -> torch.dtype:
    try:
        return torch_dtype(text)
    except CallError as error:
        raise FormatRefused(f"a saved value is the dtype {text!r}, which this torch does not know") from error


register_tag(TensorRef, "tensor", lambda ref: str(ref.name), TensorRef)
register_tag(torch.dtype, "torch.dtype", dtype_name, _dtype)
register_tag(torch.device, "torch.device", str, _device)
register_tag(torch.Size, "torch.Size", lambda size: ",".join(map(str, size)), _size)
