"""Patterns: they find what the `re` of Python finds, in a number of steps that grows with the text only."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.errors import CallError
from perdure.memory.grepping import Pattern, StepsSpent, folded

ATOMS = ["a", "b", "A", "é", ".", r"\d", r"\w", r"\s", r"\W", "[ab]", "[^a]", "[a-c1]", r"[\d_-]", "ß", "Σ"]
ATOMS += ["^", "$", r"\b", r"\B"]
TEXT = st.text("abcAé1 _-ßΣσς\t", min_size=1, max_size=12)


def patterns() -> st.SearchStrategy[str]:
    plain = st.sampled_from(ATOMS)

    def wider(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        group = inner.map(lambda each: f"(?:{each})")
        return (
            st.tuples(inner, inner).map("".join)
            | st.tuples(inner, inner).map("|".join).map(lambda each: f"({each})")
            | st.tuples(group, st.sampled_from(["*", "+", "?", "{2}", "{0,2}", "{1,}", "*?", "+?"])).map("".join)
        )

    return st.recursive(plain, wider, max_leaves=6)


def found(pattern: str, text: str, *, regex: bool = True) -> list[int]:
    return [number for number, _, _, _ in Pattern(pattern, regex=regex).lines(text)]


@settings(max_examples=300, deadline=None)
@given(patterns(), TEXT)
def test_a_regular_expression_finds_the_lines_that_re_finds(pattern: str, text: str) -> None:
    expected = re.search(pattern, text, re.IGNORECASE) is not None
    assert bool(found(pattern, text)) == expected


@settings(max_examples=100, deadline=None)
@given(st.text("aA.*(é\\", min_size=1, max_size=3).filter(str.strip), st.text("aAb.*(é\\ \n", max_size=20))
def test_a_plain_pattern_is_looked_for_as_it_stands(pattern: str, text: str) -> None:
    lines = text.split("\n")
    expected = [at for at, line in enumerate(lines, 1) if pattern.lower() in line.lower()]
    assert found(pattern, text, regex=False) == expected


@given(st.text(max_size=30))
def test_folding_keeps_the_places_of_characters(text: str) -> None:
    assert len(folded(text)) == len(text)


@pytest.mark.parametrize(
    "pattern", ["(a+)+$", "(a|a)*b", "(a*)*b", "(a?){100}a{100}b", "(.*)(.*)(.*)(.*)x", r"(\w+\s?)+$", "a{0,200}b"]
)
def test_patterns_that_backtrack_for_ever_elsewhere_take_steps_by_the_length_of_the_text(pattern: str) -> None:
    def steps(length: int) -> int:
        wanted = Pattern(pattern, regex=True, steps=50_000_000)
        list(wanted.lines("a" * length + "!"))
        return 50_000_000 - wanted._left

    assert steps(40_000) <= 2.2 * steps(20_000)


def test_the_work_is_bounded_by_steps() -> None:
    wanted = Pattern(r"(a|b|ab)*c", regex=True, steps=1000)
    with pytest.raises(StepsSpent):
        list(wanted.lines("ab" * 5000 + "dc"))


@pytest.mark.parametrize(
    "pattern",
    [
        *["", "  ", "a" * 201, r"(a)\1", "(?=a)", "(?<!a)b", "(?P<n>a)", "(", ")", "a)", "[", "[z-a]", "*a", "a**"],
        *[
            "a{3}{3}",
            r"\q",
            "\\",
            "(" * 60 + ")" * 60,
            "((a{200}){200}){200}",
            "((((){200}){200}){200}){200}",
            "a{300}",
        ],
    ],
)
def test_what_is_not_of_the_subset_is_refused_with_a_sentence(pattern: str) -> None:
    with pytest.raises(CallError, match=r"pattern|counts|range"):
        Pattern(pattern, regex=True)
