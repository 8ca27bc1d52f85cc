"""The slot that a statement fills: what it is about, without what it says of it.

"3. The capital of Japan is Tokyo" fills ``the capital of japan is`` with ``tokyo``. The cut lies before the last name
or value of the statement; a name is a run of capitalised words and the small words between them, a value the words
after the last function word. "I" and "my" are the speaker. Numbered statements are a series, in which what is said of
a slot later replaces what was said before; elsewhere only slots that can hold one value at a time work so, and
only between values of one general kind (`kinds`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from perdure.memory.cues import (
    called_off,
    given_up,
    is_asked,
    is_denial,
    is_musing,
    is_past,
    is_retraction,
    is_update,
    moved_to,
    plainly,
    put_off,
)
from perdure.memory.kinds import kinds_of, may_be_place
from perdure.memory.stems import folded, stem
from perdure.memory.wordlists import word_set

__all__ = ["Slot", "folded", "keys_named", "slots_of", "stem", "words_in"]


@dataclass(frozen=True, slots=True)
class Slot:
    """A slot and what a statement puts there.

    ``single`` says that it holds one value at a time; ``how`` is ``says``, ``was`` (it was so before), ``not`` (it is
    so no longer; without a value, no value of these kinds is). ``instead`` is the value that it says it replaces.
    ``loose`` slots, of a series or a label, hold values of any kind.
    """

    key: str
    value: str
    single: bool
    how: str = "says"
    kinds: frozenset[str] = field(default=frozenset(), repr=False)
    loose: bool = field(default=False, repr=False)
    instead: str = field(default="", repr=False)


_TOKEN: Final = re.compile(
    r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+|\w+://[^\s,;]*[\w/]|\b\d{1,2}:\d\d\b|[^\W_]+(?:[.'\u2019_-](?=[^\W_])[^\W_]+)*|[&=]"
)
_SERIAL: Final = re.compile(r"\s*(?:[-*]\s+)?(?:fact\s*|no\.?\s*)?[#\[(]?\d{1,9}[\])]?[.):]?\s+", re.IGNORECASE)
_LABEL: Final = re.compile(
    r"\s*(?:[-*]\s+)?[\"'`]?(\w[\w .\-/]{0,58}\w|\w)[\"'`]?\s*(=|:)\s+(?=\S)|\s*(\w[\w.\-/]{0,58})=(?=[^\s=])"
)
_CLAUSE: Final = re.compile(r"[;\u2014]|,\s(?!\d)|\.\.\.|\s-\s(?=[a-z])")
_FUNCTION: Final = word_set(
    "is are am was were be been of in at to by for from with as on the a an named called into under near that has"
    " have had than about"
)
_WITHIN_NAMES: Final = word_set(
    "of the and de la le du des del della di da dos das von van der den for & to on at in a an y e und et al"
    " el ii s no with upon from"
)
_ADVERBS: Final = word_set("now currently actually still also just already again really presently today both")
_AS_THIRD: Final = {"am": "is", "are": "is", "was": "is", "were": "is", "have": "has", "had": "has", "m": "is"}
_MANY: Final = word_set(
    "speak like love enjoy hate have has own owns know visit visited read watch watched play allergic member"
    " language hobby pet medication client tool need want eat ate drank bought see saw seen met collect"
    " support follow use uses include includes contain contains climbed been"
)
_KIN: Final = word_set(
    "friend child brother sister son daughter cat dog colleague coworker cousin uncle aunt nephew niece"
    " neighbour neighbor"
    " grandson granddaughter horse rabbit roommate flatmate student teammate"
)
_ROLES: Final = word_set(
    "number address email e-mail mail password passphrase pin code username boss manager job phone"
    " employer landlord title"
)
_WEEKLY: Final = word_set(
    "class lesson training practice course shift lecture seminar choir rehearsal bin market match"
)
_ONE: Final = word_set(
    "live lives reside resides work works employed married engaged born located based headquartered named"
    " called costs cost weighs opens closes starts begins ends due scheduled owned led chaired run managed"
)


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
    how, instead, update = "says", "", not serial and is_update(body)
    if not serial:
        body, instead = given_up(plainly(body))
        told = [] if is_past(body) else _news(body, speaker)
        if told:
            return told
        ends = is_retraction(body) or is_denial(body)
        how = "was" if is_past(body) else "not" if ends else "says"
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
    article = folded(words[split - 1])
    kinds = kinds_of(
        [each for each in words[split:] if folded(each) not in _ADVERBS],
        article="a" if article in ("a", "an") else article if article == "the" else "",
        key=left,
    )
    if update and "new" in left and _ROLE_STEMS & set(left):
        left.remove("new")
    key = " ".join(left)[:240]
    single = bool(serial) or _single(left, kinds, update)
    return [Slot(key, value, single, how, kinds, bool(serial), _value(instead))]


def _news(body: str, speaker: str) -> list[Slot]:
    """The slots of a statement that tells a change: somebody moved, a meeting is put off or called off."""
    moved = moved_to(body)
    if moved:
        words = words_in(moved[1])
        kinds = kinds_of(words)
        by = "in" if may_be_place(words) else "at" if "address" in kinds else ""
        left = _subject([*words_in(moved[0]), "lives", by], speaker, serial=False)
        if by and left and left[0] != "the":
            return [Slot(" ".join(left)[:240], _value(moved[1]), single=True, kinds=kinds)]
        return []
    subject = called_off(body)
    if subject:
        kinds, value, how = frozenset(["date", "clock"]), "", "not"
    else:
        off = put_off(body)
        if not off:
            return []
        subject, until = off
        kinds, value, how = kinds_of(words_in(until)), _value(until), "says"
        if not kinds & {"date", "clock"}:
            return []
    left = _subject([*words_in(subject), "is"], speaker, serial=False)
    if left is None:
        return []
    return [Slot(f"{' '.join(left)}{by}"[:240], value, True, how, kinds) for by in ("", " on", " at")]


def _value(text: str) -> str:
    """A value as slots compare it."""
    words = [each for each in map(folded, words_in(text)) if each not in _ADVERBS]
    while words and words[0] in _LEADING:
        words = words[1:]
    return " ".join(words)


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
        Slot(f"{source}|{key}"[:240], " ".join(folded(each) for each in value.split())[:200], single=True, loose=True)
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
_KIN_STEMS: Final = frozenset(stem(each) for each in _KIN)
_ROLE_STEMS: Final = frozenset(stem(each) for each in _ROLES)
_WEEKLY_STEMS: Final = frozenset(stem(each) for each in _WEEKLY)
_LEADING: Final = word_set("a an the in at on as to by with playing drinking eating using speaking")


def _single(left: list[str], kinds: frozenset[str], update: bool) -> bool:
    """Whether a slot can hold one value at a time only, as far as its words tell."""
    rest = set(left[1:])
    if rest & _MANY_STEMS:
        return False
    if update:
        return True
    if rest & _KIN_STEMS:
        return False
    if rest & _ONE_STEMS:
        return True
    owned = left[0] == "the" or "s" in left[1:-1]
    if left[-1] == "is":
        return owned or (len(left) <= 3 and bool(kinds & {"job", "diet", "number"}))
    timed = left[-2] == "is" and left[-1] in ("on", "at") and kinds & {"date", "clock"}
    return bool(owned and timed and not rest & _WEEKLY_STEMS)
