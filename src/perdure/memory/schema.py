"""The tables of ``ledger.db``, the truth of one space. Everything else (indexes, documents) is made from them again.

``fact.text`` is the span of ``evidence.body`` that it stands for. ``fact.state`` is kept beside the links for speed;
`doctor` derives it again. ``fact.settled`` is 0 until rules have looked for what the fact replaces; ``fact.topic`` is
NULL until it has been consolidated: the two together are the staging buffer. Purged rows stay, empty, so that an id is
never given twice.
"""

from __future__ import annotations

from typing import Final

__all__ = ["FORMAT", "TABLES"]

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
  bytes INTEGER NOT NULL DEFAULT 0, -- of the facts of the topic, kept beside them for speed
  held INTEGER NOT NULL DEFAULT 0, -- 1 where a person has taken back a cut or a merge: rules leave it as it is
  notes TEXT NOT NULL DEFAULT '', -- what a person wrote under Notes
  extra TEXT NOT NULL DEFAULT '', -- lines that a person added to the front matter
  shown TEXT NOT NULL DEFAULT '{}', -- ids and names that the document showed, and since when: the base of a merge
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
CREATE TABLE lease(name TEXT PRIMARY KEY, holder TEXT NOT NULL, until_s REAL NOT NULL) WITHOUT ROWID;
"""
