"""A space as JSON lines, which any program can read, and `perdure.memory.importing` takes in again.

The first line says what this is (``{"perdure_memory": 1, "space": ..., ...}``), the last how many lines came before it
and their SHA-256, so that a file that was cut is known as such. Between them, each line is one object under its kind:
``topic``, ``change``, ``evidence`` (its facts within it), ``link``. Ids are those of the space. Purged evidence keeps
its line, without text. What can be made again (slots, indexes, documents) is left out.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from perdure.errors import BlobCorrupt, CallError
from perdure.memory.backup import note_copy
from perdure.memory.ledger import Ledger
from perdure.memory.told import as_text
from perdure.memory.whole_files import publish, temporary_beside
from perdure.store.refusals import explained

__all__ = ["VERSION", "export"]

VERSION: Final = 1

_TOPIC: Final = ("id", "title", "aliases", "summary", "into_topic", "notes")
_CHANGE: Final = ("id", "kind", "by", "outcome", "at_s", "note", "undoes", "plan")
_LINK: Final = ("id", "kind", "fact", "other", "reason", "change", "undone")
_EVIDENCE: Final = ("id", "body", "source", "speaker", "role", "observed", "observed_s", "told_s", "identity", "meta")
_FACT: Final = ("id", "start", "stop", "passage", "since", "until", "state", "settled", "topic")


def export(ledger: Ledger, to: str | os.PathLike[str], *, replace: bool = False) -> int:
    """Write the space, as it is at this moment, to a new file of JSON lines; return how many lines it has.

    Raises `CallError` where the file exists (unless it is to be replaced), `perdure.errors.StorageFull`.
    """
    path = Path(to).absolute()
    if not replace and os.path.lexists(path):
        raise CallError(f"{path} exists already; give another name", file=str(path))
    note_copy(ledger, str(path), "export")
    count, digest = 0, hashlib.sha256()
    with temporary_beside(path) as temporary, explained(str(path), "write"):
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(fd, "wb", buffering=1 << 20) as file:
            for each in _lines(ledger):
                line = _line(ledger, each)
                digest.update(line)
                file.write(line)
                count += 1
            file.write(json.dumps({"end": {"lines": count, "sha256": digest.hexdigest()}}).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        publish(temporary, path, replace=replace)
    return count + 1


def _line(ledger: Ledger, each: dict[str, Any]) -> bytes:
    try:
        return json.dumps(each, separators=(",", ":")).encode() + b"\n"
    except TypeError as error:
        raise BlobCorrupt(
            f"{ledger.path} is damaged (bytes where a text belongs); put a backup in its place", file=str(ledger.path)
        ) from error


def _lines(ledger: Ledger) -> Iterator[dict[str, Any]]:
    db = ledger.connection()
    db.execute("BEGIN")
    try:
        yield {
            "perdure_memory": VERSION,
            "space": ledger.id,
            "exported": dt.datetime.fromtimestamp(ledger.wall(), dt.UTC).isoformat(),
            "evidence": db.execute("SELECT count(*) FROM evidence").fetchone()[0],
            "facts": db.execute("SELECT count(*) FROM fact").fetchone()[0],
        }
        topics = "(SELECT t.*, coalesce(d.notes, '') AS notes FROM topic t LEFT JOIN document d ON d.topic = t.id)"
        for kind, columns, table in (("topic", _TOPIC, topics), ("change", _CHANGE, "change")):
            for row in db.execute(f"SELECT {', '.join(columns)} FROM {table} ORDER BY id"):
                yield {kind: dict(zip(columns, row, strict=True))}
        facts = db.execute(f"SELECT evidence, {', '.join(_FACT)} FROM fact ORDER BY evidence, id")
        fact = next(facts, None)
        for row in db.execute(f"SELECT {', '.join(_EVIDENCE)} FROM evidence ORDER BY id"):
            told = dict(zip(_EVIDENCE, row, strict=True))
            told["body"] = None if told["body"] is None else as_text(told["body"])
            told["facts"] = []
            while fact is not None and fact[0] == told["id"]:
                told["facts"].append(dict(zip(_FACT, fact[1:], strict=True)))
                fact = next(facts, None)
            yield {"evidence": told}
        for row in db.execute(f"SELECT {', '.join(_LINK)} FROM link ORDER BY id"):
            yield {"link": dict(zip(_LINK, row, strict=True))}
    finally:
        db.execute("ROLLBACK")
