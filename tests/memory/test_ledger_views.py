"""What was current at a moment, and what was known of it then."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure.memory import Memory
from perdure.memory.moments import bounds_of
from perdure.memory.views import as_of


class Told:
    """A memory whose clock is set by hand."""

    def __init__(self, root: Path) -> None:
        self.now_s = 0.0
        self.memory = Memory(root, wall=lambda: self.now_s)

    def tell(self, now: str, text: str, *, at: str) -> int:
        self.now_s = seconds(now)
        return self.memory.observe(text, at=at).facts[0]

    def link(self, now: str, kind: str, fact: int, other: int) -> int:
        with self.memory._ledger.change() as db:
            change = db.execute(
                "INSERT INTO change(kind, by, outcome, at_s) VALUES ('settle', 'rules', 'ok', ?)", (seconds(now),)
            ).lastrowid
            row = (kind, fact, other, change)
            db.execute("INSERT INTO link(kind, fact, other, reason, change) VALUES (?, ?, ?, '', ?)", row)
        assert change is not None
        return int(change)

    def current(self, at: str, known: str | None = None) -> list[int]:
        found = as_of(self.memory._ledger, range(1, 20), seconds(at), known_s=None if known is None else seconds(known))
        return sorted(found)


def seconds(moment: str) -> float:
    bounds = bounds_of(moment)
    assert bounds is not None
    return bounds[0]


@pytest.fixture
def told(tmp_path: Path) -> Iterator[Told]:
    made = Told(tmp_path)
    yield made
    made.memory.close()


def test_what_replaces_it_ends_it_from_when_that_holds(told: Told) -> None:
    lisbon = told.tell("2026-01-02", "Anna lives in Lisbon.", at="2026-01-02")
    porto = told.tell("2026-03-02", "Anna lives in Porto.", at="2026-03-02")
    told.link("2026-03-03", "supersedes", porto, lisbon)
    assert told.current("2025-12") == []
    assert told.current("2026-02") == [lisbon]
    assert told.current("2026-04") == [porto]


def test_words_that_say_since_and_until_count_before_the_day_of_telling(told: Told) -> None:
    fact = told.tell("2026-05-01", "Anna lived in Rome in 2019.", at="2026-05-01")
    with told.memory._ledger.change() as db:
        db.execute("UPDATE fact SET since = '2019', until = '2019'")
    assert [told.current(each) for each in ("2018-12-31", "2019-01", "2019-12-31", "2020-01")] == [
        [],
        [fact],
        [fact],
        [],
    ]


def test_what_was_known_then_leaves_out_what_was_told_or_found_or_undone_later(told: Told) -> None:
    lisbon = told.tell("2026-01-02", "Anna lives in Lisbon.", at="2026-01-02")
    porto = told.tell("2026-06-01", "Anna has lived in Porto since March.", at="2026-03-01")
    change = told.link("2026-06-02", "supersedes", porto, lisbon)
    assert told.current("2026-04") == [porto]
    assert told.current("2026-04", known="2026-05") == [lisbon]
    assert told.current("2026-07", known="2026-06-01T12:00:00") == [lisbon, porto]
    with told.memory._ledger.change() as db:
        undo = db.execute(
            "INSERT INTO change(kind, by, outcome, at_s, undoes) VALUES ('undo', 'human', 'ok', ?, ?)",
            (seconds("2026-08-01"), change),
        ).lastrowid
        db.execute("UPDATE link SET undone = ?", (undo,))
    assert told.current("2026-09") == [lisbon, porto]
    assert told.current("2026-09", known="2026-07") == [porto]


def test_duplicates_count_once_and_what_was_forgotten_not_at_all(told: Told) -> None:
    one = told.tell("2026-01-02", "It rains.", at="2026-01-02")
    two = told.tell("2026-01-03", "It rains!", at="2026-01-03")
    told.link("2026-01-03", "duplicates", two, one)
    assert told.current("2026-02") == [one]
    told.memory.forget(fact=one)
    assert told.current("2026-02") == []


def test_a_history_leads_along_the_whole_chain(told: Told) -> None:
    chain = [told.tell(f"2026-01-{day:02}", f"The price is {day}.", at=f"2026-01-{day:02}") for day in range(1, 9)]
    for new, old in zip(chain[1:], chain, strict=False):
        told.link("2026-02", "supersedes", new, old)
    for each in chain:
        found = told.memory.history(each)
        assert [fact.id for fact in found.facts] == chain
        assert len(found.links) == 7
