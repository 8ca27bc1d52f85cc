"""The tree that a user gives to save and restore: nested dicts, and at their ends what has state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from perdure.errors import CallError
from perdure.state.scopes import RankLocal

__all__ = ["inner_key", "is_stateful", "leaves"]


def leaves(tree: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """What is in ``tree`` at any depth and is no dict, without its `RankLocal`, and the key that it is saved under."""
    for name, value in tree.items():
        inner = value.value if isinstance(value, RankLocal) else value
        if isinstance(inner, dict):
            yield from leaves(inner, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", inner


def inner_key(key: str, name: Any) -> str:
    """The key of the entry ``name`` of the dict at ``key``."""
    if not isinstance(name, str):
        raise CallError(f"the keys of {key} must be strings to name tensors; {name!r} is none", key=key)
    return f"{key}.{name}"


def is_stateful(value: Any) -> bool:
    """Whether ``value`` gives its state and takes it back."""
    return callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))
