"""Of what general kind a value is, so that only a value of the same kind replaces another.

"My boss is Mrs. Keane" and "My boss is angry" fill one slot, and both hold: a name is no mood. A value has the kinds
that its form and a table of common words tell: a name, a number with its unit, a date, a time of day, an address, an
identifier, a country, an occupation and other classes of things. What is not known has none, and replaces nothing.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Final

from perdure.memory.classes import classes_of
from perdure.memory.stems import folded
from perdure.memory.wordlists import word_set

__all__ = ["kinds_of", "may_be_place"]

_MONTHS: Final = word_set(
    "january february march april may june july august september october november december jan feb mar apr jun jul aug"
    " sep sept oct nov dec"
)
_DAYS: Final = word_set(
    "monday tuesday wednesday thursday friday saturday sunday mon tue tues wed thu thurs fri sat sun tomorrow today"
)
_WEEKLY: Final = frozenset(f"{each}day{end}" for each in ("mon", "tues", "wednes", "thurs", "fri", "satur", "sun")
                           for end in ("s", "'s"))  # fmt: skip
_HOURS: Final = word_set("noon midnight noonish")
_HALVES: Final = word_set("am pm a.m p.m o'clock")
_BESIDE_DATES: Final = word_set("next this the of on at in by and to from")
_NUMBERS: Final = word_set(
    "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
    " seventeen eighteen"
    " nineteen twenty thirty forty fifty sixty seventy eighty ninety hundred thousand million"
)
_AGE: Final = word_set("year years yrs old y.o yo")
_MONEY: Final = word_set("euro euros eur dollar dollars usd pound pounds gbp francs chf yen cents")
_WITHIN: Final = word_set(
    "of the and de la le du des del della di da dos das von van der den for on at in et al el y e"
)
_TITLES: Final = word_set("mr mrs ms miss dr prof professor sir madam mx lady lord father sister brother")
_STATES: Final = word_set(
    "not no so too very quite really hard easy difficult ready open closed down up on off ok okay awol"
    " busy free sick ill"
    " well fine great good bad better worse best worst angry happy sad tired late early fast slow new old wrong right"
    " true false long short weak strong secret safe public private gone here there away back full empty"
    " broken lost found"
    " stolen dirty clean warm cold hot cool dead alive unknown known same different valid invalid secure insecure tight"
    " loose near far close over done due out in only always never still all both big small nice mean rude kind cheap"
    " dear expensive important urgent unique ugly pretty obvious missing unclear tbd tba pending sold hidden great fun"
    " soon later simple complex random blank visible common rare holy my your his her our their"
)
_STATE_ENDINGS: Final = ("ed", "ing", "able", "ible", "ful", "ous", "less", "ish", "ant", "ent", "ly", "ive")
_IDS: Final = word_set(
    "password passphrase passcode passwort key pin code token username login id ssid handle hostname branch nickname"
    " account iban secret"
)
_FAVOURITES: Final = word_set("favourit favorit")
_FIELDS: Final = word_set(
    "hr it sales marketing finance legal accounting engineering research operations support procurement"
    " logistics design"
    " management administration healthcare education retail hospitality government tech banking"
)
_NATIONS: Final = word_set(
    "german french dutch greek swiss czech thai irish american british english scottish welsh european african asian"
    " christian muslim jewish catholic protestant buddhist hindu orthodox republican democrat libra aries taurus gemini"
    " cancer leo virgo scorpio sagittarius capricorn aquarius pisces iraqi israeli pakistani bengali filipino slovak"
    " serb croat turk swede dane finn pole spaniard afghan uzbek kazakh"
)
_NATION_ENDINGS: Final = ("ese", "ish", "ian", "ean", "ican")
_COUNTRIES: Final = word_set(
    "afghanistan albania algeria andorra angola argentina armenia australia austria azerbaijan bahamas"
    " bahrain bangladesh"
    " barbados belarus belgium belize benin bhutan bolivia bosnia botswana brazil brunei bulgaria burundi cambodia"
    " cameroon canada chad chile china colombia congo croatia cuba cyprus czechia denmark dominica"
    " ecuador egypt england"
    " eritrea estonia ethiopia fiji finland france gabon gambia georgia germany ghana greece grenada guatemala guinea"
    " guyana haiti honduras hungary iceland india indonesia iran iraq ireland israel italy jamaica japan jordan"
    " kazakhstan kenya kosovo kuwait laos latvia lebanon lesotho liberia libya lithuania madagascar malawi malaysia"
    " maldives mali malta mauritius mexico moldova monaco mongolia montenegro morocco mozambique myanmar namibia nepal"
    " netherlands nicaragua niger nigeria norway oman pakistan palestine panama paraguay peru"
    " philippines poland portugal"
    " qatar romania russia rwanda samoa scotland senegal serbia singapore slovakia slovenia somalia"
    " spain sudan suriname"
    " sweden switzerland syria taiwan tajikistan tanzania thailand togo tonga tunisia turkey"
    " turkmenistan uganda ukraine"
    " uruguay uzbekistan venezuela vietnam wales yemen zambia zimbabwe usa us uk uae america britain"
    " holland europe asia"
    " africa scandinavia bavaria catalonia california texas florida oregon"
)
_COUNTRY_WORDS: Final = word_set(
    "new zealand south north east west korea saudi arabia united states kingdom emirates arab costa rica"
    " sri lanka puerto"
    " el salvador sierra leone republic czech dominican ivory coast great"
)
_FIRMS: Final = word_set(
    "google amazon apple microsoft meta facebook netflix siemens airbus bosch sap ibm intel oracle samsung sony nvidia"
    " tesla boeing volkswagen bmw toyota ford shell basf bayer roche novartis nestle philips accenture"
    " deloitte pwc kpmg"
    " mckinsey goldman barclays hsbc santander vodafone spotify uber airbnb stripe openai anthropic adobe cisco dell"
    " salesforce inc ltd gmbh llc corp bank university college school team group hospital labs office department"
    " christianity islam buddhism catholicism plan tier premium pro version gmail outlook dropbox hotmail mac iphone"
    " pixel android"
)
_CLASS_KINDS: Final = word_set(
    "colour instrument ride animal drink food diet language sport job field often hair tool wed material"
)
_ONE_ID: Final = re.compile(
    r"[^\s@]+@[^\s@]+\.[^\s@]+|\w+://\S+|[\w-]+(?:\.[\w-]+)+|(?=[\w.-]*\d)(?=[\w.-]*[^\W\d])[\w.-]+"
)
_NUMBER: Final = re.compile(r"[\d.,'-]*\d[\d.,'-]*")
_DATE: Final = re.compile(r"\d{4}-\d\d(?:-\d\d)?|\d{1,2}(?:st|nd|rd|th)|\d{1,2}\.\d{1,2}(?:\.\d{2,4})?")
_CLOCK: Final = re.compile(r"\d{1,2}:\d\d(?:am|pm)?|\d{1,2}(?:am|pm)", re.IGNORECASE)


def kinds_of(words: Sequence[str], *, article: str = "", key: Sequence[str] = ()) -> frozenset[str]:
    """Return the general kinds of a value: its words as they stand, the article before it, and the slot's words.

    >>> sorted(kinds_of(["Mrs", "Keane"])), sorted(kinds_of(["angry"])), sorted(kinds_of(["March", "3"]))
    (['name'], [], ['date'])
    """
    low = [folded(each) for each in words]
    if not low or low[0] in _STATES or any(each in _WEEKLY for each in low):
        return frozenset()
    if len(words) > 1 and low[0].isdigit() and low[1] not in _MONTHS | _DAYS and _all_capital(words[1:]):
        return frozenset(["address"])
    timed = _times(low, at=bool(key) and key[-1] == "at")
    if timed is not None:
        return timed
    counted = _counted(low)
    if counted:
        return counted
    if not article and all(each in _COUNTRIES or each in _COUNTRY_WORDS for each in low):
        return frozenset(["country"])
    found = _known(low)
    if article != "the" and (len(low) == 1 or all(_capital(each) for each in words)) and _ONE_ID.fullmatch(low[-1]):
        found |= {"id"}
    if not found & {"nation", "department", "job", "diet"} and _is_name(words, low):
        found.add(f"{article} name".strip())
    if not found and _nameless(low):
        if _IDS & set(key[-3:]) and len(low) == 1 and not article:
            found |= {"id"}
        if _FAVOURITES & set(key) and len(low) <= 3:
            found |= {"favourite"}
    elif _FAVOURITES & set(key):
        found |= {"favourite"}
    return frozenset(found)


def may_be_place(words: Sequence[str]) -> bool:
    """Whether somebody can have moved to live there: a capitalised name that is no firm, tool, day or department.

    >>> may_be_place(["Lisbon"]), may_be_place(["Postgres"]), may_be_place(["Friday"])
    (True, False, False)
    """
    low = [folded(each) for each in words]
    return (
        0 < len(low) <= 3
        and all(each[:1].isupper() and each.replace("-", "").isalpha() and not each.isupper() for each in words)
        and not any(each in _FIRMS or each in _FIELDS or each in _TITLES or classes_of(each) for each in low)
        and bool({"name", "country"} & kinds_of(words))
    )


def _times(low: Sequence[str], *, at: bool) -> frozenset[str] | None:
    """``date`` and ``clock`` for a value of nothing else, nothing for one with more, None for one without."""
    dated = clocked = other = False
    for place, each in enumerate(low):
        after = low[place + 1] if place + 1 < len(low) else ""
        before = low[place - 1] if place else "at" if at else ""
        if each in _DAYS or each in _MONTHS or (_DATE.fullmatch(each) and not at):
            dated = True
        elif each in _HOURS or each in _HALVES or _CLOCK.fullmatch(each):
            clocked = True
        elif _NUMBER.fullmatch(each) or each in _NUMBERS:
            if after in _HALVES or before == "at":
                clocked = True
            elif not (before in _MONTHS or after in _MONTHS or (dated and len(each) in (2, 4))):
                other = True
        elif each not in _BESIDE_DATES:
            other = True
    if not (dated or clocked):
        return None
    if other:
        return frozenset()
    return frozenset([*(["date"] if dated else []), *(["clock"] if clocked else [])])


def _counted(low: Sequence[str]) -> frozenset[str]:
    numbers = [bool(_NUMBER.fullmatch(each)) or each in _NUMBERS for each in low]
    if not numbers[0]:
        return frozenset()
    rest = [each for each, number in zip(low, numbers, strict=True) if not number]
    if not rest or all(each in _AGE for each in rest):
        return frozenset(["number"])
    if rest[0] in _MONEY:
        return frozenset(["number money"])
    return frozenset([f"number {rest[0].rstrip('s')}"]) if len(rest) == 1 and numbers.count(False) == 1 else frozenset()


def _known(low: Sequence[str]) -> set[str]:
    """The classes of the word that a value turns on: the last before a small word, or its first where it is a title."""
    stop = next(
        (at for at, each in enumerate(low) if at and each in ("of", "at", "for", "in", "with", "on", "who")), None
    )
    head = low[:stop]
    if len(low) == 1 and "job" not in classes_of(low[0]) and _nation(low[0]):
        return {"nation"}
    if all(each in _FIELDS for each in head):
        return {"department"}
    if head[0] in _TITLES:
        return set()
    found = set(classes_of(head[-1])) & _CLASS_KINDS
    if "job" in classes_of(head[0]) and len(low) > 1:
        found |= {"job"}
    return found


def _nation(word: str) -> bool:
    return word in _NATIONS or (len(word) > 5 and word.endswith(_NATION_ENDINGS)) or "language" in classes_of(word)


def _capital(word: str) -> bool:
    return word[:1].isupper() or word[:1].isdigit()


def _all_capital(words: Sequence[str]) -> bool:
    return words[0][:1].isupper() and all(_capital(each) or each in _WITHIN for each in words)


def _is_name(words: Sequence[str], low: Sequence[str]) -> bool:
    """Whether a value is a name: capitalised words, small ones between them, perhaps one plain word before them."""
    named = [_capital(each) for each in words]
    if not named[-1] or not any(each[:1].isupper() for each in words):
        return False
    first = named.index(True)
    return first <= 2 and all(name or each in _WITHIN for name, each in zip(named[first:], low[first:], strict=True))


def _nameless(low: Collection[str]) -> bool:
    return not any(
        each in _STATES or (len(each) > 5 and each.endswith(_STATE_ENDINGS)) or each in ("to", "for", "with", "by")
        for each in low
    )
