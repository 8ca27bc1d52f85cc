"""When something was told: ISO 8601 with an offset, kept as it was given, and seconds since 1970 to order by."""

from __future__ import annotations

import datetime as dt
import re
from typing import Final

from perdure.errors import CallError

__all__ = ["bounds_of", "day_of", "moment_of"]

_PARTIAL: Final = re.compile(r"(\d{4})(?:-(\d\d)(?:-(\d\d))?)?", re.ASCII)


def moment_of(at: str | float | dt.datetime | None, *, now_s: float) -> tuple[str, float]:
    """Return the time as text and in seconds since 1970; a time without an offset is UTC, None is now.

    Raises `CallError` where it is no time.

    >>> moment_of("2023-05-08T13:56+02:00", now_s=0.0)
    ('2023-05-08T13:56:00+02:00', 1683546960.0)
    >>> moment_of(None, now_s=1.5)
    ('1970-01-01T00:00:01.500000+00:00', 1.5)
    """
    if at is None:
        at = now_s
    try:
        if isinstance(at, str):
            moment = dt.datetime.fromisoformat(at)
        elif isinstance(at, dt.datetime):
            moment = at
        else:
            moment = dt.datetime.fromtimestamp(at, dt.UTC)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=dt.UTC)
        return moment.isoformat(), moment.timestamp()
    except (ValueError, TypeError, OverflowError, OSError) as error:
        raise CallError(f"{str(at)[:60]!r} is no time; give ISO 8601, as 2023-05-08T13:56+02:00") from error


def day_of(observed: str) -> dt.date:
    """Return the day of a stored time; the first of all where it is damaged, until `doctor` mends it."""
    try:
        return dt.datetime.fromisoformat(observed).date()
    except ValueError:
        return dt.date(1970, 1, 1)


def bounds_of(text: str | None) -> tuple[float, float] | None:
    """Return the first and the last second (exclusive) of a time as exact as it is written; None for what is no time.

    >>> bounds_of("1970-01"), bounds_of("1970-01-02T00:00:00+00:00"), bounds_of("soon")
    ((0.0, 2678400.0), (86400.0, 86400.0), None)
    """
    found = _PARTIAL.fullmatch(text or "")
    try:
        if found is None:
            moment = moment_of(text, now_s=0.0)[1] if text else None
            return None if moment is None else (moment, moment)
        year, month, day = int(found[1]), int(found[2] or 1), int(found[3] or 1)
        first = dt.datetime(year, month, day, tzinfo=dt.UTC)
        if found[3]:
            after = first + dt.timedelta(days=1)
        elif found[2]:
            after = dt.datetime(year + month // 12, month % 12 + 1, 1, tzinfo=dt.UTC)
        else:
            after = dt.datetime(year + 1, 1, 1, tzinfo=dt.UTC)
    except (ValueError, OverflowError):  # a day that there is not, a year past the last
        return None
    return first.timestamp(), after.timestamp()
