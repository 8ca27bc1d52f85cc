"""Look facts up by the names in them: what a search from thing to thing needs of a ledger and its lexical index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from perdure.memory.edges import tokens_of
from perdure.memory.ledger import FACTS, Ledger, fact_of
from perdure.memory.lexical import LexicalIndex
from perdure.memory.records import Fact, State

__all__ = ["Finder", "IndexFinder", "Mention"]

_FACTS: Final = FACTS.replace(" FROM", ", f.settled FROM", 1)


@dataclass(frozen=True, slots=True)
class Mention:
    """A fact that names a thing; ``settled`` where rules have looked already what it replaces."""

    fact: Fact
    settled: bool


class Finder(Protocol):
    """Looks facts up by the names in them."""

    def mentions(self, name: Sequence[str], *, with_any: Sequence[str], limit: int) -> list[Mention]:
        """Return current facts with the words of ``name`` side by side and one of ``with_any`` if there are any, the
        newest first, at most ``limit`` passages of them."""
        ...


class IndexFinder:
    """Looks facts up in the lexical index of a space, as it is when this is made: make one for each question."""

    def __init__(self, ledger: Ledger, index: LexicalIndex) -> None:
        self.ledger = ledger
        self.index = index
        index.catch_up()

    def mentions(self, name: Sequence[str], *, with_any: Sequence[str], limit: int) -> list[Mention]:
        db = self.ledger.connection()
        found: list[Mention] = []
        heads = {head: head for head in self.index.containing(name, with_any=with_any, limit=limit)}
        while heads:
            marks = ",".join("?" * len(heads))
            following: dict[int, int] = {}
            for row in db.execute(f"{_FACTS} WHERE f.id IN ({marks})", list(heads)):
                number, head, text = row[0], row[4], row[5]
                if head != heads[number]:
                    continue
                following[number + 1] = head
                if row[11] == State.CURRENT.value and isinstance(text, str) and _names(text, name):
                    found.append(Mention(fact_of(row), bool(row[15])))
            heads = following
        return found


def _names(text: str, name: Sequence[str]) -> bool:
    words = [each.word for each in tokens_of(text)]
    size = len(name)
    return any(words[at] == name[0] and words[at : at + size] == list(name) for at in range(len(words) - size + 1))
