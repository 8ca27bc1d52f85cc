"""Find what is left of texts in bytes: every common piece of 12 bytes or more. Also a program of its own (`main`).

Method. Let a text be the needle and a file the haystack. Whatever they have in common over at least 12 bytes contains 8
bytes that begin, in the haystack, at a multiple of 4. So of the haystack only every fourth 8-byte word is looked up in
the set of all 8-byte words of the needles, by a table first and exactly then; where one is found, every 12 bytes around
it are compared. Needles of 4 to 11 bytes are looked for whole. Pieces of fewer than 3 different bytes (padding) do not
count. The cost is that of reading, nearly whatever the needles are.

As a program it reads one JSON object from standard input and prints one: files are opened in a process that has no
SQLite connection, whose locks closing a file would drop.
"""

from __future__ import annotations

import collections
import itertools
import json
import os
import sys
from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["LEAST_BYTES", "Needles", "find"]

LEAST_BYTES: Final = 12
_WORD: Final = 8
_SHORTEST: Final = 4
_MOST: Final = 300_000
_CHUNK: Final = 8 << 20
_APART: Final = b"\xff" * LEAST_BYTES
_MIX: Final = np.uint64(0x9E3779B97F4A7C15)


class Needles:
    """Texts to look for, as bytes."""

    def __init__(self, texts: Iterable[bytes]) -> None:
        wanted = {each for each in texts if len(each) >= _SHORTEST and len(set(each)) > 2}
        self.short = sorted(each for each in wanted if len(each) < LEAST_BYTES)
        self._all = _APART.join(sorted(each for each in wanted if len(each) >= LEAST_BYTES))
        words = [
            np.frombuffer(self._all, "<u8", (len(self._all) - at) // _WORD, at)
            for at in range(_WORD if self._all else 0)
            if len(self._all) >= at + _WORD
        ]
        self._words = np.unique(np.concatenate([np.empty(0, "<u8"), *words]))
        self._bits = min(max(len(self._words).bit_length() + 3, 16), 25)
        self._table = np.zeros(1 << self._bits, bool)
        self._table[_hash(self._words, self._bits)] = True

    def __bool__(self) -> bool:
        return bool(self.short) or len(self._words) > 0

    def pieces_in(self, chunk: bytes) -> Iterator[tuple[int, bytes, int]]:
        """(offset of the first, 12 bytes, how often) of the pieces that hold a word at a multiple of 4."""
        if len(chunk) < LEAST_BYTES or not len(self._words):
            return
        may_start = np.zeros(len(chunk) + LEAST_BYTES, bool)  # shifted, for pieces that would begin before the chunk
        for offset in (0, 4):
            words = np.frombuffer(chunk, "<u8", (len(chunk) - offset) // _WORD, offset)
            found = np.flatnonzero(self._table[_hash(words, self._bits)])
            at = found[self._has(words[found])] * _WORD + offset
            for back in range(LEAST_BYTES - _WORD + 1):
                may_start[at - back + LEAST_BYTES] = True
        starts = np.flatnonzero(may_start[LEAST_BYTES : len(chunk) + 1])
        ahead, behind = _words_at(chunk, starts), _words_at(chunk, starts + (LEAST_BYTES - _WORD))
        both = self._has(ahead) & self._has(behind)
        # Two pieces of the same mixture are one with a chance of 1 in 2**64.
        _, first, counts = np.unique((ahead * _MIX ^ behind)[both], return_index=True, return_counts=True)
        starts = starts[both]
        for at, count in zip(starts[first].tolist(), counts.tolist(), strict=True):
            piece = chunk[at : at + LEAST_BYTES]
            if len(set(piece)) > 2 and piece in self._all:
                yield at, piece, count

    def _has(self, words: NDArray[np.uint64]) -> NDArray[np.bool_]:
        at = np.searchsorted(self._words, words)
        same: NDArray[np.bool_] = self._words[np.minimum(at, len(self._words) - 1)] == words
        return same


def find(chunks: Iterable[bytes], needles: Needles) -> Iterator[tuple[int, bytes, int]]:
    """Yield (offset of the first, the bytes that a needle has as well, how often), once a chunk for the same bytes.

    All chunks but the last must have a multiple of 4 bytes. A few at the edges of chunks are counted twice.
    """
    tail, base = b"", 0
    for each in chunks:
        chunk = tail + each
        yield from ((base + at, piece, count) for at, piece, count in needles.pieces_in(chunk))
        for short in needles.short:
            if (at := chunk.find(short)) >= 0:
                yield base + at, short, chunk.count(short)
        tail = chunk[-16:] if len(chunk) >= 16 else chunk
        base += len(chunk) - len(tail)


def _words_at(data: bytes, starts: NDArray[np.int64]) -> NDArray[np.uint64]:
    """The 8-byte words of ``data`` that begin at ``starts``."""
    every = np.ndarray((len(data) - _WORD + 1,), "<u8", data, 0, (1,))
    return every[starts]


def _hash(words: NDArray[np.uint64], bits: int) -> NDArray[np.uint64]:
    return (words * _MIX) >> np.uint64(64 - bits)


def _chunks(path: str) -> Iterator[bytes]:
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            yield chunk


def main() -> None:
    """``{"files": [path], "needles": [hex]}`` in; ``{path: {"bytes": n, "pieces": {hex: how often}}}`` out."""
    asked = json.load(sys.stdin)
    needles = Needles(bytes.fromhex(each) for each in asked["needles"])
    answer: dict[str, object] = {}
    for path in asked["files"]:
        name = os.path.basename(path).encode("utf-8", "replace")
        pieces: collections.Counter[str] = collections.Counter()
        error = ""
        try:
            for _, piece, count in itertools.chain(find([name], needles), find(_chunks(path), needles)):
                pieces[piece.hex()] += count
                if len(pieces) > _MOST:
                    error = f"more than {_MOST} different pieces are in it, which are too many to tell apart"
                    break
            nbytes = os.path.getsize(path)
        except FileNotFoundError:  # it has gone meanwhile
            continue
        except OSError as failed:
            nbytes, error = 0, str(failed)
        answer[path] = {"bytes": nbytes, "pieces": pieces, "error": error}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
