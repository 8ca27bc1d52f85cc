"""Functions that torch calls back, and that its compiler leaves alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["never_compiled"]

Hook = TypeVar("Hook", bound=Callable[..., Any])


def never_compiled(hook: Hook) -> Hook:
    """Let a compiled optimizer step call ``hook`` as it is, before what it computes; return ``hook``.

    This is what `torch.compiler.disable` does, without the import of the compiler, which takes seconds.
    """
    hook._torchdynamo_disable = True  # type: ignore[attr-defined]
    hook._torchdynamo_disable_msg = "perdure waits for the copy of a save"  # type: ignore[attr-defined]
    return hook
