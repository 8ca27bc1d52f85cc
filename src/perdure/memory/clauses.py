"""What one statement says by its words: of whom, which values, what it denies, whether it asks or muses."""

from __future__ import annotations

import itertools
import re
from typing import Final

from perdure.memory.classes import words_of
from perdure.memory.corrections import kinds_in
from perdure.memory.cues import is_asked, is_musing
from perdure.memory.families import families_of, is_kin
from perdure.memory.questions import SMALL, Question, bare
from perdure.memory.slots import folded, stem, words_in
from perdure.memory.wordlists import word_set

__all__ = [
    "CALENDAR",
    "PLACE",
    "SELF",
    "asked_share",
    "clashes",
    "denied_in",
    "forms_in",
    "gives_kind",
    "has_word",
    "is_name_like",
    "is_of_named_other",
    "is_of_others",
    "mused_share",
    "relatedness",
    "values_in",
    "without_question",
]

PLACE: Final = re.compile(
    r"\b(?:in|at|to|from|near|under|behind|on|inside|over|into) (?:the |a |my |our )?[\w\u00c0-\u024f]", re.IGNORECASE
)
SELF: Final = re.compile(r"\b(?:i|i'm|i've|i'll|i'd|im|my|me|we|we're|we've|our|us)\b", re.IGNORECASE)
_OTHERS: Final = re.compile(
    r"(?:(?:so|and|but|well|ok|anyway|took|for|also|btw|oh|now|yes|no|then|at|even|with)[,:]? )*(?:my|his|her"
    r"|their|our|your|the)(?: [\w'\u2019]+){1,2}|(?:wife|husband|mum|mom|dad|sister|brother)\b",
    re.IGNORECASE,
)
_CLAUSES: Final = re.compile(r"[,;:.!\u2014] |\b(?:because|cause|since) ")
_PARTS: Final = re.compile(r"[,;:.!\u2014(]\s*|\b(?:and|but|while) ")
_THEIRS: Final = re.compile(r"\b(?:her|his|their|your) (\w+)", re.IGNORECASE)
_PLAINLY: Final = re.compile(
    r"\b(?:might|maybe|perhaps|would love|dream|thinking (?:of|about)|consider(?:ing)?|one day|some ?day"
    r"|at some point|tempted|wish)\b",
    re.IGNORECASE,
)
CALENDAR: Final = word_set(
    "monday tuesday wednesday thursday friday saturday sunday january february march april may june july"
    " august september october november december i ok christmas easter"
)
_DENIED: Final = re.compile(
    r"\b(?:not|isn't|wasn't|aren't|never|instead of|rather than|no longer) (?:(?:the|a|an|at|in|on|for|to|with|my|by)"
    r" )?(\S+(?: [A-Z\d]\S*)?)",
    re.IGNORECASE,
)
_FIGURE: Final = re.compile(r"[\w./:@\u20ac$\u00a3%-]*\d[\w./:%-]*")
_BEGINS: Final = re.compile(r"([A-Z][\w'\u2019-]{2,}) (?:is|was|has|does|did|will|got|took|[a-z]+s)\b")
_DOES: Final = re.compile(
    r"(?:(?:and|so|but|then|now|also|heads up|btw|anyway)[,:]? )*([A-Z][\w\u2019-]{2,})(?:'s)? (?:is|was|has|does|did"
    r"|gets|takes|got|took|said|had|went|just|moved|wants|needs|will|[a-z]+s|[a-z]+ed)\b"
)


def without_question(text: str) -> str:
    """A text without the clause at its end that asks something."""
    return _CLAUSES.split(text)[0] if is_asked(text) else text


def values_in(question: Question, text: str, known: set[str]) -> set[str]:
    """The values in a text of the kinds and classes that are asked for."""
    got = kinds_in(text)
    found = {
        bare(value) for kind in question.kinds for value in got.get("name" if kind == "place" else kind, set())
    } | words_of(question.classes, {stem(word) for word in words_in(text)})
    begins = _BEGINS.match(text)
    if begins and "name" in question.kinds and is_name_like(begins[1]):
        found.add(bare(begins[1]))
    return found - known - question.names - question.words


def is_name_like(word: str) -> bool:
    """Whether a word at the beginning of a statement, with a capital, is likely a name."""
    return stem(word) not in SMALL and not families_of(word) and not is_kin(word) and folded(word) not in CALENDAR


def is_of_named_other(text: str, question: Question, known: frozenset[str], called: set[str]) -> bool:
    """Whether a clause begins with the name of somebody who does what it tells, and is not asked about."""
    for clause in _PARTS.split(text[:600]):
        found = _DOES.match(clause)
        new = found is not None and bare(found[1]) in called - known - question.names
        if found and new and not has_word(stem(found[1]), set(question.words)):
            return not SELF.search(clause)
    return False


def denied_in(text: str) -> set[str]:
    """The words that a statement says are not so: "8, not 6"."""
    return {folded(each) for found in _DENIED.findall(text[:1000]) for each in words_in(found)} - SMALL


def forms_in(text: str) -> dict[str, set[str]]:
    """The figures of a text by their form: "heron-9083" and "moose-4471" are alike."""
    found: dict[str, set[str]] = {}
    for each in _FIGURE.findall(text[:1000]):
        form = re.sub(r"[a-z]+", "a", re.sub(r"\d+", "9", each.lower()))
        found.setdefault(form, set()).add(each.lower())
    return found


def has_word(word: str, stems: set[str]) -> bool:
    """Whether a word, or one that begins or ends alike, is among ``stems``."""
    return word in stems or (len(word) > 4 and any(each[:5] == word[:5] or each.endswith(word) for each in stems))


def relatedness(word: str, stems: set[str], families: set[str]) -> float:
    """1 for a word that is there, less for one of its family."""
    return 1.0 if has_word(word, stems) else 0.7 if families_of(word) & families else 0.0


def gives_kind(question: Question, got: dict[str, set[str]], text: str, known: frozenset[str]) -> bool:
    """Whether a statement has a value of the kind that is asked for, and not only one that the question names."""
    for kind in question.kinds:
        some = got.get("name" if kind == "place" else kind, set())
        if kind == "place" and not PLACE.search(text):
            continue
        if any(bare(value) not in known for value in some):
            return True
    begins = _BEGINS.match(text)
    return bool(begins and "name" in question.kinds and is_name_like(begins[1]) and bare(begins[1]) not in known)


def is_of_others(text: str, question: Question) -> bool:
    """Whether a clause is about somebody of the speaker's whom the question does not ask about."""
    inner = _THEIRS.search(text[:600])
    entity = bool(question.names) and not question.own
    if inner and not entity and is_kin(inner[1]) and stem(inner[1]) not in question.kin and not SELF.search(text):
        return True
    for clause in _PARTS.split(text[:600]):
        found = _OTHERS.match(clause)
        if found and any(is_kin(word) and stem(word) not in question.kin for word in words_in(found[0])):
            return not SELF.search(without_question(text.replace(found[0], "")))
    return False


def clashes(text: str, question: Question) -> bool:
    """Whether a statement speaks of another one of what the question asks about: "the red door" for "the front"
    " door"."""
    words = [stem(each) for each in words_in(text)]
    return any(
        word in question.heads
        and before not in question.words
        and before not in SMALL
        and len(before) > 2
        and not families_of(before) & question.families
        for before, word in itertools.pairwise(words)
    )


def asked_share(text: str) -> float:
    """1 for a question, less where it only ends in one."""
    if not is_asked(text):
        return 0.0
    return 0.3 if len(_CLAUSES.split(text)[0].split()) >= 4 and len(_CLAUSES.split(text)) > 1 else 1.0


def mused_share(text: str) -> float:
    """1 for a wish, a plan or a doubt, less where the words that tell so come after the first clause."""
    if not is_musing(text):
        return 0.0
    parts = _CLAUSES.split(text)
    first = parts[0]
    telling = [each for each in parts if kinds_in(each)]
    if len(parts) > 1 and telling and not any(is_musing(each) for each in telling):
        return 0.3
    return 1.0 if _PLAINLY.search(text) or is_musing(first) or len(first.split()) < 4 else 0.4
