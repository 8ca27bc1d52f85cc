"""What came after an error: whether the job went on as if nothing had been.

A log of a good job holds errors too: samples that cannot be read and are skipped, a store that is not up yet, a
request that is tried again. They are survived if, in the same file and from the same rank, steps of training or the
end of the job are told after the last line of trouble. A rank that died prints no more steps, and its peers, which
may print a step or two that were already under way, then say that they wait in vain: trouble again. What a machine
says of its hardware, and what the training's own numbers say, is never taken back by later steps.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from perdure.watcher.labels import Label
from perdure.watcher.logs.reading import Line

if TYPE_CHECKING:
    from perdure.watcher.logs.diagnose import Hit

__all__ = ["lasting", "survived"]

_STEP = re.compile(
    r"(?!.*\b(?:nan|inf)\b)"
    r"(?=.*(?:\b|_)(?:loss|lr|learning[ _]rate|it/s|s/it|samples/s\w*|tok\w*/s\w*|acc\w*|reward|perplexity|ppl)\b)"
    r".*\b(?:step|iter(?:ation)?|epoch|batch|update)s?\b['\"]?\W{0,4}\d",
    re.IGNORECASE,
)
_DONE = re.compile(
    r"\b(?:training|run|job|trainer|fit\w*|evaluation)\b[^.]{0,30}\b(?:finished|completed?|done|succeeded)\b"
    r"|finished training|Trainer\.fit\W* stopped|rendezvous complete|exit(?:ed)?(?: with)?(?: exit)?(?: code)? 0\b"
    r"|resuming normal operation",
    re.IGNORECASE,
)
_NOT_DONE = re.compile(r"\b(?:not|before|fail\w*|error|unable|abort\w*|incomplete|last completed)\b", re.IGNORECASE)
_AGAIN = re.compile(r"\bretry(?:ing)?\b(?!.*(?:exceeded|exhausted|giv|gave))", re.IGNORECASE)
_ENOUGH_STEPS = 3
_MAY_PASS = ("sw.", "infra.", "transient.")
_STAY = frozenset({Label.HOST_OOM, Label.SCHED, Label.RANK_SKEW, Label.DESYNC, Label.CONTENTION, Label.CLOCK})


def lasting(hits: Sequence[Hit], lines: Iterable[Line], trouble: Iterable[Line]) -> list[Hit]:
    """``hits`` without those that the job has survived. ``trouble`` are further lines that speak of an error."""
    passing = [hit for hit in hits if _may_pass(hit)]
    if not passing:
        return list(hits)
    quiet = survived([line for hit in hits for line in hit.lines] + list(trouble), lines)
    gone = {id(hit) for hit in passing if hit.lines and all((line.file, line.rank) in quiet for line in hit.lines)}
    return [hit for hit in hits if id(hit) not in gone]


def survived(trouble: Iterable[Line], lines: Iterable[Line]) -> set[tuple[str, int | None]]:
    """The files and ranks that went on after the last of their lines of ``trouble``."""
    last: dict[tuple[str, int | None], int] = {}
    for line in trouble:
        key = (line.file, line.rank)
        last[key] = max(last.get(key, line.order), line.order)
    steps = dict.fromkeys(last, 0)
    again: set[tuple[str, int | None]] = set()
    for line in lines:
        key = (line.file, line.rank)
        if line.order > last.get(key, line.order):
            if _DONE.search(line.text) and not _NOT_DONE.search(line.text):
                steps[key] += _ENOUGH_STEPS
            elif _STEP.match(line.text):
                steps[key] += _ENOUGH_STEPS if key in again else 1
            elif _AGAIN.search(line.text):
                again.add(key)
    return {key for key, count in steps.items() if count >= _ENOUGH_STEPS}


def _may_pass(hit: Hit) -> bool:
    """Whether later steps can take it back. Of what the numbers say only one sentence about a NaN can pass."""
    if hit.label is Label.NAN:
        return len(hit.lines) == 1
    return hit.label.value.startswith(_MAY_PASS) and hit.label not in _STAY
