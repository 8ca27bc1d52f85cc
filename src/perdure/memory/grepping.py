"""Search for a pattern in time linear in the text, whatever the pattern is and whoever wrote it.

A plain pattern is looked for as it stands. A regular expression is of a subset without what needs backtracking (no
backreferences, no lookaround): it is made into an automaton (Thompson, 1968) whose states are made deterministic while
the text is read, so each character costs at most the size of the pattern, and mostly one look into a table. Case does
not count. A budget of steps bounds all of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from perdure.errors import CallError
from perdure.memory.regex import Assertion, Chars, Node, Repeat, parse

__all__ = ["Pattern", "StepsSpent", "folded"]

_LONGEST: Final = 200
_MOST_STATES: Final = 1000
_MOST_BUILT: Final = 10_000
_MOST_TRANSITIONS: Final = 20_000
_MOST_HELD: Final = 300_000


class StepsSpent(Exception):
    """The budget of steps is used up. `Pattern` raises it; the tool that greps says how far it came."""


def folded(text: str) -> str:
    """``text`` without case, as many characters as before.

    >>> folded("İSTANBUL ΟΔΟΣ")
    'İstanbul οδοσ'
    """
    low = text.lower()
    if len(low) != len(text):
        low = "".join(each if len(each.lower()) != 1 else each.lower() for each in text)
    return low.replace("ς", "σ")


@dataclass(slots=True)
class _State:
    """``nfa`` is where the automaton may be, before zero-width steps; ``word`` and ``first`` say what came before."""

    nfa: frozenset[int]
    word: bool
    first: bool
    matched: bool = False
    go: dict[str, _State] = field(default_factory=dict)


class Pattern:
    """What to look for: ``text`` as it stands, or with ``regex`` a regular expression.

    ``steps`` bounds the work of all calls of `lines` together. Raises `CallError` for a pattern that is empty,
    overlong or not of the subset.
    """

    _begin: _State

    def __init__(self, text: str, *, regex: bool = False, steps: int = 5_000_000) -> None:
        if not text.strip() or len(text) > _LONGEST:
            raise CallError(f"a pattern has 1 to {_LONGEST} characters; this one has {len(text)}")
        self._left = steps
        self._needed = folded(text)
        self._plain = not regex
        if regex:
            self._compile(parse(text))

    def lines(self, text: str) -> Iterable[tuple[int, int, int, int]]:
        """Yield (number of the line from 1, its start, its stop, where in the text the match ends), in order.

        Raises `StepsSpent` where the budget is used up.
        """
        low = folded(text)
        self._spend(1 + len(low) // 50)
        if self._needed and self._needed not in low:
            return
        number, stop = 0, -1
        while stop < len(low):
            number, start = number + 1, stop + 1
            stop = low.find("\n", start)
            stop = len(low) if stop < 0 else stop
            if self._plain:
                at = low.find(self._needed, start, stop)
                found = at + len(self._needed) if at >= 0 else None
            else:
                found = self._run(low, start, stop)
            if found is not None:
                yield number, start, stop, found

    def _spend(self, steps: int) -> None:
        self._left -= steps
        if self._left < 0:
            raise StepsSpent

    def _run(self, text: str, start: int, stop: int) -> int | None:
        if self._needed and text.find(self._needed, start, stop) < 0:
            return None
        self._spend(stop - start)
        state = self._begin
        for at in range(start, stop):
            char = text[at]
            state = state.go.get(char) or self._step(state, char)
            if state.matched:
                return at
        return stop if self._accepts(self._closure(state, None)) else None

    def _step(self, state: _State, char: str) -> _State:
        closure = self._closure(state, char)
        self._spend(len(closure))
        if self._accepts(closure):
            made = self._end
        else:
            after = frozenset(
                self._next[each] for each in closure if isinstance(what := self._what[each], Chars) and what.has(char)
            )
            key = (after | {self._entry}, _is_word(char))
            if self._transitions >= _MOST_TRANSITIONS or self._held >= _MOST_HELD:
                self._forget()
            self._held += len(after)
            made = self._states.setdefault(key, _State(key[0], key[1], False))
        self._transitions += 1
        state.go[char] = made
        return made

    def _closure(self, state: _State, char: str | None) -> set[int]:
        """Where zero-width steps lead from ``state`` when ``char`` (None: the end of the line) comes next."""
        seen: set[int] = set()
        todo = list(state.nfa)
        while todo:
            at = todo.pop()
            if at in seen:
                continue
            seen.add(at)
            what = self._what[at]
            if what is None:
                todo += self._forks[at]
            elif isinstance(what, Assertion) and _holds(what, state, char):
                todo.append(self._next[at])
        return seen

    def _accepts(self, closure: set[int]) -> bool:
        return self._final in closure

    def _forget(self) -> None:
        self._states.clear()
        self._begin.go.clear()
        self._transitions = self._held = 0

    def _compile(self, node: Node) -> None:
        self._what: list[Chars | Assertion | None] = []
        self._next: list[int] = []
        self._forks: list[list[int]] = []
        self._built = 0
        self._final = self._new(None, -1, [])
        self._entry = self._build(node, self._final)
        self._needed = folded(_needed(node))
        self._states: dict[tuple[frozenset[int], bool], _State] = {}
        self._transitions = self._held = 0
        self._begin = _State(frozenset([self._entry]), False, True)
        self._end = _State(frozenset(), False, False, matched=True)

    def _new(self, what: Chars | Assertion | None, after: int, forks: list[int]) -> int:
        if len(self._what) >= _MOST_STATES:
            raise CallError("this pattern repeats too much; use smaller counts in {}")
        self._what.append(what)
        self._next.append(after)
        self._forks.append(forks)
        return len(self._what) - 1

    def _build(self, node: Node, after: int) -> int:
        """Make the states for ``node`` that go on to ``after``; return where they begin."""
        self._built += 1
        if self._built > _MOST_BUILT:
            raise CallError("this pattern repeats too much; use smaller counts in {}")
        if isinstance(node, Chars | Assertion):
            return self._new(node, after, [])
        if isinstance(node, Repeat):
            if node.most is None:
                loop = self._new(None, -1, [])
                self._forks[loop] = [self._build(node.node, loop), after]
                begin = loop
            else:
                begin = after
                for _ in range(node.most - node.least):
                    begin = self._new(None, -1, [self._build(node.node, begin), after])
            for _ in range(node.least):
                begin = self._build(node.node, begin)
            return begin
        if node.either:
            return self._new(None, -1, [self._build(each, after) for each in node.parts])
        for each in reversed(node.parts):
            after = self._build(each, after)
        return after


def _is_word(char: str) -> bool:
    return char.isalnum() or char == "_"


def _holds(what: Assertion, state: _State, char: str | None) -> bool:
    if what is Assertion.BEGIN:
        return state.first
    if what is Assertion.END:
        return char is None
    edge = state.word != (char is not None and _is_word(char))
    return edge if what is Assertion.EDGE else not edge


def _needed(node: Node) -> str:
    """The longest text that stands in whatever ``node`` matches, as far as that is plain to see."""
    if isinstance(node, Chars | Assertion):
        return (isinstance(node, Chars) and node.single) or ""
    if isinstance(node, Repeat):
        return _needed(node.node) if node.least else ""
    if node.either:
        return ""
    best = run = ""
    for each in node.parts:
        if isinstance(each, Chars) and each.single:
            run += each.single
        else:
            best = max(best, run, _needed(each), key=len)
            run = ""
    return max(best, run, key=len)
