"""Rules that cut one dim."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.errors import LayoutError
from perdure.layout import BlockCyclic, ByHead, ByLayer, Even, Fused, Rule, Uneven

quick = settings(max_examples=60, deadline=None)


def held(rule: Rule, extent: int, parts: int) -> list[list[int]]:
    spans = rule.spans(extent, parts)
    assert len(spans) == parts
    assert all(spans)
    return [[i for start, stop in part for i in range(start, stop)] for part in spans]


@given(extent=st.integers(0, 40), parts=st.integers(1, 7), number=st.integers(1, 5))
@quick
def test_every_rule_gives_each_element_to_one_part(extent: int, parts: int, number: int) -> None:
    rules: list[Rule] = [Even(), BlockCyclic(number), ByLayer(extent or 1, chunks=number) if extent else Even()]
    rules.append(Fused(((extent // 2, Even()), (extent - extent // 2, BlockCyclic(number)))))
    for rule in rules:
        assert sorted(i for part in held(rule, extent, parts) for i in part) == list(range(extent))


def test_even_parts_are_those_of_torch_chunk() -> None:
    assert [len(part) for part in held(Even(), 10, 4)] == [3, 3, 3, 1]
    assert [len(part) for part in held(Even(), 9, 4)] == [3, 3, 3, 0]
    assert [len(part) for part in held(Even(), 2, 4)] == [1, 1, 0, 0]


def test_layers_are_balanced_and_stages_say_the_same_by_layer() -> None:
    assert [len(part) for part in held(ByLayer(10), 10, 4)] == [3, 3, 2, 2]
    rule = ByLayer(10, chunks=2)
    stages = rule.stages(4)
    for stage, part in enumerate(held(rule, 10, 4)):
        assert [layer for layer in range(10) if stages[layer] == stage] == part


def test_heads_stay_whole_and_few_heads_are_shared_by_neighbours() -> None:
    assert held(ByHead(4), 8, 2) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert held(ByHead(2), 4, 4) == [[0, 1], [0, 1], [2, 3], [2, 3]]


@pytest.mark.parametrize(
    ("rule", "extent", "parts"),
    [
        (Uneven((1, 2)), 4, 2),
        (Uneven((1, 3)), 4, 3),
        (Uneven((5, -1)), 4, 2),
        (BlockCyclic(0), 4, 2),
        (ByHead(3), 4, 2),
        (ByHead(2), 4, 3),
        (ByLayer(3), 4, 2),
        (Fused(((1, Even()), (2, Even()))), 4, 2),
    ],
)
def test_a_rule_that_does_not_fit_its_dim_is_refused(rule: Rule, extent: int, parts: int) -> None:
    with pytest.raises(LayoutError):
        rule.spans(extent, parts)
