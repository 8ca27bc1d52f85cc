"""Cut what was told into statements, by position only: nothing is rewritten, and nothing is left out.

A *passage* is a paragraph of prose (or a piece of a very long one), a block of code, or one line of a list; a
*statement* is a sentence of it, or a line of code. Every character that is no white space lies in exactly one
statement. Time is linear in the length of the text, whatever it is.

A sentence ends at a mark of its script that is followed by white space (in scripts without spaces: at the mark). A full
stop ends none after an abbreviation, an initial, or the number of a list item or a day; no mark does within a short
quotation. Where it is unclear, the text is left in one piece: too long a statement is still true, half of one may
not be.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from typing import Final

from perdure.memory.wordlists import word_set

__all__ = ["Span", "statements"]

Span = tuple[int, int, int]
"""(start, stop, passage): characters of the text, and the place in the list of the first statement of its passage."""

_LONGEST: Final = 1000
_WRAPPED: Final = 45
_LINE: Final = re.compile(r"[^\n\r\u2028\u2029]+")
_MARK: Final = re.compile(
    r"[.!?\u2026\u061f\u06d4\u0964\u0965\u1362\u3002\uff01\uff1f\uff61]++[\"'\u201d\u2019\u00bb)\]\u300d\u300f\uff09]*+"
)
_TIGHT: Final = re.compile(r"[\u0964\u0965\u3002\uff01\uff1f\uff61]")
_QUOTED: Final = re.compile(
    r"\"[^\"\n]{1,300}\"|\u201c[^\u201d\n]{1,300}\u201d|\u00ab[^\u00bb\n]{1,300}\u00bb|\u300c[^\u300d\n]{1,300}\u300d"
)
_FENCE: Final = re.compile(r"\s{0,3}(```|~~~)")
_ITEM: Final = re.compile(r"\s*(?:[-*+\u2022\u25aa\u2013]\s|#{1,6}\s|>|\||\(?\d{1,9}[.)\]:]\s|\w{1,30}\s*[:=]\s)")
_NUMBER: Final = re.compile(r"(?:^|\s)\(?\d{1,9}\.$")
_WORD_BEFORE: Final = re.compile(r"([^\s(\[\"'\u201c\u2018]{1,24})$")
_ABBREVIATIONS: Final = word_set(
    "mr mrs ms mx dr prof sr jr st ste mt ft rev hon gen col lt sgt capt cmdr pres gov sen rep fr hr frl m mme"
    " mlle dott ing vs viz cf al approx ca c est no nr nos vol fig figs eq eqs sec secs ch pp p art par ed eds"
    " resp incl excl e.g i.e eg ie z.b d.h u.a bzw usw vgl ggf p.ex p.ej n.b a.k.a dept univ inc ltd corp bros"
    " co ave blvd rd sq jan feb mar apr jun jul aug sep sept oct nov dec mon tue tues wed thu thur thurs fri"
    " sat sun min max avg tel ext hrs mins secs str bldg apt rm ref attn esp orig misc etc"
)
_MAY_END: Final = word_set("inc ltd corp co etc jr sr st ave rd blvd min max sat sun mar no fig art par ed m c p")
_STARTERS: Final = word_set(
    "the a an he she it we they i you this that these those there here in on at from his her its our their my"
    " then but and so when while after before however also yes no for as if what who how why where please"
)
_VERBS: Final = frozenset(["is", "was", "are", "were", "has", "had", "will"])
_MONTHS: Final = tuple(
    word_set(
        "jan feb mar apr may jun jul aug sep oct nov dec mai mär okt dez ene abr ago dic fév avr juin jui aoû déc"
        " gen mag giu lug set ott maj"
    )
)


def statements(text: str) -> list[Span]:
    """Return the statements of a text, in order.

    >>> text = "Dr. Anna lives in St. Ives. She has a cat.\\n- buy milk"
    >>> [(text[start:stop], passage) for start, stop, passage in statements(text)]
    [('Dr. Anna lives in St. Ives.', 0), ('She has a cat.', 0), ('- buy milk', 2)]
    """
    found: list[Span] = []
    for start, stop, code in _blocks(text):
        first = len(found)
        ends = _lines(text, start, stop) if code else _ends(text, start, stop)
        began = start
        for end in ends:
            for left, right in _pieces(text, began, end):
                if len(found) > first and not code and not _has_word(text, left, right):
                    found[-1] = (found[-1][0], right, found[-1][2])
                    continue
                if first < len(found) and left - found[first][0] > _LONGEST:
                    first = len(found)
                found.append((left, right, first))
            began = end
    return found


def _blocks(text: str) -> Iterator[tuple[int, int, bool]]:
    """Paragraphs: (start, stop, whether it is code). Lines that were wrapped are put together."""
    start = stop = -1
    fence: str | None = None
    for line in _LINE.finditer(text):
        opened = _FENCE.match(text, line.start(), line.end())
        if fence is not None:
            stop = line.end()
            if opened and opened[1] == fence and not text[opened.end() : line.end()].strip():
                yield start, stop, True
                fence, start = None, -1
            continue
        if opened:
            if start >= 0:
                yield start, stop, False
            start, stop, fence = line.start(), line.end(), opened[1]
            continue
        if start >= 0 and _goes_on(text, start, stop, line):
            stop = line.end()
            continue
        if start >= 0:
            yield start, stop, False
        start, stop = line.start(), line.end()
    if start >= 0:
        yield start, stop, fence is not None


def _goes_on(text: str, start: int, stop: int, line: re.Match[str]) -> bool:
    gap = text[stop : min(line.start(), stop + 3)]
    last = max(text.rfind("\n", start, stop), text.rfind("\r", start, stop), start)
    if gap not in ("\n", "\r\n") or not _WRAPPED <= stop - last <= 200:
        return False
    head = text[line.start() : line.start() + 64].lstrip()
    return head[:1].islower() and text[stop - 1] not in ".!?:;|" and not _ITEM.match(head)


def _lines(text: str, start: int, stop: int) -> Iterator[int]:
    for line in _LINE.finditer(text, start, stop):
        yield line.end()


def _ends(text: str, start: int, stop: int) -> Iterator[int]:
    quotes = _QUOTED.finditer(text, start, stop)
    quote = next(quotes, None)
    began = start
    for mark in _MARK.finditer(text, start, stop):
        end = mark.end()
        while quote is not None and quote.end() < end:
            quote = next(quotes, None)
        if quote is not None and quote.start() < mark.start() and end < quote.end():
            continue
        after = text[end : end + 24]
        if not (after[:1].isspace() or not after or _TIGHT.match(mark[0])):
            continue
        word = after.split(None, 1)[0] if after.strip() else ""
        if mark[0][-1] in "\"'\u201d\u00bb" and word[:1].islower():
            continue
        if mark[0] in ("...", "\u2026") and word[:1].islower():
            continue
        if mark[0] in "!?" and word in _VERBS:
            continue
        if mark[0] == "." and not _stops(text, max(began, end - 40), mark.start(), word, at_start=end - began < 14):
            continue
        began = end
        yield end
    yield stop


def _stops(text: str, began: int, dot: int, after: str, *, at_start: bool) -> bool:
    """Whether the full stop at ``dot`` ends a sentence."""
    before = text[began:dot]
    if _NUMBER.search(before + "."):
        if at_start and not before.strip(" \t.-*\u2022(0123456789"):
            return False
        day = before.split()[-1]
        return not (len(day) < 3 and after[:3].lower() in _MONTHS)
    found = _WORD_BEFORE.search(before)
    if found is None:
        return True
    word = found[1]
    lower = word.lower()
    starts = after[:1].isupper() and after.strip(",;:").lower() in _STARTERS
    if len(word) == 1 and word.isalpha():
        ahead = before[: found.start()].split()
        named = not ahead or ahead[-1][:1].isupper() or ahead[-1][:1].isdigit()
        return not (word.isupper() and (named or word != "I") and after[:1].isupper() and not starts)
    if "." in word and all(len(each) <= 2 for each in word.split(".")):
        return lower not in _ABBREVIATIONS and (starts or not after)
    if lower in _ABBREVIATIONS:
        return lower in _MAY_END and (starts or not after or (word[:1].islower() and after[:1].isupper()))
    return True


def _pieces(text: str, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """``start`` to ``stop`` without the white space around it, in pieces of at most `_LONGEST` characters."""
    while start < stop and text[start].isspace():
        start += 1
    while stop > start and text[stop - 1].isspace():
        stop -= 1
    while start < stop:
        end = stop
        if stop - start > _LONGEST:
            end = start + _LONGEST
            space = max(text.rfind(" ", end - 300, end), text.rfind("\n", end - 300, end))
            if space > start:
                end = space
            else:
                for _ in range(16):
                    if not (unicodedata.combining(text[end]) or text[end] == "\u200d" or text[end - 1] == "\u200d"):
                        break
                    end -= 1
        right = end
        while right > start and text[right - 1].isspace():
            right -= 1
        if start < right:
            yield start, right
        start = end
        while start < stop and text[start].isspace():
            start += 1


def _has_word(text: str, start: int, stop: int) -> bool:
    return stop - start > 40 or any(each.isalnum() or unicodedata.category(each) == "So" for each in text[start:stop])
