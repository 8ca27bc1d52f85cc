"""The words of a text as the index knows them, in any script.

A word of a script that puts spaces between words is folded (NFKC, case, accents) and stemmed. Scripts that do not
(Chinese, Japanese, Thai, Lao, Khmer, Burmese) are cut into single signs and pairs of neighbours, so that a word of one
sign is found, and a longer one by its pairs. An identifier (``foo-bar_2``, ``v1.2``, an address) is a word as a whole
and by its parts. Nothing here is a query language: whatever stands in a text is a word or a gap between words.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from itertools import pairwise
from typing import Final

from perdure.memory.stemming import stem

__all__ = ["STOP_STEMS", "TOKENS", "content_terms", "folded", "terms", "words_of"]

TOKENS: Final = 1
"""The version of what `terms` returns: an index made by another is made again."""

STOP: Final = frozenset(
    """
    a about all also am an and any are as at be been being both but by can could d did do does doing for from had
    has have having he her here hers him his how i if in into is isn it its just let ll m may me might mine more
    most my no nor not now of off on once only or other our ours out over own re s same she should so some such t
    than that the their theirs them then there these they this those through to too until up us ve very was we
    were what when where which while who whom whose why will with would yes yet you your yours
    """.split()  # noqa: SIM905 - a list of a hundred words reads better as text
)

_NOTHING_SAID: Final = frozenset(
    """
    a an and are as at be by do does did for from had has have he her his i in is it its me my of on or she that
    the their they this to was we were what when where which who whom whose why will with you your how
    """.split()  # noqa: SIM905 - a list of a hundred words reads better as text
)

_UNSPACED: Final = (
    "\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f\u0e00-\u0e7f\u0e80-\u0eff"
    "\u1000-\u109f\u1780-\u17ff"
)
_MARKS: Final = "\u0e31\u0e34-\u0e3a\u0e47-\u0e4e\u0eb1\u0eb4-\u0ebc\u0ec8-\u0ecd\u102b-\u103e\u17b4-\u17d3\u3099\u309a"
_RUN: Final = re.compile(rf"[{_UNSPACED}]+|[^\W{_UNSPACED}]+(?:[-.:/@#+'’][^\W{_UNSPACED}]+)*[+#]*")
_SIGN: Final = re.compile(rf"[{_UNSPACED}][{_MARKS}]*")
_PART: Final = re.compile(r"[^\W_]+")
_CAMEL: Final = re.compile(r"[a-z\d]+|[A-Z]+(?![a-z])|[A-Z][a-z\d]*|[^\x00-\x7f]+")
_LONGEST: Final = 64


@lru_cache(maxsize=50_000)
def folded(word: str) -> str:
    """A word without case, accents and other ways to write the same.

    >>> folded("Émile"), folded("STRASSE") == folded("straße")
    ('emile', True)
    """
    if word.isascii():
        return word.lower()
    apart = unicodedata.normalize("NFKD", word).casefold()
    kept = "".join(each for each in apart if unicodedata.category(each) != "Mn")
    return "".join(unicodedata.normalize("NFC", kept or apart).split())


def words_of(text: str) -> list[str]:
    """The words of a text as they are written, in lower case, without those that say nothing; all where none does.

    >>> words_of("Where does Anna live?")
    ['anna', 'live']
    """
    words = [each.lower() for each in re.findall(r"\w+", text)]
    return [each for each in words if each not in _NOTHING_SAID] or words


@lru_cache(maxsize=200_000)
def _of_run(run: str) -> tuple[str, ...]:
    if _SIGN.match(run):
        signs = _SIGN.findall(unicodedata.normalize("NFC", run))
        return (*signs, *(a + b for a, b in pairwise(signs)))
    parts = [folded(part) for part in _PART.findall(run)]
    found = [stem(part[:_LONGEST]) for part in parts if part]
    whole = folded(run).rstrip("'’")
    if whole.endswith(("'s", "’s")):
        return tuple(found[:-1])
    if len(parts) > 1:
        found.append(whole[:_LONGEST])
    elif run.isascii() and not run.islower() and not run.isupper() and not run.istitle():
        pieces = _CAMEL.findall(run)
        found += [stem(piece.lower()) for piece in pieces if len(pieces) > 1 and len(piece) > 1]
    return tuple(found)


def terms(text: str) -> list[str]:
    """All terms of a text, in order, stop words among them.

    >>> terms("Anna's cats ran to foo-bar.")
    ['anna', 'cat', 'run', 'to', 'foo', 'bar', 'foo-bar']
    >>> terms("東京へ")
    ['東', '京', 'へ', '東京', '京へ']
    """
    found: list[str] = []
    for run in _RUN.findall(text):
        found += _of_run(run)
    return found


STOP_STEMS: Final = STOP | {stem(word) for word in STOP}


def content_terms(text: str) -> list[str]:
    """The terms of a text that say something; all of them where none does.

    >>> content_terms("Where does Anna live?"), content_terms("to be or not to be")[:2]
    (['anna', 'live'], ['to', 'be'])
    """
    found = terms(text)
    return [each for each in found if each not in STOP_STEMS] or found
