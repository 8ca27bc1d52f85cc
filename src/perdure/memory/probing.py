"""Where an answer goes wrong: was it told, was it found, was it shown, was it cited?

After "Diagnosing Retrieval vs. Utilization Bottlenecks" (arXiv 2603.02473), without a judge: for a question whose
evidence is known, four yes or no by ids alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from perdure.memory.records import Answer, Hit
from perdure.memory.shelf import Shelf

__all__ = ["Diagnosis", "diagnose"]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Of the evidence that a question needs: how much of it is ``stored``, ``found`` and ``cited`` (shares, 0 to 1).

    ``rank`` is the place (from 1) of the first hit that is of it, None if there is none.
    """

    stored: float
    found: float
    cited: float
    rank: int | None

    @property
    def lost_at(self) -> Literal["storing", "finding", "citing", ""]:
        """The first step that lost some of the evidence."""
        if self.stored < 1:
            return "storing"
        if self.found < 1:
            return "finding"
        return "citing" if self.cited < 1 else ""


def diagnose(shelf: Shelf, gold: Iterable[int], hits: Sequence[Hit], answer: Answer | None = None) -> Diagnosis:
    """Compare what a search found, and an answer cites, with the evidence ``gold`` (its numbers)."""
    wanted = set(gold)
    assert wanted, "a question without evidence cannot be diagnosed"
    stored = {each for each in wanted if any(page.evidence.id == each for page in shelf.pages_from(each, limit=1))}
    places = [hit.fact.evidence for hit in hits]
    found = wanted & set(places)
    cited = wanted & {hit.fact.evidence for hit in answer.hits} if answer is not None else found
    rank = next((at for at, each in enumerate(places, 1) if each in wanted), None)
    return Diagnosis(len(stored) / len(wanted), len(found) / len(wanted), len(cited) / len(wanted), rank)
