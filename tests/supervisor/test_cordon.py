"""A cordon: never more than its share of the nodes, never for ever, and longer for a lemon."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import CallError, FormatRefused
from perdure.supervisor.cordon import Cordon, Cordoned, Rules

DAY_S = 86400.0
wishes = st.lists(
    st.tuples(st.integers(0, 9), st.floats(0, 3 * DAY_S), st.floats(1, 10 * DAY_S)),
    max_size=40,
)


@given(wishes, st.floats(0, 1), st.integers(1, 10))
def test_never_more_than_the_share_is_out_and_everything_else_is_refused_with_a_sentence(
    asked: list[tuple[int, float, float]], share: float, n_nodes: int
) -> None:
    cordon, now, rules = Cordon(), 1e9, Rules(max_share=share)
    for index, later, expiry_s in asked:
        now += later
        node = f"n{index % n_nodes}"
        before = cordon.is_cordoned(node, now=now)
        cordon, refusal = cordon.cordoned(node, "broken", now=now, expiry_s=expiry_s, n_nodes=n_nodes, rules=rules)
        out = cordon.out(now=now)
        assert len(out) <= max(share * n_nodes + 1e-6, 1 if share and n_nodes > 1 else 0)
        assert len({entry.node for entry in out}) == len(out)
        assert (refusal is None) == cordon.is_cordoned(node, now=now)
        assert refusal is None or (refusal.startswith(f"{node} is not cordoned (broken): ") and not before)
        assert Cordon.decode(cordon.encode()) == cordon


@given(wishes)
def test_every_node_comes_back(asked: list[tuple[int, float, float]]) -> None:
    cordon, now = Cordon(), 1e9
    for index, later, expiry_s in asked:
        now += later
        cordon, _ = cordon.cordoned(f"n{index}", "broken", now=now, expiry_s=expiry_s, n_nodes=10)
    assert cordon.pruned(now=now + 15 * DAY_S) == Cordon()


def test_a_node_that_is_out_already_stays_out_until_the_later_time() -> None:
    cordon, _ = Cordon().cordoned("a", "slow", now=0.0, expiry_s=100.0, n_nodes=4)
    sooner, refusal = cordon.cordoned("a", "slow again", now=10.0, expiry_s=5.0, n_nodes=4)
    assert refusal is None
    assert sooner.nodes == (Cordoned("a", "slow again", 0.0, 100.0),)
    later, _ = cordon.cordoned("a", "dead", now=10.0, expiry_s=200.0, n_nodes=4)
    assert later.nodes == (Cordoned("a", "dead", 0.0, 210.0),)


def test_a_lemon_stays_out_longer_and_is_forgiven_when_its_faults_are_long_ago() -> None:
    rules = Rules(expiry_s=3600.0, lemon_faults=3, window_s=7 * DAY_S, lemon_expiry_s=14 * DAY_S)
    cordon, stays = Cordon(), []
    for day in (0, 1, 2):
        now = day * DAY_S
        cordon, _ = cordon.cordoned("a", "Xid 79", now=now, n_nodes=4, rules=rules)
        stays.append(cordon.out(now=now)[0].until_s - now)
    assert stays == [3600.0, 3600.0, 14 * DAY_S]
    assert str(cordon.nodes[0]) == "a is cordoned for 14 d, as it is at fault again and again: Xid 79"
    later, _ = cordon.cordoned("a", "Xid 79", now=30 * DAY_S, n_nodes=4, rules=rules)
    assert str(later.nodes[0]) == "a is cordoned for 60 min: Xid 79"


def test_a_refusal_counts_as_a_fault() -> None:
    cordon, refusal = Cordon().cordoned("a", "slow", now=0.0, n_nodes=9, rules=Rules(max_share=0.0))
    assert refusal is not None
    assert "at most 0 may be" in refusal
    out, _ = cordon.cordoned("a", "slow", now=1.0, n_nodes=9, rules=Rules(lemon_faults=2))
    assert out.nodes[0].lemon


def test_a_person_can_let_it_in_again_with_a_clean_slate() -> None:
    cordon, _ = Cordon().cordoned("a", "slow", now=0.0, n_nodes=9)
    cordon, _ = cordon.cordoned("b", "slow", now=0.0, n_nodes=9)
    left = cordon.lifted("a")
    assert [entry.node for entry in left.nodes] == ["b"]
    assert [fault.node for fault in left.faults] == ["b"]


def test_a_clock_that_was_set_back_lets_nobody_in_early() -> None:
    cordon, _ = Cordon().cordoned("a", "slow", now=1000.0, expiry_s=60.0, n_nodes=4)
    assert cordon.is_cordoned("a", now=0.0)


@pytest.mark.parametrize("data", [b"", b"[]", b'{"nodes":[{"node":1}]}', b"\xff"])
def test_what_is_no_cordon_is_refused(data: bytes) -> None:
    with pytest.raises(FormatRefused, match="no list of cordoned nodes"):
        Cordon.decode(data)


@pytest.mark.parametrize(
    "wrong", [{"max_share": 1.5}, {"lemon_faults": 0}, {"expiry_s": 0.0}, {"window_s": -1.0}, {"lemon_expiry_s": 0.0}]
)
def test_rules_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(CallError):
        Rules(**wrong)  # type: ignore[arg-type]


def test_a_cordon_of_no_time_is_refused() -> None:
    with pytest.raises(CallError, match="more than 0 seconds"):
        Cordon().cordoned("a", "slow", now=0.0, expiry_s=0.0, n_nodes=4)
