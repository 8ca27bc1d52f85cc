"""Words and sense together, as far as sense helps on the store itself.

Theory. Ranks of two searches must not simply be added: a small model that is right less often than words drags them
down (reciprocal-rank fusion loses several points of recall on conversations). Scores are added instead,

    (1 - weight) * words / best words + weight * ((cosine - least) / (most - least)) ** 3

where the cube keeps the long tail of middling cosines from counting. ``weight`` is chosen on the store, without
labels: passages drawn at random become questions, by leaving out two thirds of their words, the rarest. That is what a
question by somebody who says it in other words looks like to an index of words. Whichever weight finds most of them
again, the nearer to the first place the better, is taken, but 0 (no vectors, no cost) unless the gain over 0 is beyond
chance: more than two standard errors of the difference, question by question. Who knows which passage answers a
question can give such pairs, which then count instead.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from perdure.memory.lexical import Filter, Found, LexicalIndex
from perdure.memory.vectors import Vectors
from perdure.memory.words import content_terms, words_of

__all__ = ["Calibration", "Fusion", "fused"]

WEIGHTS: Final = (0.0, 0.1, 0.2, 0.3, 0.45, 0.6)
_POOL: Final = 200
_SAMPLE: Final = 96
_PLACES: Final = 20
_FEWEST: Final = 30
_ERRORS: Final = 2.0
_GROWN: Final = 2.0
_IN_SEARCH: Final = 8
_IN_SEARCH_S: Final = 0.25


@dataclass(frozen=True, slots=True)
class Calibration:
    """``weight`` was chosen from ``questions``; ``found`` is the mean of 1 / place of the right one, by weight."""

    weight: float
    questions: int
    found: tuple[tuple[float, float], ...] = ()

    def __str__(self) -> str:
        tried = ", ".join(f"{weight:g}: {part:.3f}" for weight, part in self.found)
        return f"sense counts {self.weight:g}, chosen from {self.questions} questions made of the store ({tried})"


def fused(
    words: Sequence[Found], passages: NDArray[np.int64], cosines: NDArray[np.float32], weight: float
) -> list[tuple[int, float]]:
    """Return (passage, score) of those found by their words and of the nearest ones, best first."""
    if not len(passages) or weight == 0:
        return [(each.passage, each.score) for each in words]
    low, high = float(cosines.min()), float(cosines.max())
    sense = ((cosines - low) / max(high - low, 1e-9)) ** 3
    near = np.argpartition(-sense, min(_POOL, len(sense)) - 1)[:_POOL]
    best = max((each.score for each in words), default=1.0) or 1.0
    scores = {each.passage: (1 - weight) * each.score / best for each in words}
    wanted = np.array(sorted({*scores, *passages[near].tolist()}), np.int64)
    at = np.minimum(np.searchsorted(passages, wanted), len(passages) - 1)
    for passage, place in zip(wanted.tolist(), at.tolist(), strict=True):
        if passages[place] == passage:
            scores[passage] = scores.get(passage, 0.0) + weight * float(sense[place])
    return sorted(scores.items(), key=lambda each: (-each[1], -each[0]))


class Fusion:
    """The sense of a `Searcher`: vectors of an embedder, fused at the weight that was found to help."""

    def __init__(self, index: LexicalIndex, vectors: Vectors) -> None:
        self.index = index
        self.vectors = vectors

    def fuse(self, question: str, found: Sequence[Found], *, limit: int, only: Filter | None) -> list[Found]:
        """Return passages by words and sense; those ``found`` by words alone where sense was not found to help."""
        weight = self.vectors.note("weight") or 0.0
        if weight == 0:
            return list(found)
        self.vectors.catch_up(deadline_s=_IN_SEARCH_S, most=_IN_SEARCH)
        passages, cosines = self._near(question)
        both = fused(found, passages, cosines, weight)
        known = {each.passage: each for each in found}
        more = self.index.places([passage for passage, _ in both if passage not in known], only=only)
        known |= {each.passage: each for each in more}
        return [replace(known[passage], score=score) for passage, score in both if passage in known][:limit]

    def embed(self, *, deadline_s: float) -> int:
        """Embed what has no vector yet, and find the weight again where the store has doubled; return what is left."""
        left = self.vectors.catch_up(deadline_s=deadline_s)
        n, _ = self.index.frequencies([])
        before = self.vectors.note("calibrated at")
        if left == 0 and n >= _FEWEST and (before is None or n >= _GROWN * before):
            self.calibrate()
        return left

    def calibrate(self, pairs: Sequence[tuple[str, int]] | None = None, *, seed: int = 0) -> Calibration:
        """Choose the weight, from (question, right passage) or from questions made of the store."""
        passages, _ = self.vectors.near(np.zeros(self.vectors.embedder.dims, np.float32))
        asked = list(pairs) if pairs is not None else self._made(passages, random.Random(seed))
        ranks = np.zeros((len(WEIGHTS), len(asked)))
        for place, (question, right) in enumerate(asked):
            weights = dict.fromkeys(content_terms(question), 1.0)
            words, _ = self.index.rank(weights, limit=_POOL)
            there, cosines = self._near(question)
            for row, weight in enumerate(WEIGHTS):
                first = [passage for passage, _ in fused(words, there, cosines, weight)[:_PLACES]]
                ranks[row, place] = 1 / (1 + first.index(right)) if right in first else 0.0
        parts = ranks.mean(axis=1) if len(asked) else np.zeros(len(WEIGHTS))
        chosen = 0
        if len(asked) >= _FEWEST:
            best = int(np.argmax(parts))
            gain = ranks[best] - ranks[0]
            if gain.mean() > _ERRORS * gain.std() / np.sqrt(len(gain)):
                chosen = best
        self.vectors.note("weight", WEIGHTS[chosen])
        self.vectors.note("calibrated at", len(passages))
        table = tuple((weight, float(part)) for weight, part in zip(WEIGHTS, parts, strict=True))
        return Calibration(WEIGHTS[chosen], len(asked), table)

    def _near(self, question: str) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        vector = self.vectors.embedder.embed([question], kind="query")[0]
        return self.vectors.near(vector)

    def _made(self, passages: NDArray[np.int64], chance: random.Random) -> list[tuple[str, int]]:
        """Questions made of passages: what is left of their words without the rarest two thirds."""
        made: list[tuple[str, int]] = []
        for passage in chance.sample(passages.tolist(), min(len(passages), 4 * _SAMPLE)):
            text = self.index.text(passage)
            said = list(dict.fromkeys(words_of(text)))
            if len(said) < 6 or len(made) >= _SAMPLE:
                continue
            _, have = self.index.frequencies(list(dict.fromkeys(each for word in said for each in content_terms(word))))
            rarest = sorted(said, key=lambda word: min((have.get(each, 0) for each in content_terms(word)), default=0))
            out = set(rarest[: 2 * len(said) // 3])
            made.append((" ".join(word for word in text.split() if not out & set(words_of(word))), passage))
        return made
