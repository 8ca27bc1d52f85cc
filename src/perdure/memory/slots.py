"""The slot that a statement fills: what it is about, without what it says of it.

"3. The capital of Japan is Tokyo" fills ``the capital of japan is`` with ``tokyo``. The cut lies before the last name
or value of the statement; a name is a run of capitalised words and the small words between them, a value the words
after the last function word. "I" and "my" are the speaker. Numbered statements are a series, in which what is said of
a slot later replaces what was said before; elsewhere only slots that can hold one value at a time work so.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from perdure.memory.cues import is_asked, is_musing, is_past, is_retraction, is_update
from perdure.memory.wordlists import word_set

__all__ = ["Slot", "folded", "keys_named", "slots_of", "stem", "words_in"]


@dataclass(frozen=True, slots=True)
class Slot:
    """A slot and what a statement puts there.

    ``single`` says that it holds one value at a time; ``how`` is ``says``, ``was`` (it was so before), ``not`` (it is
    so no longer).
    """

    key: str
    value: str
    single: bool
    how: str = "says"


_TOKEN: Final = re.compile(r"[^\W_]+(?:[.'\u2019_-](?=[^\W_])[^\W_]+)*|[&=]")
_SERIAL: Final = re.compile(r"\s*(?:[-*]\s+)?(?:fact\s*|no\.?\s*)?[#\[(]?\d{1,9}[\])]?[.):]?\s+", re.IGNORECASE)
_LABEL: Final = re.compile(
    r"\s*(?:[-*]\s+)?[\"'`]?(\w[\w .\-/]{0,58}\w|\w)[\"'`]?\s*(=|:)\s+(?=\S)|\s*(\w[\w.\-/]{0,58})=(?=[^\s=])"
)
_CLAUSE: Final = re.compile(r"[;\u2014]|,\s(?!\d)|\.\.\.|\s-\s(?=[a-z])")
_FUNCTION: Final = word_set(
    "is are was were be been of in at to by for from with as on the a an named called into under near that has"
    " have had than about"
)
_WITHIN_NAMES: Final = word_set(
    "of the and de la le du des del della di da dos das von van der den for & to on at in a an y e und et al"
    " el ii s no with upon from"
)
_ADVERBS: Final = word_set("now currently actually still also just already again really presently today both")
_AS_THIRD: Final = {"am": "is", "are": "is", "was": "is", "were": "is", "have": "has", "had": "has", "m": "is"}
_MANY: Final = word_set(
    "speak like love enjoy hate have has own owns know visit visited read watch play allergic member friend"
    " child brother sister language hobby pet medication client tool need want eat bought see met collect"
    " support follow use uses include includes contain contains climbed been"
)
_ONE: Final = word_set(
    "live lives reside resides work works employed married engaged born located based headquartered named"
    " called costs cost weighs opens closes starts begins ends due scheduled owned led chaired run managed"
)


def folded(word: str) -> str:
    """Return a word without case and marks.

    >>> folded("Zürich")
    'zurich'
    """
    if word.isascii():
        return word.lower()
    parts = unicodedata.normalize("NFKD", word.casefold())
    return "".join(each for each in parts if not unicodedata.combining(each))


@lru_cache(maxsize=65536)
@functools.lru_cache(1 << 16)
def stem(word: str) -> str:
    """Return the part of an English word that its forms share, roughly.

    >>> [stem(each) for each in ("lives", "living", "lived", "cities", "city", "bus")]
    ['liv', 'liv', 'liv', 'citi', 'citi', 'bus']
    """
    word = folded(word)
    if len(word) > 4 and word.endswith(("'s", "\u2019s")):
        word = word[:-2]
    if len(word) < 4 or not word.isalpha():
        return word
    for ending in ("ingly", "ings", "ing", "edly", "ies", "ed", "es", "s", "ly"):
        if word.endswith(ending) and len(word) - len(ending) >= 3 and not word.endswith("ss"):
            word = word[: -len(ending)] + ("i" if ending == "ies" else "")
            break
    if word.endswith("e") and len(word) > 3:
        word = word[:-1]
    if word.endswith("y") and len(word) > 3:
        word = word[:-1] + "i"
    if len(word) > 4 and word[-1] == word[-2] and word[-1] not in "ls":
        word = word[:-1]
    return word


def words_in(text: str) -> list[str]:
    """The words of a text, as they stand."""
    return _TOKEN.findall(text)


def slots_of(text: str, *, speaker: str = "", source: str = "") -> list[Slot]:
    """Return the slots that a statement fills, usually one or none.

    >>> slots_of("3. The capital of Japan is Tokyo.")
    [Slot(key='the capital of japan is', value='tokyo', single=True, how='says')]
    >>> slots_of("I live in Lisbon now", speaker="Ana") == slots_of("Ana lives in Lisbon")
    True
    """
    if len(text) > 400:
        return []
    serial = _SERIAL.match(text)
    body = text[serial.end() :] if serial else text
    label = None if serial else _LABEL.match(text)
    if label is not None:
        found = _labelled(label, text, source)
        return [found] if found else []
    if not serial and (is_asked(body) or is_musing(body)):
        return []
    how = "says"
    if not serial:
        how = "was" if is_past(body) else "not" if is_retraction(body) else "says"
        body = _CLAUSE.split(body, maxsplit=1)[0]
    if how == "was":
        body = re.sub(r"\bused to\b", "", body, flags=re.IGNORECASE)
    if how == "not":
        body = re.sub(
            r"\b(?:no longer|any ?more|does ?n['\u2019o]t|do ?n['\u2019o]t|not)\b", "", body, flags=re.IGNORECASE
        )
    words = words_in(body)
    inner = _inner(words) if serial else None
    if inner is not None:
        words = [*words[: inner[0]], *words[inner[1] :], *words[slice(*inner)]]
    split = len(words) - (inner[1] - inner[0]) if inner else _split(words, bool(serial))
    if split is None:
        return []
    left = _subject(words[:split], speaker, serial=bool(serial))
    if left is None:
        return []
    value = " ".join(folded(each) for each in words[split:] if folded(each) not in _ADVERBS)
    if not value:
        return []
    key = " ".join(left)[:240]
    return [Slot(key, value, bool(serial) or _single(left) or is_update(body), how)]


def keys_named(text: str, *, speaker: str = "", source: str = "") -> list[str]:
    """Return the slots that a few words may name: the statement without its value, or a label.

    >>> keys_named("Ana lives in")
    ['ana liv in', '|ana lives in']
    """
    words = words_in(text[:400])
    left = _subject(words, speaker, serial=True) if words else None
    return [*([" ".join(left)[:240]] if left else []), f"{source}|{' '.join(folded(each) for each in words)}"[:240]]


def _labelled(label: re.Match[str], text: str, source: str) -> Slot | None:
    name = (label[1] or label[3] or "").strip()
    value = text[label.end() :].strip().rstrip(".")
    mark = label[2] or "="
    if mark == ":" and (len(value.split()) > 6 or len(name.split()) > 4 or is_asked(value)):
        return None
    key = " ".join(folded(each) for each in words_in(name))
    return (
        Slot(f"{source}|{key}"[:240], " ".join(folded(each) for each in value.split())[:200], single=True)
        if key
        else None
    )


def _split(words: list[str], serial: bool) -> int | None:
    """Where the last name or value of a statement begins, or None where there is no subject and relation before it."""
    count = len(words)
    if count < 3 or count > (60 if serial else 22):
        return None
    at = count - 1
    while at > 0 and folded(words[at]) in _ADVERBS:
        at -= 1
    last = at
    if _name_like(words[at]):
        while at > 0:
            if _name_like(words[at - 1]) or (
                words[at - 1].lower() in _WITHIN_NAMES and at > 1 and _joined(words, at - 1)
            ):
                at -= 1
            else:
                break
        while at < last and words[at].lower() in _WITHIN_NAMES and words[at].islower():
            at += 1
        back = at
        while back > 1 and words[back - 1].islower() and words[back - 1].lower() not in _FUNCTION:
            back -= 1
        if at - back <= 3 and back > 1 and words[back - 1].lower() in _FUNCTION and back < at:
            at = back
    else:
        while at > 0 and words[at].lower() not in _FUNCTION:
            at -= 1
        at += 1
        if serial and "as" in words[2:at]:
            at = words.index("as", 2) + 1
        if last - at > 7 or at == 1:
            at = last
    while at < last and words[at].lower() in ("the", "a", "an") and words[at].islower():
        at += 1
    if at < 2 or at > last:
        return None
    return at


def _inner(words: list[str]) -> tuple[int, int] | None:
    """Where the value of "Ana takes the Red line to work" stands: the only name after the subject, and not last."""
    at = 0
    while at < len(words) and _name_like(words[at]):
        at += 1
    start = at
    while start < len(words) and not _name_like(words[start]):
        start += 1
    stop = start
    while stop < len(words) and (_name_like(words[stop]) or (stop > start and words[stop] == "&")):
        stop += 1
    if not 0 < at < start < stop < len(words) or words[0] == "The" or any(map(_name_like, words[stop:])):
        return None
    return start, stop


def _joined(words: list[str], at: int) -> bool:
    """Whether the small word there stands between two parts of one name."""
    while at > 0 and words[at].islower() and words[at] in _WITHIN_NAMES:
        at -= 1
    return at > 1 and _name_like(words[at]) and not all(not each.islower() for each in words[:at])


def _name_like(word: str) -> bool:
    return (not word.islower() and (word[:1].isupper() or word[:1].isdigit() or not word.isascii())) or word in ("&",)


def _subject(left: list[str], speaker: str, *, serial: bool) -> list[str] | None:
    """The words before the value, with the speaker for "I" and "my", or None where they have no subject."""
    found: list[str] = []
    me = [stem(each) for each in words_in(speaker)]
    first = folded(left[0])
    own = first in ("i", "my", "i'm", "i\u2019m", "i've", "im", "we", "our")
    if not serial and not own and not left[0][:1].isupper() and left[0].isascii():
        return None
    if own and not me:
        me = ["speaker"]
    for at, word in enumerate(left):
        if at and word[:1].isupper() and len(word) > 1:
            owner = folded(word).endswith(("'s", "\u2019s"))
            found += [stem(word[:-2]), "s"] if owner else [stem(word)]
            continue
        lower = folded(word)
        if lower in ("i", "we"):
            found += me
        elif lower in ("i'm", "i\u2019m", "im", "we're"):
            found += [*me, "is"]
        elif lower in ("i've", "we've"):
            found += [*me, "has"]
        elif lower in ("my", "our"):
            found += [*me, "s"]
        elif lower.endswith(("'s", "\u2019s")):
            found += [stem(lower[:-2]), "s"]
        elif lower not in _ADVERBS:
            found.append(_AS_THIRD.get(lower) or stem(lower))
    while found and found[-1] in ("the", "a", "an"):
        found.pop()
    return found if len(found) >= 2 and any(each not in _FUNCTION for each in found) else None


_MANY_STEMS: Final = frozenset(stem(each) for each in _MANY)
_ONE_STEMS: Final = frozenset(stem(each) for each in _ONE)


def _single(left: list[str]) -> bool:
    """Whether a slot can hold one value at a time only, as far as its words tell."""
    if any(each in _MANY_STEMS for each in left[1:]):
        return False
    if any(each in _ONE_STEMS for each in left[1:]):
        return True
    return left[-1] == "is" and (left[0] == "the" or "s" in left[1:-1])
