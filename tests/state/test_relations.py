"""Relations are values that a manifest holds: they come back as they were, and what is no relation is refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import FormatRefused
from perdure.state.relations import (
    MAX_TERMS,
    Of,
    Previous,
    Relation,
    Rounding,
    SecondMoment,
    Term,
    Update,
    decoding_order,
    from_json,
    sources,
    to_json,
)

names = st.text(min_size=1, max_size=20)
factors = st.floats(-1e30, 1e30)
ofs = st.builds(Of, names, st.sampled_from(["this", "base"]))
terms = st.builds(Term, ofs, st.none() | ofs, factors, factors)
relations = st.one_of(
    st.builds(Previous),
    st.builds(Rounding, names),
    st.builds(Update, factors, st.lists(terms, max_size=MAX_TERMS).map(tuple)),
    st.builds(SecondMoment, ofs, ofs, factors, factors, factors, factors),
)


@given(relations)
def test_a_relation_comes_back_from_json_bit_for_bit(relation: Relation) -> None:
    data = to_json(relation)
    assert from_json(data) == relation
    assert to_json(from_json(data)) == data


TERM = [["m", "this"], ["v", "this"], 1.0, 0.0]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"{}",
        b'{"type":"rounding"}',
        b'{"type":"rounding","of":""}',
        b'{"type":"rounding","of":"w","more":1}',
        b'{"type":"pickle","of":"w"}',
        b'{"type":"update","keep":1e31}',
        b'{"type":"update","keep":NaN}',
        b'{"type":"update","keep":"1"}',
        b'{"type":"rounding","of":"\xff"}',
        json.dumps({"type": "rounding", "of": "w" * 5000}).encode(),
        json.dumps({"type": "update", "keep": 1, "terms": [TERM] * (MAX_TERMS + 1)}).encode(),
        json.dumps({"type": "update", "keep": 1, "terms": [[["m", "then"], None, 1.0]]}).encode(),
        json.dumps({"type": "second-moment", "moment": ["m"], "before": ["m", "base"], "keep": 1}).encode(),
    ],
)
def test_what_is_no_relation_is_refused(data: bytes) -> None:
    with pytest.raises(FormatRefused, match="no relation"):
        from_json(data)


def test_sources_come_in_the_order_that_predicting_wants() -> None:
    m0, m1, v1 = Of("m", "base"), Of("m"), Of("v")
    assert sources("w", Previous()) == (Of("w", "base"),)
    assert sources("h", Rounding("w")) == (Of("w"),)
    assert sources("v", SecondMoment(m1, m0, 1, 1, 1)) == (Of("v", "base"), m0, m1)
    update = Update(1.0, (Term(m0, None, 1.0), Term(m1, v1, 1.0)))
    assert sources("w", update) == (Of("w", "base"), m0, m1, v1)


@given(st.permutations(["h", "w", "v", "m", "other"]))
def test_every_tensor_is_decoded_after_those_that_its_base_needs(order: list[str]) -> None:
    known: dict[str, Relation] = {
        "h": Rounding("w"),
        "w": Update(1.0, (Term(Of("m"), Of("v"), 1.0), Term(Of("w", "base"), None, 1.0))),
        "v": SecondMoment(Of("m"), Of("m", "base"), 1, 1, 1),
        "m": Previous(),
        "other": Rounding("nobody"),
    }
    found = decoding_order({name: known[name] for name in order})
    assert sorted(found) == sorted(order)
    assert found.index("m") < found.index("v") < found.index("w") < found.index("h")


def test_tensors_that_need_each_other_are_refused_by_name() -> None:
    ring: dict[str, Relation] = {f"t{i}": Rounding(f"t{(i + 1) % 3000}") for i in range(3000)}
    with pytest.raises(FormatRefused, match="'t0' would be computed from itself"):
        decoding_order(ring)
    del ring["t2999"]
    assert decoding_order(ring) == [f"t{i}" for i in range(2998, -1, -1)]
