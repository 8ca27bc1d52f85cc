"""What a caller asks of a save, checked before any rank meets another or a byte is staged."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

from perdure.errors import CallError

__all__ = ["checked_bytes", "checked_metric", "checked_step", "checked_tier"]

_STEPS = 10**12  # what the name of a part has room for


def checked_step(step: Any) -> int:
    """``step`` if it can be one; raises `CallError` with the limits."""
    if isinstance(step, bool) or not isinstance(step, Integral) or not 0 <= int(step) < _STEPS:
        raise CallError(f"step is {step!r}; a step is a whole number from 0 to {_STEPS - 1:,}", step=repr(step))
    return int(step)


def checked_bytes(option: str, given: Any) -> int:
    """``given`` if it can be a number of bytes for ``option``, 1 or more; raises `CallError` otherwise."""
    if isinstance(given, bool) or not isinstance(given, Integral) or given < 1:
        told = repr(given)[:80]
        raise CallError(
            f"{option} is {told}; give a whole number of bytes above 0, such as {1 << 30} for 1 GiB", **{option: told}
        )
    return int(given)


def checked_tier(tier: Any, *, remote: bool = False) -> bool:
    """Whether a save that is to go as far as ``tier`` is to be durable; raises `CallError` for what is no such tier.

    ``remote`` says whether the run has a remote store.
    """
    if tier not in ("memory", "disk", "remote"):
        raise CallError(
            f"tier is {tier!r}; a save goes to 'disk' (through memory), on to 'remote', or to 'memory' only",
            tier=repr(tier),
        )
    if tier == "remote" and not remote:
        raise CallError('tier="remote" needs a remote store: give it as tiers=["s3://..."]', tier=tier)
    return bool(tier != "memory")


def checked_metric(metric: Any) -> float | None:
    """``metric`` as a float; raises `CallError` unless it is one finite number, or None.

    >>> checked_metric(1), checked_metric(None)
    (1.0, None)
    """
    if metric is None:
        return None
    told = repr(metric)[:80]
    if isinstance(metric, bool) or not isinstance(metric, Real):  # NumPy's numbers are Real, tensors are not
        raise CallError(f"metric is {told}; give one finite number (of a tensor: its item()), or None", metric=told)
    try:
        number = float(metric)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise CallError(f"metric is {told}; give one finite number, or None if there is none", metric=told)
    return number
