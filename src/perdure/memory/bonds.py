"""What binds hits to other facts, put beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from perdure.memory.ledger import Ledger
from perdure.memory.records import Bond, Hit

__all__ = ["with_bonds"]


def with_bonds(ledger: Ledger, hits: Sequence[Hit]) -> list[Hit]:
    """Return ``hits`` with the facts that replace them and those that say otherwise."""
    ids = [hit.fact.id for hit in hits]
    by: dict[int, list[int]] = {}
    against: dict[int, list[int]] = {}
    for at in range(0, len(ids), 400):
        some = ids[at : at + 400]
        marks = ",".join("?" * len(some))
        for kind, fact, other in ledger.connection().execute(
            f"SELECT kind, fact, other FROM link WHERE undone IS NULL AND other IN ({marks})"
            f" UNION SELECT kind, fact, other FROM link WHERE undone IS NULL AND kind = ? AND fact IN ({marks})",
            [*some, Bond.CONFLICTS.value, *some],
        ):
            if kind == Bond.SUPERSEDES:
                by.setdefault(other, []).append(fact)
            elif kind == Bond.CONFLICTS:
                against.setdefault(other, []).append(fact)
                against.setdefault(fact, []).append(other)
    return [
        replace(hit, by=tuple(sorted(by.get(hit.fact.id, ()))), conflicts=tuple(sorted(against.get(hit.fact.id, ()))))
        for hit in hits
    ]
