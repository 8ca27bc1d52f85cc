"""Files that an agent writes, kept in the ledger: what a save adds is told, and nothing of it is ever lost.

A version of a file is a list of *pieces*: characters ``start`` to ``stop`` of a piece of evidence. To create a file is
to tell its text. To edit it is to tell the lines that are new, widened to whole statements, so that no fact is cut;
the version then has that evidence between the pieces that stay. Facts of lines that went away are superseded by those
that came, or forgotten (a tombstone) where none came; to delete or to rename tells an empty text. A version is its
evidence's ``meta``, and names evidence by a token in its idempotency key, which an export carries along, where ids
change. All of an edit is one transaction, so that of two who edit at once the second edits what the first has made.
"""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from perdure.errors import CallError
from perdure.memory.file_names import file_name, inside
from perdure.memory.ledger import Ledger, as_text
from perdure.memory.moments import moment_of
from perdure.memory.records import Role
from perdure.memory.sqlite_files import File
from perdure.memory.told import Told

__all__ = ["KEYS", "MOST_BYTES", "AgentFiles", "Version"]

KEYS: Final = "memory-tool:"
"""What the idempotency keys of versions begin with."""

MOST_BYTES: Final = 1 << 20
"""How long a file may be, in UTF-8."""

_MOST_FILES: Final = 10_000
_MOST_PIECES: Final = 500
_BY: Final = "memory-tool"

Piece = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Version:
    """The latest version of a file; ``pieces`` is None where it was deleted."""

    pieces: tuple[Piece, ...] | None


@dataclass(frozen=True, slots=True)
class _Seen:
    """The versions up to evidence ``last``; ``numbers`` are the evidence of each token, ``tokens`` the other way."""

    last: int = 0
    versions: dict[str, Version] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    tokens: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Spot:
    """A fact within a file: its id, and where it lies in the text."""

    fact: int
    start: int
    stop: int
    text: str


class AgentFiles:
    """The files in a ledger. Any thread may call it."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._lock = threading.Lock()
        self._known = _Seen()

    def all(self) -> dict[str, Version]:
        """The files that there are, by name."""
        return {name: each for name, each in sorted(self._versions().items()) if each.pieces is not None}

    def text(self, name: str) -> str:
        """The text of a file. Raises `CallError` where there is none."""
        return _text_of(self._ledger.connection(), self._there(name).pieces or ())

    def save(self, name: str, text: str) -> None:
        """Make a new file. Raises `CallError` where there is one of that name, or a folder, or a file above it."""
        _bounded(text)
        with self._ledger.change() as db:
            versions = self._versions()
            files = [each for each, version in versions.items() if version.pieces is not None]
            if name in files:
                raise CallError(f"File {name} already exists", path=name)
            if any(inside(name, each) for each in files):
                raise CallError(f"{name} is a directory", path=name)
            above = next((each for each in files if inside(each, name)), None)
            if above is not None:
                raise CallError(f"{above} is a file, so nothing can lie below it", path=above)
            if len(files) >= _MOST_FILES:
                raise CallError(f"there are {_MOST_FILES} files already; delete or join some")
            self._tell(db, name, text, None)

    def edit(self, name: str, start: int, stop: int, words: str) -> None:
        """Put ``words`` in the place of the characters ``start`` to ``stop`` of a file.

        The caller found them within a `transaction`, so they are those of the latest version.
        """
        with self._ledger.change() as db:
            version = self._there(name)
            pieces = version.pieces or ()
            text = _text_of(db, pieces)
            _bounded(text[:start] + words + text[stop:])
            spots = _spots(db, pieces)
            first, last = (0, len(text)) if len(pieces) > _MOST_PIECES else _widened(text, spots, start, stop)
            told = text[first:start] + words + text[stop:last]
            if told and not told.endswith("\n") and last < len(text):  # the next line is no longer one of its own
                first, last = _widened(text, spots, first, last + 1)
                told = text[first:start] + words + text[stop:last]
            stays = [*_between(db, pieces, 0, first), None, *_between(db, pieces, last, len(text))]
            new = self._tell(db, name, told, stays)
            gone = [each for each in spots if first <= each.start and each.stop <= last]
            _replace(db, self._ledger.wall(), gone, new, f"{name} was edited")

    def delete(self, names: Iterable[str]) -> None:
        """Delete files, all or none: their words stay in the ledger and are recalled no more."""
        with self._ledger.change() as db:
            gone: list[_Spot] = []
            for name in names:
                version = self._there(name)
                gone += _spots(db, version.pieces or ())
                self._tell(db, name, "", None, op="delete")
            _replace(db, self._ledger.wall(), gone, (), "deleted by the agent")

    def rename(self, names: Iterable[tuple[str, str]]) -> None:
        """Give files other names, all or none. The caller has looked that nothing is there."""
        with self._ledger.change() as db:
            for old, new in names:
                version = self._there(old)
                self._tell(db, new, "", version.pieces or ())
                self._tell(db, old, "", None, op="delete")

    def _there(self, name: str) -> Version:
        version = self._versions().get(name)
        if version is None or version.pieces is None:
            raise CallError(f"The path {name} does not exist. Please provide a valid path.", path=name)
        return version

    def _tell(
        self, db: File, name: str, text: str, pieces: Sequence[Piece | None] | None, op: str = "save"
    ) -> tuple[int, ...]:
        """Keep the next version; None among pieces (or no pieces) stands for the text that is told with it."""
        tokens = self._seen().tokens
        noted = None if pieces is None else [[tokens[each[0]], *each[1:]] if each else None for each in pieces]
        told = Told.of(
            text,
            source=f"{KEYS}{name}",
            speaker="",
            role=Role.ASSISTANT,
            observed=moment_of(None, now_s=self._ledger.wall()),
            key=f"{KEYS}{secrets.token_hex(8)}",
            dated=False,
            meta={"memory_tool": {"op": op, "path": name, "pieces": noted}},
        )
        (kept,) = self._ledger.keep([told])
        return kept.facts

    def _versions(self) -> dict[str, Version]:
        """The latest version of each file, deleted ones too."""
        return self._seen().versions

    def _seen(self) -> _Seen:
        """What this thread's transaction sees."""
        db = self._ledger.connection()
        with self._lock:
            known = self._known
        # The first time by the index of keys, then by what was told since.
        which = "" if known.last == 0 else "+"
        rows = db.execute(
            "SELECT id, identity, meta, length(body) FROM evidence"
            f" WHERE {which}identity >= 'k:{KEYS}' AND {which}identity < 'k:memory-tool;' AND id > ? ORDER BY id",
            (known.last,),
        ).fetchall()
        if not rows:
            return known
        seen = _Seen(rows[-1][0], dict(known.versions), dict(known.numbers), dict(known.tokens))
        for number, identity, meta, characters in rows:
            token = identity.removeprefix(f"k:{KEYS}")
            seen.numbers[token], seen.tokens[number] = number, token
            found = _version_in(number, meta, characters or 0, seen.numbers)
            if found is not None:
                seen.versions[found[0]] = found[1]
        if not db.in_transaction:
            with self._lock:
                self._known = max(self._known, seen, key=lambda each: each.last)
        return seen


def _version_in(
    number: int, meta: str | None, characters: int, numbers: Mapping[str, int]
) -> tuple[str, Version] | None:
    """The version that a row of evidence tells; None where it tells none that this release understands.

    What a piece was taken from may be purged: then there is no such piece.
    """
    try:
        noted: Any = json.loads(meta or "{}")["memory_tool"]
        name, pieces = file_name(noted["path"]), noted["pieces"]
        if noted["op"] == "delete":
            return name, Version(None)
        kept: list[Piece] = []
        for each in [None] if pieces is None else pieces:
            token, start, stop = ("", 0, characters) if each is None else (str(each[0]), int(each[1]), int(each[2]))
            evidence = numbers.get(token) if token else number
            if evidence is not None and 0 <= start < stop:
                kept.append((evidence, start, stop))
        return name, Version(tuple(kept))
    except (KeyError, IndexError, TypeError, ValueError, RecursionError):  # CallError is a ValueError
        return None


def _bodies(db: File, pieces: Sequence[Piece]) -> dict[int, str]:
    """The texts of the evidence of pieces; what was purged has none."""
    wanted = sorted({each[0] for each in pieces})
    found: dict[int, str] = {}
    for at in range(0, len(wanted), 500):
        some = wanted[at : at + 500]
        rows = db.execute(f"SELECT id, body FROM evidence WHERE id IN ({','.join('?' * len(some))})", some)
        found |= {row[0]: as_text(row[1]) for row in rows if row[1] is not None}
    return found


def _text_of(db: File, pieces: Sequence[Piece]) -> str:
    bodies = _bodies(db, pieces)
    return "".join(bodies.get(evidence, "")[start:stop] for evidence, start, stop in pieces)


def _spots(db: File, pieces: Sequence[Piece]) -> list[_Spot]:
    """The facts of a file, where they lie."""
    bodies = _bodies(db, pieces)
    offset, spots = 0, []
    for evidence, start, stop in pieces:
        stop = min(stop, len(bodies.get(evidence, "")))
        if stop <= start:
            continue
        for fact, begin, end, text in db.execute(
            "SELECT id, start, stop, text FROM fact WHERE evidence = ? AND start >= ? AND stop <= ?"
            " AND text IS NOT NULL ORDER BY id",
            (evidence, start, stop),
        ):
            spots.append(_Spot(fact, offset + begin - start, offset + end - start, as_text(text)))
        offset += stop - start
    return spots


def _widened(text: str, spots: Sequence[_Spot], start: int, stop: int) -> tuple[int, int]:
    """The part of ``text`` that an edit of the characters ``start`` to ``stop`` tells anew: whole lines and facts.

    >>> _widened("one\\ntwo\\nthree", (), 5, 6), _widened("one\\ntwo\\nthree", (), 4, 4)
    ((4, 8), (4, 4))
    """
    first, last = start, stop
    while True:
        if first < last or (first > 0 and text[first - 1] != "\n"):
            first = text.rfind("\n", 0, first) + 1
            if last == first or text[last - 1] != "\n":
                end = text.find("\n", last)
                last = len(text) if end == -1 else end + 1
        cut = [each for each in spots if (each.start < first < each.stop) or (each.start < last < each.stop)]
        if not cut:
            return first, last
        first = min(first, *(each.start for each in cut))
        last = max(last, *(each.stop for each in cut))


def _between(db: File, pieces: Sequence[Piece], first: int, last: int) -> list[Piece]:
    """The pieces of the characters ``first`` to ``last`` of a file."""
    bodies = _bodies(db, pieces)
    offset, found = 0, []
    for evidence, start, stop in pieces:
        stop = min(stop, len(bodies.get(evidence, "")))
        begin, end = max(start, start + first - offset), min(stop, start + last - offset)
        if begin < end:
            found.append((evidence, begin, end))
        offset += max(stop - start, 0)
    return found


def _replace(db: File, now_s: float, gone: Sequence[_Spot], new: Sequence[int], why: str) -> None:
    """Let new facts stand for those that went away, or nothing where none came."""
    facts = [each.fact for each in gone] + ([] if new else _earlier(db, [each.fact for each in gone]))
    before = {
        each: str(row[0])
        for each in facts
        if (row := db.execute("SELECT state FROM fact WHERE id = ?", (each,)).fetchone()) is not None
        and row[0] != "forgotten"
    }
    if not before:
        return
    plan = json.dumps({"mode": "tombstone", "facts": sorted(before), "evidence": [], "before": before})
    change = db.execute(
        "INSERT INTO change(kind, by, outcome, at_s, note, plan) VALUES (?, ?, 'ok', ?, ?, ?)",
        ("edit" if new else "forget", _BY, now_s, why, None if new else plan),
    ).lastrowid
    for link, heir in _heirs(db, before):
        db.execute("UPDATE link SET undone = ? WHERE id = ?", (change, link))
        db.execute("UPDATE fact SET state = 'current' WHERE id = ? AND state = 'duplicate'", (heir,))
    if not new:
        db.executemany("UPDATE fact SET state = 'forgotten' WHERE id = ?", [(each,) for each in before])
        return
    texts = {as_text(row[1]): row[0] for row in _rows(db, new)}
    said = [each for each in gone if each.fact in before]
    for at, each in enumerate(said):
        by = texts.get(each.text, new[min(at, len(new) - 1)])
        db.execute(
            "INSERT INTO link(kind, fact, other, reason, change) VALUES ('supersedes', ?, ?, ?, ?)",
            (by, each.fact, why[:300], change),
        )
        db.execute(
            "UPDATE fact SET state = 'superseded', until = coalesce(until, (SELECT e.observed FROM evidence e"
            " JOIN fact f ON f.evidence = e.id WHERE f.id = ?)) WHERE id = ?",
            (by, each.fact),
        )


def _earlier(db: File, facts: Sequence[int]) -> list[int]:
    """What facts of a file replaced in it: gone with them, or it would stand where nothing replaces it any more."""
    found: dict[int, None] = {}
    edge = list(facts)
    while edge:
        rows = db.execute(
            "SELECT l.other FROM link l JOIN fact f ON f.id = l.other JOIN evidence e ON e.id = f.evidence"
            f" WHERE l.fact = ? AND l.kind = 'supersedes' AND l.undone IS NULL AND e.source GLOB '{KEYS}*'",
            (edge.pop(),),
        ).fetchall()
        fresh = [row[0] for row in rows if row[0] not in found]
        found |= dict.fromkeys(fresh)
        edge += fresh
    return list(found)


def _heirs(db: File, gone: Iterable[int]) -> list[tuple[int, int]]:
    """(link, fact) of what was told elsewhere as well, and hidden as a repetition of what goes away."""
    known = set(gone)
    rows = [
        row
        for each in sorted(known)
        for row in db.execute(
            "SELECT id, fact FROM link WHERE kind = 'duplicates' AND other = ? AND undone IS NULL", (each,)
        )
    ]
    return [(link, fact) for link, fact in rows if fact not in known]


def _rows(db: File, facts: Sequence[int]) -> list[Any]:
    return [
        row
        for each in facts
        for row in db.execute("SELECT id, text FROM fact WHERE id = ? AND text IS NOT NULL", (each,))
    ]


def _bounded(text: str) -> None:
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > MOST_BYTES:
        raise CallError(f"the file would have {size} bytes; {MOST_BYTES} is the most: make it two", bytes=size)
