"""What a fact is about, guessed from its letters alone: a subject to file it under, and the terms that tell it apart.

The subject is whom the first name in the statement names; who speaks, where it says *I* or *my*; what the statement
before it was about, where it begins with a pronoun. A capital makes a name unless the same word is also met without
one; at the head of a sentence it takes more: a verb after it, another name, or the same word within a sentence.
Nothing here decides what is true: a bad guess costs a person a look into another document.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from perdure.memory.plan import sane_title
from perdure.memory.records import Fact

__all__ = ["bytes_of", "subjects", "surface", "terms_of"]

_WORD: Final = re.compile(r"[^\W\d_]+(?:['\u2019-][^\W\d_]+)*|\d+")
_I: Final = "i im ive id ill my mine me we our ours us"
_FIRST: Final = frozenset(_I.split())
_THEY: Final = "he she it they his her hers its their theirs him them this that these those"
_PRONOUN: Final = frozenset(_THEY.split())
_OFTEN: Final = """a about above after again all also am an and any are aren as at be because been before being
below between both but by can could couldn did didn do does doesn doing don down during each
few for from further had hadn has hasn have haven having he her here hers him his how i if in
into is isn it its just let like ll me more most my no nor not now of off on once only or other
our ours out over own re really s same she should so some such t than that the their theirs
them then there these they this those through to too under until up us ve very was wasn we were
weren what when where which while who whom why will with won would wouldn yes you your yours
today yesterday tomorrow tonight monday tuesday wednesday thursday friday saturday sunday
january february march april may june july august september october november december ok okay
hi hello hey thanks thank please well oh wow maybe sure got get went go going said says say one
two time day week month year last next new good great lot think know want need make made user
assistant"""
_COMMON: Final = frozenset(_OFTEN.split())
_BARE: Final = re.compile(r"['\u2019](?:s|ve|re|ll|d|m|t)$")
_VERB: Final = re.compile(r"is|was|are|were|will|can|[a-z]{2,}(?:s|ed)|went|has|had|did|got|said|made|took|came|told")
_LONGEST_TERM: Final = 40
_MANY: Final = 24


def bytes_of(text: str) -> int:
    """How much a fact weighs: its bytes, of which four are about a token."""
    return len(text.encode("utf-8", "surrogatepass"))


def terms_of(text: str) -> list[str]:
    """The words of a text that tell it apart, folded, each once, in order, the first of many."""
    found: dict[str, None] = {}
    for each in _WORD.findall(text[:2000]):
        word = _stem(each)
        if (2 < len(word) <= _LONGEST_TERM and word not in _COMMON) or (len(word) <= 2 and not word.isascii()):
            found[word] = None
            if len(found) == _MANY:
                break
    return list(found)


def subjects(facts: Sequence[Fact], before: Iterable[Fact] = ()) -> dict[int, str]:
    """Return the subject of each fact; the empty string where there is none to see.

    ``before`` are the facts that stand just before them, of the same evidence.
    """
    lower = {each for fact in facts for each in _WORD.findall(fact.text[:2000]) if each[:1].islower()}
    named = {
        each
        for fact in facts
        for each in (*_WORD.findall(fact.text[:2000])[1:], sane_title(fact.speaker))
        if each[:1].isupper() and each.casefold() not in _COMMON
    }
    last: tuple[int, int, str] = (0, 0, "")
    found: dict[int, str] = {}
    for fact in (*before, *facts):
        told = last[2] if last[0] == fact.evidence else ""
        found[fact.id] = _subject(fact, lower, named, told, told if last[1] == fact.passage else "")
        last = (fact.evidence, fact.passage, found[fact.id] or told)
    return found


def _subject(fact: Fact, lower: set[str], named: set[str], told: str, before: str) -> str:
    """``told`` is what the evidence spoke of before, ``before`` what the same paragraph did."""
    words = _WORD.findall(fact.text[:400])
    speaker = sane_title(fact.speaker)
    head = [each.replace("'", "").replace("\u2019", "").casefold() for each in words[:3]]
    if any(each in _FIRST for each in head):
        return speaker or before
    if head and head[0] in _PRONOUN and told:
        return told
    return _name(words, fact.text, lower, named) or before or speaker


def _name(words: list[str], text: str, lower: set[str], named: set[str]) -> str:
    run: list[str] = []
    at = 0
    for number, word in enumerate(words):
        place = text.find(word, at)
        joined = bool(run) and text[at:place] in (" ", ". ") and (text[at:place] == " " or len(run[-1]) == 1)
        at = place + len(word)
        bare = _BARE.sub("", word)
        is_name = bare[:1].isupper() and bare.casefold() not in _COMMON and bare.lower() not in lower
        if is_name and number == 0 and bare not in named:  # every sentence begins with a capital
            after = words[1] if len(words) > 1 else ""
            close = text[at : at + 1] == " " or bare != word
            is_name = close and (bare != word or after[:1].isupper() or bool(_VERB.fullmatch(after)))
        if run and not (is_name and joined):
            break
        if is_name:
            run.append(bare)
            if bare != word:
                break
    return sane_title(" ".join(run[:4]))


def _stem(word: str) -> str:
    word = re.sub(r"['\u2019]\w*$", "", word).casefold()
    if word.isascii() and len(word) > 4:
        for ending in ("ing", "ies", "es", "ed", "s"):
            if word.endswith(ending) and len(word) - len(ending) >= 3 and not word.endswith("ss"):
                return word[: -len(ending)] + ("y" if ending == "ies" else "")
    return word


def surface(term: str, text: str) -> str:
    """Return how a text writes a term."""
    return next((each for each in _WORD.findall(text[:2000]) if _stem(each) == term), term)
