"""Norms of gradients that a job prints beside its loss, and whether they stay not finite.

A norm that is not finite once is no fault: the first steps with a loss scale, and each step that it skips, print one.
So lines that print a number are judged as a series, not one by one: it counts when the last norms are not finite.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from perdure.watcher.labels import Label
from perdure.watcher.logs.numbers import Finding, Point
from perdure.watcher.logs.reading import Line

__all__ = ["not_finite", "printed"]

_VALUE = r"(?P<v>[-+]?(?:nan|inf(?:inity)?|\d+\.?\d*(?:e[-+]?\d+)?|\.\d+))\b"
_NORM = re.compile(r"\bgrad(?:ient)?s?[ _]?norm['\"]?\s*[:=|]\s*['\"]?" + _VALUE, re.IGNORECASE)
_PRINTED = re.compile(
    r"\b(?:loss\w*|\w+_loss|grad\w*[ _]?norm)['\"]?\s*[:=|]\s*['\"]?[-+]?(?:nan|inf(?:inity)?)\b", re.IGNORECASE
)
_LAST = 2


def printed(text: str) -> bool:
    """Whether a line prints a loss or norm that is not finite as a value among others.

    >>> printed("step 3 loss: 2.1 grad_norm: nan"), printed("loss is nan, stopping")
    (True, False)
    """
    return _PRINTED.search(text) is not None


def not_finite(lines: Iterable[Line]) -> list[Finding]:
    """The finding that the norms of gradients are not finite any more, if they are not."""
    norms = [
        Point(float(match["v"]), line)
        for line in lines
        if "norm" in line.text.lower() and (match := _NORM.search(line.text)) is not None
    ]
    last = norms[-_LAST:]
    if not last or any(math.isfinite(point.value) for point in last):
        return []
    first = next(point for point in norms if not math.isfinite(point.value))
    why = "the printed norm of the gradients is not finite"
    return [Finding(Label.NAN, 2.5, why, tuple(dict.fromkeys((first.line, last[-1].line))))]
