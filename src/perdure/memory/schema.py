"""The tables of ``ledger.db``, the truth of one space. Everything else (indexes, documents) is made from them again.

``fact.text`` is the span of ``evidence.body`` that it stands for. ``fact.state`` is kept beside the links for speed;
`doctor` derives it again. ``fact.settled`` is 0 until rules have looked for what the fact replaces; ``fact.topic`` is
NULL until it has been consolidated: the two together are the staging buffer. Purged rows stay, empty, so that an id is
never given twice.

The table ``space`` holds ``format``, ``id`` (which no other space has: what is made from the ledger notes it, and so
knows whose it is) and a key ``purge:N`` for each purge that is not through. ``copy`` lists the backups and exports
that were made, so that a purge finds them.
"""

from __future__ import annotations

import functools
import os
import secrets
from pathlib import Path
from typing import Final

from perdure.errors import FormatRefused
from perdure.memory.sqlite_files import File, connect, explained_sqlite, sync_folders

__all__ = ["FORMAT", "TABLES", "check", "create"]

FORMAT: Final = 1

TABLES: Final = """
CREATE TABLE space(key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE evidence(
  id INTEGER PRIMARY KEY,
  body, -- TEXT, or BLOB (UTF-8 with lone surrogates let through) where it is no Unicode text, NULL when purged
  source TEXT NOT NULL,
  speaker TEXT NOT NULL,
  role TEXT NOT NULL,
  observed TEXT NOT NULL,
  observed_s REAL NOT NULL,
  told_s REAL NOT NULL, -- when it was acknowledged
  identity TEXT, -- the same again is the same observation
  meta TEXT
);
CREATE UNIQUE INDEX evidence_identity ON evidence(identity) WHERE identity IS NOT NULL;
CREATE INDEX evidence_observed ON evidence(observed_s);
CREATE TABLE fact(
  id INTEGER PRIMARY KEY,
  evidence INTEGER NOT NULL REFERENCES evidence(id),
  start INTEGER NOT NULL,
  stop INTEGER NOT NULL,
  passage INTEGER NOT NULL,
  text,
  since TEXT,
  until TEXT,
  state TEXT NOT NULL DEFAULT 'current',
  settled INTEGER NOT NULL DEFAULT 0,
  topic INTEGER
);
CREATE INDEX fact_evidence ON fact(evidence);
CREATE INDEX fact_unsettled ON fact(id) WHERE settled = 0;
CREATE INDEX fact_unassigned ON fact(id) WHERE topic IS NULL;
CREATE INDEX fact_topic ON fact(topic) WHERE topic IS NOT NULL;
CREATE TABLE slot(key TEXT NOT NULL, fact INTEGER NOT NULL, PRIMARY KEY(key, fact)) WITHOUT ROWID;
CREATE INDEX slot_fact ON slot(fact);
CREATE TABLE change(
  id INTEGER PRIMARY KEY,
  kind TEXT NOT NULL, -- settle, consolidate, edit, forget, undo
  by TEXT NOT NULL, -- rules, human, or a model's name
  outcome TEXT NOT NULL, -- ok, repaired, fallback, failed
  at_s REAL NOT NULL,
  note TEXT NOT NULL DEFAULT '',
  undoes INTEGER,
  plan TEXT -- what was done, so that it can be shown and undone
);
CREATE TABLE link(
  id INTEGER PRIMARY KEY,
  kind TEXT NOT NULL,
  fact INTEGER NOT NULL,
  other INTEGER NOT NULL,
  reason TEXT NOT NULL,
  change INTEGER NOT NULL REFERENCES change(id),
  undone INTEGER -- the change that took it back
);
CREATE INDEX link_fact ON link(fact);
CREATE INDEX link_other ON link(other);
CREATE TABLE document(
  topic INTEGER PRIMARY KEY,
  bytes INTEGER NOT NULL DEFAULT 0, -- of the facts of the topic, kept beside them for speed (-1: to be counted)
  held INTEGER NOT NULL DEFAULT 0, -- 1 where a person has taken back a cut or a merge: rules leave it as it is
  notes TEXT NOT NULL DEFAULT '', -- what a person wrote under Notes
  extra TEXT NOT NULL DEFAULT '', -- lines that a person added to the front matter
  shown TEXT NOT NULL DEFAULT '{}', -- ids that the document showed, and since when: the base of a merge
  intent TEXT -- what is about to be written: digest, file, revision, shown
);
CREATE INDEX document_bytes ON document(bytes);
CREATE TABLE route(key INTEGER PRIMARY KEY, topic INTEGER NOT NULL);
CREATE TABLE topic(
  id INTEGER PRIMARY KEY,
  title TEXT NOT NULL,
  aliases TEXT NOT NULL DEFAULT '[]',
  summary TEXT NOT NULL DEFAULT '',
  revision INTEGER NOT NULL DEFAULT 0,
  file TEXT NOT NULL DEFAULT '', -- its document's name in topics/
  written INTEGER NOT NULL DEFAULT 0, -- the revision that the document shows
  digest TEXT NOT NULL DEFAULT '', -- of the document as it was last written: another digest means an edit
  into_topic INTEGER
);
CREATE TABLE carried(
  origin TEXT NOT NULL, -- the id of the space that it was imported from
  kind TEXT NOT NULL, -- evidence, fact, topic, change, link
  theirs INTEGER NOT NULL,
  ours INTEGER NOT NULL,
  PRIMARY KEY(origin, kind, theirs)
) WITHOUT ROWID;
CREATE TABLE copy(place TEXT PRIMARY KEY, kind TEXT NOT NULL, at_s REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE lease(name TEXT PRIMARY KEY, holder TEXT NOT NULL, until_s REAL NOT NULL) WITHOUT ROWID;
"""

_NEW: Final = ".new-"


def create(path: Path) -> None:
    """Make an empty ledger at ``path``, durable, name and all. Only one process at a time may.

    It appears whole or not at all, so that a ledger which is empty or lacks a table is always a damaged one.
    """
    temporary = path.with_name(f"{_NEW}{secrets.token_hex(8)}.db")
    try:
        db = connect(temporary, busy_s=0.0)
        try:
            db.execute("PRAGMA synchronous = FULL")
            db.execute("BEGIN IMMEDIATE")
            for statement in TABLES.split(";"):
                db.execute(statement)
            db.execute("INSERT INTO space VALUES ('format', ?), ('id', ?)", (str(FORMAT), secrets.token_hex(16)))
            db.execute("COMMIT")
            db.execute("PRAGMA journal_mode = WAL")
        finally:
            db.close()
        with explained_sqlite(path):
            os.chmod(temporary, 0o600)
            os.rename(temporary, path)
            sync_folders(path.parent)
    finally:
        for each in (temporary, Path(f"{temporary}-wal"), Path(f"{temporary}-shm"), Path(f"{temporary}-journal")):
            each.unlink(missing_ok=True)


def check(db: File) -> None:
    """Refuse what is no ledger of this release: by its tables, and for anything that would run by itself.

    Raises `FormatRefused` for another format.
    """
    file = str(db.path)
    found = {(kind, name): sql for kind, name, sql in db.execute("SELECT type, name, sql FROM sqlite_master")}
    if any(kind in ("trigger", "view") or "virtual" in (sql or "").lower() for (kind, _), sql in found.items()):
        raise FormatRefused(
            f"{file} holds triggers, views or virtual tables, as no ledger does; do not use it", file=file
        )
    if ("table", "space") not in found:
        raise FormatRefused(f"{file} is the SQLite file of something else; move it away", file=file)
    row = db.execute("SELECT value FROM space WHERE key = 'format'").fetchone()
    if row is None or row[0] != str(FORMAT):
        have = str(row and row[0])[:20]
        raise FormatRefused(
            f"{file} has format {have}; this release reads format {FORMAT}: use the release that wrote it", file=file
        )
    for name, columns in _columns(db, [name for kind, name in found if kind == "table"]).items():
        if not columns >= _wanted().get(name, set()):
            raise FormatRefused(f"{file} lacks columns of the table {name}; put a backup in its place", file=file)
    missing = sorted(_wanted().keys() - {name for kind, name in found if kind == "table"})
    if missing:
        raise FormatRefused(f"{file} lacks the tables {', '.join(missing)}; put a backup in its place", file=file)


def _columns(db: File, tables: list[str]) -> dict[str, set[str]]:
    return {name: {row[0] for row in db.execute("SELECT name FROM pragma_table_info(?)", (name,))} for name in tables}


@functools.cache
def _wanted() -> dict[str, set[str]]:
    """The tables and their columns, as SQLite reads `TABLES`."""
    db = connect(Path(":memory:"), busy_s=0.0)
    for statement in TABLES.split(";"):
        db.execute(statement)
    names = [row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    return _columns(db, names)
