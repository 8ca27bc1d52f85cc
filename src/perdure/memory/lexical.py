"""The lexical index: ``index.db``, made from the ledger and thrown away at will.

It follows the ledger: before a search it takes in what was told since, so that telling stays cheap and what was told
is found at once.
"""

from __future__ import annotations

import itertools
import re
import sqlite3
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from perdure.memory.ledger import Ledger
from perdure.memory.told import as_text

__all__ = ["LexicalIndex", "words_of"]

_WORD: Final = re.compile(r"\w+")
_STOP: Final = frozenset(
    [
        "a",
        "an",
        "and",
        "are",
        "as",
        "at",
        "be",
        "by",
        "do",
        "does",
        "did",
        "for",
        "from",
        "had",
        "has",
        "have",
        "he",
        "her",
        "his",
        "i",
        "in",
        "is",
        "it",
        "its",
        "me",
        "my",
        "of",
        "on",
        "or",
        "she",
        "that",
        "the",
        "their",
        "they",
        "this",
        "to",
        "was",
        "we",
        "were",
        "what",
        "when",
        "where",
        "which",
        "who",
        "whom",
        "whose",
        "why",
        "will",
        "with",
        "you",
        "your",
        "how",
    ]
)


def words_of(text: str) -> list[str]:
    """The words of a question that are worth looking for."""
    words = [each.lower() for each in _WORD.findall(text)]
    return [each for each in words if each not in _STOP] or words


class LexicalIndex:
    """FTS5 over the passages of a space."""

    def __init__(self, path: Path, ledger: Ledger) -> None:
        self.path = path
        self.ledger = ledger
        self._lock = threading.Lock()
        self._db = sqlite3.connect(path, timeout=30.0, isolation_level=None, check_same_thread=False)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = OFF")
        self._db.execute(
            "CREATE VIRTUAL TABLE IF NOT EXISTS passage"
            " USING fts5(body, tokenize = 'porter unicode61 remove_diacritics 2')"
        )

    def catch_up(self) -> None:
        """Take in what was told since the last time."""
        with self._lock:
            self._db.execute("BEGIN IMMEDIATE")
            last = self._db.execute("SELECT coalesce(max(rowid), 0) FROM passage").fetchone()[0]
            rows = self.ledger.connection().execute(
                "SELECT passage, text, state FROM fact WHERE passage > ? ORDER BY passage, id", (last,)
            )
            bodies = ((passage, _joined(some)) for passage, some in itertools.groupby(rows, lambda row: row[0]))
            self._db.executemany("INSERT INTO passage(rowid, body) VALUES (?, ?)", bodies)
            self._db.execute("COMMIT")

    def drop(self, passages: Sequence[int]) -> None:
        """Take passages out, or what was forgotten of them; no byte of it stays."""
        self.catch_up()
        with self._lock:
            self._db.execute("PRAGMA secure_delete = ON")
            self._db.execute("BEGIN IMMEDIATE")
            for passage in passages:
                self._db.execute("DELETE FROM passage WHERE rowid = ?", (passage,))
                rows = self.ledger.connection().execute(
                    "SELECT passage, text, state FROM fact WHERE passage = ?1 AND id BETWEEN ?1 AND ?1 + 1000"
                    " ORDER BY id",
                    (passage,),
                )
                self._db.execute("INSERT INTO passage(rowid, body) VALUES (?, ?)", (passage, _joined(rows)))
            self._db.execute("INSERT INTO passage(passage) VALUES ('optimize')")
            self._db.execute("COMMIT")

    def search(self, question: str, *, limit: int) -> list[tuple[int, float]]:
        """Return (passage, score), best first."""
        words = words_of(question)
        if not words:
            return []
        self.catch_up()
        match = " OR ".join('"' + word.replace('"', '""') + '"' for word in words)
        with self._lock:
            rows = self._db.execute(
                "SELECT rowid, -rank FROM passage WHERE passage MATCH ? ORDER BY rank LIMIT ?", (match, limit)
            )
            return list(rows)

    def containing(self, name: Sequence[str], *, with_any: Sequence[str] = (), limit: int) -> list[int]:
        """Return passages with the words of ``name`` side by side, and one of ``with_any`` if there are any.

        The newest come first. Of what was told since the last `catch_up` it knows nothing.
        """
        phrase = _phrase(" ".join(name))
        if not any(name):
            return []
        some = " OR ".join(_phrase(word) for word in with_any)
        match = f"{phrase} AND ({some})" if some else phrase
        with self._lock:
            rows = self._db.execute(
                "SELECT rowid FROM passage WHERE passage MATCH ? ORDER BY rowid DESC LIMIT ?", (match, limit)
            )
            return [row[0] for row in rows]

    def close(self) -> None:
        """Close the index."""
        self._db.close()


def _phrase(words: str) -> str:
    sound = words.encode("utf-8", "replace").decode()
    return '"' + sound.replace('"', '""').replace("\0", " ") + '"'


def _joined(rows: Iterable[Sequence[Any]]) -> str:
    """The words of a passage that may be recalled; what is no Unicode text is replaced."""
    texts = [as_text(text) for _, text, state in rows if text is not None and state != "forgotten"]
    return " ".join(texts).encode("utf-8", "replace").decode()
