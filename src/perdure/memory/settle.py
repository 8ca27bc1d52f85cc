"""Settle what was told: which slots each new fact fills, from when to when it holds, and what it replaces. By rules.

A fact is settled once. What holds in a slot is worked out from all facts of the slot each time one is added, so that
settling again, or in another order, ends in the same. Links that a person or a model made are never taken back here.
"""

from __future__ import annotations

import datetime as dt
import sqlite3
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from perdure.errors import DeadlineExceeded, StorageError
from perdure.memory.arrange import Member, Tie, arrange
from perdure.memory.corrections import Said, corrected, may_correct, may_replace, replaced
from perdure.memory.dates import validity
from perdure.memory.ledger import Ledger, role_of
from perdure.memory.records import Bond, Role, State
from perdure.memory.slots import Slot, folded, slots_of, words_in

__all__ = ["current_of", "settle"]

_BATCH: Final = 300
_WIDEST: Final = 200
"""A slot of more facts than this is looked at by its newest only."""


@dataclass(frozen=True, slots=True)
class _New:
    fact: int
    evidence: int
    text: str
    speaker: str
    source: str
    role: Role
    observed: str
    observed_s: float
    slots: tuple[Slot, ...]
    since: str | None
    until: str | None


def settle(ledger: Ledger, *, limit: int = 1_000_000, deadline_s: float = 60.0) -> int:
    """Settle at most ``limit`` facts that are not, in the order they were told, and return how many were.

    Stops after ``deadline_s``, and at once where another process is writing or the disk is full: what is left stays
    unsettled, and is found all the same. Each batch is one transaction and one change.
    """
    by_s = time.monotonic() + deadline_s
    done = 0
    while done < limit:
        fresh = _unsettled(ledger, min(_BATCH, limit - done))
        if not fresh:
            break
        try:
            with ledger.change(deadline_s=0.0, synced=False) as db:
                _settle_batch(db, fresh, ledger.wall())
        except (DeadlineExceeded, StorageError):  # somebody is writing, or nobody can: whoever reads next settles it
            break
        done += len(fresh)
        if time.monotonic() >= by_s:
            break
    return done


def current_of(ledger: Ledger, key: str) -> list[int]:
    """Return the facts that hold in a slot now, the newest last."""
    rows = ledger.connection().execute(
        "SELECT f.id FROM slot s JOIN fact f ON f.id = s.fact JOIN evidence e ON e.id = f.evidence"
        " WHERE s.key = ? AND f.state = 'current' AND f.text IS NOT NULL ORDER BY e.observed_s, f.id",
        (key,),
    )
    return [row[0] for row in rows]


def _unsettled(ledger: Ledger, count: int) -> list[_New]:
    rows = ledger.connection().execute(
        "SELECT f.id, f.evidence, f.text, e.speaker, e.source, e.role, e.observed, e.observed_s FROM fact f"
        " JOIN evidence e ON e.id = f.evidence WHERE f.settled = 0 ORDER BY f.id LIMIT ?",
        (count,),
    )
    found: list[_New] = []
    for row in rows:
        text = row[2] if isinstance(row[2], str) else ""
        since, until = validity(text, row[6]) if text else (None, None)
        slots = _slots(text, row[3], row[4])
        found.append(_New(row[0], row[1], text, row[3], row[4], role_of(row[5]), row[6], row[7], slots, since, until))
    return found


def _slots(text: str, speaker: str, source: str) -> tuple[Slot, ...]:
    """The slots of a statement; a whole statement of some words is also a slot, so that saying it again is known."""
    found = slots_of(text, speaker=speaker, source=source)
    if not found:
        words = [folded(each) for each in words_in(text[:2000])]
        if len(words) >= 4:
            return (Slot(f'"{speaker}" {" ".join(words)}'[:240], " ".join(words)[:400], single=False),)
    return tuple(found)


def _settle_batch(db: sqlite3.Connection, fresh: list[_New], now_s: float) -> None:
    marks = ",".join("?" * len(fresh))
    ids = [each.fact for each in fresh]
    still = {row[0] for row in db.execute(f"SELECT id FROM fact WHERE id IN ({marks}) AND settled = 0", ids)}
    fresh = [each for each in fresh if each.fact in still]
    if not fresh:
        return
    db.executemany(
        "UPDATE fact SET settled = 1, since = coalesce(since, ?), until = coalesce(until, ?) WHERE id = ?",
        [(each.since, each.until, each.fact) for each in fresh],
    )
    db.executemany(
        "INSERT OR IGNORE INTO slot(key, fact) VALUES (?, ?)",
        [(slot.key, each.fact) for each in fresh for slot in each.slots],
    )
    states: dict[int, State] = {}
    wanted: list[Tie] = []
    seen: set[int] = set()
    for key in dict.fromkeys(slot.key for each in fresh for slot in each.slots):
        members = _members(db, key)
        if len(members) > 1:
            found, ties = arrange(members)
            states.update(found)
            wanted += ties
            seen.update(found)
    for each in fresh:
        said = Said(each.fact, each.text, each.observed_s, each.role.authority)
        target = None
        if may_correct(each.text):
            target = corrected(said, _before(db, each))
        if target is None and may_replace(each.text):
            target = replaced(said, _before(db, each))
        if target is not None and states.get(target[0], State.CURRENT) is State.CURRENT:
            wanted.append(Tie(Bond.SUPERSEDES, each.fact, target[0], target[1]))
    if wanted or seen:
        _write(db, wanted, states, seen, now_s)


def _members(db: sqlite3.Connection, key: str) -> list[Member]:
    """The facts in a slot, as they stand in the ledger, without those that were forgotten."""
    rows = db.execute(
        "SELECT f.id, f.text, e.speaker, e.source, e.role, e.observed_s, f.since FROM slot s"
        " JOIN fact f ON f.id = s.fact JOIN evidence e ON e.id = f.evidence WHERE s.key = ?"
        " AND f.text IS NOT NULL AND f.state <> 'forgotten'"
        " ORDER BY f.id DESC LIMIT ?",
        (key, _WIDEST),
    ).fetchall()
    if len(rows) < 2:
        return []
    found: list[Member] = []
    for fact, text, speaker, source, role, observed_s, since in rows:
        slot = next((each for each in _slots(text, speaker, source) if each.key == key), None)
        if slot is not None:
            spoken = _seconds(since, observed_s) if since else observed_s
            rank = role_of(role).authority
            told = (slot.single, slot.how, slot.kinds, slot.loose, slot.instead)
            found.append(Member(fact, slot.value, spoken, observed_s, rank, *told))
    return found


def _seconds(since: str, observed_s: float) -> float:
    """When a time that was told begins, in seconds; never after it was told, for a plan replaces like news."""
    parts = [int(each) for each in since.split("-")] + [1, 1]
    try:
        moment = dt.datetime(parts[0], parts[1], parts[2], tzinfo=dt.UTC).timestamp()
    except (ValueError, OverflowError):
        return observed_s
    return min(moment, observed_s)


def _before(db: sqlite3.Connection, each: _New) -> list[Said]:
    """What the same conversation said shortly before, the newest first."""
    rows = db.execute(
        "SELECT f.id, f.text, e.observed_s, e.role FROM fact f JOIN evidence e ON e.id = f.evidence"
        " WHERE f.id < ? AND f.id > ? AND e.source = ? AND e.speaker = ? AND f.text IS NOT NULL AND f.state = 'current'"
        " AND (e.observed_s < ? OR f.id < ?) ORDER BY e.observed_s DESC, f.id DESC LIMIT 20",
        (each.fact, each.fact - 400, each.source, each.speaker, each.observed_s, each.fact),
    )
    return [
        Said(row[0], row[1], row[2], role_of(row[3]).authority)
        for row in rows
        if isinstance(row[1], str) and row[2] <= each.observed_s
    ]


def _write(
    db: sqlite3.Connection, wanted: Sequence[Tie], states: dict[int, State], seen: set[int], now_s: float
) -> None:
    """Make links and states what they should be: new ones as one change, those of rules that hold no longer undone."""
    found: dict[tuple[str, int, int], int] = {}
    fixed: set[int] = set()
    known: set[tuple[str, int, int]] = set()
    for some in _some(sorted(seen)):
        marks = ",".join("?" * len(some))
        for number, kind, fact, other, how in db.execute(
            "SELECT l.id, l.kind, l.fact, l.other, c.kind FROM link l JOIN change c ON c.id = l.change"
            f" WHERE l.other IN ({marks}) AND l.undone IS NULL"
            f" UNION SELECT l.id, l.kind, l.fact, l.other, c.kind FROM link l JOIN change c ON c.id = l.change"
            f" WHERE l.fact IN ({marks}) AND l.undone IS NULL",
            [*some, *some],
        ):
            known.add((kind, fact, other))
            if how != "settle":
                fixed.update((fact,) if kind == Bond.DUPLICATES else (other,))
            elif kind == Bond.CONFLICTS or (fact in seen and other in seen):
                found[(kind, fact, other)] = number
            else:
                fixed.update((fact,) if kind == Bond.DUPLICATES else (other,))
    against = known - set(found)  # what a person or a plan has decided the other way round stays so
    kept = [tie for tie in wanted if (tie.kind.value, tie.other, tie.fact) not in against and not _taken_back(db, tie)]
    fixed.update(tie.fact if tie.kind is Bond.DUPLICATES else tie.other for tie in set(wanted) - set(kept))
    needed = {(tie.kind.value, tie.fact, tie.other): tie for tie in kept}
    stale = [number for link, number in found.items() if link not in needed and link[1] in seen and link[2] in seen]
    fresh = [tie for link, tie in needed.items() if link not in known]
    for tie in needed.values():
        if tie.kind is Bond.SUPERSEDES:
            states[tie.other] = State.SUPERSEDED
    moved = {fact: state for fact, state in states.items() if fact not in fixed}
    change: int | None = None
    if fresh or stale:
        change = db.execute(
            "INSERT INTO change(kind, by, outcome, at_s) VALUES ('settle', 'rules', 'ok', ?)", (now_s,)
        ).lastrowid
    db.executemany(
        "INSERT INTO link(kind, fact, other, reason, change) VALUES (?, ?, ?, ?, ?)",
        [(tie.kind.value, tie.fact, tie.other, tie.reason, change) for tie in fresh],
    )
    db.executemany("UPDATE link SET undone = ? WHERE id = ?", [(change, number) for number in stale])
    db.executemany(
        "UPDATE fact SET state = ? WHERE id = ? AND state NOT IN (?, 'forgotten')",
        [(state.value, fact, state.value) for fact, state in moved.items()],
    )


def _taken_back(db: sqlite3.Connection, tie: Tie) -> bool:
    """Whether this link was made before and taken back by somebody other than these rules."""
    return bool(
        db.execute(
            "SELECT 1 FROM link l JOIN change c ON c.id = l.undone"
            " WHERE l.fact = ? AND l.other = ? AND l.kind = ? AND c.kind <> 'settle'",
            (tie.fact, tie.other, tie.kind.value),
        ).fetchone()
    )


def _some(ids: list[int]) -> Iterator[list[int]]:
    for at in range(0, len(ids), 400):
        yield ids[at : at + 400]
