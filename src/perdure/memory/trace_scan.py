"""Find what is left of texts in bytes: every common piece of 12 bytes or more. Also a program of its own (`main`).

Method. Let a text be the needle and a file the haystack. Whatever they have in common over at least 12 bytes contains 8
bytes that begin, in the haystack, at a multiple of 4. So of the haystack only every fourth 8-byte word is looked up in
the set of all 8-byte words of the needles, by a table first and exactly then; where one is found, the 12 bytes around
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
_BITS: Final = 20
_APART: Final = b"\xff" * LEAST_BYTES
_MIX: Final = np.uint64(0x9E3779B97F4A7C15)


class Needles:
    """Texts to look for, as bytes."""

    def __init__(self, texts: Iterable[bytes]) -> None:
        wanted = {each for each in texts if len(each) >= _SHORTEST and len(set(each)) > 2}
        self.short = sorted(each for each in wanted if len(each) < LEAST_BYTES)
        whole = sorted(each for each in wanted if len(each) >= LEAST_BYTES)
        words = [np.empty(0, np.uint64)]
        for text in whole:
            for at in range(_WORD):
                count = (len(text) - at) // _WORD
                if count > 0:
                    words.append(np.frombuffer(text, "<u8", count, at).astype(np.uint64))
        self._words = np.unique(np.concatenate(words))
        self._table = np.zeros(1 << _BITS, bool)
        self._table[_hash(self._words)] = True
        self._all = _APART.join(whole)

    def __bool__(self) -> bool:
        return bool(self.short) or len(self._words) > 0

    def candidates(self, chunk: bytes) -> list[int]:
        """Where an 8-byte word of a needle begins in ``chunk``, at multiples of 4."""
        found: list[int] = []
        for offset in (0, 4):
            count = (len(chunk) - offset) // _WORD
            if count <= 0 or not len(self._words):
                continue
            words = np.frombuffer(chunk, "<u8", count, offset)
            maybe = np.flatnonzero(self._table[_hash(words)])
            at = np.searchsorted(self._words, words[maybe])
            same = self._words[np.minimum(at, len(self._words) - 1)] == words[maybe]
            found += [int(each) * _WORD + offset for each in maybe[same]]
        return sorted(found)

    def piece_at(self, chunk: bytes, at: int) -> tuple[int, bytes] | None:
        """The 12 bytes of a needle that hold the word at ``at``, and where they begin."""
        for start in range(max(0, at - (LEAST_BYTES - _WORD)), at + 1):
            piece = chunk[start : start + LEAST_BYTES]
            if len(piece) < LEAST_BYTES or len(set(piece)) < 3:
                continue
            if self._has(piece[:_WORD]) and self._has(piece[-_WORD:]) and piece in self._all:
                return start, piece
        return None

    def _has(self, word: bytes) -> bool:
        value = np.uint64(int.from_bytes(word, "little"))
        at = int(np.searchsorted(self._words, value))
        return at < len(self._words) and bool(self._words[at] == value)


def find(chunks: Iterable[bytes], needles: Needles) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, the bytes that a needle has as well) for each place, some of them twice.

    All chunks but the last must have a multiple of 4 bytes.
    """
    tail, base = b"", 0
    for each in chunks:
        chunk = tail + each
        for at in needles.candidates(chunk):
            found = needles.piece_at(chunk, at)
            if found is not None:
                yield base + found[0], found[1]
        for short in needles.short:
            at = chunk.find(short)
            while at >= 0:
                yield base + at, short
                at = chunk.find(short, at + 1)
        tail = chunk[-16:] if len(chunk) >= 16 else chunk
        base += len(chunk) - len(tail)


def _hash(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    return (words * _MIX) >> np.uint64(64 - _BITS)


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
            for _, piece in itertools.chain(find([name], needles), find(_chunks(path), needles)):
                pieces[piece.hex()] += 1
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
