"""Chunks on their way to a store, counted, that can be read anew if what they come from can.

A store that tries again reads them once more from the beginning, so every pass counts for itself, and the last one that
came to its end says how many bytes there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from perdure.store.api import as_bytes

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["Anew", "Counted"]


class Anew:
    """What ``make`` gives, made anew by every ``iter()``.

    >>> chunks = Anew(lambda: iter([b"1", b"2"]))
    >>> list(chunks), list(chunks)
    ([b'1', b'2'], [b'1', b'2'])
    """

    def __init__(self, make: Callable[[], Iterator[Buffer]]) -> None:
        self._make = make

    def __iter__(self) -> Iterator[Buffer]:
        return self._make()


class Counted:
    """``chunks``, whose bytes are counted: ``nbytes`` are those of the last pass that came to its end."""

    def __init__(self, chunks: Iterable[Buffer]) -> None:
        self._chunks = chunks
        self.nbytes = 0

    def __iter__(self) -> Iterator[memoryview]:
        nbytes = 0
        for chunk in self._chunks:
            view = as_bytes(chunk)
            nbytes += view.nbytes
            yield view
        self.nbytes = nbytes
