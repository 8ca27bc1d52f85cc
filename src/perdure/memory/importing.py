"""Take a space in that was exported as JSON lines: into an empty one as it was, into another beside what is there.

An export may come from anyone. It is read twice: first all of it is checked, each line bounded in length and each
field in kind, and the whole against its digest; nothing is written before that. Then it is taken in, in transactions
of bounded size. What was taken in is noted under the id of the space that it comes from, so that doing it again, also
after having been killed half-way, adds only what is missing. Nothing that is there is overwritten.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from perdure.errors import CallError, FormatRefused
from perdure.memory.exporting import VERSION
from perdure.memory.ledger import Ledger
from perdure.memory.moments import moment_of
from perdure.memory.records import Bond, Role, State
from perdure.memory.sqlite_files import File
from perdure.memory.told import as_body
from perdure.memory.undo import is_plan
from perdure.store.refusals import explained

__all__ = ["Imported", "import_"]

_LINE_BYTES: Final = 256 << 20
_BATCH: Final = 1000
_LARGEST: Final = 2**53
_TIME: Final = re.compile(r"\d{4}[0-9T:.+-]{0,40}", re.ASCII)
_HEX: Final = frozenset("0123456789abcdef")


@dataclass(frozen=True, slots=True)
class Imported:
    """How much was added; ``known`` evidence was there already, ``keys_dropped`` had a key that other words have."""

    evidence: int
    facts: int
    links: int
    topics: int
    changes: int
    known: int
    keys_dropped: int


def import_(ledger: Ledger, file: str | os.PathLike[str], *, line_bytes: int = _LINE_BYTES) -> Imported:
    """Take in an export. Into an empty space with its ids; else under new ones, and to be settled with what is there.

    Raises `FormatRefused`, which names the line, for a file that is no whole export; nothing is taken in then.
    """
    path = Path(file)
    origin = _check(path, line_bytes)
    taking = _Taking(ledger, origin)
    batch: list[dict[str, Any]] = []
    for _, each in _lines(path, line_bytes):
        if "perdure_memory" in each or "end" in each:
            continue
        batch.append(each)
        if len(batch) >= _BATCH:
            taking.take(batch)
            batch = []
    taking.take(batch)
    return Imported(**taking.counts)


class _Taking:
    """What is on its way in."""

    def __init__(self, ledger: Ledger, origin: str) -> None:
        self.ledger = ledger
        self.origin = origin
        self.counts = dict.fromkeys(("evidence", "facts", "links", "topics", "changes", "known", "keys_dropped"), 0)
        counted = (
            "SELECT (SELECT count(*) FROM evidence) + (SELECT count(*) FROM topic) + (SELECT count(*) FROM change)"
        )
        self.as_it_was = ledger.connection().execute(counted).fetchone()[0] == 0

    def take(self, batch: list[dict[str, Any]]) -> None:
        before = dict(self.counts)
        try:
            with self.ledger.change() as db:
                for each in batch:
                    ((kind, what),) = each.items()
                    getattr(self, f"_{kind}")(db, what)
        except BaseException:
            self.counts = before
            raise

    def ours(self, db: File, kind: str, theirs: int | None) -> int | None:
        """Our id of what has the id ``theirs`` there; None where it was not taken in."""
        if theirs is None:
            return None
        row = db.execute(
            "SELECT ours FROM carried WHERE origin = ? AND kind = ? AND theirs = ?", (self.origin, kind, theirs)
        ).fetchone()
        return None if row is None else int(row[0])

    def note(self, db: File, kind: str, theirs: int, ours: int) -> None:
        db.execute("INSERT INTO carried VALUES (?, ?, ?, ?)", (self.origin, kind, theirs, ours))

    def _insert(self, db: File, table: str, what: Mapping[str, Any], columns: Mapping[str, Any]) -> int:
        """Insert a row, under its own id where the space was empty, and note it."""
        names = list(columns) + (["id"] if self.as_it_was else [])
        values = [*columns.values()] + ([what["id"]] if self.as_it_was else [])
        done = db.execute(
            f"INSERT INTO {table}({', '.join(names)}) VALUES ({', '.join('?' * len(names))})", values
        ).lastrowid
        assert done is not None
        self.note(db, table, what["id"], done)
        return int(done)

    def _topic(self, db: File, what: dict[str, Any]) -> None:
        if self.ours(db, "topic", what["id"]) is None and not self._same(db, "topic", what, ("title", "summary")):
            into = what["into_topic"] if self.as_it_was else self.ours(db, "topic", what["into_topic"])
            columns = {name: what[name] for name in ("title", "aliases", "summary")}
            topic = self._insert(db, "topic", what, columns | {"revision": 1, "into_topic": into})
            db.execute("INSERT INTO document(topic, notes, bytes) VALUES (?, ?, -1)", (topic, what["notes"]))
            self.counts["topics"] += 1

    def _change(self, db: File, what: dict[str, Any]) -> None:
        if self.ours(db, "change", what["id"]) is None and not self._same(db, "change", what, ("kind", "at_s")):
            columns = {name: what[name] for name in ("kind", "by", "outcome", "at_s", "note")}
            # The ids in a plan are those of the space that it comes from: elsewhere it cannot be undone.
            kept = {"undoes": what["undoes"], "plan": what["plan"]} if self.as_it_was else {}
            self._insert(db, "change", what, columns | kept)
            self.counts["changes"] += 1

    def _link(self, db: File, what: dict[str, Any]) -> None:
        if self.ours(db, "link", what["id"]) is not None or self._same(db, "link", what, ("kind", "fact", "other")):
            return
        fact, other = self.ours(db, "fact", what["fact"]), self.ours(db, "fact", what["other"])
        change = self.ours(db, "change", what["change"])
        if fact is None or other is None or change is None or fact == other:
            return
        columns = {"kind": what["kind"], "fact": fact, "other": other, "reason": what["reason"], "change": change}
        self._insert(db, "link", what, columns | {"undone": self.ours(db, "change", what["undone"])})
        self.counts["links"] += 1

    def _evidence(self, db: File, what: dict[str, Any]) -> None:
        if self.ours(db, "evidence", what["id"]) is not None or self._same(
            db, "evidence", what, ("body", "source", "speaker", "observed")
        ):
            self.counts["known"] += 1
            return
        identity = what["identity"]
        if identity is not None:
            row = db.execute("SELECT id, body FROM evidence WHERE identity = ?", (identity,)).fetchone()
            if row is not None and row[1] == _body(what):
                self._meet(db, what, row[0])
                return
            if row is not None:
                identity = None
                self.counts["keys_dropped"] += 1
        names = ("source", "speaker", "role", "observed", "observed_s", "told_s", "meta")
        columns = {name: what[name] for name in names} | {"body": _body(what), "identity": identity}
        evidence = self._insert(db, "evidence", what, columns)
        self.counts["evidence"] += 1
        first = db.execute("SELECT coalesce(max(id), 0) + 1 FROM fact").fetchone()[0]
        ids = {fact["id"]: fact["id"] if self.as_it_was else first + at for at, fact in enumerate(what["facts"])}
        for fact in what["facts"]:
            self._fact(db, what, fact, evidence, ids)

    def _fact(
        self, db: File, told: dict[str, Any], fact: dict[str, Any], evidence: int, ids: Mapping[int, int]
    ) -> None:
        purged = told["body"] is None or fact["topic"] == 0
        topic = fact["topic"] if self.as_it_was or purged else self.ours(db, "topic", fact["topic"])
        settled = fact["settled"] if self.as_it_was or fact["state"] != State.CURRENT else 0
        db.execute(
            "INSERT INTO fact(id, evidence, start, stop, passage, text, since, until, state, settled, topic)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                ids[fact["id"]],
                evidence,
                fact["start"],
                fact["stop"],
                ids[fact["passage"]],
                None if purged else as_body(told["body"][fact["start"] : fact["stop"]]),
                fact["since"],
                fact["until"],
                fact["state"],
                settled,
                topic,
            ),
        )
        self.note(db, "fact", fact["id"], ids[fact["id"]])
        self.counts["facts"] += 1

    def _meet(self, db: File, what: dict[str, Any], evidence: int) -> None:
        """It was told here as well: its facts are those of here, by where they stand."""
        self.note(db, "evidence", what["id"], evidence)
        here = {
            (start, stop): fact
            for fact, start, stop in db.execute("SELECT id, start, stop FROM fact WHERE evidence = ?", (evidence,))
        }
        for fact in what["facts"]:
            if (fact["start"], fact["stop"]) in here:
                self.note(db, "fact", fact["id"], here[fact["start"], fact["stop"]])
        self.counts["known"] += 1

    def _same(self, db: File, table: str, what: dict[str, Any], columns: tuple[str, ...]) -> bool:
        """Whether it comes from this very space, and is still there."""
        if self.origin != self.ledger.id:
            return False
        row = db.execute(f"SELECT {', '.join(columns)} FROM {table} WHERE id = ?", (what["id"],)).fetchone()
        return row is not None and row == tuple(_body(what) if each == "body" else what[each] for each in columns)


def _body(what: Mapping[str, Any]) -> str | bytes | None:
    return None if what["body"] is None else as_body(what["body"])


def _lines(path: Path, line_bytes: int) -> Iterator[tuple[int, dict[str, Any]]]:
    with explained(str(path), "read"), open(path, "rb") as file:
        number = 0
        while line := file.readline(line_bytes + 1):
            number += 1
            if len(line) > line_bytes:
                raise _refused(path, number, f"it has more than {line_bytes} bytes")
            try:
                each = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise _refused(path, number, f"it is no JSON ({str(error)[:80]})") from error
            if not isinstance(each, dict) or (len(each) != 1 and "perdure_memory" not in each):
                raise _refused(path, number, "it is no object of one kind")
            yield number, each


def _check(path: Path, line_bytes: int) -> str:
    """Check all of the file; return the id of the space that it comes from."""
    with explained(str(path), "read"):
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise FormatRefused(f"{path} is no plain file; give the file of an export", file=str(path))
    digest, origin, ended = hashlib.sha256(), "", False
    seen: dict[str, set[int]] = {kind: set() for kind in ("topic", "change", "evidence", "fact", "link")}
    with explained(str(path), "read"), open(path, "rb") as raw:
        for number, each in _lines(path, line_bytes):
            line = raw.readline()
            if number == 1:
                if each.get("perdure_memory") != VERSION:
                    raise _refused(path, 1, f"it is not the head of an export of version {VERSION}")
                origin = str(each.get("space"))
                if len(origin) != 32 or not _HEX.issuperset(origin):
                    raise _refused(path, 1, "it names no space")
            elif "perdure_memory" in each:
                raise _refused(path, number, "a second head")
            elif "end" in each:
                end = each["end"] if isinstance(each["end"], dict) else {}
                if end.get("lines") != number - 1 or end.get("sha256") != digest.hexdigest():
                    raise _refused(path, number, "the file is not what was exported: lines are missing or changed")
                ended = True
            elif ended:
                raise _refused(path, number, "it comes after the end")
            else:
                ((kind, what),) = each.items()
                fault = _fault(kind, what, seen)
                if fault:
                    raise _refused(path, number, fault)
            digest.update(line)
    if not ended:
        raise FormatRefused(f"{path} was cut off, or is empty: its last line is missing; export again", file=str(path))
    return origin


def _refused(path: Path, number: int, why: str) -> FormatRefused:
    return FormatRefused(
        f"line {number} of {path} was refused: {why}; nothing was imported, export again", file=str(path), line=number
    )


def _id(value: object) -> bool:
    return type(value) is int and 0 < value < _LARGEST


def _count(value: object) -> bool:
    return type(value) is int and 0 <= value < _LARGEST


def _moment(value: object) -> bool:
    return type(value) in (int, float) and -1e13 < value < 1e13  # type: ignore[operator]


def _text(value: object) -> bool:
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _or_none(check: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: value is None or check(value)


def _one_of(kinds: type[Role | State | Bond]) -> Callable[[object], bool]:
    known = [each.value for each in kinds]
    return lambda value: isinstance(value, str) and value in known


def _part(value: object) -> bool:
    """Whether it may be a time as exact as is known: ``2023``, ``2023-05``, ``2023-05-08T13:56+02:00``."""
    return isinstance(value, str) and _TIME.fullmatch(value) is not None


def _plan(value: object) -> bool:
    return isinstance(value, str) and is_plan(value)


def _names(value: object) -> bool:
    try:
        found = json.loads(value) if isinstance(value, str) else None
        return isinstance(found, list) and all(map(_text, found))
    except (ValueError, RecursionError):
        return False


def _object(value: object) -> bool:
    try:
        return isinstance(value, str) and isinstance(json.loads(value), dict)
    except (ValueError, RecursionError):
        return False


_FIELDS: Final[dict[str, dict[str, Callable[[object], bool]]]] = {
    "topic": {
        "id": _id,
        "title": _text,
        "aliases": _names,
        "summary": _text,
        "into_topic": _or_none(_id),
        "notes": _text,
    },
    "change": {
        "id": _id,
        "kind": _text,
        "by": _text,
        "outcome": _text,
        "at_s": _moment,
        "note": _text,
        "undoes": _or_none(_id),
        "plan": _or_none(_plan),
    },
    "evidence": {
        "id": _id,
        "body": lambda value: value is None or isinstance(value, str),
        "source": _text,
        "speaker": _text,
        "role": _one_of(Role),
        "observed": _text,
        "observed_s": _moment,
        "told_s": _moment,
        "identity": _or_none(_text),
        "meta": _or_none(_object),
        "facts": lambda value: isinstance(value, list),
    },
    "fact": {
        "id": _id,
        "start": _count,
        "stop": _count,
        "passage": _id,
        "since": _or_none(_part),
        "until": _or_none(_part),
        "state": _one_of(State),
        "settled": lambda value: type(value) is int and value in (0, 1),
        "topic": _or_none(_count),
    },
    "link": {
        "id": _id,
        "kind": _one_of(Bond),
        "fact": _id,
        "other": _id,
        "reason": _text,
        "change": _id,
        "undone": _or_none(_id),
    },
}


def _fault(kind: str, what: object, seen: dict[str, set[int]]) -> str:
    """What is wrong with a line, or nothing."""
    fields = _FIELDS.get(kind) if kind != "fact" else None
    if fields is None:
        return f"there is no kind {kind[:20]!r}"
    fault = _wrong_fields(kind, what)
    if fault or not isinstance(what, dict):
        return fault
    if what["id"] in seen[kind]:
        return f"{kind} {what['id']} comes twice"
    seen[kind].add(what["id"])
    return {"topic": _topic_fault, "change": _change_fault, "evidence": _evidence_fault, "link": _link_fault}[kind](
        what, seen
    )


def _topic_fault(what: dict[str, Any], seen: dict[str, set[int]]) -> str:
    if what["into_topic"] is not None:
        seen.setdefault("into", set()).add(what["into_topic"])
    return "the topic was merged into itself" if what["into_topic"] == what["id"] else ""


def _change_fault(what: dict[str, Any], seen: dict[str, set[int]]) -> str:
    undoes = what["undoes"]
    if undoes is not None and (undoes == what["id"] or undoes not in seen["change"]):
        return f"change {what['id']} undoes one that does not come before it"
    return ""


def _link_fault(what: dict[str, Any], seen: dict[str, set[int]]) -> str:
    if what["fact"] == what["other"]:
        return f"link {what['id']} binds fact {what['fact']} to itself"
    if not {what["fact"], what["other"]} <= seen["fact"]:
        return f"link {what['id']} is of a fact that there is not"
    if not {what["change"], what["undone"] or what["change"]} <= seen["change"]:
        return f"link {what['id']} is of a change that there is not"
    return ""


def _evidence_fault(what: dict[str, Any], seen: dict[str, set[int]]) -> str:
    missing = seen.pop("into", set()) - seen["topic"]
    if missing:
        return f"a topic before it was merged into topic {min(missing)}, which there is not"
    if what["body"] is not None:
        try:
            told_s = moment_of(what["observed"], now_s=0.0)[1]
        except CallError:
            return "evidence has a wrong observed"
        if abs(told_s - what["observed_s"]) > 1.0:
            return "evidence has an observed_s that is not its observed"
    passage, length = 0, len(what["body"] or "")
    for fact in what["facts"]:
        fault = _wrong_fields("fact", fact)
        if fault:
            return fault
        if fact["id"] in seen["fact"]:
            return f"fact {fact['id']} comes twice"
        seen["fact"].add(fact["id"])
        if fact["passage"] not in (fact["id"], passage):
            return f"fact {fact['id']} is of no passage of its evidence"
        passage = fact["passage"]
        if what["body"] is not None and not fact["start"] <= fact["stop"] <= length:
            return f"fact {fact['id']} lies outside its evidence"
        if fact["topic"] and fact["topic"] not in seen["topic"]:
            return f"fact {fact['id']} is of a topic that there is not"
    return ""


def _wrong_fields(kind: str, what: object) -> str:
    fields = _FIELDS[kind]
    if not isinstance(what, dict) or what.keys() != fields.keys():
        return f"{kind} has not the fields {', '.join(fields)}"
    for name, right in fields.items():
        if not right(what[name]):
            return f"{kind} has a wrong {name}"
    return ""
