"""Order hits by whether they fill the slot that a question asks for.

The words of a question are those of the slot, without its value: "What is the capital of Japan?" is covered by ``the
capital of japan is``. A hit whose slot covers the question, and no more, comes before one that merely shares words.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import log
from typing import Final

from perdure.memory.families import families_of
from perdure.memory.records import Fact, Hit, State
from perdure.memory.slots import slots_of, stem, words_in
from perdure.memory.wordlists import word_set

__all__ = ["by_slot", "is_sure"]

_SURE: Final = 1.0
_FITS: Final = 0.6
_LEAST_SHARED: Final = 0.4
_BEHIND: Final = 0.3
"""How far what holds no longer is put back."""
_SMALL: Final = frozenset(
    stem(each)
    for each in word_set(
        "a an the is are was were be been do does did of in at to by for from with as on and or what which who"
        " whom whose where when how why that this it its s he she they his her their i my you your current"
        " currently now there"
    )
)


def by_slot(question: str, hits: Sequence[Hit]) -> list[Hit]:
    """Return ``hits`` with those first whose slot the question asks for; the others keep their order.

    Scores stay between 0 and 1 of the best hit's, plus how well the slot fits.
    """
    asked = _content(words_in(question))
    if not asked or not hits:
        return list(hits)
    names = {stem(each) for at, each in enumerate(words_in(question)) if at and not each.islower()} - _SMALL
    keys = [_key(hit.fact, asked) for hit in hits]
    counts = Counter(word for key in keys for word in key)
    rare = {word: log(1 + len(hits) / (1 + counts[word])) + 0.2 for word in {*asked, *counts}}
    best = max(hit.score for hit in hits) or 1.0
    ranked: list[tuple[float, int, Hit]] = []
    why = "its slot"
    for at, (hit, key) in enumerate(zip(hits, keys, strict=True)):
        fit = _fit(asked, key, rare, names) if key else 0.0
        held = 0.0 if hit.fact.state is State.CURRENT else _BEHIND
        fills = fit >= _FITS
        score = hit.score / best * 0.3 + (fit if fills else 0.0) - held
        ranked.append((score, -at, replace(hit, why=why) if fills else hit))
    ranked.sort(key=lambda each: each[:2], reverse=True)
    return [replace(hit, score=score) for score, _, hit in ranked]


def _key(fact: Fact, asked: set[str]) -> set[str]:
    """What the slot of a fact is called by; nothing where the fact shares too little with the question to fit it."""
    there = {stem(each) for each in words_in(f"{fact.text} {fact.speaker}")}
    if sum(_shared(word, there) > 0 for word in asked) < _LEAST_SHARED * len(asked):
        return set()
    slots = slots_of(fact.text, speaker=fact.speaker, source=fact.source)
    return _content(slots[0].key.split(), stemmed=True) if slots else set()


def is_sure(hits: Sequence[Hit]) -> bool:
    """Whether the first of hits in the order of `by_slot` fills just the slot that was asked for."""
    return bool(hits) and hits[0].score >= _SURE


def _content(words: Sequence[str], *, stemmed: bool = False) -> set[str]:
    found = {each if stemmed else stem(each) for each in words}
    return {each for each in found if each not in _SMALL} or found


def _fit(asked: set[str], key: set[str], rare: dict[str, float], names: set[str]) -> float:
    """How much of the question and of the slot is the other's, 0 to 1; related words count half."""
    covered = sum(rare[word] * _shared(word, key) for word in asked)
    back = sum(rare[word] * _shared(word, asked) for word in key)
    recall, precision = covered / sum(rare[word] for word in asked), back / sum(rare[word] for word in key)
    lost = sum(word not in key for word in names) / (len(names) or 1)
    return (2 * recall * precision / (recall + precision) if recall + precision else 0.0) - 0.5 * lost


def _shared(word: str, others: set[str]) -> float:
    if word in others:
        return 1.0
    near = families_of(word)
    return 0.5 if near and any(near & families_of(other) for other in others) else 0.0
