"""When something was told: ISO 8601 with an offset, kept as it was given, and seconds since 1970 to order by."""

from __future__ import annotations

import datetime as dt

from perdure.errors import CallError

__all__ = ["moment_of"]


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
