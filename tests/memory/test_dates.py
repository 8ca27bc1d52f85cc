"""Dates in statements: what they mean, counted from when it was said."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.memory.dates import dates_in, validity

WEDNESDAY = "2026-05-20T23:30:00-08:00"


@pytest.mark.parametrize(
    ("text", "iso", "unit"),
    [
        ("I saw her yesterday", "2026-05-19", "day"),
        ("see you tomorrow", "2026-05-21", "day"),
        ("last Tuesday was fine", "2026-05-19", "day"),
        ("last Wednesday was fine", "2026-05-13", "day"),
        ("we fly in two weeks", "2026-06-01", "week"),
        ("I have lived here since May", "2026-05", "month"),
        ("I have lived here since June", "2025-06", "month"),
        ("next month we move", "2026-06", "month"),
        ("he left in 2019", "2019", "year"),
        ("a year ago I was ill", "2025", "year"),
        ("the meeting of 2026-02-03", "2026-02-03", "day"),
        ("born 14 March 1999", "1999-03-14", "day"),
        ("on March 3rd, 2025", "2025-03-03", "day"),
        ("am 3. Mai 2025 in Köln", "2025-05-03", "day"),
        ("gestern war ich da", "2026-05-19", "day"),
        ("hier soir", "2026-05-19", "day"),
        ("hace dos años", "2024", "year"),
        ("das war 31.12.2025", "2025-12-31", "day"),
        ("due 25/12/2026", "2026-12-25", "day"),
        ("three days ago", "2026-05-17", "day"),
    ],
)
def test_a_date_means_what_its_words_say(text: str, iso: str, unit: str) -> None:
    assert [(each.iso, each.unit) for each in dates_in(text, WEDNESDAY)] == [(iso, unit)]


@pytest.mark.parametrize(
    "text",
    ["I may go", "it costs 2019 euros", "we march on", "no date here", "version 10.12.3", "25 of them", "at 14:30"],
)
def test_no_date_is_invented(text: str) -> None:
    assert dates_in(text, WEDNESDAY) == []


def test_openclaw_supermemory_61_day_and_month_are_never_swapped_silently() -> None:
    found = dates_in("signed 03/04/2025", WEDNESDAY)[0]
    assert (found.unit, found.first.isoformat(), found.last.isoformat()) == ("range", "2025-03-04", "2025-04-03")
    assert validity("signed 03/04/2025", WEDNESDAY) == (None, None)


def test_hindsight_2974_a_relative_date_has_a_date_when_the_time_was_given() -> None:
    assert validity("We moved in last month", "2023-05-08T13:56:00+02:00") == ("2023-04", None)


def test_mcp_memory_service_7_yesterday_is_the_day_before_where_it_was_said() -> None:
    late, early = "2026-03-01T23:30:00-08:00", "2026-03-02T00:30:00-08:00"
    assert dates_in("yesterday", late)[0].iso == "2026-02-28"
    assert dates_in("yesterday", early)[0].iso == "2026-03-01"
    assert dates_in("2 days ago", late)[0].iso == "2026-02-27"


def test_on_the_3rd_may_be_the_last_or_the_next_one() -> None:
    found = dates_in("dentist on the 3rd", WEDNESDAY)[0]
    assert (found.unit, str(found.first), str(found.last)) == ("range", "2026-05-03", "2026-06-03")


@given(st.text(max_size=200), st.sampled_from(["0001-01-01T00:00:00+00:00", WEDNESDAY, "9999-12-31T23:00:00+00:00"]))
def test_any_text_at_any_time_is_read_without_an_error(text: str, observed: str) -> None:
    for each in dates_in(text + " yesterday, in 5 years, 31 Feb, on the 31st", observed):
        assert each.first <= each.last
