"""Words without case and marks, and the part that the forms of an English word share, as slots compare them."""

from __future__ import annotations

import unicodedata
from functools import lru_cache

__all__ = ["folded", "stem"]


def folded(word: str) -> str:
    """Return a word without case and marks.

    >>> folded("Zürich")
    'zurich'
    """
    if word.isascii():
        return word.lower()
    parts = unicodedata.normalize("NFKD", word.casefold())
    return "".join(each for each in parts if not unicodedata.combining(each))


@lru_cache(maxsize=65536)
def stem(word: str) -> str:
    """Return the part of an English word that its forms share, roughly.

    >>> [stem(each) for each in ("lives", "living", "lived", "cities", "city", "bus")]
    ['liv', 'liv', 'liv', 'citi', 'citi', 'bus']
    """
    word = folded(word)
    if len(word) > 4 and word.endswith(("'s", "\u2019s")):
        word = word[:-2]
    if len(word) < 4 or not word.isalpha():
        return word
    for ending in ("ingly", "ings", "ing", "edly", "ies", "ed", "es", "s", "ly"):
        if word.endswith(ending) and len(word) - len(ending) >= 3 and not word.endswith("ss"):
            word = word[: -len(ending)] + ("i" if ending == "ies" else "")
            break
    if word.endswith("e") and len(word) > 3:
        word = word[:-1]
    if word.endswith("y") and len(word) > 3:
        word = word[:-1] + "i"
    if len(word) > 4 and word[-1] == word[-2] and word[-1] not in "ls":
        word = word[:-1]
    return word
