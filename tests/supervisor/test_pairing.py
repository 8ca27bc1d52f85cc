"""Pairing: one bad or slow node among many is found in two rounds, and no good node is ever called bad."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import CallError
from perdure.supervisor.pairing import Group, Judged, first_round, judge, second_round

NORMAL_S = st.floats(1.0, 1.3)


def named(count: int) -> list[str]:
    return [f"n{i}" for i in range(count)]


def measured(
    groups: tuple[Group, ...], own_s: dict[str, float], bad: set[str], *, alone_too: bool
) -> dict[Group, float | None]:
    """What groups report: as slow as their slowest node, failed if one is bad (a node alone: only if ``alone_too``)."""
    return {
        group: None
        if bad & set(group) and (len(group) > 1 or alone_too)
        else max(own_s[node] for node in group) * (1.5 if len(group) == 3 else 1)
        for group in groups
    }


def two_rounds(own_s: dict[str, float], bad: set[str] = frozenset(), *, alone_too: bool = False) -> Judged:  # type: ignore[assignment]
    nodes = list(own_s)
    one = measured(first_round(nodes), own_s, bad, alone_too=alone_too)
    two = measured(second_round(nodes, one), own_s, bad, alone_too=alone_too)
    return judge(one, two)


@given(st.data(), st.integers(3, 41), st.booleans())
def test_one_bad_node_among_three_or_more_is_found_and_nobody_else(
    data: st.DataObject, count: int, alone: bool
) -> None:
    own_s = {node: data.draw(NORMAL_S) for node in named(count)}
    bad = data.draw(st.sampled_from(named(count)))
    judged = two_rounds(own_s, {bad}, alone_too=alone)
    assert judged.bad == (bad,)
    assert judged.unsure == judged.stragglers == ()
    assert judged.says[bad].startswith(f"{bad} failed")
    assert all("only beside a node that is bad" in judged.says[node] for node in judged.says.keys() - {bad})


@given(st.data(), st.integers(4, 41), st.booleans())
def test_no_good_node_is_accused_however_many_are_bad_or_slow(data: st.DataObject, count: int, alone: bool) -> None:
    nodes = named(count)
    bad = data.draw(st.sets(st.sampled_from(nodes)))
    slow = data.draw(st.sets(st.sampled_from(nodes)))
    own_s = {node: data.draw(st.floats(5.0, 50.0) if node in slow else NORMAL_S) for node in nodes}
    judged = two_rounds(own_s, bad, alone_too=alone)
    assert set(judged.bad) <= bad
    assert set(judged.stragglers) <= slow - bad
    assert judged.says.keys() >= bad
    assert {*judged.bad, *judged.stragglers, *judged.unsure} <= judged.says.keys()


@given(st.data(), st.integers(4, 41))
def test_one_slow_node_among_four_or_more_is_found_and_nobody_else(data: st.DataObject, count: int) -> None:
    own_s = {node: data.draw(NORMAL_S) for node in named(count)}
    slow = data.draw(st.sampled_from(named(count)))
    own_s[slow] = data.draw(st.floats(8.0, 100.0))
    judged = two_rounds(own_s)
    assert judged.stragglers == (slow,)
    assert judged.bad == judged.unsure == ()
    assert "is slow" in judged.says[slow]


@pytest.mark.parametrize("count", range(3, 14))
def test_in_small_jobs_every_single_bad_or_slow_node_is_found(count: int) -> None:
    nodes = named(count)
    for node in nodes:
        for alone in (False, True):
            judged = two_rounds(dict.fromkeys(nodes, 1.0), {node}, alone_too=alone)
            assert (judged.bad, judged.unsure, judged.stragglers) == ((node,), (), ())
        if count > 3:
            judged = two_rounds(dict.fromkeys(nodes, 1.0) | {node: 8.0})
            assert (judged.bad, judged.unsure, judged.stragglers) == ((), (), (node,))


@given(st.tuples(NORMAL_S, NORMAL_S, NORMAL_S), st.integers(0, 2), st.floats(8.0, 100.0))
def test_of_three_a_slow_one_is_found_only_if_it_stood_alone_first(
    own: tuple[float, float, float], at: int, slow_s: float
) -> None:
    own_s = dict(zip("abc", own, strict=True)) | {"abc"[at]: slow_s}
    assert two_rounds(own_s).stragglers == (("c",) if at == 2 else ())


@given(st.data(), st.integers(0, 41))
def test_where_all_is_well_nothing_is_said(data: st.DataObject, count: int) -> None:
    judged = two_rounds({node: data.draw(NORMAL_S) for node in named(count)})
    assert judged == Judged()


@given(st.data(), st.integers(0, 41))
def test_each_round_has_every_node_once_in_small_groups_and_parts_suspects(data: st.DataObject, count: int) -> None:
    nodes = named(count)
    first = first_round(nodes)
    one = {group: data.draw(st.none() | st.floats(0.1, 9.0)) for group in first}
    second = second_round(nodes, one)
    failed = [set(group) for group in first if one[group] is None]
    for groups in (first, second):
        assert sorted(node for group in groups for node in group) == sorted(nodes)
        assert all(len(group) <= 3 for group in groups)
    assert all(sum(len(set(group) & suspects) for suspects in failed) <= 1 for group in second)
    assert not any(len(group) > 1 and any(set(group) <= suspects for suspects in failed) for group in second)


def test_of_two_that_fail_together_and_pass_alone_neither_is_accused() -> None:
    judged = two_rounds({"a": 1.0, "b": 1.0}, {"a"})
    assert judged.bad == ()
    assert judged.unsure == ("a", "b")
    assert "cannot be told apart" in judged.says["a"]


def test_of_two_the_one_that_fails_alone_is_bad() -> None:
    judged = two_rounds({"a": 1.0, "b": 1.0}, {"a"}, alone_too=True)
    assert judged.bad == ("a",)
    assert judged.says["a"] == "a failed with no other node beside it"


def test_one_node_that_fails_is_bad_and_one_that_is_slow_has_nothing_to_be_slower_than() -> None:
    assert two_rounds({"a": 1.0}, {"a"}, alone_too=True).bad == ("a",)
    assert two_rounds({"a": 100.0}) == Judged()


def test_of_three_the_one_that_fails_beside_both_is_called_bad_and_the_other_reading_is_told() -> None:
    judged = two_rounds({"a": 1.0, "b": 1.0, "c": 1.0}, {"a"})
    assert judged.bad == ("a",)
    assert judged.says["a"] == "a failed beside b and beside c: it is bad, or both of them are"


def test_a_fault_that_passes_accuses_nobody_and_is_told() -> None:
    one = {("a", "b"): None, ("c", "d"): 1.0}
    two = dict.fromkeys(second_round(["a", "b", "c", "d"], one), 1.0)
    judged = judge(one, two)
    assert judged.bad == judged.unsure == ()
    assert judged.says.keys() == {"a", "b"}
    assert "a fault that passes" in judged.says["a"]


def test_a_node_named_twice_and_results_of_other_nodes_are_refused() -> None:
    with pytest.raises(CallError, match="named twice"):
        first_round(["a", "a"])
    with pytest.raises(CallError, match="each node once"):
        second_round(["a", "b"], {("a",): 1.0})
    with pytest.raises(CallError, match="each node once"):
        judge({("a", "b"): 1.0}, {("a", "c"): 1.0})
