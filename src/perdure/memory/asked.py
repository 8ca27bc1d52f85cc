"""What a question asks for besides its words: a time that it names, and whose words it asks about.

Only hints come of it: passages of that time or speaker count for more, none is left out. Times are those in which
something was *told*; "last week" counts from ``now_s``, in UTC.
"""

from __future__ import annotations

import datetime as dt
import re
from typing import Final

__all__ = ["time_named"]

_MONTHS: Final = [
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
]
_MONTH: Final = "|".join(f"{name[:3]}(?:{name[3:]})?" for name in _MONTHS).replace("may(?:)", "may") + "|sept"
_ISO: Final = re.compile(r"\b((?:19|20)\d\d)-(\d\d)(?:-(\d\d))?\b")
_DAY_MONTH: Final = re.compile(rf"\b(\d{{1,2}})(?:st|nd|rd|th)?(?: of)? ({_MONTH})\.?,? ((?:19|20)\d\d)\b", re.I)
_MONTH_DAY: Final = re.compile(rf"\b({_MONTH})\.? (\d{{1,2}})(?:st|nd|rd|th)?,? ((?:19|20)\d\d)\b", re.I)
_MONTH_YEAR: Final = re.compile(rf"\b({_MONTH})\.?,?(?: of)? ((?:19|20)\d\d)\b", re.I)
_YEAR: Final = re.compile(r"\b(?:in|of|during|since|year) ((?:19|20)\d\d)\b", re.I)
_IN_MONTH: Final = re.compile(rf"\b(?:in|during|of|this|last) ({_MONTH})\b", re.I)
_RELATIVE: Final = re.compile(
    r"\b(yesterday|today|last night|(?:this|last|past) (?:week|month|year|weekend)"
    r"|(\d{1,3}) (day|week|month|year)s? ago)\b",
    re.I,
)
_DAY_S: Final = 86_400.0
_DAYS: Final = {"day": 1, "week": 7, "weekend": 7, "month": 30, "year": 365}


def time_named(question: str, now_s: float) -> tuple[float, float] | None:
    """Return the time that a question names, in seconds since 1970, from and up to; None where it names none.

    >>> first, end = time_named("What did she buy in May 2023?", 0.0)
    >>> dt.datetime.fromtimestamp(first, dt.UTC).date().isoformat(), (end - first) / 86400
    ('2023-05-01', 31.0)
    >>> time_named("Where does Anna live?", 0.0) is None
    True
    """
    try:
        return _calendar(question, now_s) or _relative(question, now_s)
    except (ValueError, OverflowError):  # a 31st of February names no time
        return None


def _calendar(question: str, now_s: float) -> tuple[float, float] | None:
    if found := _ISO.search(question):
        year, month, day = int(found[1]), int(found[2]), found[3]
        return _day(year, month, int(day)) if day else _month(year, month)
    if found := _DAY_MONTH.search(question):
        return _day(int(found[3]), _number(found[2]), int(found[1]))
    if found := _MONTH_DAY.search(question):
        return _day(int(found[3]), _number(found[1]), int(found[2]))
    if found := _MONTH_YEAR.search(question):
        return _month(int(found[2]), _number(found[1]))
    if found := _YEAR.search(question):
        return _at(int(found[1]), 1, 1), _at(int(found[1]) + 1, 1, 1)
    if (found := _IN_MONTH.search(question)) and (found[1].lower() != "may" or found[1] == "May"):
        now = dt.datetime.fromtimestamp(now_s, dt.UTC)
        month = _number(found[1])
        return _month(now.year if month <= now.month else now.year - 1, month)
    return None


def _relative(question: str, now_s: float) -> tuple[float, float] | None:
    found = _RELATIVE.search(question)
    if not found:
        return None
    today = now_s // _DAY_S * _DAY_S
    said = found[1].lower()
    if found[2]:
        days = int(found[2]) * _DAYS[found[3].lower()]
        slack = _DAYS[found[3].lower()] // 2
        return today - (days + slack) * _DAY_S, today - (days - slack - 1) * _DAY_S
    if said == "today":
        return today, today + _DAY_S
    if said in ("yesterday", "last night"):
        return today - _DAY_S, today
    days = _DAYS[said.split()[1]]
    return (today - days * _DAY_S, today + _DAY_S) if said.startswith("this") else (today - 2 * days * _DAY_S, today)


def _number(name: str) -> int:
    return next(at for at, month in enumerate(_MONTHS, 1) if month.startswith(name.lower()[:3]))


def _at(year: int, month: int, day: int) -> float:
    return dt.datetime(year, month, day, tzinfo=dt.UTC).timestamp()


def _day(year: int, month: int, day: int) -> tuple[float, float]:
    start = _at(year, month, day)
    return start, start + _DAY_S


def _month(year: int, month: int) -> tuple[float, float]:
    return _at(year, month, 1), _at(year + month // 12, month % 12 + 1, 1)
