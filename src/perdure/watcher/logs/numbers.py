"""Losses, loss scales and step times that a job prints, and what is wrong with them.

All rules compare a series with its own past: a loss with the median of the values before it, in units of their usual
change from one to the next. A rise counts when it is eight of those and 15 % of the level. If the last values are back
within a quarter of the rise it was a spike; if they stay up it is a divergence. After a line that says that a
checkpoint was loaded the same rise is a bad resume. A step time counts as slower when from some step on all its
values are 4 % over those before and four deviations apart. Single slow steps never count.
"""

from __future__ import annotations

import itertools
import math
import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from perdure.watcher.labels import Action, Label
from perdure.watcher.logs.reading import Line

__all__ = [
    "LOSS",
    "NUMBER",
    "OF_RANK",
    "PER",
    "RATE",
    "RESUMED",
    "TIME",
    "Finding",
    "Point",
    "Series",
    "findings_in",
    "findings_of",
    "series_of",
]

NUMBER = r"['\"]?\s*[:=|]?\s*['\"]?\s*(?P<v>[-+]?(?:\d+\.?\d*(?:e[-+]?\d+)?|\.\d+|nan|inf(?:inity)?))\b"
LOSS = re.compile(
    r"\b(?<!val )(?<!eval )(?<!valid )(?<!validation )(?<!test )(?<!val_)(?<!eval_)(?<!test_)(?:(?:lm"
    r"|train(?:ing)?|total|ce|nll|mlm|reduced)[ _/]?)?loss\b(?!['\"]?[ _]*scale)(?: value)?" + NUMBER,
    re.IGNORECASE,
)
_SCALE = re.compile(r"\b(?:loss|grad)[ _]?scal(?:e|er)\b" + NUMBER, re.IGNORECASE)
TIME = re.compile(
    r"(?:(?:elapsed )?time per (?:iteration|step)(?: \(m?s\))?|iter(?:ation)?[ _]?time(?: \(m?s\))?"
    r"|step[ _]?time(?:[ _]\(?m?s\)?)?|sec/(?:it|step)|s/(?:it|step)|time/(?:it|step))" + NUMBER,
    re.IGNORECASE,
)
PER = re.compile(r"(?P<v>\d+\.?\d*) ?s(?:ec)?/(?:it|step|iter)", re.IGNORECASE)
RATE = re.compile(
    r"(?:samples|tokens|tok|sequences|seqs|imgs|images)[ _]?(?:per|/)[ _]?s(?:ec(?:ond)?)?(?:/gpu)?"
    + NUMBER
    + r"|(?:throughput|tflops|TFLOP/s/GPU)\b[^\d\n]{0,24}(?P<w>\d+\.?\d*)",
    re.IGNORECASE,
)
OF_RANK = re.compile(
    r"\brank[ _:=]*(?P<rank>\d+)\b.{0,60}?(?:time|took|compute|forward|backward|step|duration"
    r"|elapsed)\w*\D{0,24}?(?P<v>\d+\.?\d*) ?(?:ms|s|us)\b",
    re.IGNORECASE,
)
RESUMED = re.compile(
    r"\b(?:resum(?:ed|ing|e)\b|(?:success\w* )?(?:load|restor)(?:ed|ing) (?:\S+ ){0,4}(?:checkpoint|ckpt"
    r"|state|from)|loading checkpoint|restarting from)",
    re.IGNORECASE,
)

_RISE = 0.15
_NOISES = 8.0
_SLOWER = 1.04
_MUCH_SLOWER = 1.10
_FEW = 3
_ENOUGH = 6
_WINDOW = 200


@dataclass(frozen=True, slots=True)
class Point:
    """A printed number."""

    value: float
    line: Line


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong with a series. ``weight`` is in the units of `signatures`; ``action`` None is the label's usual."""

    label: Label
    weight: float
    why: str
    lines: tuple[Line, ...]
    ranks: tuple[int, ...] = ()
    action: Action | None = None


@dataclass(slots=True)
class Series:
    """All numbers of a log, in the order of its lines. ``resumed`` are line orders at which a checkpoint was loaded."""

    loss: list[Point] = field(default_factory=list)
    scale: list[Point] = field(default_factory=list)
    step_s: list[Point] = field(default_factory=list)
    "Of whatever unit: only ratios count."
    rate: list[Point] = field(default_factory=list)
    of_rank: dict[int, list[Point]] = field(default_factory=dict)
    resumed: list[Line] = field(default_factory=list)


def series_of(lines: Iterable[Line]) -> Series:
    """Read the numbers that lines print."""
    found = Series()
    for line in lines:
        low = line.text.lower()
        if "loss" in low or "scale" in low:
            _add(found.loss, LOSS.search(line.text), line)
            _add(found.scale, _SCALE.search(line.text), line)
        if "rank" in low and (match := OF_RANK.search(line.text)):
            found.of_rank.setdefault(int(match["rank"]), []).append(Point(float(match["v"]), line))
        elif "time" in low or "/it" in low or "/step" in low:
            _add(found.step_s, TIME.search(line.text) or PER.search(line.text), line)
        if "/s" in low or "per" in low or "throughput" in low or "tflop" in low:
            match = RATE.search(line.text)
            if match is not None and (said := match["v"] or match["w"]):
                found.rate.append(Point(float(said), line))
        if RESUMED.search(line.text):
            found.resumed.append(line)
    return found


def _add(points: list[Point], match: re.Match[str] | None, line: Line) -> None:
    if match is not None:
        points.append(Point(float(match["v"]), line))


def findings_of(lines: Sequence[Line]) -> list[Finding]:
    """Everything that is wrong with the numbers in ``lines``: of each rank by itself, of files whose rank is not known
    of each file, and of ranks beside each other. What several have in common is told once.
    """
    sources: dict[tuple[int | None, str], list[Line]] = {}
    for line in lines:
        sources.setdefault((line.rank, "" if line.rank is not None else line.file), []).append(line)
    each = [series_of(some) for some in sources.values()]
    found: dict[Label, Finding] = {}
    for series in each:
        for finding in findings_in(series):
            found.setdefault(finding.label, finding)
    of_rank: dict[int, list[Point]] = {}
    for series in each:
        for rank, points in series.of_rank.items():
            of_rank.setdefault(rank, []).extend(points)
    for finding in _slow_ranks(of_rank):
        found.setdefault(finding.label, finding)
    return list(found.values())


def findings_in(series: Series) -> list[Finding]:
    """Everything that is wrong with the numbers."""
    found = [*_not_finite(series.loss), *_scale(series.scale)]
    finite = [point for point in series.loss if math.isfinite(point.value)]
    if not found:
        found += _resume(finite, series.resumed) or _rise(finite)
    return [*found, *_slower(series), *_slow_ranks(series.of_rank)]


def _not_finite(loss: Sequence[Point]) -> list[Finding]:
    bad = [point for point in loss if not math.isfinite(point.value)]
    if not bad or (math.isfinite(loss[-1].value) and len(bad) < _FEW):
        return []
    return [Finding(Label.NAN, 2.6, "the printed loss is not finite", (bad[0].line, bad[-1].line))]


def _scale(scale: Sequence[Point]) -> list[Finding]:
    values = [point.value for point in scale]
    if len(values) < _FEW or values[-1] > 1.0 or max(values) < 4 * max(values[-1], 0.25):
        return []
    return [Finding(Label.FP16_SCALE, 3.0, f"the loss scale fell to {values[-1]:g}", (scale[-1].line,))]


def _noise(values: Sequence[float]) -> float:
    """The usual change from one value to the next."""
    changes = [abs(b - a) for a, b in itertools.pairwise(values)]
    return 1.4826 * statistics.median(changes) if changes else 0.0


def _risen(before: Sequence[float], value: float) -> bool:
    level = statistics.median(before[-20:])
    rise = value - level
    return rise > _RISE * abs(level) and rise > _NOISES * _noise(before[-60:])


def _resume(loss: Sequence[Point], resumed: Sequence[Line]) -> list[Finding]:
    for line in resumed:
        before = [point.value for point in loss if point.line.order < line.order]
        after = [point for point in loss if point.line.order > line.order]
        if len(before) < _FEW or len(after) < 2:
            continue
        level = statistics.median(before[-8:])
        now = statistics.median(point.value for point in after[:8])
        if now - level > max(0.05 * abs(level), 5 * _noise(before[-60:])):
            why = f"the loss was {level:.4g} before the checkpoint was loaded and {now:.4g} after it"
            return [Finding(Label.BAD_RESUME, 2.5, why, (line, after[0].line))]
    return []


def _rise(loss: Sequence[Point]) -> list[Finding]:
    values = [point.value for point in loss]
    for at in range(_FEW, len(values)):
        if _risen(values[max(at - 60, 0) : at], values[at]):
            return _risen_from(loss, at)
    top = values.index(max(values)) if values else 0
    if 0 < top < len(values) - 1 and values[top] > 1.5 * max(values[0], values[-1]) > 0:  # too few before it for more
        return _risen_from(loss, top)
    return []


def _risen_from(loss: Sequence[Point], at: int) -> list[Finding]:
    """A rise at ``at``: whether it came back or stays; nothing where too little follows to tell."""
    values = [point.value for point in loss]
    level = statistics.median(values[max(at - 20, 0) : at])
    after = values[at:]
    peak = max(after)
    top = at + after.index(peak)
    rest = len(values) - at
    final = statistics.median(after[-min(5, max(rest // 2, 1)) :])
    lines = (loss[at].line, loss[top].line, loss[-1].line)
    if rest > 1 and min(final, values[-1]) <= level + 0.25 * (peak - level):
        why = f"the loss rose from {level:.4g} to {peak:.4g} and came back to {values[-1]:.4g}"
        return [Finding(Label.SPIKE_RECOVERED, 1.6, why, lines)]
    if rest >= _FEW and final - level > _RISE * abs(level):
        why = f"the loss rose from {level:.4g} to {peak:.4g} and stays at {final:.4g}"
        return [Finding(Label.DIVERGENCE, 2.4, why, lines)]
    return []


def _slower(series: Series) -> list[Finding]:
    times = series.step_s
    values = [point.value for point in times]
    if len(values) < 4:
        times = [point for point in series.rate if point.value > 0]
        values = [1.0 / point.value for point in times]
    at = _turn(values)
    if at is None:
        return []
    ratio = statistics.median(values[at:]) / statistics.median(values[:at])
    action = Action.EVICT if ratio >= _MUCH_SLOWER else Action.WARN
    why = f"a step takes {ratio - 1:.0%} longer from here on"
    return [Finding(Label.STRAGGLER, 1.6, why, (times[at - 1].line, times[at].line, times[-1].line), action=action)]


def _turn(values: Sequence[float]) -> int | None:
    """Where a series becomes slower and stays so; None if it does not.

    Of two halves at a point the medians must differ by 4 % and by four deviations of what is in them; with few values
    the gap between them must be more than twice the range of either. The point is looked for coarsely, then exactly.
    """
    n = len(values)
    if n < 4:
        return None

    def gain(at: int) -> float:
        before, after = values[max(at - _WINDOW, 0) : at], values[at : at + _WINDOW]
        low, high = statistics.median(before), statistics.median(after)
        if low <= 0 or high / low < _SLOWER:
            return 0.0
        if min(len(before), len(after)) < _ENOUGH:
            spread = 2 * max(max(before) - min(before), max(after) - min(after))
            return high / low if min(after) - max(before) > spread else 0.0
        spread = 4 * 1.4826 * max(_deviation(before, low), _deviation(after, high))
        return high / low if high - low > spread else 0.0

    pace = max(n // 200, 1)
    best = max(range(2, n - 1, pace), key=gain)
    best = max(range(max(best - pace, 2), min(best + pace, n - 2) + 1), key=gain)
    lasting = statistics.median(values[max(best, n - _WINDOW) :]) >= _SLOWER * statistics.median(values[:best])
    return best if gain(best) > 0 and lasting else None


def _deviation(values: Sequence[float], middle: float) -> float:
    return statistics.median(abs(value - middle) for value in values)


def _slow_ranks(of_rank: dict[int, list[Point]]) -> list[Finding]:
    if len(of_rank) < _FEW:
        return []
    own = {rank: statistics.median(point.value for point in points) for rank, points in of_rank.items()}
    middle = statistics.median(own.values())
    spread = max(1.4826 * _deviation(list(own.values()), middle), 0.02 * middle)
    slow = sorted(rank for rank, value in own.items() if value > 1.05 * middle and value - middle > 5 * spread)
    if not slow or 2 * len(slow) >= len(own):
        return []
    ratio = own[slow[0]] / middle
    action = Action.EVICT if ratio >= _MUCH_SLOWER else Action.WARN
    why = f"rank {slow[0]} takes {ratio:.2f} times as long as its peers"
    return [Finding(Label.STRAGGLER, 1.7, why, (of_rank[slow[0]][-1].line,), tuple(slow), action)]
