"""Metrics that vanish from the log, plugged into the analyser: a rank goes on to print its line, with less in it.

A line of metrics has at least two names with a number (``step 120 loss 0.31 grad_norm=1.2``); its first name says which
kind of line it is. Only lines of the same kind are compared, so a phase that prints other lines, a log that is cut or a
job that stands still loses no metric. A name is *lost* if it was in at least eight lines of its kind and is not in the
last eight, nor in three times as many as were ever between two that had it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import msgspec

from perdure.watcher.evidence import Evidence
from perdure.watcher.labels import Label
from perdure.watcher.samples import Looks

__all__ = ["OfMetrics", "numbers_in", "pairs_in"]

_PAIR: Final = re.compile(
    r"(?<![\w./-])([A-Za-z_][\w/]{0,63})['\"]?\s?[=:]?\s{0,4}['\"]?"
    r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[-+]?inf|nan)(?![\w.])"
)
_LONGEST: Final = 1000
_LEAST: Final = 8
_GAPS: Final = 3
_MOST_RANKS, _MOST_KINDS, _MOST_NAMES = 8, 32, 64


def pairs_in(text: str) -> tuple[tuple[str, float], ...]:
    """Names and numbers in a line of metrics, each name once, in order; empty if it is none.

    >>> pairs_in("step 120 loss=0.5")
    (('step', 120.0), ('loss', 0.5))
    """
    pairs: dict[str, float] = {}
    for found in _PAIR.finditer(text[:_LONGEST]):
        pairs.setdefault(found[1], float(found[2]))
    return tuple(pairs.items()) if len(pairs) >= 2 else ()


def numbers_in(text: str) -> tuple[str, ...]:
    """The names that have a number in a line of metrics, in order; empty if it is none.

    >>> numbers_in("step 120 loss 0.31 grad_norm=1.2e-3 lr: 2e-05")
    ('step', 'loss', 'grad_norm', 'lr')
    >>> numbers_in("saved 12 files")
    ()
    """
    return tuple(name for name, _ in pairs_in(text))


@dataclass(slots=True)
class _Name:
    lines: int = 1
    since: int = 0
    longest: int = 0

    @property
    def lost(self) -> bool:
        return self.lines >= _LEAST and self.since > max(_LEAST, _GAPS * self.longest)


class OfMetrics:
    """What ranks printed and do not any more, of the first eight ranks that print metrics."""

    def __init__(self) -> None:
        self._seen: dict[int, dict[str, dict[str, _Name]]] = {}

    def feed(self, looks: Looks, *, now_s: float) -> Iterable[Evidence]:
        """The metrics that are lost now, each as one piece of evidence."""
        for line in looks.lines:
            if line.rank is not None and line.source == "rank":
                self._take(line.rank, numbers_in(line.text))
        found: dict[str, Evidence] = {}
        for rank, kinds in self._seen.items():
            for kind, names in kinds.items():
                for name, each in names.items():
                    if each.lost and name not in found:
                        found[name] = _evidence(rank, kind, name, each, now_s)
        if not found:
            return []
        first, names_text = next(iter(found.values())), ", ".join(found)
        raw = tuple(each.raw[0] for each in found.values())
        return [first if len(found) == 1 else msgspec.structs.replace(first, sentence=_said(names_text), raw=raw)]

    def _take(self, rank: int, names: tuple[str, ...]) -> None:
        if not names or (rank not in self._seen and len(self._seen) >= _MOST_RANKS):
            return
        kinds = self._seen.setdefault(rank, {})
        if names[0] not in kinds and len(kinds) >= _MOST_KINDS:
            return
        known = kinds.setdefault(names[0], {})
        for name, each in known.items():
            if name not in names:
                each.since += 1
        for name in names:
            if name in known:
                each = known[name]
                each.lines += 1
                if not each.lost:
                    each.longest = max(each.longest, each.since)
                each.since = 0
            elif len(known) < _MOST_NAMES:
                known[name] = _Name()

    def restarted(self, attempt: int) -> None:
        """A program that is started again may print other lines."""
        self._seen.clear()


def _said(names: str) -> str:
    return f"{names} are not printed any more, though the lines go on in which they were"


def _evidence(rank: int, kind: str, name: str, each: _Name, now_s: float) -> Evidence:
    return Evidence(
        kind="metric_lost",
        at_s=now_s,
        label=Label.METRIC_LOST,
        sentence=f"rank {rank} does not print {name} any more, though it goes on with its lines",
        raw=(f"{name}: in {each.lines} lines that begin with {kind}, in none of the last {each.since}",),
    )
