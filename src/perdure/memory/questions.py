"""What a question asks for: of whom, what kind of value, in which family of words."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Final

from perdure.memory.classes import classes_asked
from perdure.memory.families import families_of, is_kin
from perdure.memory.slots import folded, stem, words_in
from perdure.memory.wordlists import word_set

__all__ = ["SMALL", "Question", "bare", "is_named", "read"]


@dataclass(frozen=True, slots=True)
class Question:
    """What a question asks for: its words, the names in it, the kind of value, and families of its words."""

    words: frozenset[str]
    names: frozenset[str]
    kinds: frozenset[str]
    families: frozenset[str]
    kin: frozenset[str]
    heads: frozenset[str]
    classes: frozenset[str]
    yes: bool
    own: bool


SMALL: Final = frozenset(
    stem(each)
    for each in word_set(
        "a an the is are was were be been am do does did of in at to by for from with as on and or what which who"
        " whom whose where when how why that this it its s he she they his her their i my you your me we our us"
        " current currently now there still latest according kind type many much will would have has had take"
        " takes use uses go goes get gets up out any some not so but if can user users assistant"
    )
)
_ASKS: Final = (
    ("time", r"\bwhat time\b|\bwhen\b|\bhow (?:early|late)\b"),
    ("date", r"\bwhen\b|\b(?:which|what) (?:day|date|year|month|weekday)\b|\bdeadline\b|\bhow (?:often|long)\b"),
    ("money", r"\bhow much\b|\b(?:price|cost|rent|fee|budget|rate|salary)\b"),
    (
        "number",
        r"\bhow (?:many|much|old|often|big|tall|long|far)\b|\b(?:number|size|age|dose|version|port|price|cost|rent"
        r"|fee|budget|rate|salary|code|pin|count|deadline|gate|row|seat|room|floor|platform|terminal|phone)\b",
    ),
    ("name", r"\bwho(?:se|m)?\b|\bwhere\b|\b(?:which|what|what's)\b"),
    ("address", r"\b(?:url|link|address|e-?mail|endpoint|website|branch|path)\b"),
    ("place", r"\bwhere\b|\b(?:which|what) (?:city|town|country|street|hall|room|place|gym|library|office|building)\b"),
)
_ASK: Final = tuple((kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern in _ASKS)
_YES: Final = re.compile(r"^(?:is|are|was|were|do|does|did|has|have|had|can|will|should)\b", re.IGNORECASE)
_OWN: Final = re.compile(r"\b(?:i|my|we|our|us|me)\b", re.IGNORECASE)


def read(question: str) -> Question:
    """Return what a question asks for.

    >>> sorted(read("Where does Ana live?").names), sorted(read("Where does Ana live?").kinds)
    (['ana'], ['name', 'place'])
    """
    tokens = words_in(question)
    names = {
        bare(each) for at, each in enumerate(tokens) if at and not each.islower() and not each.isdigit() and each != "I"
    }
    tokens += [part for each in tokens if "-" in each and each.islower() for part in each.split("-")]
    stems = {stem(each) for each in tokens if bare(each) not in names}
    words = frozenset(stems - SMALL)
    kinds = frozenset(kind for kind, pattern in _ASK if pattern.search(question))
    if kinds & {"time", "date", "money", "number"}:
        kinds -= {"name"}
    families = frozenset(family for each in stems for family in families_of(each))
    kin = frozenset(stem(each) for each in tokens if is_kin(each))
    ordered = [stem(each) for each in tokens]
    heads = frozenset(
        word for before, word in pairwise(ordered) if word in words and (before in words or before in names)
    )
    return Question(
        words,
        frozenset(names),
        kinds,
        families,
        kin,
        heads,
        classes_asked(stems),
        bool(_YES.match(question)),
        bool(_OWN.search(question)),
    )


def is_named(word: str, question: Question) -> bool:
    """Whether a question names somebody so called."""
    return bare(word) in question.names


@lru_cache(maxsize=65536)
def bare(word: str) -> str:
    """A word without case, marks and the ending of a possessive."""
    return re.sub(r"(?:'s|\u2019s|'|\u2019)$", "", folded(word))
