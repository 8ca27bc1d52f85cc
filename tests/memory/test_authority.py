"""The word of a tool is not shown before the user's that it contradicts."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.memory import Memory
from perdure.memory.authority import by_authority
from perdure.memory.records import Fact, Hit, Role, State

ROLES = list(Role)


def fact(number: int, role: Role, state: State = State.CURRENT) -> Fact:
    return Fact(number, number, 0, 1, number, "x", "", role, "", "", 0.0, state)


@pytest.mark.parametrize(
    ("first", "then", "asked"),
    [
        (("I live in Lisbon now.", "user"), ("I live in Delhi now.", "tool"), "Where does Anna live?"),
        (("My boss is Eva Keane.", "user"), ("My boss is Tom Doyle.", "assistant"), "Who is Anna's boss?"),
        (("I live in Lisbon.", "human"), ("I live in Tokyo.", "user"), "Where does Anna live?"),
        (("I like olives.", "user"), ("I no longer like olives.", "tool"), "Does Anna no longer like olives?"),
    ],
)
def test_the_lower_authority_is_not_the_first_hit(
    tmp_path: Path, first: tuple[str, str], then: tuple[str, str], asked: str
) -> None:
    with Memory(tmp_path) as memory:
        memory.observe(first[0], role=first[1], speaker="Anna", at="2025-01-01")
        memory.observe(then[0], role=then[1], speaker="Anna", at="2026-01-01")
        assert [hit.fact.text for hit in memory.search(asked, limit=1)] == [first[0]]
        assert [hit.fact.id for hit in memory.search(asked)] == [1, 2]
        recalled = memory.recall(asked)
        assert recalled.index(first[0]) < recalled.index(then[0])
        assert [hit.fact.id for hit in memory.search(asked, role=then[1])] == [2]


def test_what_was_not_found_comes_in_where_it_stands_above() -> None:
    low = Hit(fact(2, Role.TOOL), 0.5, "words", conflicts=(1,))
    shown = by_authority([low], {1: fact(1, Role.USER)})
    assert [hit.fact.id for hit in shown] == [1, 2]
    assert by_authority([low], {1: fact(1, Role.USER, State.FORGOTTEN)}) == [low]
    assert by_authority([low], {1: fact(1, Role.TOOL)}) == [low]


@given(
    st.lists(st.tuples(st.sampled_from(ROLES), st.sampled_from(list(State))), max_size=8),
    st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=12),
)
def test_nothing_stands_before_what_it_contradicts_from_below(
    facts: list[tuple[Role, State]], pairs: list[tuple[int, int]]
) -> None:
    against: dict[int, set[int]] = {at: set() for at in range(len(facts))}
    for one, other in pairs:
        if one != other and max(one, other) < len(facts):
            against[one].add(other)
            against[other].add(one)
    hits = [
        Hit(fact(at, role, state), 1.0 - at / 10, "words", conflicts=tuple(sorted(against[at])))
        for at, (role, state) in enumerate(facts)
    ]
    shown = by_authority(hits, {})
    assert sorted(hit.fact.id for hit in shown) == list(range(len(facts)))
    assert [hit.score for hit in shown] == sorted((hit.score for hit in shown), reverse=True)
    place = {hit.fact.id: at for at, hit in enumerate(shown)}
    for one, others in against.items():
        for other in others:
            if facts[one][0].authority > facts[other][0].authority and facts[one][1] is State.CURRENT:
                assert place[one] < place[other]
    if not any(against.values()):
        assert shown == hits
