"""Which steps of a run to keep: rules that compose. A commit is kept if any rule keeps it.

    keep = [Last(3), EverySteps(1000), EverySeconds(3600), Best(2, "min")]
    keep = "last=3,every-steps=1000,every=1h,best=2:min"    (the same)

Rules look at the branch that training is on, in the order in which its commits were made: never at step numbers or file
times to tell old from new. What a rule keeps today it keeps tomorrow, whatever else was pruned in between. The head and
pinned steps are kept whatever the rules say; `perdure.upkeep.pruning` sees to that.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from perdure.errors import CallError

__all__ = ["Best", "EverySeconds", "EverySteps", "Facts", "Keep", "Last", "Rule", "as_rules", "parse", "text_of"]

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_FORMS = "last=3, every-steps=1000, every=1h (s, m, h, d, w), best=2:min or best=2:max"


class Facts(Protocol):
    """What rules look at: one commit of the branch."""

    @property
    def step(self) -> int: ...
    @property
    def metric(self) -> float | None: ...
    @property
    def created(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Last:
    """Keep the last ``n`` steps.

    >>> str(Last(3)), Last(3).reason
    ('last=3', 'last 3')
    """

    n: int

    def __post_init__(self) -> None:
        _check_count(self.n, "last")

    def __str__(self) -> str:
        return f"last={self.n}"

    @property
    def reason(self) -> str:
        """Why a step is kept, for people."""
        return f"last {self.n}"

    def keeps(self, branch: Sequence[Facts]) -> list[int]:
        """Which of ``branch`` (oldest first) to keep, by index."""
        return list(range(max(0, len(branch) - self.n), len(branch)))


@dataclass(frozen=True, slots=True)
class EverySteps:
    """Keep one step in each ``n``: the first at or after every multiple of ``n``."""

    n: int

    def __post_init__(self) -> None:
        _check_count(self.n, "every-steps")

    def __str__(self) -> str:
        return f"every-steps={self.n}"

    @property
    def reason(self) -> str:
        """Why a step is kept, for people."""
        return f"every {self.n}"

    def keeps(self, branch: Sequence[Facts]) -> list[int]:
        """Which of ``branch`` (oldest first) to keep, by index."""
        kept: list[int] = []
        before: int | None = None
        for i, each in enumerate(branch):
            if each.step // self.n != before:
                kept.append(i)
                before = each.step // self.n
        return kept


@dataclass(frozen=True, slots=True)
class EverySeconds:
    """Keep one step in each ``seconds`` of wall time: the first, and each that was made so long after the one before.

    A clock that jumps, forwards or back, ends the span that runs: at most one step more is kept, never one less.
    """

    seconds: float

    def __post_init__(self) -> None:
        if type(self.seconds) not in (int, float) or not 0 < self.seconds < float("inf"):
            raise CallError(f"every={self.seconds!r}: give a time above 0, as in every=1h")

    def __str__(self) -> str:
        return f"every={_span(self.seconds)}"

    @property
    def reason(self) -> str:
        """Why a step is kept, for people."""
        return f"every {_span(self.seconds)}"

    def keeps(self, branch: Sequence[Facts]) -> list[int]:
        """Which of ``branch`` (oldest first) to keep, by index."""
        kept: list[int] = []
        for i, each in enumerate(branch):
            # The distance, not the difference: a clock that was set back a day must not stop the rule for a day.
            if not kept or abs(each.created - branch[kept[-1]].created) >= self.seconds:
                kept.append(i)
        return kept


@dataclass(frozen=True, slots=True)
class Best:
    """Keep the ``n`` steps of the lowest (``"min"``) or highest (``"max"``) metric; of equals, the later ones."""

    n: int
    mode: Literal["min", "max"]

    def __post_init__(self) -> None:
        _check_count(self.n, "best")
        if self.mode not in ("min", "max"):
            raise CallError(f"best={self.n}:{self.mode}: say whether the best metric is the min or the max")

    def __str__(self) -> str:
        return f"best={self.n}:{self.mode}"

    @property
    def reason(self) -> str:
        """Why a step is kept, for people."""
        return f"best {self.n} ({self.mode})"

    def keeps(self, branch: Sequence[Facts]) -> list[int]:
        """Which of ``branch`` (oldest first) to keep, by index; one without a metric never."""
        sign = 1.0 if self.mode == "min" else -1.0
        ranked = sorted((sign * each.metric, -i) for i, each in enumerate(branch) if each.metric is not None)
        return sorted(-at for _, at in ranked[: self.n])


Rule: TypeAlias = Last | EverySteps | EverySeconds | Best
Keep: TypeAlias = str | Rule | Sequence[Rule]
"""What ``keep=`` takes: a rule, several, or their text."""


def as_rules(keep: Keep) -> tuple[Rule, ...]:
    """The rules that ``keep`` stands for.

    >>> as_rules("last=3") == as_rules(Last(3)) == as_rules([Last(3)]) == (Last(3),)
    True
    """
    if isinstance(keep, str):
        return parse(keep)
    rules = (keep,) if isinstance(keep, Rule) else tuple(keep)
    for rule in rules:
        if not isinstance(rule, Rule):
            raise CallError(f"keep={rule!r} is no rule; use perdure.keep.Last(3) and the like, or text: {_FORMS}")
    if not rules:
        raise CallError("no rule says what to keep; leave `keep` out to keep every step")
    return rules


def parse(text: str) -> tuple[Rule, ...]:
    """The rules in ``text``.

    >>> parse("last=3,every-steps=1000,every=1h,best=2:min")
    (Last(n=3), EverySteps(n=1000), EverySeconds(seconds=3600.0), Best(n=2, mode='min'))
    """
    return as_rules([_parse_one(word.strip()) for word in text.split(",") if word.strip()])


def text_of(rules: Sequence[Rule]) -> str:
    """The text that `parse` reads back as ``rules``."""
    return ",".join(map(str, rules))


def _parse_one(word: str) -> Rule:
    for pattern, make in _PATTERNS:
        match = re.fullmatch(pattern, word, re.ASCII)
        if match is not None:
            return make(match)
    raise CallError(f"{word[:80]!r} is no rule of what to keep; use {_FORMS}")


_PATTERNS: tuple[tuple[str, Callable[[re.Match[str]], Rule]], ...] = (
    (r"last=(\d{1,12})", lambda found: Last(int(found[1]))),
    (r"every-steps=(\d{1,12})", lambda found: EverySteps(int(found[1]))),
    (r"every=(\d{1,12}(?:\.\d{1,9})?)([smhdw])", lambda found: EverySeconds(float(found[1]) * _UNITS[found[2]])),
    (r"best=(\d{1,12}):(min|max)", lambda found: Best(int(found[1]), "min" if found[2] == "min" else "max")),
)


def _check_count(n: int, rule: str) -> None:
    if type(n) is not int or n < 1:
        raise CallError(f"{rule}={n!r}: give a whole number, 1 or more; leave the rule out to keep nothing by it")


def _span(seconds: float) -> str:
    """``seconds`` in the largest unit that gives a whole number.

    >>> _span(3600.0), _span(5400.0), _span(0.5)
    ('1h', '90m', '0.5s')
    """
    for unit in ("w", "d", "h", "m"):
        if seconds % _UNITS[unit] == 0:
            return f"{int(seconds // _UNITS[unit])}{unit}"
    return f"{seconds:f}".rstrip("0").rstrip(".") + "s"
