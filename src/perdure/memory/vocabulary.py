"""Words that are like one that stands nowhere: those that it is a part of, and those that it is a slip of the pen for.

Theory. Each segment keeps its terms as one text, a line each. A substring is found in it by `str.find`, which passes a
megabyte in well under a millisecond, so substrings need no trigrams of all that was told. One slip (a sign too many,
too few, another, or two exchanged) leaves one half of a word as it was, or the outer thirds, so what contains neither
half and neither third is no candidate.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from perdure.memory.postings import Tail
from perdure.memory.sqlite_files import File

__all__ = ["alike", "is_slip"]

_MOST: Final = 12
_LOOKED_AT: Final = 2000
_PART: Final = 0.6
_SLIP: Final = 0.5


def alike(db: File, segments: Sequence[int], tail: Tail, word: str) -> dict[str, float]:
    """Return terms that are like ``word``, at most a dozen, and how much each counts (below 1).

    >>> is_slip("lisbon", "lisbonn"), is_slip("lisbon", "libson"), is_slip("lisbon", "london")
    (True, True, False)
    """
    half = len(word) // 2
    wanted = [word] if len(word) < 5 else [word, word[:half], word[half:], word[: len(word) // 3 + 1]]
    found: dict[str, float] = {}
    for lines in _lines(db, segments, tail):
        for at, piece in enumerate(wanted):
            for term in _containing(lines, piece):
                if word in term:
                    found[term] = _PART
                elif at and term not in found and is_slip(word, term):
                    found[term] = _SLIP
    best = sorted(found, key=lambda term: (-found[term], len(term), term))[:_MOST]
    return {term: found[term] for term in best}


def is_slip(one: str, other: str) -> bool:
    """Whether a sign too many, too few or another, or two exchanged, is all that differs."""
    if abs(len(one) - len(other)) > 1:
        return False
    start = 0
    while start < min(len(one), len(other)) and one[start] == other[start]:
        start += 1
    one, other = one[start:], other[start:]
    while one and other and one[-1] == other[-1]:
        one, other = one[:-1], other[:-1]
    return (len(one) <= 1 and len(other) <= 1) or (len(one) == 2 and one == other[::-1])


def _lines(db: File, segments: Sequence[int], tail: Tail) -> Iterator[str]:
    yield "\n" + "\n".join(list(tail.by_term)) + "\n"
    for first in segments:
        yield db.execute("SELECT terms FROM segment WHERE first = ?", (first,)).fetchone()[0]


def _containing(lines: str, piece: str) -> Iterator[str]:
    at = lines.find(piece)
    for _ in range(_LOOKED_AT):
        if at < 0:
            return
        end = lines.index("\n", at)
        yield lines[lines.rindex("\n", 0, at) + 1 : end]
        at = lines.find(piece, end)
