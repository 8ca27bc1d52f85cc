"""The tree that a user gives to save and restore: nested dicts, and at their ends what has state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from perdure.errors import CallError, NotSerializable
from perdure.state.scopes import RankLocal

__all__ = ["MAX_DEPTH", "inner_key", "is_stateful", "leaves", "nested_too_deep"]

MAX_DEPTH = 64  # of dicts, or of lists and dicts in a state, inside one another: what has no end is met here


def leaves(tree: Mapping[Any, Any], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """What is in ``tree`` at any depth and is no dict, without its `RankLocal`, and the key that it is saved under."""
    if depth > MAX_DEPTH:
        raise nested_too_deep(prefix.removesuffix("."), "dict")
    for name, value in tree.items():
        inner = value.value if isinstance(value, RankLocal) else value
        if isinstance(inner, dict):
            yield from leaves(inner, f"{prefix}{name}.", depth + 1)
        else:
            yield f"{prefix}{name}", inner


def inner_key(key: str, name: Any) -> str:
    """The key of the entry ``name`` of the dict at ``key``."""
    if not isinstance(name, str):
        raise CallError(f"the keys of {key} must be strings to name tensors; {name!r} is none", key=key)
    return f"{key}.{name}"


def nested_too_deep(key: str, kind: str) -> NotSerializable:
    """The error for what stands at ``key``, too many levels down."""
    shown = key if len(key) <= 60 else f"{key[:60]}..."
    return NotSerializable(
        f"{shown} is nested deeper than {MAX_DEPTH} levels, or holds itself; save a flatter tree", key=shown, type=kind
    )


def is_stateful(value: Any) -> bool:
    """Whether ``value`` gives its state and takes it back."""
    return callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))
