"""Words without which a pattern cannot match, so that most patterns need not be tried on most lines.

A pattern is cut at its outermost bars into ways to match; of each way some run of plain characters must stand in the
line (or one of several, where it is a group of words). Looking for these is a hundred times cheaper than the pattern.
Only what signatures use is understood: plain characters, classes, groups, lookarounds, repetitions.
"""

from __future__ import annotations

__all__ = ["needed", "ways"]

_SHORTEST = 2


def ways(pattern: str) -> list[str]:
    """``pattern`` cut at its outermost bars.

    >>> ways(r"a(?:b|c)|d[|]|e")
    ['a(?:b|c)', 'd[|]', 'e']
    """
    found, start, at, depth = [], 0, 0, 0
    while at < len(pattern):
        sign = pattern[at]
        if sign == "\\":
            at += 1
        elif sign == "[":
            at = _end_of_class(pattern, at)
        elif sign in "()":
            depth += 1 if sign == "(" else -1
        elif sign == "|" and not depth:
            found.append(pattern[start:at])
            start = at + 1
        at += 1
    return [*found, pattern[start:]]


def needed(way: str) -> tuple[str, ...]:
    """Lower-case words, one of which stands in whatever ``way`` matches; none if there is no such word.

    >>> needed(r"(?:gpu|nic) \\w+ fails?")
    (' fail',)
    >>> needed(r"\\d+ (?:lost|gone)")
    ('lost', 'gone')
    """
    best: tuple[str, ...] = ()
    run, at = "", 0
    while at <= len(way):
        sign = way[at] if at < len(way) else ""
        if sign == "\\" and not way[at + 1].isalnum():
            one, after = way[at + 1], at + 2
        elif sign == "" or sign in "\\.[(^$?*+{":
            one, after = "", at + (2 if sign == "\\" else 1)
        else:
            one, after = sign, at + 1
        if one and not _may_be_none(way, after):
            run += one.lower()
            at = after
            if after < len(way) and way[after] in "+{":  # what is repeated ends the run
                best, run = _better(best, (run,)), ""
                at = _end_of_repetition(way, after)
            continue
        best, run = _better(best, (run,)), ""
        if one:
            at = _end_of_repetition(way, after)
        elif sign == "[":
            at = _end_of_repetition(way, _end_of_class(way, at) + 1)
        elif sign == "(":
            close = _end_of_group(way, at)
            if not way.startswith(("(?!", "(?=", "(?<"), at) and not _may_be_none(way, close + 1):
                inside = way[at + 1 : close].removeprefix("?:")
                parts = [needed(each) for each in ways(inside)]
                if all(parts):
                    best = _better(best, tuple(word for part in parts for word in part))
            at = _end_of_repetition(way, close + 1)
        else:
            at = _end_of_repetition(way, after)
    return best


def _better(a: tuple[str, ...], b: tuple[str, ...]) -> tuple[str, ...]:
    """Of two ways to look the one whose shortest word is longer."""
    worth_a, worth_b = (min(map(len, each), default=0) for each in (a, b))
    return b if worth_b >= _SHORTEST and (worth_b, -len(b)) > (worth_a, -len(a)) else a


def _may_be_none(way: str, at: int) -> bool:
    return way.startswith(("?", "*", "{0", "{,"), at)


def _end_of_repetition(way: str, at: int) -> int:
    if at < len(way) and way[at] == "{":
        at = way.index("}", at) + 1
    elif at < len(way) and way[at] in "?*+":
        at += 1
    return at + 1 if at < len(way) and way[at] == "?" else at


def _end_of_class(pattern: str, at: int) -> int:
    at += 2 if pattern[at + 1] not in "^" else 3  # a bracket that comes first is plain
    while pattern[at] != "]":
        at += 2 if pattern[at] == "\\" else 1
    return at


def _end_of_group(pattern: str, at: int) -> int:
    depth = 0
    while True:
        sign = pattern[at]
        if sign == "\\":
            at += 1
        elif sign == "[":
            at = _end_of_class(pattern, at)
        elif sign in "()":
            depth += 1 if sign == "(" else -1
            if not depth:
                return at
        at += 1
