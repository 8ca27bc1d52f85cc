"""Every node has another one that keeps its copies, in another failure domain wherever that can be."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from perdure.checkpoint.partners import partners


@given(st.lists(st.sampled_from("abcd"), min_size=2, max_size=12))
def test_each_node_has_one_partner_and_is_one(domains: list[str]) -> None:
    found = partners(domains)
    assert sorted(found) == list(range(len(domains)))
    assert all(partner != node for node, partner in enumerate(found))
    if 2 * max(Counter(domains).values()) <= len(domains):
        assert all(domains[partner] != domains[node] for node, partner in enumerate(found))


def test_one_node_has_nobody_but_itself() -> None:
    assert partners(["a"]) == [0]
