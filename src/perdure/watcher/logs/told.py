"""Which lines of a log are told by the program, and which are quoted: frames of tracebacks, and the source in them.

A ``raise RuntimeError("out of memory")`` that a traceback quotes has not been run. Lines come one by one, those of many
files and ranks mixed; what was begun is remembered for each.
"""

from __future__ import annotations

import re
from typing import Final

from perdure.watcher.logs.reading import Line

__all__ = ["Told", "begins_traceback"]

_FRAME = re.compile(r"^\s*File \"[^\"]+\", (?:line \d+|in )|^\s*frame #\d+|^\s*#\d+ +0x|^\s+\^+\s*$|^\s*~+\^")
_TRACEBACK = re.compile(r"Traceback \(most recent call last\)|\(most recent call first\):")
_MOST: Final = 1 << 16


def begins_traceback(line: Line) -> bool:
    """Whether a traceback begins at ``line``."""
    return _TRACEBACK.search(line.text) is not None


class Told:
    """Says of line after line whether the program tells it."""

    def __init__(self) -> None:
        self._inside: set[tuple[str, int | None]] = set()
        self._source: set[tuple[str, int | None]] = set()

    def says(self, line: Line) -> bool:
        """Whether ``line`` is told; the next of its file and rank is judged after it."""
        key = (line.file, line.rank)
        inside, source = self._inside, self._source
        if len(inside) + len(source) > _MOST:
            inside.clear()
            source.clear()
        if begins_traceback(line):
            inside.add(key)
        elif _FRAME.search(line.text):
            source.add(key)
        elif key in inside and line.text.startswith((" ", "\t")):
            pass
        elif key in source and key not in inside and line.text.startswith((" ", "\t")):
            source.discard(key)
        else:
            source.discard(key)
            inside.discard(key)
            return bool(line.text.strip())
        return False
