"""The words of a memory: evidence, facts, what binds facts to one another, topics, and what a search gives back.

*Evidence* is what was told, word for word, with who told it and when; it is never changed. A *fact* is one statement
of it: a span of its text. Facts are never rewritten either: what changes is what is known *about* a fact, and each
such step is a *change* with a number, so that it can be shown and undone. Ids are small numbers within a space and are
written with a letter: ``e12``, ``f40``, ``t3``.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from perdure.errors import CallError

__all__ = [
    "Answer",
    "Bond",
    "Change",
    "Evidence",
    "Fact",
    "Hit",
    "Link",
    "Observed",
    "Role",
    "State",
    "Topic",
    "number_of",
]


class Role(enum.StrEnum):
    """Whose word a piece of evidence is. Authority falls from first to last: see `Role.authority`."""

    HUMAN = "human"
    """An edit by a person, in a topic document or through `Memory.edit`."""
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"
    """What a tool or a web page returned."""

    @property
    def authority(self) -> int:
        """3 for a person's edit, 2 the user, 1 an assistant, 0 a tool; the lower never replaces the higher."""
        return {Role.HUMAN: 3, Role.USER: 2, Role.ASSISTANT: 1, Role.TOOL: 0}[self]


class State(enum.StrEnum):
    """How a fact stands now."""

    CURRENT = "current"
    SUPERSEDED = "superseded"
    DUPLICATE = "duplicate"
    """It says what an earlier one says, of the same time; that one is shown."""
    FORGOTTEN = "forgotten"


class Bond(enum.StrEnum):
    """What binds a fact to another."""

    SUPERSEDES = "supersedes"
    DUPLICATES = "duplicates"
    CONFLICTS = "conflicts"


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was told, word for word.

    ``observed`` is ISO 8601 with the offset that it was given with; ``observed_s`` the same in seconds since 1970.
    ``key`` is the idempotency key that it was given with, if any.
    """

    id: int
    text: str
    source: str
    speaker: str
    role: Role
    observed: str
    observed_s: float
    key: str | None = None
    meta: Mapping[str, object] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """``e12``."""
        return f"e{self.id}"


@dataclass(frozen=True, slots=True)
class Fact:
    """One statement: characters ``start`` to ``stop`` of the text of its evidence, word for word.

    ``passage`` is the id of the first fact of the paragraph that it stands in. ``since`` and ``until`` are the time in
    which it holds (ISO 8601, as exact as is known), where its words tell it; ``observed`` is when it was told.
    ``topic`` is None until it has been consolidated.
    """

    id: int
    evidence: int
    start: int
    stop: int
    passage: int
    text: str
    speaker: str
    role: Role
    source: str
    observed: str
    observed_s: float
    state: State = State.CURRENT
    since: str | None = None
    until: str | None = None
    topic: int | None = None

    @property
    def name(self) -> str:
        """``f40``."""
        return f"f{self.id}"


@dataclass(frozen=True, slots=True)
class Link:
    """``fact`` supersedes, duplicates or conflicts with ``other``, for ``reason``, since ``change``."""

    kind: Bond
    fact: int
    other: int
    reason: str
    change: int


@dataclass(frozen=True, slots=True)
class Change:
    """One step of what is known about facts; ``outcome`` is ok, repaired, fallback or failed, ``note`` says why."""

    id: int
    kind: str
    by: str
    outcome: str
    at_s: float
    note: str = ""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic document: its facts are those whose ``topic`` it is. ``into`` is the topic that it was merged into."""

    id: int
    title: str
    aliases: tuple[str, ...] = ()
    summary: str = ""
    revision: int = 0
    file: str = ""
    into: int | None = None

    @property
    def name(self) -> str:
        """``t3``."""
        return f"t{self.id}"


@dataclass(frozen=True, slots=True)
class Observed:
    """What `Memory.observe` has made durable; ``new`` is False where it was known already."""

    evidence: int
    facts: tuple[int, ...]
    new: bool = True

    @property
    def name(self) -> str:
        """``e12``."""
        return f"e{self.evidence}"


@dataclass(frozen=True, slots=True)
class Hit:
    """A fact that was found. ``score`` orders hits of one search, best first; ``why`` says what it was found by.

    ``by`` are the facts that replace it, ``conflicts`` those that say otherwise with no less authority.
    """

    fact: Fact
    score: float
    why: str
    by: tuple[int, ...] = ()
    conflicts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer and what it stands on.

    ``text`` is the model's words, or without a model the current facts, ranked. ``hits`` are what it cites, all of
    which exist; ``by`` is ``rules`` or the model's name; ``note`` says what to know of how it came about.
    """

    text: str
    hits: tuple[Hit, ...]
    by: str
    note: str = ""


def number_of(name: str | int, letter: str) -> int:
    """Return the number in an id as a person writes it.

    Raises `CallError` where it is no id of that kind.

    >>> number_of("f40", "f"), number_of(7, "f")
    (40, 7)
    """
    if isinstance(name, int) and not isinstance(name, bool) and name > 0:
        return name
    digits = str(name).strip().removeprefix("^").removeprefix(letter)
    if not (digits.isascii() and digits.isdigit() and 0 < len(digits) < 19 and int(digits) > 0):
        raise CallError(f"{name!r} is no id; give one as {letter}12", id=str(name)[:80])
    return int(digits)
