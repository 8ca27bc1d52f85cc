"""What a person did to a document: a three-way merge of the file, of what it showed, and of what is known now.

Pure. The base is not kept as text, since facts are never rewritten: it is kept which facts a document began to show,
and ceased to show, at which revision, so that a file saved from an old view is understood as an edit of that view: what
it lacks because it came later was not removed, and what it still has because it left later was not put back.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec
import xxhash

from perdure.memory.document_text import Read, plain, same
from perdure.memory.records import Fact, Role

__all__ = ["Edits", "Shown", "edits", "shown_next"]

_NAMES: Final = 8
_LEFT: Final = 2000
_IN_NOTES: Final = re.compile(r"\^f(\d{1,18})\b")


class Shown(msgspec.Struct):
    """What a document shows: facts by the revision that brought them, those that left since, and
    digests of title, aliases, summary and notes by revision. It holds no words, so that none has to be forgotten."""

    revision: int = 0
    ids: list[tuple[int, list[int]]] = []
    left: list[tuple[int, list[int]]] = []
    names: list[tuple[int, str, str, str, str]] = []


@dataclass(frozen=True, slots=True)
class Edits:
    """What a person did. ``changed`` are facts with their new words, ``added`` words without a fact, and
    whose they are; names are None where they were left as they are."""

    changed: tuple[tuple[int, str], ...] = ()
    removed: tuple[int, ...] = ()
    added: tuple[tuple[str, Role], ...] = ()
    moved: tuple[int, ...] = ()
    title: str | None = None
    aliases: tuple[str, ...] | None = None
    summary: str | None = None
    notes: str | None = None
    extra: str | None = None

    @property
    def none(self) -> bool:
        """Whether nothing was done that means anything."""
        return self == Edits()


def shown_next(
    before: Shown, *, revision: int, ids: Iterable[int], title: str, aliases: Iterable[str], summary: str, notes: str
) -> Shown:
    """Return what a document shows that is written anew."""
    now = set(ids)
    kept: list[tuple[int, list[int]]] = []
    gone: list[int] = []
    for entered, some in before.ids:
        staying = [each for each in some if each in now]
        gone += [each for each in some if each not in now]
        now -= set(staying)
        kept += [(entered, staying)] if staying else []
    kept += [(revision, sorted(now))] if now else []
    left = [*before.left, *([(revision, gone)] if gone else [])]
    while sum(len(some) for _, some in left) > _LEFT and len(left) > 1:
        del left[0]
    names = list(before.names)
    new = (_digest(title), _digest(*aliases), _digest(summary), _digest(notes))
    if not names or tuple(names[-1][1:]) != new:
        names.append((revision, *new))
    return Shown(revision, kept, left, names[-_NAMES:])


def edits(
    read: Read, shown: Shown, facts: Mapping[int, Fact | None], *, standing: Iterable[str], notes: str, extra: str
) -> Edits:
    """Return what a person did to a document since the revision that it was saved from.

    ``facts`` are those whose ids are in it (None for one that was purged); ``standing`` the words of the facts of the
    topic, which nobody adds twice; ``notes`` and ``extra`` what is known now.
    """
    base = read.revision if read.revision is not None and read.revision <= shown.revision else shown.revision
    entered = {each: revision for revision, some in shown.ids for each in some}
    left = {each: revision for revision, some in shown.left for each in some}
    there = {plain(each) for each in standing}
    seen: set[int] = set()
    changed: list[tuple[int, str]] = []
    added: list[tuple[str, Role]] = []
    moved: list[int] = []
    for bullet in read.bullets:
        fact = facts.get(bullet.fact) if bullet.fact is not None else None
        if bullet.fact is not None and bullet.fact in facts and fact is None:
            seen.add(bullet.fact)  # purged: its words are not taken back in
        elif fact is None or fact.id in seen:
            known = fact is not None and same(bullet.text, fact.text)
            if bullet.text and not known and plain(bullet.text) not in there:
                added.append((bullet.text, bullet.role))
                there.add(plain(bullet.text))
        else:
            seen.add(fact.id)
            if fact.id not in entered and not left.get(fact.id, 0) > base:
                moved.append(fact.id)
            if bullet.text and not same(bullet.text, fact.text):
                changed.append((fact.id, bullet.text))
            elif not bullet.text:
                seen.discard(fact.id)  # a bullet without words is a removed one
    noted = {int(each) for each in _IN_NOTES.findall(read.notes)}
    additive = read.topic is None and read.revision is None
    removed = [each for each, since in entered.items() if since <= base and each not in seen and each not in noted]
    names = next((each for each in reversed(shown.names) if each[0] <= base), shown.names[0] if shown.names else None)
    title, aliases, summary = read.title, read.aliases, read.summary
    if names is not None:
        title = None if title is None or _digest(title) == names[1] else title
        aliases = None if aliases is None or _digest(*aliases) == names[2] else aliases
        summary = None if summary is None or _digest(summary) == names[3] else summary
    return Edits(
        tuple(changed),
        () if additive else tuple(removed),
        tuple(added),
        tuple(moved),
        title or None,
        aliases,
        summary,
        _notes(read.notes, notes, names[4] if names is not None else _digest(""), additive=additive),
        None if read.extra == extra or additive else read.extra,
    )


def _notes(theirs: str, now: str, base: str, *, additive: bool) -> str | None:
    """Return what the notes are to be, or None where they stay: whoever alone has changed them is right, else both."""
    if theirs == now or _digest(theirs) == base or (additive and not theirs):
        return None
    if _digest(now) == base and not additive:
        return theirs
    return now if theirs in now else "\n\n".join(filter(None, (now, theirs)))


def _digest(*words: str) -> str:
    return xxhash.xxh3_64_hexdigest("\0".join(words).encode("utf-8", "surrogatepass"))
