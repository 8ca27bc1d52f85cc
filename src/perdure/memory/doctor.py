"""Examine a space: whether the ledger is whole, and what is made from it says the same.

What is made from the ledger (states, the words of facts, indexes, documents) can be made again; evidence cannot, so
damage to it is told with what is left to do. Others add checks of their own as functions (`Check`).
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from perdure.errors import CallError, IntegrityError, PerdureError
from perdure.memory.following import passages_in
from perdure.memory.forget import NONE, Derived, resume_purges
from perdure.memory.index_file import GARBLED
from perdure.memory.ledger import Ledger, meta_of
from perdure.memory.moments import moment_of
from perdure.memory.records import Role
from perdure.memory.sqlite_files import File, connect
from perdure.memory.told import as_body, as_text
from perdure.memory.undo import forgotten

__all__ = ["Check", "Finding", "examine", "examine_folder", "examine_index", "states_of"]

_OLD_S: Final = 86400.0


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be, and what to do. ``kind`` is stable; ``repaired`` says that it was done."""

    kind: str
    what: str
    fact: int | None = None
    repairable: bool = True
    repaired: bool = False


Check = Callable[[Ledger], Sequence[Finding]]
"""Looks at something that is made from the ledger."""


def examine_folder(
    folder: Path, *, checks: Sequence[Check] = (), repair: bool = False, derived: Derived = NONE
) -> list[Finding]:
    """Examine the space in ``folder``, also one that cannot be opened."""
    path = folder / "ledger.db"
    if not path.exists():
        return [Finding("ledger", f"there is no {path}; put a backup in its place", repairable=False)]
    try:
        ledger = Ledger(path)
    except PerdureError as error:
        return [Finding("ledger", f"{error}{_newest_backup(folder)}", repairable=False)]
    try:
        return examine(ledger, checks=checks, repair=repair, derived=derived)
    finally:
        ledger.close()


def examine(
    ledger: Ledger, *, checks: Sequence[Check] = (), repair: bool = False, derived: Derived = NONE
) -> list[Finding]:
    """Examine a space; with ``repair``, make again what can be. Nobody else is kept from using it meanwhile."""
    folder = ledger.path.parent
    try:
        ledger.check_there()
        found = [*_damage(ledger.connection(), folder)]
        if found:
            return found
        if repair:
            found += [
                Finding("purge", f"the purge of change {each.change} was finished", repaired=True)
                for each in resume_purges(ledger, derived=derived)
            ]
            with ledger.change() as db:
                for check in (_values, _spans, _states, _orphans, _leases):
                    found += check(db, ledger.wall(), repair)
        else:
            db = ledger.connection()
            for check in (_purges, _values, _spans, _states, _orphans, _leases):
                found += check(db, ledger.wall(), repair)
        found += _leavings(folder, repair)
        wrong = [each for check in checks for each in check(ledger)]
        if wrong and repair:
            if derived.index_again is not None and any(each.kind == "index" and each.fact is None for each in wrong):
                derived.index_again()
            if derived.index is not None:
                derived.index([each.fact for each in wrong if each.fact is not None])
            if derived.documents is not None:
                derived.documents()
            still = {(each.kind, each.fact) for check in checks for each in check(ledger)}
            wrong = [
                Finding(each.kind, each.what, each.fact, each.repairable, (each.kind, each.fact) not in still)
                for each in wrong
            ]
        return found + wrong
    except IntegrityError as error:
        return [Finding("ledger", f"{error}{_newest_backup(folder)}", repairable=False)]
    except PerdureError:
        raise
    except (sqlite3.Error, msgspec.MsgspecError, *GARBLED) as error:
        what = (
            f"{ledger.path} holds what was never written ({type(error).__name__}: {error}); put a backup in its place"
        )
        return [Finding("ledger", f"{what}{_newest_backup(folder)}", repairable=False)]


def states_of(db: File) -> Iterator[tuple[int, str, str]]:
    """Yield (fact, the state that links and changes give it, the state that is noted) of facts where these differ."""
    db.execute("CREATE TEMP TABLE IF NOT EXISTS gone(fact INTEGER PRIMARY KEY)")
    db.execute("DELETE FROM gone")
    db.executemany("INSERT OR IGNORE INTO gone VALUES (?)", [(each,) for each in forgotten(db)])
    yield from db.execute(
        """SELECT * FROM (SELECT f.id,
            CASE WHEN f.text IS NULL OR f.id IN (SELECT fact FROM gone) THEN 'forgotten'
                 WHEN EXISTS (SELECT 1 FROM link l WHERE l.fact = f.id AND l.kind = 'duplicates'
                              AND l.undone IS NULL) THEN 'duplicate'
                 WHEN EXISTS (SELECT 1 FROM link l WHERE l.other = f.id AND l.kind = 'supersedes'
                              AND l.undone IS NULL) THEN 'superseded'
                 ELSE 'current' END AS should, f.state AS is_now
            FROM fact f) WHERE should <> is_now"""
    ).fetchall()


def examine_index(ledger: Ledger, path: Path) -> list[Finding]:
    """Whether the lexical index holds each passage once, with the words that are to be found in it."""
    if not path.exists():
        return []
    try:
        db = connect(path, busy_s=5.0)
        try:
            have = passages_in(db)
            last = max(have, default=0)
        finally:
            db.close()
    except (PerdureError, sqlite3.Error, *GARBLED) as error:
        return [Finding("index", f"{path} cannot be read ({error}); repair makes it again")]
    want = {
        row[0] for row in ledger.connection().execute("SELECT DISTINCT passage FROM fact WHERE passage <= ?", (last,))
    }
    return [Finding("index", f"passage {each} is not indexed", each) for each in sorted(want - have)] + [
        Finding("index", f"passage {each} is indexed, but there is none", each) for each in sorted(have - want)
    ]


def _damage(db: File, folder: Path) -> Iterator[Finding]:
    for (said,) in db.execute("PRAGMA integrity_check(20)"):
        if said != "ok":
            yield Finding("ledger", f"{db.path} is damaged: {said}{_newest_backup(folder)}", repairable=False)


def _newest_backup(folder: Path) -> str:
    found = sorted((folder / "backups").glob("*.db"))
    return f"; the newest backup beside it is {found[-1]}" if found else ""


def _values(db: File, now_s: float, repair: bool) -> list[Finding]:
    """Times, roles and meta of evidence, as they may have been damaged or imported by a release that did not look."""
    found: list[Finding] = []
    roles = {each.value for each in Role}
    mended: list[tuple[str, float, str, str | None, int]] = []
    rows = db.execute(
        "SELECT id, observed, observed_s, told_s, role, meta FROM evidence WHERE body IS NOT NULL ORDER BY id"
    )
    for number, observed, observed_s, told_s, role, meta in rows:
        wrong = []
        try:
            if not isinstance(observed_s, float):
                raise ValueError("no number")
            moment_of(observed, now_s=0.0)
            when = observed, observed_s
        except (CallError, ValueError):
            wrong.append("time")
            when = _first_time(observed, observed_s, told_s)
        if role not in roles:
            wrong.append("role")
        if meta is not None and meta_of(meta) == {} and meta.strip() != "{}":
            wrong.append("meta")
        if wrong:
            found.append(Finding("value", f"e{number} has a wrong {' and '.join(wrong)}", repaired=repair))
            mended.append((*when, Role.TOOL if "role" in wrong else role, None if "meta" in wrong else meta, number))
    if repair:
        db.executemany("UPDATE evidence SET observed = ?, observed_s = ?, role = ?, meta = ? WHERE id = ?", mended)
    return found


def _first_time(*values: object) -> tuple[str, float]:
    """The first of ``values`` that is a time."""
    for each in values:
        with contextlib.suppress(CallError):
            if isinstance(each, (str, float)):
                return moment_of(each, now_s=0.0)
    return moment_of(None, now_s=0.0)


def _purges(db: File, now_s: float, repair: bool) -> list[Finding]:
    rows = db.execute("SELECT substr(key, 7) FROM space WHERE key GLOB 'purge:*'")
    return [Finding("purge", f"the purge of change {each} is not finished; repair finishes it") for (each,) in rows]


def _spans(db: File, now_s: float, repair: bool) -> list[Finding]:
    """The words of a fact are its span of its evidence."""
    found: list[Finding] = []
    at, body = 0, ""
    there = False
    rows = db.execute("SELECT id, evidence, start, stop, text FROM fact WHERE text IS NOT NULL ORDER BY evidence, id")
    wrong: list[tuple[str | bytes, int]] = []
    for fact, evidence, start, stop, text in rows:
        if evidence != at:  # once for each: it may be long, and have many facts
            row = db.execute("SELECT body FROM evidence WHERE id = ?", (evidence,)).fetchone()
            there = row is not None and row[0] is not None
            at, body = evidence, as_text(row[0]) if there else ""
        if not there:
            found.append(
                Finding("span", f"f{fact} has words, but its evidence e{evidence} has none", fact, repairable=False)
            )
            continue
        if as_text(text) != body[start:stop]:
            found.append(Finding("span", f"f{fact} is not what stands in e{evidence}", fact, repaired=repair))
            wrong.append((as_body(body[start:stop]), fact))
    if repair:
        db.executemany("UPDATE fact SET text = ?, settled = 0 WHERE id = ?", wrong)
    return found


def _states(db: File, now_s: float, repair: bool) -> list[Finding]:
    wrong = list(states_of(db))
    if repair:
        db.executemany("UPDATE fact SET state = ? WHERE id = ?", [(should, fact) for fact, should, _ in wrong])
    return [
        Finding("state", f"f{fact} is noted as {noted}, by its links it is {should}", fact, repaired=repair)
        for fact, should, noted in wrong
    ]


def _orphans(db: File, now_s: float, repair: bool) -> list[Finding]:
    """What points to a fact, topic or change that there is not."""
    found: list[Finding] = []
    for kind, what, select, mend in (
        (
            "link",
            "link {0} is between facts, or of a change, that there are not",
            "SELECT id FROM link l WHERE undone IS NULL AND (NOT EXISTS (SELECT 1 FROM fact WHERE id = l.fact) OR NOT"
            " EXISTS (SELECT 1 FROM fact WHERE id = l.other) OR NOT EXISTS (SELECT 1 FROM change WHERE id = l.change))",
            "DELETE FROM link WHERE id = ?",
        ),
        (
            "slot",
            "slots of f{0}, which there is not",
            "SELECT DISTINCT fact FROM slot s WHERE NOT EXISTS (SELECT 1 FROM fact WHERE id = s.fact)",
            "DELETE FROM slot WHERE fact = ?",
        ),
        (
            "topic",
            "f{0} is of a topic that there is not",
            "SELECT id FROM fact f WHERE topic > 0 AND NOT EXISTS (SELECT 1 FROM topic WHERE id = f.topic)",
            "UPDATE fact SET topic = NULL WHERE id = ?",
        ),
    ):
        for (number,) in db.execute(select).fetchall():
            if repair:
                db.execute(mend, (number,))
            found.append(Finding(kind, what.format(number), number if kind == "topic" else None, repaired=repair))
    return found


def _leases(db: File, now_s: float, repair: bool) -> list[Finding]:
    rows = db.execute("SELECT name, holder FROM lease WHERE until_s < ?", (now_s,)).fetchall()
    if repair:
        db.execute("DELETE FROM lease WHERE until_s < ?", (now_s,))
    return [
        Finding("lease", f"the lease {name!r} of {holder} has run out, and was not given back", repaired=repair)
        for name, holder in rows
    ]


def _leavings(folder: Path, repair: bool) -> list[Finding]:
    """Temporary files of processes that ended, at least a day old."""
    found: list[Finding] = []
    for pattern in (".tmp-*", ".new-*", "*/.tmp-*"):
        for path in folder.glob(pattern):
            try:
                if time.time() - path.lstat().st_mtime < _OLD_S:
                    continue
                if repair:
                    path.unlink()
            except OSError as error:
                found.append(Finding("leftover", f"{path}: {error}", repairable=False))
                continue
            found.append(Finding("leftover", f"{path} was left by a process that ended", repaired=repair))
    return found
