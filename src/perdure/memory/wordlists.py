"""Word lists as they are written: words with white space between them."""

from __future__ import annotations

__all__ = ["word_set"]


def word_set(text: str) -> frozenset[str]:
    """Return the words of a list.

    >>> sorted(word_set("a b c"))
    ['a', 'b', 'c']
    """
    return frozenset(text.split())
