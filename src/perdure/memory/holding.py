"""Order statements of conversations by how likely each is what holds now of what is asked, without a model.

In two steps, both linear in the features of `prose`: which statements speak of what is asked, and then which of those
holds, seen beside the best other one. It chooses an order; it never marks a fact as superseded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from perdure.memory.ledger import FACTS, Ledger, fact_of
from perdure.memory.prose import Line, features
from perdure.memory.questions import is_named, read
from perdure.memory.records import Fact, Hit, State
from perdure.memory.sequels import later
from perdure.memory.slots import words_in
from perdure.memory.weights import FILLS, HOLDS

__all__ = ["around", "by_holding", "is_later"]

_MOST: Final = 240
_SOURCES: Final = 3
_TELLING: Final = ("words", "family", "class")
"""What a statement that is about what is asked has any of: a word of the question, or one that speaks of the same."""
_BESIDE: Final = (
    *("words_turn", "family_turn", "class_turn", "alike", "shape_any", "denies"),
    *("update_turn", "correction_turn", "retraction_turn", "event_turn", "to_subject"),
)
"""What a statement has that goes on with what was said before."""
_WHOSE: Final = ("names_turn", "by_subject")
_NEWEST: Final = 2000
"""How many pieces of evidence are looked through for people whom a question names."""


def around(ledger: Ledger, question: str, hits: Sequence[Hit]) -> list[Fact]:
    """Return the facts of the hits and of what was said beside them, in the order of time, the newest `_MOST`.

    Also, of what was told last, what the people said whom the question names, or anybody where it asks for "my".
    """
    found: dict[int, Fact] = {hit.fact.id: hit.fact for hit in hits[:20]}
    near: dict[str, int] = {}
    for hit in hits:
        near.setdefault(hit.fact.source, hit.fact.id)
    for source, at in _spoken(ledger, question):
        near.setdefault(source, at)
    strict = not near
    if strict:
        near = dict(_told_last(ledger))
    share = _MOST // (2 * min(len(near), _SOURCES) or 1)
    for source, at in list(near.items())[:_SOURCES]:
        for clause, order in (("f.id >= ?", "ASC"), ("f.id < ?", "DESC")):
            for row in ledger.connection().execute(
                f"{FACTS} WHERE {clause} AND e.source = ? AND f.text IS NOT NULL AND f.id BETWEEN ? AND ?"
                f" ORDER BY f.id {order} LIMIT ?",
                (at, source, at - 2000, at + 2000, share),
            ):
                found[row[0]] = fact_of(row)
    facts = sorted(found.values(), key=lambda fact: (fact.observed_s, fact.id))
    if strict and not _speaks_of(question, facts):
        return []
    return [fact for fact in facts if fact.state is not State.FORGOTTEN][-_MOST:]


def _told_last(ledger: Ledger) -> list[tuple[str, int]]:
    row = (
        ledger.connection()
        .execute("SELECT e.source, f.id FROM fact f JOIN evidence e ON e.id = f.evidence ORDER BY f.id DESC LIMIT 1")
        .fetchone()
    )
    return [row] if row else []


def _speaks_of(question: str, facts: Sequence[Fact]) -> bool:
    """Whether a fact has a value of the kind that is asked for, and words of the family."""
    lines = [Line(fact.text, fact.speaker, at, fact.role.value) for at, fact in enumerate(facts)]
    return any(row["family"] and (row["kind"] or row["class"]) for row in features(read(question), lines))


def _spoken(ledger: Ledger, question: str) -> list[tuple[str, int]]:
    """(source, fact) of the newest that those said whom a question is about, the newest first."""
    asked = read(question)
    if not asked.names and not asked.own:
        return []
    db = ledger.connection()
    last = db.execute("SELECT coalesce(max(id), 0) FROM evidence").fetchone()[0]
    rows = db.execute(
        "SELECT source, speaker, role, max(id) FROM evidence WHERE id > ?"
        " GROUP BY source, speaker, role ORDER BY 4 DESC",
        (last - _NEWEST,),
    ).fetchall()
    found: list[tuple[str, int]] = []
    for source, speaker, role, evidence in rows:
        named = any(is_named(word, asked) for word in words_in(speaker))
        if named or ((asked.own or speaker in ("", "user")) and role == "user"):
            first = db.execute("SELECT min(id) FROM fact WHERE evidence = ?", (evidence,)).fetchone()[0]
            if first is not None:
                found.append((source, first))
        if len(found) >= _SOURCES:
            break
    return found


def by_holding(question: str, facts: Sequence[Fact]) -> list[Hit]:
    """Return the current ones of ``facts``, which are in the order of time, as hits, best first.

    None where not one of them has to do with the question.
    """
    if not facts:
        return []
    turns = {number: at for at, number in enumerate(dict.fromkeys(fact.evidence for fact in facts))}
    lines = [Line(fact.text, fact.speaker, turns[fact.evidence], fact.role.value) for fact in facts]
    asked = read(question)
    rows = features(asked, lines)
    told = [line.turn for line, row in zip(lines, rows, strict=True) if _tells(row) and not row["aide"]]
    if not told:
        return []
    fills = [sum(weight * row[name] for name, weight in FILLS.items()) for row in rows]
    later(asked, lines, rows, fills)
    scored = [
        (sum(weight * row[name] for name, weight in HOLDS.items()), fact)
        for fact, line, row in zip(facts, lines, rows, strict=True)
        if fact.state is State.CURRENT and _is_about(row, line.turn >= told[0])
    ]
    scored.sort(key=lambda each: -each[0])
    low = scored[-1][0] - 1 if scored else 0.0
    return [Hit(fact, score - low, "what was said of it last") for score, fact in scored]


def is_later(one: Fact, other: Fact) -> bool:
    """Whether a fact was told after another."""
    return (one.observed_s, one.id) > (other.observed_s, other.id)


def _tells(row: dict[str, float]) -> bool:
    return any(row[name] for name in _TELLING)


def _is_about(row: dict[str, float], after: bool) -> bool:
    """Whether a statement is of what is asked, or of whom, or may go on with one that is (``after`` the first)."""
    return _tells(row) or any(row[name] for name in _WHOSE) or (after and any(row[name] for name in _BESIDE))
