"""Empty the tables of what is purged: the words, and whatever else in the tables repeats them or was made of them.

A topic whose facts are all gone gets a neutral title; so do those of the touched topics whose title, aliases or
summary have words that only what was purged has had. Their old names are looked for like the texts, for their
documents, journals and file names bore them. The same is done to a ledger and to each of its copies.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from perdure.memory import trace_scan
from perdure.memory.document_files import slug
from perdure.memory.records import State
from perdure.memory.sqlite_files import File
from perdure.memory.steps import EDITED, Journal
from perdure.memory.told import as_body, as_text
from perdure.memory.topic_store import live
from perdure.memory.traces import METHOD, batches_of, held_elsewhere
from perdure.memory.words import content_terms

__all__ = ["Emptied", "empty", "empty_copy", "neutral_title", "versions_of"]

_GAP: Final = "\u2588"

_REPEATING: Final = (
    ("change", "note"),
    ("change", "plan"),
    ("link", "reason"),
    ("topic", "title"),
    ("topic", "aliases"),
    ("topic", "summary"),
    ("topic", "file"),
    ("evidence", "meta"),
    ("document", "notes"),
    ("document", "extra"),
)

_FRAME: Final = " ".join([METHOD, *Journal.__struct_fields__, *State, "title aliases summary archive topics"]).lower()
"""Words of ours, which stand in every space."""


@dataclass(frozen=True, slots=True)
class Emptied:
    """What is nowhere in the tables any more: the ``texts``, and the ``names`` of speakers, sources and topics."""

    texts: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    evidence: tuple[int, ...] = ()
    redacted: tuple[int, ...] = ()
    """Evidence that has a gap."""


def neutral_title(topic: int) -> str:
    """What a topic is called whose name had to be forgotten."""
    return f"Topic {topic}"


def empty(db: File, facts: set[int], whole: set[int]) -> Emptied:
    """Empty facts, and ``whole`` evidence, in one transaction of the caller."""
    touched = {db.execute("SELECT topic FROM fact WHERE id = ?", (each,)).fetchone()[0] for each in sorted(facts)}
    texts, names, emptied, redacted = _rows(db, facts, whole)
    names = [each for each in names if not _is_used(db, each)]
    names += _unname_topics(db, [*texts, *names], {each for each in touched if each})
    names = [each for each in dict.fromkeys(names) if each.lower() not in _FRAME]
    _scrub_rest(db, [*texts, *names])
    return Emptied(tuple(texts), tuple(names), tuple(emptied), tuple(redacted))


def empty_copy(db: File, facts: set[int], whole: set[int]) -> None:
    """The same in a copy, whose documents are made anew when it is opened as a space."""
    empty(db, facts, whole)
    db.execute("UPDATE topic SET file = '', digest = '', written = -1 WHERE title = 'Topic ' || id")
    db.execute("UPDATE document SET shown = '{}', intent = NULL")


def versions_of(db: File, facts: set[int]) -> tuple[set[int], set[int]]:
    """The facts that persons made of ``facts`` by editing: those that stand no more, and those that stand.

    An edit that was taken back counts as one that stands no more.
    """
    gone: set[int] = set()
    standing: set[int] = set()
    edge = sorted(facts)
    while edge:
        rows = db.execute(
            "SELECT f.id, f.state FROM link l JOIN fact f ON f.id = l.fact"
            " WHERE l.other = ? AND l.kind = 'supersedes' AND l.reason = ? AND f.text IS NOT NULL",
            (edge.pop(), EDITED),
        ).fetchall()
        for fact, state in rows:
            if fact in facts or fact in gone or fact in standing:
                continue
            if state == State.CURRENT:
                standing.add(fact)
            else:
                gone.add(fact)
                edge.append(fact)
    return gone, standing


def _is_used(db: File, name: str) -> bool:
    """Whether evidence still has ``name`` for its speaker or source."""
    return bool(
        db.execute(
            "SELECT 1 FROM evidence WHERE body IS NOT NULL AND (speaker = ?1 OR source IN (?1, 'memory-tool:' || ?1))"
            " LIMIT 1",
            (name,),
        ).fetchone()
    )


def _unname_topics(db: File, purged: Sequence[str], touched: set[int]) -> list[str]:
    """Give topics neutral names whose words only ``purged`` texts have had; return what they were called."""
    lost = _terms(purged)
    old: list[str] = []
    unnamed: dict[int, tuple[bool, bool, bool]] = {}
    for number, title, aliases, summary, into, file in db.execute(
        "SELECT id, title, aliases, summary, into_topic, file FROM topic ORDER BY id"
    ).fetchall():
        mine = lost & _terms([title, aliases, summary, Path(file).stem.replace("-", " ")])
        if number not in touched and (not mine or _facts_in(db, number)):
            continue
        there = live(db, number) if into is not None else number
        left = _left_in(db, there, mine)
        bare = number in touched and left is None
        which = (
            bare or _speaks(title, mine, left),
            bare or _speaks(aliases, mine, left),
            bare or _speaks(summary, mine, left),
        )
        named = bool(file) and _speaks(Path(file).stem.replace("-", " "), mine, left)
        if which[0] and title != neutral_title(number):
            old += [title, slug(title)]
        if which[1]:
            old += json.loads(aliases)
        if which[2] and summary:
            old.append(summary)
        if any(which):
            unnamed[number] = which
            db.execute(
                "UPDATE topic SET title = ?, aliases = ?, summary = ?, revision = revision + 1 WHERE id = ?",
                (
                    neutral_title(number) if which[0] else title,
                    "[]" if which[1] else aliases,
                    "" if which[2] else summary,
                    number,
                ),
            )
            db.execute("DELETE FROM route WHERE topic = ?", (number,))
        if named or (which[0] and bare and file):
            old.append(Path(file).stem.removesuffix(f"--t{number}"))
            _unname_file(db, number)
    _unname_in_journals(db, unnamed)
    return [each for each in old if each and each != "topic"]


def _terms(texts: Iterable[str]) -> set[str]:
    return {term for each in texts for term in content_terms(each)}


def _speaks(text: str, mine: set[str], left: set[str] | None) -> bool:
    """Whether a text has words of ``mine`` that are not ``left``."""
    return bool((mine - (left or set())) & set(content_terms(text)))


def _facts_in(db: File, topic: int) -> bool:
    return bool(db.execute("SELECT 1 FROM fact WHERE topic = ? AND text IS NOT NULL LIMIT 1", (topic,)).fetchone())


def _left_in(db: File, topic: int | None, wanted: set[str]) -> set[str] | None:
    """Which of the ``wanted`` terms the facts of a topic still have, or who told them; None where it has no facts."""
    if topic is None or not _facts_in(db, topic):
        return None
    found: set[str] = set()
    for row in db.execute(
        "SELECT f.text, e.speaker, e.source FROM fact f JOIN evidence e ON e.id = f.evidence"
        " WHERE f.topic = ? AND f.text IS NOT NULL",
        (topic,),
    ):
        if wanted <= found:
            break
        found |= wanted & _terms(as_text(each) for each in row)
    return found


def _unname_in_journals(db: File, unnamed: Mapping[int, tuple[bool, bool, bool]]) -> None:
    """The names of topics stand in the journals of the changes that gave them, too."""
    for change, plan in db.execute("SELECT id, plan FROM change WHERE plan GLOB '*\"journal\"*'").fetchall():
        told: Any = _decoded(plan)
        if told is None:
            continue
        changed = False
        for entry in told["journal"].get("topics", ()) if unnamed else ():
            which = unnamed.get(entry[0])
            for names in entry[1:] if which else ():
                if which and names is not None:
                    neutral: tuple[Any, ...] = (neutral_title(entry[0]), [], "")
                    names[:3] = [neutral[at] if gone else names[at] for at, gone in enumerate(which)]
                    changed = True
        if changed:
            db.execute("UPDATE change SET plan = ? WHERE id = ?", (json.dumps(told, ensure_ascii=False), change))


def _decoded(plan: str) -> Any:
    try:
        told = json.loads(plan)
    except (ValueError, RecursionError):
        return None
    return told if isinstance(told, dict) and isinstance(told.get("journal"), dict) else None


def _rows(db: File, facts: set[int], whole: set[int]) -> tuple[list[str], list[str], list[int], list[int]]:
    """Empty facts and evidence; return their texts and names, and the evidence that is empty and that has a gap."""
    names: list[str] = []
    texts: list[str] = []
    emptied, redacted = set(whole), []
    spans: dict[int, list[tuple[int, int]]] = {}
    for fact in sorted(facts):
        row = db.execute("SELECT evidence, start, stop, text FROM fact WHERE id = ?", (fact,)).fetchone()
        if row is None or row[3] is None:
            continue
        texts.append(as_text(row[3]))
        spans.setdefault(row[0], []).append((row[1], row[2]))
    for evidence, gaps in spans.items():
        if evidence in whole:
            continue
        body = list(as_text(db.execute("SELECT body FROM evidence WHERE id = ?", (evidence,)).fetchone()[0]))
        for start, stop in gaps:
            body[start:stop] = _GAP * (stop - start)
        rest = "".join(body)
        if not rest.replace(_GAP, "").strip():
            emptied.add(evidence)
            continue
        redacted.append(evidence)
        db.execute(
            "UPDATE evidence SET body = ?, identity = CASE WHEN identity GLOB 'k:*' THEN identity END WHERE id = ?",
            (as_body(rest), evidence),
        )
    for evidence in sorted(emptied):
        row = db.execute("SELECT body, source, speaker, meta FROM evidence WHERE id = ?", (evidence,)).fetchone()
        texts += [as_text(each) for each in (row or ())[:1] if each is not None]
        names += [each.removeprefix("memory-tool:") for each in (row or ())[1:3] if each]
        db.execute(
            "UPDATE evidence SET body = NULL, source = '', speaker = '', observed = '', observed_s = 0, told_s = 0,"
            " identity = NULL, meta = NULL WHERE id = ?",
            (evidence,),
        )
    ids = [(each,) for each in sorted(facts)]
    db.executemany(
        "UPDATE fact SET text = NULL, since = NULL, until = NULL, state = 'forgotten', settled = 1, topic = 0"
        " WHERE id = ?",
        ids,
    )
    db.executemany("DELETE FROM slot WHERE fact = ?", ids)
    db.executemany("UPDATE link SET reason = '' WHERE fact = ? OR other = ?", [(each, each) for (each,) in ids])
    return list(dict.fromkeys(texts)), list(dict.fromkeys(names)), sorted(emptied), redacted


def _scrub_rest(db: File, texts: Sequence[str]) -> None:
    """Take pieces of ``texts`` out of notes, plans, reasons, titles and summaries, unless evidence still holds them."""
    found: list[tuple[str, str, int, set[bytes]]] = []
    for batch in batches_of(texts):
        needles = trace_scan.Needles(batch)
        for table, column in _REPEATING if needles else ():
            for number, value in db.execute(f"SELECT rowid, {column} FROM {table} WHERE length({column}) > 3"):
                pieces = {
                    piece for _, piece, _ in trace_scan.find([as_text(value).encode("utf-8", "replace")], needles)
                }
                if pieces:
                    found.append((table, column, number, pieces))
    held, _ = held_elsewhere(db, set().union(*(pieces for *_, pieces in found))) if found else (set(), set())
    for table, column, number, pieces in found:
        if pieces <= held:
            continue
        if (table, column) == ("topic", "file"):
            _unname_file(db, number)
            continue
        empty = {"plan": '{"purged": true}', "aliases": "[]", "title": neutral_title(number), "meta": None}
        db.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (empty.get(column, ""), number))
        if table == "topic":
            db.execute("UPDATE topic SET revision = revision + 1 WHERE id = ?", (number,))


def _unname_file(db: File, topic: int) -> None:
    """Let the document of a topic have another name when it is written next; the writer drops the old one."""
    file = db.execute("SELECT file FROM topic WHERE id = ?", (topic,)).fetchone()[0]
    if file.startswith("topics/") and not file.endswith(f"--t{topic}.md"):
        db.execute("UPDATE topic SET file = '' WHERE id = ?", (topic,))
    else:  # it is named for the title
        db.execute("UPDATE topic SET title = ? WHERE id = ?", (neutral_title(topic), topic))
    db.execute("UPDATE topic SET revision = revision + 1 WHERE id = ?", (topic,))
