"""Take into the lexical index what the ledger has and it has not; one writer at a time, nothing twice.

How far it has followed is written in the same transaction as what it took in.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import numpy as np

from perdure.errors import FormatRefused
from perdure.memory.coherence import shared
from perdure.memory.ledger import Ledger, as_text, meta_of, role_of
from perdure.memory.postings import SPAN, TAIL, merge, merge_due, rewrite, seal
from perdure.memory.sqlite_files import File, cut_log
from perdure.memory.units import GAP_S, SECTION, UNIT
from perdure.memory.words import STOP_STEMS, terms

__all__ = ["BEGINNING", "TABLES", "follow", "passages_in", "reindex", "text_of"]

TABLES: Final = """
CREATE TABLE name(
  code INTEGER PRIMARY KEY,
  kind TEXT NOT NULL, -- speaker, source
  text BLOB NOT NULL,
  near REAL NOT NULL DEFAULT 0,
  far REAL NOT NULL DEFAULT 0,
  pairs INTEGER NOT NULL DEFAULT 0,
  last INTEGER NOT NULL DEFAULT -1, -- of a source: its newest unit, when that was observed, its section and how full
  last_s REAL NOT NULL DEFAULT 0,
  section INTEGER NOT NULL DEFAULT -1,
  filled INTEGER NOT NULL DEFAULT 0,
  changed INTEGER NOT NULL DEFAULT 0, -- the generation that changed it
  UNIQUE(kind, text)
);
CREATE INDEX name_changed ON name(changed);
CREATE TABLE tail(unit INTEGER PRIMARY KEY, columns BLOB NOT NULL, terms TEXT NOT NULL);
CREATE TABLE block(first INTEGER PRIMARY KEY, columns BLOB NOT NULL);
CREATE TABLE segment(
  first INTEGER PRIMARY KEY,
  size INTEGER NOT NULL,
  terms TEXT NOT NULL DEFAULT '' -- a line each, between line ends
);
CREATE TABLE posting(segment INTEGER NOT NULL, term TEXT NOT NULL, data BLOB NOT NULL, PRIMARY KEY(segment, term))
  WITHOUT ROWID;
"""
BEGINNING: Final = {"follow": 0, "units": 0, "sealed": 0, "sections": 0, "generation": 1, "shape": 1}

_BATCH: Final = SPAN - TAIL
_META_CHARS: Final = 2000
_LONGEST_PASSAGE: Final = 2000
_SEEN: Final = 256
_FEWEST: Final = 8
_TERMS: Final = 20_000

_NEW: Final = """SELECT f.passage, f.id, f.text, f.state, e.id, e.speaker, e.source, e.observed_s, e.role, e.meta
 FROM fact f JOIN evidence e ON e.id = f.evidence WHERE f.id > ? ORDER BY f.id"""
_AGAIN: Final = """SELECT f.passage, f.id, f.text, f.state, e.id, e.speaker, e.source, e.observed_s, e.role, e.meta
 FROM fact f JOIN evidence e ON e.id = f.evidence WHERE f.id >= ? AND f.id < ? AND f.passage = ? ORDER BY f.id"""


@dataclass(slots=True)
class _Passage:
    id: int
    last: int
    text: str
    speaker: str
    source: str
    observed_s: float
    role: str


@dataclass(slots=True)
class _Name:
    """What is known of a speaker or source while following."""

    code: int
    near: float = 0.0
    far: float = 0.0
    pairs: int = 0
    last: int = -1
    last_s: float = 0.0
    section: int = -1
    filled: int = 0
    before: frozenset[str] = frozenset()
    seen: list[frozenset[str]] = field(default_factory=list)


def follow(db: File, ledger: Ledger) -> None:
    """Take in what is new. Raises `FormatRefused` where the index knows more than the ledger, which is another then."""
    told = ledger.connection()
    newest = told.execute("SELECT coalesce(max(id), 0) FROM fact").fetchone()[0]
    while True:
        at = db.execute("SELECT value FROM meta WHERE key = 'follow'").fetchone()[0]
        if at > newest:
            raise FormatRefused(f"{db.path} follows another ledger", file=str(db.path))
        if at == newest:
            return
        db.execute("BEGIN IMMEDIATE")
        try:
            meta = dict(db.execute("SELECT key, value FROM meta"))
            batch = _passages(told.execute(_NEW, (meta["follow"],)), _BATCH)
            if batch:
                _take_in(db, meta, batch)
        except BaseException:
            if db.in_transaction:  # where the disk is full, SQLite has taken it back itself
                db.execute("ROLLBACK")
            raise
        db.execute("COMMIT")
        if not batch:
            return


def reindex(db: File, ledger: Ledger, passages: Sequence[int]) -> None:
    """Take passages in anew, as they stand in the ledger now. What is no longer in them is overwritten in the file."""
    db.execute("BEGIN IMMEDIATE")
    try:
        meta = dict(db.execute("SELECT key, value FROM meta"))
        anew = _anew(db, ledger, set(passages))
        segments = [row[0] for row in db.execute("SELECT first FROM segment ORDER BY first")]
        for first, end in pairwise([*segments, meta["sealed"]]):
            some = {unit: found for unit, (found, _) in anew.items() if first <= unit < end}
            if some:
                rewrite(db, first, some)
                _list_terms(db, first)
        for first, columns in db.execute("SELECT first, columns FROM block").fetchall():
            rows = np.frombuffer(columns, UNIT).copy()
            mine = [unit for unit in anew if first <= unit < first + len(rows)]
            for unit in mine:
                rows[unit - first] = np.frombuffer(anew[unit][1], UNIT)[0]
            if mine:
                db.execute("UPDATE block SET columns = ? WHERE first = ?", (rows.tobytes(), first))
        for unit, (found, columns) in anew.items():
            if unit >= meta["sealed"]:
                db.execute("UPDATE tail SET columns = ?, terms = ? WHERE unit = ?", (columns, "\n".join(found), unit))
        _drop_names(db)
        db.execute("UPDATE meta SET value = value + 1 WHERE key IN ('generation', 'shape')")
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")
    cut_log(db, until=time.monotonic() + 30.0)


def _drop_names(db: File) -> None:
    """Forget the speakers and sources that no passage has any more."""
    used: dict[str, set[int]] = {"speaker": set(), "source": set()}
    for (columns,) in db.execute("SELECT columns FROM block UNION ALL SELECT columns FROM tail"):
        rows = np.frombuffer(columns, UNIT)
        for kind, codes in used.items():
            codes.update(np.unique(rows[kind]).tolist())
    gone = [
        (code,)
        for code, kind in db.execute("SELECT code, kind FROM name").fetchall()
        if kind in used and code not in used[kind]
    ]
    db.executemany("DELETE FROM name WHERE code = ?", gone)


def passages_in(db: File) -> set[int]:
    """The passages that an index has, for `perdure.memory.doctor`."""
    found: set[int] = set()
    for (columns,) in db.execute("SELECT columns FROM block UNION ALL SELECT columns FROM tail"):
        found.update(np.frombuffer(columns, UNIT)["passage"].tolist())
    return found


def text_of(ledger: Ledger, passage: int) -> str:
    """The words of a passage as they are indexed, without what was forgotten."""
    same = _again(ledger, passage)
    return same.text if same else ""


def _again(ledger: Ledger, passage: int) -> _Passage | None:
    same = _passages(ledger.connection().execute(_AGAIN, (passage, passage + _LONGEST_PASSAGE, passage)), 1)
    return same[0] if same else None


def _anew(db: File, ledger: Ledger, passages: set[int]) -> dict[int, tuple[list[str], bytes]]:
    """By unit: its terms, and its columns."""
    found: dict[int, tuple[list[str], bytes]] = {}
    blocks = list(db.execute("SELECT first, columns FROM block ORDER BY first"))
    blocks += [(unit, columns) for unit, columns in db.execute("SELECT unit, columns FROM tail ORDER BY unit")]
    wanted = np.array(sorted(passages), np.int64)
    names: dict[tuple[str, str], _Name] = {}
    for first, columns in blocks:
        rows = np.frombuffer(columns, UNIT)
        for at in np.flatnonzero(np.isin(rows["passage"], wanted)).tolist():
            passage = int(rows[at]["passage"])
            now = _again(ledger, passage)
            some = _indexed(now.text if now else "")
            row = rows[at : at + 1].copy()
            row["length"] = min(65_535, len(some))
            for kind in ("speaker", "source"):
                row[kind] = _name(db, names, kind, getattr(now, kind) if now else "").code
            found[first + at] = some, row.tobytes()
    if len(found) < len(passages):
        raise FormatRefused(f"{db.path} lacks passages", file=str(db.path))
    return found


def _passages(rows: Iterable[Sequence[Any]], limit: int) -> list[_Passage]:
    """Put facts together to at most ``limit`` passages. The words in an evidence's meta are its first passage's."""
    found: list[_Passage] = []
    evidence = -1
    for passage, fact, text, state, of, speaker, source, observed_s, role, meta in rows:
        body = as_text(text) if text is not None and state != "forgotten" else ""
        if found and found[-1].id == passage:
            found[-1].text += " " + body
            found[-1].last = fact
            continue
        if len(found) == limit:
            break
        if of != evidence and meta and body:
            body = " ".join([body, *_said(meta_of(meta))])
        evidence = of
        found.append(_Passage(passage, fact, body, speaker, source, observed_s, role))
    return found


def _said(meta: object, depth: int = 0) -> Iterator[str]:
    """The words in the values of meta; what looks like an address is none."""
    if isinstance(meta, str):
        if "://" not in meta and not meta.startswith("data:"):
            yield meta[:_META_CHARS]
    elif isinstance(meta, dict) and depth < 4:
        for each in meta.values():
            yield from _said(each, depth + 1)
    elif isinstance(meta, list) and depth < 4:
        for each in meta[:100]:
            yield from _said(each, depth + 1)


def _indexed(text: str) -> list[str]:
    found = terms(text)
    return [each for each in found if each not in STOP_STEMS][:_TERMS] or found[:_TERMS]


def _take_in(db: File, meta: Mapping[str, Any], batch: Sequence[_Passage]) -> None:
    first, sections, generation = meta["units"], meta["sections"], meta["generation"] + 1
    names: dict[tuple[str, str], _Name] = {}
    columns = np.zeros(len(batch), UNIT)
    everyone = _name(db, names, "all", "")
    found: list[list[str]] = []
    chance = random.Random(first)
    rows: list[tuple[int, ...]] = []
    for at, each in enumerate(batch):
        unit = first + at
        speaker, source = _name(db, names, "speaker", each.speaker), _name(db, names, "source", each.source)
        some = _indexed(each.text)
        found.append(some)
        near = source.last >= 0 and abs(each.observed_s - source.last_s) <= GAP_S
        if not near or source.filled >= SECTION:
            source.section, source.filled = sections, 0
            sections += 1
        near_by, far_off, pair = _compare(db, source, frozenset(some), meta["sealed"], near, chance)
        for one in (source, everyone):
            one.near, one.far, one.pairs = one.near + near_by, one.far + far_off, one.pairs + pair
        rows.append(
            (
                each.id,
                source.last if near else -1,
                source.section,
                speaker.code,
                source.code,
                min(65_535, len(some)),
                role_of(each.role).authority,
            )
        )
        source.last, source.last_s, source.filled = unit, each.observed_s, source.filled + 1
    table = np.array(rows, np.int64)
    for at, name in enumerate(("passage", "prev", "section", "speaker", "source", "length", "role")):
        columns[name] = table[:, at]
    columns["observed_s"] = [each.observed_s for each in batch]
    db.executemany(
        "UPDATE name SET near = ?, far = ?, pairs = ?, last = ?, last_s = ?, section = ?, filled = ?, changed = ?"
        " WHERE code = ?",
        [(n.near, n.far, n.pairs, n.last, n.last_s, n.section, n.filled, generation, n.code) for n in names.values()],
    )
    sealed = _store(db, meta, columns, found)
    for key, value in (
        ("follow", batch[-1].last),
        ("units", first + len(batch)),
        ("sections", sections),
        ("sealed", sealed),
        ("generation", generation),
    ):
        db.execute("UPDATE meta SET value = ? WHERE key = ?", (value, key))


def _store(db: File, meta: Mapping[str, Any], columns: Any, found: Sequence[list[str]]) -> int:
    """Write units to the tail, or with the tail as a segment; return the unit that the tail begins with."""
    first, sealed = meta["units"], meta["sealed"]
    if first - sealed + len(found) < TAIL:
        db.executemany(
            "INSERT INTO tail(unit, columns, terms) VALUES (?, ?, ?)",
            [(first + at, columns[at : at + 1].tobytes(), "\n".join(some)) for at, some in enumerate(found)],
        )
        return int(sealed)
    kept = db.execute("SELECT columns, terms FROM tail ORDER BY unit").fetchall()
    older = np.frombuffer(b"".join(row[0] for row in kept), UNIT)
    everything = [*(row[1].split("\n") if row[1] else [] for row in kept), *found]
    postings: dict[str, dict[int, int]] = {}
    for at, some in enumerate(everything):
        for term in some:
            mine = postings.setdefault(term, {})
            mine[at] = mine.get(at, 0) + 1
    seal(db, sealed, {term: [(sealed + at, count) for at, count in mine.items()] for term, mine in postings.items()})
    db.execute("INSERT INTO block(first, columns) VALUES (?, ?)", (sealed, np.concatenate([older, columns]).tobytes()))
    db.execute("INSERT INTO segment(first, size) VALUES (?, ?)", (sealed, len(everything)))
    db.execute("DELETE FROM tail")
    newest = int(sealed)
    while True:
        known = db.execute("SELECT first, size FROM segment ORDER BY first").fetchall()
        some = merge_due([size for _, size in known])
        if not some:
            break
        last = known[len(known) - some :]
        newest = int(last[0][0])
        merge(db, [row[0] for row in last])
        blocks = [db.execute("SELECT columns FROM block WHERE first = ?", (row[0],)).fetchone()[0] for row in last]
        db.executemany("DELETE FROM segment WHERE first = ?", [(row[0],) for row in last[1:]])
        db.executemany("DELETE FROM block WHERE first = ?", [(row[0],) for row in last[1:]])
        db.execute("UPDATE segment SET size = ? WHERE first = ?", (sum(row[1] for row in last), newest))
        db.execute("UPDATE block SET columns = ? WHERE first = ?", (b"".join(blocks), newest))
    _list_terms(db, newest)
    return int(sealed) + len(everything)


def _list_terms(db: File, segment: int) -> None:
    """Write down the terms of a segment for `perdure.memory.vocabulary`."""
    lines = "\n".join(row[0] for row in db.execute("SELECT term FROM posting WHERE segment = ?", (segment,)).fetchall())
    db.execute("UPDATE segment SET terms = ? WHERE first = ?", (f"\n{lines}\n", segment))


def _name(db: File, names: dict[tuple[str, str], _Name], kind: str, text: str) -> _Name:
    known = names.get((kind, text))
    if known is None:
        body = text.encode("utf-8", "surrogatepass")
        sql = "SELECT code, near, far, pairs, last, last_s, section, filled FROM name WHERE kind = ? AND text = ?"
        row = db.execute(sql, (kind, body)).fetchone()
        if row is None:
            db.execute("INSERT INTO name(kind, text) VALUES (?, ?)", (kind, body))
            row = db.execute(sql, (kind, body)).fetchone()
        known = names[(kind, text)] = _Name(*row)
    return known


def _compare(
    db: File, source: _Name, mine: frozenset[str], sealed: int, near: bool, chance: random.Random
) -> tuple[float, float, int]:
    """What a passage shares with the one before it, and with another of its source; 1 where it could be told."""
    if not source.seen and source.last >= sealed:
        rows = db.execute("SELECT unit, terms FROM tail ORDER BY unit DESC LIMIT ?", (_SEEN,)).fetchall()
        source.seen = [frozenset(row[1].split("\n")) for row in reversed(rows) if row[1]]
        last = [frozenset(row[1].split("\n")) for row in rows if row[0] == source.last and row[1]]
        source.before = last[0] if last else frozenset()
    told = 0.0, 0.0, 0
    if mine and source.before and near and len(source.seen) > _FEWEST:
        far = source.seen[chance.randrange(len(source.seen) - _FEWEST // 2)]
        told = shared(mine, source.before), shared(mine, far), 1
    if mine:
        source.before = mine
        if len(source.seen) < _SEEN:
            source.seen.append(mine)
        else:
            source.seen[chance.randrange(_SEEN)] = mine
    return told
