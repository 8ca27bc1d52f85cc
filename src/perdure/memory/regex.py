"""Read a regular expression of the subset that an automaton can run: no backreferences, no lookaround.

Literals, ``.``, ``[...]``, ``\\d \\w \\s \\b`` and their opposites, ``^ $``, groups, ``|`` and ``* + ? {n,m}``.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from perdure.errors import CallError

__all__ = ["Assertion", "Chars", "Node", "Repeat", "Sequence", "parse"]

_DEEPEST: Final = 30
_MOST_REPEATS: Final = 200
_KINDS: Final = "dDwWsS"
_CONTROLS: Final = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v"}


class Assertion(enum.Enum):
    """What holds between two characters."""

    BEGIN = "^"
    END = "$"
    EDGE = "\\b"
    NO_EDGE = "\\B"


@dataclass(frozen=True, slots=True)
class Chars:
    """One character of a set: of ``ranges`` or ``kinds`` (as in ``\\d``), or with ``negated`` any other."""

    ranges: tuple[tuple[str, str], ...] = ()
    kinds: str = ""
    negated: bool = False

    @property
    def single(self) -> str:
        """The one character that it is, or nothing."""
        plain = len(self.ranges) == 1 and not self.kinds and not self.negated
        return self.ranges[0][0] if plain and self.ranges[0][0] == self.ranges[0][1] else ""

    def has(self, char: str) -> bool:
        """Whether ``char``, in whatever case, is one of them."""
        upper = char.upper()
        cased = len(upper) == 1 and self._lists(upper)
        return (self._lists(char) or cased or (char == "σ" and self._lists("ς"))) != self.negated

    def _lists(self, char: str) -> bool:
        return any(low <= char <= high for low, high in self.ranges) or any(_is(kind, char) for kind in self.kinds)


@dataclass(frozen=True, slots=True)
class Repeat:
    """``node``, ``least`` to ``most`` times (None: without end)."""

    node: Node
    least: int
    most: int | None


@dataclass(frozen=True, slots=True)
class Sequence:
    """``parts`` one after another, or with ``either`` one of them."""

    parts: tuple[Node, ...]
    either: bool = False


Node = Chars | Assertion | Repeat | Sequence


def parse(text: str) -> Node:
    """Return the tree of a pattern. Raises `CallError` that says what the pattern must do without.

    >>> parse("a|b").either
    True
    """
    reader = _Reader(text.removeprefix("(?i)"))
    node = reader.either(0)
    if reader.at < len(reader.text):
        raise CallError("this pattern has a ) without a (; put a backslash before it")
    return node


def _is(kind: str, char: str) -> bool:
    low = kind.lower()
    found = char.isdecimal() if low == "d" else char.isspace() if low == "s" else char.isalnum() or char == "_"
    return found == (kind == low)


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def take(self) -> str:
        if self.at >= len(self.text):
            raise CallError("this pattern ends in the middle; close what it opens")
        self.at += 1
        return self.text[self.at - 1]

    def either(self, depth: int) -> Node:
        if depth > _DEEPEST:
            raise CallError(f"this pattern nests deeper than {_DEEPEST}; make it flatter")
        parts = [self.sequence(depth)]
        while self.peek() == "|":
            self.at += 1
            parts.append(self.sequence(depth))
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts), either=True)

    def sequence(self, depth: int) -> Node:
        parts: list[Node] = []
        while self.peek() not in ("", "|", ")"):
            parts.append(self.repeats(self.atom(depth)))
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def repeats(self, node: Node) -> Node:
        counts = {"*": (0, None), "+": (1, None), "?": (0, 1)}
        found = False
        while True:
            sign = self.peek()
            if sign in counts and sign:
                self.at += 1
                least, most = counts[sign]
            elif sign == "{" and (known := self.counts()) is not None:
                least, most = known
            else:
                return node
            if found:
                raise CallError("this pattern repeats a repeat; use one of * + ? {} after a character or a group")
            found = True
            node = Repeat(node, least, most)
            if self.peek() == "?":  # lazy or not, a line matches or does not
                self.at += 1

    def counts(self) -> tuple[int, int | None] | None:
        """What stands in {n}, {n,} or {n,m}; None where the { stands for itself."""
        end = self.text.find("}", self.at)
        inside = self.text[self.at + 1 : end] if end > 0 else ""
        least, comma, most = inside.partition(",")
        given = [each for each in (least, most) if each]
        if not least or not all(each.isascii() and each.isdigit() and len(each) < 5 for each in given):
            return None
        self.at = end + 1
        low, high = int(least), int(most) if most else None if comma else int(least)
        if low > _MOST_REPEATS or (high is not None and not low <= high <= _MOST_REPEATS):
            raise CallError(f"counts in {{}} go from 0 to {_MOST_REPEATS}, the lower first")
        return low, high

    def atom(self, depth: int) -> Node:
        char = self.take()
        if char == "(":
            if self.peek() == "?":
                if self.text[self.at : self.at + 2] != "?:":
                    raise CallError("this pattern looks around or names a group; only (...) and (?:...) can be used")
                self.at += 2
            node = self.either(depth + 1)
            if self.take() != ")":
                raise CallError("this pattern has a ( without a ); put a backslash before it")
            return node
        if char == "[":
            return self.set()
        if char == ".":
            return Chars(negated=True)
        if char in "^$":
            return Assertion(char)
        if char in "*+?":
            raise CallError(f"this pattern has a {char} after nothing; put a backslash before it")
        if char == "\\":
            if self.peek() in ("b", "B"):
                return Assertion("\\" + self.take())
            return self.escape()
        return Chars(((char, char),))

    def escape(self) -> Chars:
        char = self.take()
        if char in _KINDS:
            return Chars(kinds=char)
        if char in _CONTROLS:
            return Chars(((_CONTROLS[char], _CONTROLS[char]),))
        if char.isalnum():
            raise CallError(f"\\{char} can't be used in a pattern; there are \\d \\w \\s \\b and their opposites")
        return Chars(((char, char),))

    def set(self) -> Chars:
        negated = self.peek() == "^"
        self.at += negated
        ranges: list[tuple[str, str]] = []
        kinds = ""
        first = True
        while first or self.peek() != "]":
            first = False
            low = self.member()
            kinds += low.kinds
            if low.kinds:
                continue
            high = low
            if self.peek() == "-" and self.text[self.at + 1 : self.at + 2] not in ("]", ""):
                self.at += 1
                high = self.member()
                if high.kinds or high.single < low.single:
                    raise CallError("a range in [] goes from the lower character to the higher, as in [a-z]")
            ranges.append((low.single, high.single))
        self.at += 1
        return Chars(tuple(ranges), kinds, negated)

    def member(self) -> Chars:
        char = self.take()
        return self.escape() if char == "\\" else Chars(((char, char),))
