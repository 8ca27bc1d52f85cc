"""Rules of what to keep: what each keeps, that pruning does not change their mind, and their text."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

import perdure
from perdure.errors import CallError
from perdure.upkeep.keep import Best, EverySeconds, EverySteps, Last, Rule, as_rules, parse, text_of


@dataclass(frozen=True)
class Fact:
    step: int
    metric: float | None = None
    created: float = 0.0


def kept(rule: Rule, facts: Sequence[Fact]) -> list[int]:
    return [facts[at].step for at in rule.keeps(facts)]


def steps(*numbers: int) -> list[Fact]:
    return [Fact(number) for number in numbers]


def test_the_last_are_the_last_that_were_made_whatever_their_numbers() -> None:
    assert kept(Last(2), steps(900, 1000, 10, 20)) == [10, 20]
    assert kept(Last(3), steps(5)) == [5]
    assert kept(Last(1), []) == []


def test_every_so_many_steps_keeps_the_first_at_or_after_each_multiple() -> None:
    assert kept(EverySteps(1000), steps(500, 1000, 1500, 2000, 2500)) == [500, 1000, 2000]
    assert kept(EverySteps(1000), steps(*range(300, 3001, 300))) == [300, 1200, 2100, 3000]
    assert kept(EverySteps(10), steps(100, 105, 20, 25, 30)) == [100, 20, 30]


def test_every_so_many_seconds_counts_from_the_last_that_was_kept() -> None:
    facts = [Fact(i, created=i * 1000.0) for i in range(10)]
    assert kept(EverySeconds(3600), facts) == [0, 4, 8]


@pytest.mark.parametrize("jump", [-1e9, -86400.0, 86400.0, 1e9])
def test_a_clock_that_jumps_costs_at_most_one_span_and_stops_nothing(jump: float) -> None:
    facts = [Fact(i, created=1.7e9 + i * 1000.0 + (jump if i >= 50 else 0.0)) for i in range(100)]
    chosen = kept(EverySeconds(3600), facts)
    gaps = [later - earlier for earlier, later in itertools.pairwise(chosen)]
    assert max(gaps) <= 4
    assert sorted(gaps)[1] == 4  # but for the one at the jump, no step is kept sooner
    assert 50 in chosen


def test_a_clock_that_stands_still_keeps_the_first() -> None:
    assert kept(EverySeconds(1), [Fact(i, created=5.0) for i in range(4)]) == [0]


def test_the_best_are_by_metric_and_of_equals_the_later() -> None:
    facts = [Fact(1, 0.5), Fact(2, 0.1), Fact(3), Fact(4, 0.1), Fact(5, 0.9)]
    assert kept(Best(1, "min"), facts) == [4]
    assert kept(Best(2, "min"), facts) == [2, 4]
    assert kept(Best(2, "max"), facts) == [1, 5]
    assert kept(Best(3, "max"), steps(1, 2)) == []


rules = st.one_of(
    st.builds(Last, st.integers(1, 5)),
    st.builds(EverySteps, st.integers(1, 30)),
    st.builds(EverySeconds, st.floats(0.5, 100.0)),
    st.builds(Best, st.integers(1, 3), st.sampled_from(["min", "max"])),
)
fact_lists = st.lists(
    st.builds(
        Fact, st.integers(0, 100), st.none() | st.floats(-5, 5, allow_nan=False), st.floats(-1000, 1000).map(float)
    ),
    max_size=25,
)


@given(rules, fact_lists, st.integers())
def test_a_rule_keeps_tomorrow_what_it_keeps_today_however_much_of_the_rest_is_pruned(
    rule: Rule, facts: list[Fact], seed: int
) -> None:
    chosen = rule.keeps(facts)
    assert chosen == sorted(set(chosen))
    coin = random.Random(seed)
    left = [i for i in range(len(facts)) if i in chosen or coin.random() < 0.5]
    assert [left[at] for at in rule.keeps([facts[i] for i in left])] == chosen


@given(rules, fact_lists)
def test_pruning_after_every_commit_ends_with_what_pruning_once_keeps(rule: Rule, facts: list[Fact]) -> None:
    live: list[Fact] = []
    for fact in facts:
        live.append(fact)
        live = [live[at] for at in rule.keeps(live)]
    assert live == [facts[at] for at in rule.keeps(facts)]


@given(st.lists(rules, min_size=1, max_size=4))
def test_text_and_rules_are_the_same(given_rules: list[Rule]) -> None:
    again = parse(text_of(given_rules))
    assert [type(rule) for rule in again] == [type(rule) for rule in given_rules]
    assert text_of(again) == text_of(given_rules)


def test_the_text_form_is_read() -> None:
    assert parse(" last=3 , every-steps=1000,every=1.5h,best=2:max ") == (
        Last(3),
        EverySteps(1000),
        EverySeconds(5400),
        Best(2, "max"),
    )
    assert [str(EverySeconds(each)) for each in (30, 90, 120, 7200, 172800, 604800, 0.25)] == [
        "every=30s",
        "every=90s",
        "every=2m",
        "every=2h",
        "every=2d",
        "every=1w",
        "every=0.25s",
    ]


WRONG = """last | last= | last=0 | last=-1 | last=1.5 | every=5 | every=0h | best=2 | best=2:low | x=1 |
    last=3 every=1h | last=³ | last=3,,oops |,| """


@pytest.mark.parametrize("text", WRONG.split("|"))
def test_what_is_no_rule_is_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(CallError, match=r"keep|give|say|rule"):
        parse(text)


def test_rules_are_given_alone_together_or_as_text() -> None:
    assert as_rules(Last(1)) == as_rules([Last(1)]) == as_rules("last=1") == (Last(1),)
    for wrong in ([], 3, [3], None):
        with pytest.raises((CallError, TypeError)):
            as_rules(wrong)  # type: ignore[arg-type]
    with pytest.raises(CallError):
        Last(True)


def test_rules_are_found_from_the_top() -> None:
    assert perdure.keep.Last(3) == Last(3)
