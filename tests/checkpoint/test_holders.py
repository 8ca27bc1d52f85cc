"""Which ranks must hold a name: all, or those of a declared stage."""

from __future__ import annotations

import pytest

from perdure.checkpoint.holders import check_names
from perdure.errors import StateMismatch
from perdure.state.items import Capture, TensorItem, ValueItem
from perdure.state.save import Offer, offer
from perdure.state.scopes import Among

Names = dict[str, Among | None]


def offers(*ranks: Names, values: tuple[Names, ...] = ()) -> list[Offer]:
    captures = []
    for rank, names in enumerate(ranks):
        tensors = tuple(TensorItem(name, "float32", (2,), (), among=among) for name, among in names.items())
        held = values[rank] if values else {}
        captures.append(Capture(tensors, tuple(ValueItem(key, 1, among=among) for key, among in held.items())))
    return [offer(capture, rank=rank) for rank, capture in enumerate(captures)]


def stage(index: int, of: int = 2, *, shared: bool = False, entry: str = "model") -> Among:
    return Among(entry, index, of, shared)


ANYWHERE = Among()


@pytest.mark.parametrize(
    "ranks",
    [
        [{"w": None}, {"w": None}],
        [{"a": stage(0), "w": None}, {"b": stage(1), "w": None}],
        [{"a": stage(0)}, {"b": stage(1)}, {"a": stage(0)}, {"b": stage(1)}],
        [{"a": stage(0), "t": stage(0, shared=True)}, {"b": stage(1), "t": stage(1, shared=True)}],
        [{"m": ANYWHERE}, {}, {"n": ANYWHERE}],
        [{"a": stage(0), "x": stage(0, 1, entry="other")}, {"b": stage(1), "x": stage(0, 1, entry="other")}],
        [{}, {}],
    ],
)
def test_ranks_that_hold_what_they_must_may_save(ranks: list[Names]) -> None:
    check_names(offers(*ranks))
    check_names(offers(*[{} for _ in ranks], values=tuple(ranks)))


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        ([{"w": None}, {}], "w is in the state of rank 0 but not of rank 1; save the same names"),
        ([{}, {"w": None}], "w is in the state of rank 1 but not of rank 0; save the same names"),
        ([{"w": stage(0)}, {"w": None}, {"b": stage(1)}], "w is in the state of rank 1 but not of rank 2"),
        (
            [{"a": stage(0)}, {"b": stage(1)}, {"a": stage(0), "c": stage(0)}],
            "c is in the state of rank 2 but not of rank 0, and both are stage 0 of model",
        ),
        (
            [{"a": stage(0), "c": stage(0)}, {"b": stage(1)}, {"a": stage(0)}],
            "c is in the state of rank 0 but not of rank 2, and both are stage 0 of model",
        ),
        ([{"a": stage(0)}, {"a": stage(1)}], r"a is in stage 0 of model \(rank 0\) and in stage 1 \(rank 1\)"),
        ([{"a": stage(0, shared=True)}, {"a": stage(1)}], "a is in stage 0 of model"),
    ],
)
def test_a_name_that_is_lacking_or_too_many_is_named_with_its_ranks(ranks: list[Names], said: str) -> None:
    for kind, made in (("tensor", offers(*ranks)), ("value", offers(*[{} for _ in ranks], values=tuple(ranks)))):
        with pytest.raises(StateMismatch, match=said) as caught:
            check_names(made)
        assert f"the {kind} " in str(caught.value)


def test_stages_are_counted_alike_and_all_there() -> None:
    with pytest.raises(StateMismatch, match="model has 2 stages on rank 0 but 3 on rank 1"):
        check_names(offers({"a": stage(0, 2)}, {"b": stage(1, 3)}))
    with pytest.raises(StateMismatch, match="no rank holds a tensor of stage 1 of the 3 stages of model") as caught:
        check_names(offers({"a": stage(0, 3)}, {"b": stage(2, 3)}))
    assert caught.value.facts["missing"] == ["stage 1 of model"]
