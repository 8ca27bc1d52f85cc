"""``vectors.db``: the vectors of passages, beside the ledger, made from it and thrown away at will.

They are of one model, by its name and dimensions: with another the file is begun anew, so that vectors of two models
are never compared. A vector is kept as one signed byte a dimension and its scale (a quarter of the memory, and the
order of neighbours stays: the error is below a hundredth of a unit vector). Search is by brute force, exact, in blocks:
a million of 384 dimensions are 0.4 GB that are read in order. Passages without a vector are found by their words alone.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from perdure.errors import FormatRefused
from perdure.memory.index_file import DerivedFile
from perdure.memory.ledger import Ledger, as_text
from perdure.memory.powers import Embedder
from perdure.memory.sqlite_files import File, cut_log

__all__ = ["Vectors"]

_BATCH: Final = 32
_BLOCK: Final = 8192
_HELD_BYTES: Final = 256 << 20
_TABLES: Final = """
CREATE TABLE vector(passage INTEGER PRIMARY KEY, data BLOB NOT NULL);
"""
_NEXT: Final = """SELECT f.passage, f.text, f.state, e.speaker FROM fact f JOIN evidence e ON e.id = f.evidence
 WHERE f.passage IN (SELECT DISTINCT passage FROM fact WHERE passage > ? ORDER BY passage LIMIT ?) ORDER BY f.id"""


class Vectors:
    """The vectors of a space by one embedder. Safe to use from any thread and from many processes."""

    def __init__(self, path: Path, ledger: Ledger, embedder: Embedder) -> None:
        self.path = path
        self.ledger = ledger
        self.embedder = embedder
        self._file = DerivedFile(path, f"{ledger.id} {embedder.name} {embedder.dims}", _TABLES, {"last": 0, "shape": 1})
        self._held: tuple[object, NDArray[np.int64], NDArray[Any]] | None = None

    def catch_up(self, *, deadline_s: float, most: int | None = None) -> int:
        """Embed passages that have no vector yet, until ``deadline_s`` seconds are over; return how many are left.

        The model is called outside of any lock; who was slower throws away what both have embedded.
        """
        until = time.monotonic() + deadline_s

        def work(db: File) -> int:
            done = 0
            while (most is None or done < most) and time.monotonic() < until:
                last = _meta(db, "last")
                some = self._texts(last, _BATCH if most is None else min(_BATCH, most - done))
                if not some:
                    break
                table = self.embedder.embed([text for _, text in some], kind="passage")
                db.execute("BEGIN IMMEDIATE")
                try:
                    if _meta(db, "last") == last:
                        rows = [(passage, _packed(row)) for (passage, _), row in zip(some, table, strict=True)]
                        db.executemany("INSERT OR REPLACE INTO vector VALUES (?, ?)", rows)
                        db.execute("UPDATE meta SET value = ? WHERE key = 'last'", (some[-1][0],))
                except BaseException:
                    db.execute("ROLLBACK")
                    raise
                db.execute("COMMIT")
                done += len(some)
            sql = "SELECT count(DISTINCT passage) FROM fact WHERE passage > ?"
            return int(self.ledger.connection().execute(sql, (_meta(db, "last"),)).fetchone()[0])

        return self._file.robust(work)

    def drop(self, passages: Sequence[int]) -> None:
        """Forget the vectors of passages; they are found by their words until the file is made again."""

        def work(db: File) -> None:
            db.execute("BEGIN IMMEDIATE")
            try:
                db.executemany("DELETE FROM vector WHERE passage = ?", [(each,) for each in passages])
                db.execute("UPDATE meta SET value = value + 1 WHERE key = 'shape'")
            except BaseException:
                db.execute("ROLLBACK")
                raise
            db.execute("COMMIT")
            cut_log(db, until=time.monotonic() + 30.0)

        self._file.robust(work)

    def near(self, vector: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return all passages that have a vector, and their cosines with ``vector``."""

        def work(db: File) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
            passages, cosines = [], []
            for some, rows in self._blocks(db):
                passages.append(some)
                cosines.append((rows["v"].astype(np.float32) @ vector) * rows["scale"])
            if not passages:
                return np.zeros(0, np.int64), np.zeros(0, np.float32)
            return np.concatenate(passages), np.concatenate(cosines)

        return self._file.robust(work)

    def note(self, key: str, value: float | None = None) -> float | None:
        """Read a number that belongs to these vectors, or with ``value`` write it."""

        def work(db: File) -> float | None:
            if value is not None:
                db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (f"note {key}", value))
            row = db.execute("SELECT value FROM meta WHERE key = ?", (f"note {key}",)).fetchone()
            return None if row is None else float(row[0])

        return self._file.robust(work)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _blocks(self, db: File) -> Iterator[tuple[NDArray[np.int64], NDArray[Any]]]:
        kind = np.dtype([("v", "i1", (self.embedder.dims,)), ("scale", "<f4")])
        stamp = (self._file.inode, _meta(db, "last"), _meta(db, "shape"))
        held = self._held
        if held is not None and held[0] == stamp:
            for at in range(0, len(held[1]), _BLOCK):
                yield held[1][at : at + _BLOCK], held[2][at : at + _BLOCK]
            return
        kept: list[tuple[NDArray[np.int64], NDArray[Any]]] = []
        cursor = db.execute("SELECT passage, data FROM vector ORDER BY passage")
        room = _HELD_BYTES
        while rows := cursor.fetchmany(_BLOCK):
            data = b"".join(row[1] for row in rows)
            if len(data) != len(rows) * kind.itemsize:
                raise FormatRefused(f"{self.path} holds vectors of another size", file=str(self.path))
            block = np.array([row[0] for row in rows], np.int64), np.frombuffer(data, kind)
            room -= len(data)
            if room > 0:
                kept.append(block)
            yield block
        if room > 0 and kept:
            self._held = stamp, np.concatenate([each[0] for each in kept]), np.concatenate([each[1] for each in kept])

    def _texts(self, after: int, most: int) -> list[tuple[int, str]]:
        found: dict[int, str] = {}
        for passage, text, state, speaker in self.ledger.connection().execute(_NEXT, (after, most)).fetchall():
            body = as_text(text) if text is not None and state != "forgotten" else ""
            found[passage] = (
                f"{found[passage]} {body}" if passage in found else f"{speaker}: {body}" if speaker else body
            )
        return list(found.items())


def _meta(db: File, key: str) -> int:
    return int(db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()[0])


def _packed(row: NDArray[np.float32]) -> bytes:
    top = float(np.abs(row).max()) or 1.0
    scale = top / 127
    return np.round(row / scale).astype("i1").tobytes() + np.float32(scale).tobytes()
