"""What a correction corrects: the nearest earlier statement that holds a value of the same kind as the one it gives."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from perdure.memory.cues import is_asked, is_correction, is_musing, is_update
from perdure.memory.slots import stem, words_in
from perdure.memory.wordlists import word_set

__all__ = ["Said", "corrected", "kinds_in", "may_correct", "may_replace", "replaced"]


@dataclass(frozen=True, slots=True)
class Said:
    """A statement of a conversation."""

    fact: int
    text: str
    observed_s: float
    authority: int


_DAY: Final = r"(?:mon|tues?|wednes|wed|thurs?|thu|fri|satur|sat|sun)(?:day)?s?"
_MONTH: Final = (
    r"(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?"
    r"|nov(?:ember)?|dec(?:ember)?)"
)
_NUMBER: Final = (
    r"(?:\d[\d,.]*|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|thirteen|fourteen|fifteen|sixteen"
    r"|seventeen"
    r"|eighteen|nineteen|twenty|thirty|forty|fifty|sixty|hundred)"
)
_KINDS: Final = (
    ("address", re.compile(r"https?://\S+|www\.\S+|[\w.+-]+@[\w-]+\.\w+|/\w[\w/.-]{2,}", re.IGNORECASE)),
    (
        "time",
        re.compile(
            r"\b\d{1,2}(?:[:.]\d\d)?\s?(?:am|pm|a\.m|p\.m|o'clock)\b|\b\d{1,2}:\d\d\b|\b(?:half|quarter) (?:past|to)\b"
            r"|\bnoon\b|\bmidnight\b|\bat (?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|\d{1,2})\b",
            re.IGNORECASE,
        ),
    ),
    (
        "date",
        re.compile(
            rf"\b{_DAY}\b|\b(?:the )?\d{{1,2}}(?:st|nd|rd|th)\b|\b\d{{1,2}} {_MONTH}\b|\b{_MONTH} \d"
            r"|\b\d{4}-\d\d-\d\d\b|\b(?:19|20)\d\d\b|\b(?:tomorrow|tonight|today)\b",
            re.IGNORECASE,
        ),
    ),
    (
        "money",
        re.compile(
            rf"[$\u20ac\u00a3\u00a5]\s?\d|\b{_NUMBER}\s?(?:dollars?|euros?|pounds?|bucks|quid|francs?|kr|usd|eur|gbp|k)\b",
            re.IGNORECASE,
        ),
    ),
    ("number", re.compile(rf"\b{_NUMBER}\b", re.IGNORECASE)),
    (
        "name",
        re.compile(
            r"(?<=[a-z,;:] )[A-Z][\w'\u2019-]+|\b[A-Z][\w'\u2019-]+(?= [A-Z])|[a-z][\w-]*\d[\w.-]*|\w+/\w[\w.]*"
        ),
    ),
)


_OLD: Final = re.compile(
    r"\b(?:not|instead of|rather than|no longer|replac(?:es|ed|ing)|from|was) (?:(?:the|a|an|at|in|on|for|to|with"
    r"|my|by) )?(\S+)"
    r"|(\S+) (?:is|are|was) (?:wrong|gone|out|history|dead|retired|frozen|no more)\b",
    re.IGNORECASE,
)
_SOON_S: Final = 30 * 86400.0
"""A name or a number is set right soon, or it is news."""
_SMALL: Final = frozenset(
    stem(each)
    for each in word_set(
        "the and for with was are has have had that this from not now her his she him they them you your our out off"
        " but all one two its it's i'm i've just got get still been will can been new old day week month year today"
        " time put last next who what when where how"
    )
)
_WEIGHTS: Final = {"address": 3.0, "time": 3.0, "date": 2.5, "money": 2.5, "number": 1.5, "name": 1.0}
"""How much it tells that two statements have different values of a kind."""


@lru_cache(maxsize=8192)
def kinds_in(text: str) -> dict[str, set[str]]:
    """Return the values in a text by kind: address, time, date, money, number, name.

    >>> sorted(kinds_in("see you friday at 5 pm").items())
    [('date', {'friday'}), ('number', {'5'}), ('time', {'at 5'})]
    """
    found: dict[str, set[str]] = {}
    for kind, pattern in _KINDS:
        values = {each if kind == "name" else each.lower() for each in pattern.findall(text[:1000])}
        if values:
            found[kind] = values
    return found


def may_correct(text: str) -> bool:
    """Whether a statement sets something right, by its words."""
    return is_correction(text) and not is_asked(text) and not is_musing(text)


def corrected(said: Said, earlier: Sequence[Said]) -> tuple[int, str] | None:
    """Return what of ``earlier`` (the newest first) a statement that `may_correct` sets right, and why, or None."""
    given = kinds_in(said.text)
    words = {stem(each) for each in words_in(said.text)}
    scored: list[tuple[float, bool, Said]] = []
    for back, each in enumerate(earlier):
        if each.authority > said.authority or is_asked(each.text):
            continue
        told = kinds_in(each.text)
        kinds = [kind for kind in _WEIGHTS if kind in given and kind in told and told[kind] != given[kind]]
        if kinds:
            shared = len({stem(word) for word in words_in(each.text) if len(word) > 3} & words)
            score = max(_WEIGHTS[kind] for kind in kinds) + 0.7 * shared - 0.15 * back
            scored.append((score, any(kind not in ("number", "name") for kind in kinds), each))
    if not scored:
        return None
    scored.sort(key=lambda each: -each[0])
    score, plain, best = scored[0]
    if not plain and (score < 2.0 or said.observed_s - best.observed_s > _SOON_S):
        return None
    unclear = not plain and len(scored) > 1 and scored[1][0] > score - 0.6
    return None if score < 1.5 or unclear else (best.fact, "it sets right what was said before")


def may_replace(text: str) -> bool:
    """Whether a statement tells, by its words, that something is otherwise than before."""
    return (is_update(text) or is_correction(text)) and not is_asked(text) and not is_musing(text)


def replaced(said: Said, earlier: Sequence[Said]) -> tuple[int, str] | None:
    """Return what of ``earlier`` (the newest first) a statement that `may_replace` plainly replaces, and why, or None.

    Plainly: it has another value of the same form, and either says that the old one is not so any more, or shares two
    words that nothing else said before has.
    """
    mine = _content(said.text)
    forms = _forms(said.text)
    others = [(each, _content(each.text)) for each in earlier if not is_asked(each.text)]
    count = Counter(word for _, words in others for word in words)
    old_ones = {each for found in _OLD.findall(said.text[:1000]) for each in _content(" ".join(found))}
    found: list[tuple[int, str]] = []
    for each, words in others:
        if each.authority > said.authority or is_musing(each.text):
            continue
        theirs = _forms(each.text)
        differ = [form for form, some in forms.items() if form in theirs and not some & theirs[form]]
        other = bool(differ)
        plain = any(form not in ("name", "number word") and len(form) > 2 for form in differ)
        left = {word for word in old_ones & words if word in _valued(each.text)}
        shared = {word for word in mine & words if count[word] == 1}
        if left and (other or len(shared - left) >= 1):
            found.append((each.fact, f"it says that {sorted(left)[0]} is so no longer"))
        elif other and (shared if plain else len(shared) >= 2 and said.observed_s - each.observed_s <= _SOON_S):
            found.append((each.fact, f"it tells anew of {' and '.join(sorted(shared)[:2])}"))
    return found[0] if len(found) == 1 else None


def _content(text: str) -> set[str]:
    return {stem(each) for each in words_in(text[:1000]) if len(each) > 2} - _SMALL


def _valued(text: str) -> set[str]:
    """The words of the values in a text."""
    return {stem(word) for some in kinds_in(text).values() for value in some for word in words_in(value)}


def _forms(text: str) -> dict[str, set[str]]:
    """The values in a text by kind; figures by their form, so that 8080 stands against 8443 and not against 3."""
    found: dict[str, set[str]] = {}
    for kind, values in kinds_in(text).items():
        for value in values:
            form = kind if kind != "number" else re.sub(r"\d", "9", value) if value[0].isdigit() else "number word"
            found.setdefault(form, set()).add(value.lower())
    return found
