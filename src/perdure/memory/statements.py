"""Cut what was told into statements, by position only: nothing is rewritten, and nothing is left out.

A *passage* is a paragraph of prose (or a piece of a very long one), or one line of a list; a *statement* is a sentence
of it. Every character that is no white space lies in exactly one statement.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["Span", "statements"]

Span = tuple[int, int, int]
"""(start, stop, passage): characters of the text, and the place in the list of the first statement of its passage."""

_LONGEST: Final = 1000
_END: Final = re.compile(r"(?<=[.!?])[\"'\u201d\u2019)\]]*\s+(?=[^\s])|(?<=[\u3002\uff01\uff1f])")
_LINE: Final = re.compile(r"[^\n\r\u2028\u2029]+")


def statements(text: str) -> list[Span]:
    """Return the statements of a text, in order.

    >>> text = "Anna lives in Lisbon. She has a cat.\\n- buy milk"
    >>> [(text[start:stop], passage) for start, stop, passage in statements(text)]
    [('Anna lives in Lisbon.', 0), ('She has a cat.', 0), ('- buy milk', 2)]
    """
    found: list[Span] = []
    for line in _LINE.finditer(text):
        first = len(found)
        began = line.start()
        ends = [each.end() for each in _END.finditer(text, line.start(), line.end())]
        for end in [*ends, line.end()]:
            for start in range(began, end, _LONGEST):
                stop = min(start + _LONGEST, end)
                piece = text[start:stop]
                left = start + len(piece) - len(piece.lstrip())
                right = stop - (len(piece) - len(piece.rstrip()))
                if left < right:
                    if found and first < len(found) and left - found[first][0] > _LONGEST:
                        first = len(found)
                    found.append((left, right, first))
            began = end
    return found
