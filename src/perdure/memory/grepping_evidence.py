"""Go through evidence line by line for a pattern, as far as a bound of text and steps allows, and say how far."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import Final

from perdure.memory.grepping import Pattern, StepsSpent
from perdure.memory.records import Fact, State
from perdure.memory.rendering import quote
from perdure.memory.shelf import Page, Shelf

__all__ = ["LAST", "Found", "Line", "grep"]

LAST: Final = 2**53
"""Stands for the last line of a piece of evidence."""
_PAGES: Final = 200
_MOST_CHARS: Final = 32_000_000
_BEFORE: Final = 240
_AFTER: Final = 120


@dataclass(frozen=True, slots=True)
class Line:
    """A line that matches: ``place`` is (evidence, line from 1), ``excerpt`` what stands around the match."""

    place: tuple[int, int]
    excerpt: str
    facts: tuple[Fact, ...]

    def described(self) -> str:
        """One line, quoted, with the facts that are in it."""
        names = "".join(
            f" {fact.name}" + ("" if fact.state is State.CURRENT else f" ({fact.state.value})") for fact in self.facts
        )
        return f"[e{self.place[0]} line {self.place[1]};{names}] {quote(self.excerpt)}"


@dataclass(frozen=True, slots=True)
class Found:
    """``lines`` that match; ``why`` says why it ended before the end, and ``at`` where."""

    lines: tuple[Line, ...]
    why: str
    at: tuple[int, int]


def grep(shelf: Shelf, pattern: Pattern, *, after: tuple[int, int], limit: int) -> Found:
    """Return the first ``limit`` lines after place ``after`` that match."""
    lines: list[Line] = []
    number, chars, at = after[0] + (after[1] == LAST), 0, after
    while True:
        pages = shelf.pages_from(number, limit=_PAGES)
        if not pages:
            return Found(tuple(lines), "", at)
        for page in pages:
            number = page.evidence.id
            try:
                for line, start, stop, found in pattern.lines(page.text):
                    if (number, line) <= after:
                        continue
                    if len(lines) == limit:
                        return Found(tuple(lines), "there are more", lines[-1].place)
                    lines.append(_line(page, line, start, stop, found))
            except StepsSpent:
                if lines and lines[-1].place[0] == number:
                    at = lines[-1].place
                elif at == after:  # all steps went into this one: it is left, so that the rest can be searched
                    return Found(tuple(lines), f"e{number} takes more steps than there are", (number, LAST))
                return Found(tuple(lines), "the search took its most steps", at)
            at = (number, LAST)
            chars += len(page.text)
            if chars > _MOST_CHARS:
                return Found(tuple(lines), "the search read its most text", at)
        number += 1


def _line(page: Page, number: int, start: int, stop: int, found: int) -> Line:
    left, right = max(start, found - _BEFORE), min(stop, found + _AFTER)
    facts = page.facts
    first = bisect_right(facts, left, key=lambda fact: fact.stop)
    last = bisect_left(facts, right, key=lambda fact: fact.start)
    inside = sorted(
        facts[first:last],
        key=lambda fact: (not fact.start < found <= fact.stop, fact.id),
    )
    cut = ("…" if left > start else "") + page.text[left:right] + ("…" if right < stop else "")
    return Line((page.evidence.id, number), cut, tuple(inside[:4]))
