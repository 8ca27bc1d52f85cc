"""Functions that torch calls back, and that its compiler leaves alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

__all__ = ["never_compiled"]

Hook = TypeVar("Hook", bound=Callable[..., Any])


def never_compiled(hook: Hook) -> Hook:
    """Let a compiled optimizer step call ``hook`` as it is, before what it computes; return ``hook``.

    This is what `torch.compiler.disable` does, without the import of the compiler, which takes seconds: a caller that
    is compiled breaks its graph here, and neither this code nor what it calls is traced. Where torch has no such mark
    on code, `torch.compiler.disable` it is.
    """
    try:
        from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy
    except ImportError:
        return cast("Hook", torch.compiler.disable(hook))  # type: ignore[no-untyped-call]
    set_code_exec_strategy(hook.__code__, _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP))
    hook._torchdynamo_disable = True  # type: ignore[attr-defined]
    hook._torchdynamo_disable_msg = "perdure looks at the step"  # type: ignore[attr-defined]
    return hook
