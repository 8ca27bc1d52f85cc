"""The memories that a console shows: the spaces of one folder, opened when they are first looked at, only ever read."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from perdure.errors import CallError
from perdure.memory import Bond, Change, Evidence, Fact, Link, Memory, State, Topic
from perdure.memory.records import number_of
from perdure.memory.spaces import folder_of, spaces_in
from perdure.memory.views import Wanted, each_fact, links_of

__all__ = ["FactSeen", "Memories", "Space", "TopicSeen"]

MOST: Final = 500
"""How many facts or topics one page shows."""


@dataclass(frozen=True, slots=True)
class FactSeen:
    """A fact with what it was taken from, and what is bound to it."""

    fact: Fact
    evidence: Evidence | None
    facts: tuple[Fact, ...]
    links: tuple[Link, ...]


@dataclass(frozen=True, slots=True)
class TopicSeen:
    """A topic and its facts: what holds, what contradicts what, and what was."""

    topic: Topic
    current: tuple[Fact, ...]
    conflicts: tuple[tuple[Fact, Fact, Link], ...]
    past: tuple[Fact, ...]
    more: bool


class Space:
    """One memory. ``key`` is the name of its folder, which stands in addresses."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.name = memory.space
        self.key = _key(memory.folder)

    def topics(self, *, after: int = 0) -> tuple[list[Topic], int]:
        """Topics after number ``after``, and how many there are."""
        return self.memory.tools().shelf.topics(after=after, limit=MOST)

    def topic(self, name: str) -> TopicSeen:
        """A topic; one that was merged into another is that other. Raises `CallError` where there is none."""
        number, shelf = _number(name, "t"), self.memory.tools().shelf
        for _ in range(20):
            found, _count = shelf.topics(ids=[number], limit=1)
            if not found:
                break
            if found[0].into is None:
                return self._topic(found[0])
            number = found[0].into
        raise CallError(f"there is no topic {name[:40]} in {self.name!r}", missing=name)

    def _topic(self, topic: Topic) -> TopicSeen:
        ledger = self.memory.ledger
        found: list[Fact] = []
        for fact in each_fact(ledger, Wanted(topic=topic.id), newest_first=True):
            if len(found) > MOST:
                break
            if fact.state is not State.FORGOTTEN:
                found.append(fact)
        known = {each.id: each for each in found[:MOST]}
        against = [each for each in links_of(ledger, known) if each.kind is Bond.CONFLICTS]
        others = ledger.facts({side for each in against for side in (each.fact, each.other)})
        pairs = [
            (others[each.fact], others[each.other], each)
            for each in against
            if each.fact in others and each.other in others
        ]
        return TopicSeen(
            topic,
            tuple(each for each in known.values() if each.state is State.CURRENT),
            tuple(pair for pair in pairs if State.FORGOTTEN not in (pair[0].state, pair[1].state)),
            tuple(each for each in known.values() if each.state is not State.CURRENT),
            len(found) > MOST,
        )

    def latest(self, limit: int) -> list[Fact]:
        """What was told last, of what holds."""
        found: list[Fact] = []
        for fact in each_fact(self.memory.ledger, Wanted(states=(State.CURRENT,)), newest_first=True):
            found.append(fact)
            if len(found) == limit:
                break
        return found

    def fact(self, name: str) -> FactSeen:
        """A fact. Raises `CallError` where there is none."""
        number = _number(name, "f")
        fact = self.memory.ledger.facts([number]).get(number)
        if fact is None:
            raise CallError(f"there is no fact {name[:40]} in {self.name!r}", missing=name)
        history = self.memory.history(number)
        return FactSeen(fact, self.memory.ledger.evidence(fact.evidence), history.facts, history.links)

    def evidence(self, name: str) -> tuple[Evidence, list[Fact]]:
        """What was told, and the facts of it. Raises `CallError` where there is none."""
        number = _number(name, "e")
        found = self.memory.ledger.evidence(number)
        if found is None:
            raise CallError(f"there is no evidence {name[:40]} in {self.name!r}", missing=name)
        rows = self.memory.ledger.connection().execute(
            "SELECT id FROM fact WHERE evidence = ? AND text IS NOT NULL ORDER BY start LIMIT 5000", (number,)
        )
        return found, sorted(self.memory.ledger.facts([row[0] for row in rows]).values(), key=lambda each: each.start)

    def changes(self, *, limit: int = 50, before: int | None = None) -> Sequence[Change]:
        """The latest changes, the newest first."""
        return self.memory.changes(limit=limit, before=before)


class Memories:
    """The spaces below ``root``; none where it is None. Thread-safe."""

    def __init__(self, root: Path | None) -> None:
        self.root = root
        self._opened: dict[str, Space] = {}
        self._lock = threading.Lock()

    def names(self) -> dict[str, str]:
        """The names of the spaces, by key."""
        if self.root is None:
            return {}
        return {_key(folder_of(self.root, name)): name for name in spaces_in(self.root)}

    def get(self, key: str) -> Space:
        """The space of that key. Raises `CallError` where there is none."""
        names = self.names()
        if self.root is None or key not in names:
            raise CallError(f"there is no memory {key[:80]}", missing=key[:80])
        with self._lock:
            if key not in self._opened:
                self._opened[key] = Space(Memory(self.root, space=names[key]))
            return self._opened[key]

    def close(self) -> None:
        """Close what was opened."""
        with self._lock:
            for each in self._opened.values():
                each.memory.close()
            self._opened.clear()


def _key(folder: Path) -> str:
    """How an address names a space: its folder's name with ``~``, which is in none, for percent signs, which proxies
    and browsers may read once more than they should."""
    return folder.name.replace("%", "~")


def _number(name: str, letter: str) -> int:
    try:
        return number_of(name, letter)
    except CallError as error:
        raise CallError(str(error), missing=name[:40]) from error
