"""What ranks that each want a part of a checkpoint want between them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import StateMismatch
from perdure.layout import Box
from perdure.state.claims import check_claims, claims
from perdure.state.index import Catalog, CatalogTensor, StoredPiece
from perdure.state.items import TensorItem
from perdure.state.match import Match

NAMES = ["a", "b", "c", "d"]
KEYS = ["a", "k"]  # a value may have the name of a tensor


def catalog() -> Catalog:
    pieces = (StoredPiece(Box((0,), (2,)), "pack", "key"),)
    tensors = {name: CatalogTensor(name, "float32", (2,), pieces) for name in NAMES}
    return Catalog(1, tensors, values=dict.fromkeys(KEYS, 1))


def told(tensors: set[str], keys: set[str], apart: set[str]) -> tuple[str, str]:
    saved = catalog()
    matches = [Match(TensorItem(name, "float32", (2,), ()), saved.tensors[name]) for name in sorted(tensors)]
    return claims(saved, matches, [(key, False, "modulo") for key in sorted(keys)], apart=apart)


@given(st.lists(st.tuples(st.sets(st.sampled_from(NAMES)), st.sets(st.sampled_from(KEYS))), min_size=1, max_size=4))
def test_ranks_that_want_different_things_must_want_everything_together(ranks: list[tuple[set[str], set[str]]]) -> None:
    said = [told(tensors, keys, {*NAMES, *KEYS}) for tensors, keys in ranks]
    unwanted = sorted(set(NAMES) - set().union(*(t for t, _ in ranks)))
    unwanted += sorted(set(KEYS) - set().union(*(k for _, k in ranks)))
    if not unwanted:
        check_claims(catalog(), said)
        return
    with pytest.raises(StateMismatch, match="on no rank here") as caught:
        check_claims(catalog(), said)
    assert caught.value.facts["unexpected"] == unwanted


def test_what_is_not_apart_is_to_be_wanted_by_all() -> None:
    everything = set(NAMES), set(KEYS)
    check_claims(catalog(), [told(*everything, {"a"}), told({"b", "c", "d"}, set(KEYS), {"a"})])
    with pytest.raises(StateMismatch, match="c is in the state of rank 1 but not of rank 2") as caught:
        check_claims(
            catalog(),
            [told(*everything, set(NAMES)), told(*everything, {"a", "b"}), told({"a", "b"}, set(KEYS), {"a"})],
        )
    assert caught.value.facts["missing"] == ["c", "d"]


def test_a_rank_without_a_declaration_wants_everything_as_everyones() -> None:
    check_claims(catalog(), [None, None])
    check_claims(catalog(), [None, told(set(NAMES), set(KEYS), {"a"})])
    with pytest.raises(StateMismatch, match="d is in the state of rank 0 but not of rank 1"):
        check_claims(catalog(), [None, told({"a", "b", "c"}, set(KEYS), {"a"})])


def test_a_tensor_under_another_name_is_apart_under_the_one_that_it_has_here() -> None:
    saved = catalog()
    matches = [Match(TensorItem("other", "float32", (2,), ()), saved.tensors["b"])]
    assert claims(saved, matches, [], apart={"other"})[1] == "0"
    assert claims(saved, matches, [], apart={"b"})[1] == "0"
    assert claims(saved, matches, [], apart={"c"})[1] != "0"


def test_an_empty_checkpoint_is_wanted_by_anyone() -> None:
    empty = Catalog(1, {})
    check_claims(empty, [claims(empty, [], [], apart={"x"})])
