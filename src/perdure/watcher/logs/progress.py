"""What the lines of a running job say of its progress, one after another: step, loss, gradient norm, time of a step.

The words are those of `numbers`, which judges whole logs. Here a line comes at a time, and nothing of the past is kept
but what tells how the next is meant:

- of several losses of a job (of experts, of an evaluation) one is followed: the one that is printed most;
- of several times of a step the most exact: one that is printed, else a rate, else the clock of the lines;
- a step that is lower than the one before has been restored, unless an epoch has begun, or it is the first number of
  all: then steps are counted by epochs, and go on;
- where no step is printed, lines with a loss are counted.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from perdure.watcher.logs.numbers import LOSS, NUMBER, OF_RANK, PER, RATE, RESUMED, TIME
from perdure.watcher.logs.reading import Line

__all__ = ["Progress", "Said", "may_tell"]

_STEP: Final = re.compile(
    r"\b(?:(?:global|train|optimizer|opt)[ _/]?)?(?:steps?|iterations?|iters?|updates?|it)['\"]?\s*[:=#]?\s*\[?\s*"
    r"(?P<v>\d{1,12})\b(?!\.\d|\s*(?:%|s\b|ms\b|it/s|steps?\b|iterations?\b))",
    re.IGNORECASE,
)
_NOT_A_STEP: Final = re.compile(
    r"(?:skipped|nan|inf|per|every|last|total|max|min|num|warm ?up|warmup|decay|remaining|after|for|of|save)[ _]*$",
    re.IGNORECASE,
)
_BAR: Final = re.compile(r"(?P<v>\d+)/(?:\d+|\?) \[[\d:]+<[^,\]]*, *(?P<pace>\d+\.?\d*)(?P<unit>s/|[a-z]+/s)")
_EPOCH: Final = re.compile(r"\bepoch['\"]?\s*[:=#\[]?\s*(?P<v>\d+)", re.IGNORECASE)
_NORM: Final = re.compile(r"\bgrad(?:ient)?s?[ _/]?norm" + NUMBER, re.IGNORECASE)
_EVALUATION: Final = re.compile(r"\b(?:val(?:id(?:ation)?)?|eval(?:uat\w*)?|test(?:ing)?|predict\w*)\b", re.IGNORECASE)
_BEFORE_LOSS: Final = re.compile(r"([a-z]+)[ /-]$", re.IGNORECASE)
_SIDE_LOSS: Final = frozenset(
    [
        "aux",
        "auxiliary",
        "balance",
        "balancing",
        "router",
        "z",
        "kl",
        "commitment",
        "reg",
        "regularization",
        "l2",
        "val",
        "valid",
        "validation",
        "eval",
        "test",
    ]
)
_MAY_TELL: Final = re.compile(rb"loss|norm|step|iter|epoch|/it|it/s|resum|restor|\bit\b|\d/\d|rank", re.IGNORECASE)
_MILLI: Final = re.compile(r"ms|milli", re.IGNORECASE)
_SWITCH: Final = 8
_COARSE_S: Final = 20.0
"A clock that shows seconds is good enough for differences this long."
_STAMPED, _RATED, _PRINTED = 1, 2, 3


def may_tell(line: bytes) -> bool:
    """Whether a line is worth a look; cheap, and seldom wrongly no."""
    return _MAY_TELL.search(line) is not None


@dataclass(frozen=True, slots=True)
class Said:
    """What a line said. ``step`` is the one that the numbers are of; ``loss`` and ``norm`` may not be finite."""

    step: int | None = None
    loss: float | None = None
    norm: float | None = None
    step_s: float | None = None
    of_rank: tuple[int, float] | None = None
    "Of another rank than the one that wrote: its number and its own time."


class Progress:
    """Reads the lines that one writer prints, in order. ``base``: steps counted so far, where none is printed.

    >>> from perdure.watcher.logs.reading import lines_of
    >>> progress = Progress()
    >>> progress.read(lines_of("iteration 7/ 100 | elapsed time per iteration (ms): 250.0 | lm loss: 2.5E+00")[0])
    Said(step=7, loss=2.5, norm=None, step_s=0.25, of_rank=None)
    >>> progress.read(lines_of("validation loss: 2.9")[0]), progress.step
    (None, 7)
    """

    def __init__(self, *, base: int = 0) -> None:
        self.step: int | None = None
        self.relative = False
        "Whether steps are counted here, as they are not printed, or only within an epoch."
        self._base = self._offset = base
        self._first: int | None = None
        self._printed: int | None = None
        self._bar: int | None = None
        self._epoch: int | None = None
        self._new_epoch = self._resumed = False
        self._loss_step: int | None = None
        self._name: str | None = None
        self._other = 0
        self._exact = 0
        self._stamp: tuple[int, float] | None = None

    def read(self, line: Line) -> Said | None:
        """Take a line; None if it says nothing of progress."""
        text = line.text
        if RESUMED.search(text):
            self._resumed = True
        evaluates = _EVALUATION.search(text)
        if (epoch := _EPOCH.search(text)) is not None:
            self._new_epoch |= self._epoch is not None and int(epoch["v"]) > self._epoch
            self._epoch = int(epoch["v"])
        other = OF_RANK.search(text) if "rank" in text.lower() else None
        if other is not None:
            return Said(step=self.step, of_rank=(int(other["rank"]), _seconds(float(other["v"]), other[0])))
        before = self.step
        loss = self._loss(text, evaluates.start() if evaluates is not None else len(text))
        if evaluates is None:
            self._steps(text)
        norm = None if (match := _NORM.search(text)) is None else float(match["v"])
        if loss is not None and (self.step is None or self._printed is None) and self.step == self._loss_step:
            self.step = self._base + 1 if self.step is None else self.step + 1
            self.relative = True
        self._loss_step = self.step if loss is not None else self._loss_step
        step_s = None if evaluates is not None else self._time(text, line.at)
        if loss is None and norm is None and step_s is None and self.step == before:
            return None
        return Said(step=self.step, loss=loss, norm=norm, step_s=step_s)

    def bar(self, text: str) -> None:
        """A progress bar has been drawn anew, and its line has not ended: it says where the steps are."""
        if self._printed is None and (match := _BAR.search(text)) is not None and not _EVALUATION.search(text):
            self._bar_at(int(match["v"]))

    def _loss(self, text: str, evaluation_at: int) -> float | None:
        for match in LOSS.finditer(text):
            word = _BEFORE_LOSS.search(text[max(0, match.start() - 24) : match.start()])
            name = match[0][: match.start("v") - match.start()].strip(" \t'\":=|").lower()
            if word is not None and word[1].lower() in _SIDE_LOSS:
                continue
            if match.start() > evaluation_at and not name.startswith("train"):
                continue
            if self._name is None or name == self._name:
                self._name, self._other = name, 0
                return float(match["v"])
            self._other += 1
            if self._other >= _SWITCH:
                self._name, self._other = name, 0
                return float(match["v"])
        return None

    def _steps(self, text: str) -> None:
        for match in _STEP.finditer(text):
            if not _NOT_A_STEP.search(text[max(0, match.start() - 12) : match.start()]):
                self._step_is(int(match["v"]))
                return
        self.bar(text)

    def _step_is(self, printed: int) -> None:
        if self._first is None or self._printed is None:
            self._first = printed
        elif printed < self._printed and not self._resumed and (self._new_epoch or printed <= max(self._first, 1)):
            self._offset += self._printed
            self.relative = True
        self._printed = printed
        self._new_epoch = self._resumed = False
        self.step = printed + self._offset

    def _bar_at(self, step: int) -> None:
        if self._bar is not None and step < self._bar and not self._resumed:
            self._offset += self._bar
            self.relative = True
        self._bar = step
        self.step = max(step + self._offset, self.step or 0)

    def _time(self, text: str, at: float | None) -> float | None:
        for exact, value in self._times(text, at):
            if exact >= self._exact and math.isfinite(value) and value > 0:
                self._exact = exact
                return value
        return None

    def _times(self, text: str, at: float | None) -> Iterator[tuple[int, float]]:
        low = text.lower()
        if "time" in low or "/it" in low or "/step" in low:
            match = TIME.search(text) or PER.search(text)
            if match is not None:
                yield _PRINTED, _seconds(float(match["v"]), text[match.start() : match.end() + 3])
        if "it/s" in low and (bar := _BAR.search(text)) is not None and bar["unit"] == "it/s" and float(bar["pace"]):
            yield _PRINTED, 1 / float(bar["pace"])
        rate = RATE.search(text) if "/s" in low or "per" in low or "throughput" in low or "tflop" in low else None
        if rate is not None and (said := rate["v"] or rate["w"]) and float(said) > 0:
            yield _RATED, 1 / float(said)
        if at is not None and self.step is not None:
            before, steps = self._stamp, 0
            if before is None or self.step != before[0]:
                self._stamp = self.step, at
                steps = 0 if before is None else self.step - before[0]
            if before is not None and steps > 0 and (at % 1 or before[1] % 1 or at - before[1] >= _COARSE_S):
                yield _STAMPED, (at - before[1]) / steps


def _seconds(value: float, said: str) -> float:
    if _MILLI.search(said):
        return value / 1e3
    return value / 1e6 if re.search(r"\dus\b|\d us\b|\(us\)", said) else value
