"""What a date in a statement means, counted from the day on which it was said, in the offset in which it was said.

A date is only read where its words leave no doubt what they mean; its exactness is kept ("in May" is a month, not a
day). Where day and month may be either (``03/04/2025``), what is known is the range that holds both readings. Nothing
is invented: no words, no date.
"""

from __future__ import annotations

import calendar
import datetime as dt
import re
from dataclasses import dataclass
from typing import Final

from perdure.memory.moments import day_of

__all__ = ["Dated", "dates_in", "validity"]


@dataclass(frozen=True, slots=True)
class Dated:
    """Words ``start`` to ``stop`` of a statement mean a time within ``first`` to ``last``, both days included.

    ``kind`` is ``point``, ``since`` or ``until``; ``unit`` is how exact the words are: day, week, month, year, or
    ``range`` where all that is known is that it lies between the two.
    """

    start: int
    stop: int
    kind: str
    first: dt.date
    last: dt.date
    unit: str

    @property
    def iso(self) -> str:
        """The time as exactly as it is known: ``2025``, ``2025-05``, ``2025-05-03``; of a range its first day."""
        if self.unit == "year":
            return f"{self.first.year:04d}"
        if self.unit == "month":
            return f"{self.first.year:04d}-{self.first.month:02d}"
        return self.first.isoformat()


_MONTHS: Final = {
    name: number
    for number, names in enumerate(
        (
            "january jan januar janvier enero janeiro gennaio",
            "february feb februar février fevrier febrero fevereiro febbraio",
            "march mar märz maerz mars marzo março",
            "april apr avril abril aprile",
            "may mai mayo maio maggio",
            "june jun juni juin junio junho giugno",
            "july jul juli juillet julio julho luglio",
            "august aug août aout agosto",
            "september sept sep septembre septiembre setembro settembre",
            "october oct oktober okt octobre octubre outubro ottobre",
            "november nov novembre noviembre novembro",
            "december dec dezember dez décembre decembre diciembre dezembro dicembre",
        ),
        1,
    )
    for name in names.split()
}
_DAYS: Final = {
    name: number
    for number, names in enumerate(
        (
            "monday mon montag lundi lunes lunedì segunda-feira",
            "tuesday tues tue dienstag mardi martes martedì terça-feira",
            "wednesday wed mittwoch mercredi miércoles mercoledì quarta-feira",
            "thursday thurs thu donnerstag jeudi jueves giovedì quinta-feira",
            "friday fri freitag vendredi viernes venerdì sexta-feira",
            "saturday sat samstag samedi sábado sabato",
            "sunday sun sonntag dimanche domingo domenica",
        )
    )
    for name in names.split()
}
_COUNTS: Final = {
    word: count
    for count, words in (
        (1, "a an one ein eine einem einer un une una um uma"),
        (2, "two zwei deux dos dois due"),
        (3, "three drei trois tres três tre"),
        (4, "four vier quatre cuatro quatro quattro"),
        (5, "five fünf cinq cinco cinque"),
        (6, "six sechs seis sei"),
        (7, "seven sieben sept siete sete sette"),
        (8, "eight acht huit ocho oito otto"),
        (9, "nine neun neuf nueve nove"),
        (10, "ten zehn dix diez dez dieci"),
        (11, "eleven elf"),
        (12, "twelve zwölf"),
    )
    for word in words.split()
}
_UNITS: Final = {
    word: unit
    for unit, words in (
        ("day", "day days tag tagen tage jour jours día días dia dias giorno giorni"),
        ("week", "week weeks woche wochen semaine semaines semana semanas settimana settimane fortnight fortnights"),
        ("month", "month months monat monaten monate mois mes meses mês mese mesi"),
        ("year", "year years jahr jahren jahre an ans année années año años ano anos anno anni"),
    )
    for word in words.split()
}
_NEAR: Final = {
    word: days
    for days, words in (
        (-1, "yesterday gestern hier ayer ontem ieri 昨日 昨天 вчера"),
        (0, "today tonight heute aujourd'hui hoy hoje oggi 今日 今天 сегодня"),
        (1, "tomorrow morgen demain mañana amanhã domani 明日 明天 завтра"),
        (-2, "vorgestern avant-hier anteayer"),
        (2, "übermorgen après-demain overmorrow"),
    )
    for word in words.split()
}


def _any(names: dict[str, int] | dict[str, str], least: int = 1) -> str:
    return "|".join(re.escape(each) for each in sorted(names, key=len, reverse=True) if len(each) >= least)


_MONTH: Final = f"(?:{_any(_MONTHS, 3)})"
_COUNT: Final = f"(?:\\d{{1,3}}|{_any(_COUNTS)})"
_UNIT: Final = f"(?:{_any(_UNITS)})"
_YEAR: Final = r"(?:1[5-9]\d\d|20\d\d)"
_LEAD: Final = (
    r"(?P<lead>(?:since|as of|starting(?: on| in| from)?|effective|from|seit|ab|depuis|desde|dal|until|till|til|up to"
    r"|through|bis|jusqu'au|hasta|até|fino al)\s+(?:the\s+|dem\s+)?)?"
)
_SAID: Final = re.compile(
    _LEAD
    + r"(?:"
    + r"(?P<iso>(?P<iy>\d{4})-(?P<im>\d\d)-(?P<id>\d\d))(?![\d-])"
    + r"|(?P<dots>(?P<na>\d{1,2})(?P<sep>[./])(?P<nb>\d{1,2})(?P=sep)(?P<nc>\d{4}))(?![\d])"
    + rf"|(?P<md>(?P<mdm>{_MONTH})\.?\s+(?P<mdd>\d{{1,2}})(?:st|nd|rd|th)?(?:,?\s+(?P<mdy>{_YEAR}))?)(?![\d:])"
    + rf"|(?P<dm>(?P<dmd>\d{{1,2}})(?:st|nd|rd|th|\.|º|er)?\s+(?:of\s+|de\s+)?(?P<dmm>{_MONTH})"
    + rf"(?:,?\s+(?:de\s+)?(?P<dmy>{_YEAR}))?)(?!\w)"
    + rf"|(?P<my>(?P<mym>{_MONTH})\s+(?:of\s+|de\s+)?(?P<myy>{_YEAR}))(?!\w)"
    + r"|the\s+day\s+(?P<dayrel>before\s+yesterday|after\s+tomorrow)"
    + rf"|(?P<ago>(?P<agon>{_COUNT})\s+(?P<agou>{_UNIT})\s+ago)(?!\w)"
    + rf"|(?:vor|il y a|hace|há|fa)\s+(?P<agon2>{_COUNT})\s+(?P<agou2>{_UNIT})(?!\w)"
    + rf"|(?:in|within|dans|dentro de)\s+(?P<inn>{_COUNT})\s+(?P<inu>{_UNIT})(?:'s\s+time|\s+time)?(?!\w)"
    + r"|(?P<rel>last|next|this|coming|past|letzten?|letztes|nächsten?|nächstes|diesen?|dieses)\s+"
    + rf"(?P<relw>{_any(_DAYS, 3)}|{_MONTH}|{_any(_UNITS)}|weekend)(?!\w)"
    + r"|(?:on|am|le)\s+(?:the\s+)?(?P<nth>\d{1,2})(?:st|nd|rd|th)(?!\w)"
    + rf"|(?P<bare>{_any(_NEAR)})(?!\w)"
    + rf"|(?P<inm>(?:in|im|en|em)\s+(?P<inmm>{_MONTH}))(?!\w)"
    + rf"|(?:in|im|en|em|of)\s+(?P<iny>{_YEAR})(?![\w-])"
    + rf"|(?P<on>(?:on|am)\s+(?P<ond>{_any(_DAYS, 3)}))(?!\w)"
    + rf"|(?P<loose>{_YEAR}(?![\w:-]|\.\d|\s*(?:%|km|kg|m\b))|{_MONTH}(?!\w)|(?:{_any(_DAYS, 3)})(?!\w))"
    + r")",
    re.IGNORECASE,
)
_BEFORE: Final = re.compile(r"\w$")
_SINCE: Final = frozenset(["since", "as", "starting", "effective", "from", "seit", "ab", "depuis", "desde", "dal"])
_MOST: Final = 4000
_LETTERS: Final = re.compile(r"[^\W\d_][^\W\d_'-]*")
_HINT: Final = re.compile(r"\b(?:1[5-9]|20)\d\d\b|\d(?:st|nd|rd|th)\b|\d[./]\d|[昨今明][日天]")
_TOLD: Final = frozenset([*_MONTHS, *_DAYS, *_NEAR, *_UNITS, "weekend"])
"""A statement without any of these tells no date."""


def dates_in(text: str, observed: str) -> list[Dated]:
    """Return the dates that a statement tells, in order; ``observed`` is ISO 8601, when it was said.

    >>> [(each.iso, each.unit) for each in dates_in("We moved last month, on the 3rd.", "2026-05-20T23:30-08:00")]
    [('2026-04', 'month')]
    >>> [each.iso for each in dates_in("I saw her yesterday.", "2026-05-20T23:30-08:00")]
    ['2026-05-19']
    """
    head = text[:_MOST]
    if not _HINT.search(head) and _TOLD.isdisjoint(_LETTERS.findall(head.lower())):
        return []
    today = day_of(observed)
    found: list[Dated] = []
    for said in _SAID.finditer(head):
        if said.start() and _BEFORE.search(text[said.start() - 1 : said.start()]) and text[said.start()].isascii():
            continue
        try:
            read = _read(said, today)
        except (ValueError, OverflowError):
            continue
        if read is None:
            continue
        lead = (said["lead"] or "").split()
        kind = "point" if not lead else "since" if lead[0].lower() in _SINCE else "until"
        if lead and lead[0].lower() == "up" and read[2] == "day" and "to" not in lead:
            kind = "point"
        found.append(Dated(said.start(), said.end(), kind, *read))
    return [each for each in found if not _doubtful(each, found, text)]


def validity(text: str, observed: str) -> tuple[str | None, str | None]:
    """Return (since, until), as far as the words of a statement say from when and to when it holds.

    >>> validity("I have lived in Porto since May.", "2026-08-01T10:00+00:00")
    ('2026-05', None)
    >>> validity("I worked there from 2019 until 2021.", "2026-08-01T10:00+00:00")
    ('2019', '2021')
    >>> validity("We met yesterday.", "2026-08-01T10:00+00:00")
    ('2026-07-31', None)
    """
    since = until = None
    today = day_of(observed)
    for each in dates_in(text, observed):
        if each.kind == "since":
            since = since or each.iso
        elif each.kind == "until":
            until = until or (each.last.isoformat() if each.unit == "range" else each.iso)
        elif since is None and until is None and each.last <= today and each.unit != "range":
            since = each.iso
            if each.unit == "year" and re.search(r"\b(?:was|were|used to|lived|worked|studied)\b", text):
                until = each.iso
    return since, until


def _read(said: re.Match[str], today: dt.date) -> tuple[dt.date, dt.date, str] | None:
    """(first, last, unit) of what was said, or None where it could be many things."""
    lead = (said["lead"] or "").split()
    since = bool(lead) and lead[0].lower() in _SINCE
    if said["iso"]:
        return _day(int(said["iy"]), int(said["im"]), int(said["id"]))
    if said["dots"]:
        return _numeric(int(said["na"]), int(said["nb"]), int(said["nc"]), said["sep"])
    if said["md"]:
        return _dated(said["mdd"], said["mdm"], said["mdy"], today, back=since)
    if said["dm"]:
        return _dated(said["dmd"], said["dmm"], said["dmy"], today, back=since)
    if said["my"]:
        return _month(int(said["myy"]), _MONTHS[said["mym"].lower()])
    if said["dayrel"]:
        return _shift(today, -2 if said["dayrel"].lower().startswith("before") else 2, "day")
    for count, unit, sign in (("agon", "agou", -1), ("agon2", "agou2", -1), ("inn", "inu", 1)):
        if said[count]:
            word = said[unit].lower()
            number = _COUNTS.get(said[count].lower()) or int(said[count])
            return _shift(today, sign * number * (2 if word.startswith("fortnight") else 1), _UNITS[word])
    if said["rel"]:
        return _relative(said["rel"].lower(), said["relw"].lower(), today)
    if said["nth"]:
        return _nearest(int(said["nth"]), today)
    if said["bare"]:
        return _shift(today, _NEAR[said["bare"].lower()], "day")
    if said["inm"] or (lead and said["loose"] and said["loose"].lower() in _MONTHS):
        month = _MONTHS[(said["inmm"] or said["loose"]).lower()]
        if since or not lead:
            past = month <= today.month
            if not since and not past:
                return None
            return _month(today.year - (0 if past else 1), month)
        return _month(today.year + (month < today.month), month)
    if said["iny"] or (lead and said["loose"] and said["loose"].isdigit()):
        year = int(said["iny"] or said["loose"])
        return dt.date(year, 1, 1), dt.date(year, 12, 31), "year"
    if lead and said["loose"]:
        ahead = (_DAYS[said["loose"].lower()] - today.weekday()) % 7
        return _shift(today, ahead - 7 if since else ahead or 7, "day")
    return None


def _numeric(one: int, two: int, year: int, mark: str) -> tuple[dt.date, dt.date, str]:
    """Day and month in either order: a range where both could be, unless dots or the numbers tell."""
    if mark == "." or one > 12 or one == two:
        return _day(year, two, one)
    if two > 12:
        return _day(year, one, two)
    both = sorted([dt.date(year, one, two), dt.date(year, two, one)])
    return both[0], both[1], "range"


def _dated(day: str, month: str, year: str | None, today: dt.date, *, back: bool) -> tuple[dt.date, dt.date, str]:
    """A day and a month, in the year that is told or else the one that makes it nearest."""
    number = _MONTHS[month.lower()]
    if year:
        return _day(int(year), number, int(day))
    years = [each for each in (today.year - 1, today.year, today.year + 1) if dt.MINYEAR <= each <= dt.MAXYEAR]
    near = [dt.date(each, number, int(day)) for each in years if int(day) <= calendar.monthrange(each, number)[1]]
    if back:
        near = [each for each in near if each <= today]
    best = min(near, key=lambda each: abs((each - today).days))
    return best, best, "day"


def _nearest(day: int, today: dt.date) -> tuple[dt.date, dt.date, str] | None:
    """ "On the 3rd": of this month if that is today, else not known whether past or to come: a range."""
    if day > 31 or day < 1:
        return None
    days: list[dt.date] = []
    for back in (-1, 0, 1):
        year, month = divmod(today.year * 12 + today.month - 1 + back, 12)
        if day <= calendar.monthrange(year, month + 1)[1]:
            days.append(dt.date(year, month + 1, day))
    before = [each for each in days if each <= today]
    after = [each for each in days if each >= today]
    if before and before[-1] == today:
        return today, today, "day"
    return (before[-1], after[0], "range") if before and after else None


def _relative(which: str, word: str, today: dt.date) -> tuple[dt.date, dt.date, str] | None:
    """Last, this or next: a day of the week, a month, a week, a year."""
    step = (
        -1 if which in ("last", "past") or which.startswith("letzt") else 0 if which.startswith(("this", "dies")) else 1
    )
    if word in _DAYS:
        ahead = (_DAYS[word] - today.weekday()) % 7
        if step < 0:
            return _shift(today, ahead - 7, "day")
        if step == 0 or which == "coming":
            return _shift(today, ahead, "day")
        first = today + dt.timedelta(days=ahead or 7)
        other = today - dt.timedelta(days=today.weekday()) + dt.timedelta(days=7 + _DAYS[word])
        return (first, first, "day") if first == other else (min(first, other), max(first, other), "range")
    if word in _MONTHS:
        month = _MONTHS[word]
        year = today.year + {-1: -1 if month >= today.month else 0, 0: 0, 1: 1 if month <= today.month else 0}[step]
        return _month(year, month)
    if word == "weekend":
        saturday = today - dt.timedelta(days=today.weekday()) + dt.timedelta(days=5 + 7 * step)
        return saturday, saturday + dt.timedelta(days=1), "range"
    unit = _UNITS[word]
    return _shift(today, step, unit) if unit != "day" else None


def _shift(today: dt.date, count: int, unit: str) -> tuple[dt.date, dt.date, str]:
    """``count`` units from today, as exact as the unit."""
    if unit == "day":
        day = today + dt.timedelta(days=count)
        return day, day, "day"
    if unit == "week":
        monday = today - dt.timedelta(days=today.weekday()) + dt.timedelta(weeks=count)
        return monday, monday + dt.timedelta(days=6), "week"
    if unit == "month":
        year, month = divmod(today.year * 12 + today.month - 1 + count, 12)
        return _month(year, month + 1)
    return dt.date(today.year + count, 1, 1), dt.date(today.year + count, 12, 31), "year"


def _day(year: int, month: int, day: int) -> tuple[dt.date, dt.date, str]:
    date = dt.date(year, month, day)
    return date, date, "day"


def _month(year: int, month: int) -> tuple[dt.date, dt.date, str]:
    return dt.date(year, month, 1), dt.date(year, month, calendar.monthrange(year, month)[1]), "month"


def _doubtful(date: Dated, found: list[Dated], text: str) -> bool:
    """A vague date beside a more exact one says nothing; "may" after a pronoun is a verb."""
    words = text[date.start : date.stop]
    if words.lower().endswith(("may", "march", "mar", "sun", "sat", "mon")) and words.split()[-1].islower():
        return date.kind == "point" and date.unit == "month" and not words.lower().startswith("in ")
    return date.unit == "range" and any(
        other.unit != "range" and abs(other.start - date.stop) < 40 for other in found if other is not date
    )
