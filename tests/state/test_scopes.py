"""Who takes whose rank-local state when the world has another size."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.errors import CallError
from perdure.state.scopes import RankLocal, rank_local_source

WORLDS = st.integers(1, 9)


@given(WORLDS, st.sampled_from(["modulo", "fresh", "error"]), st.data())
def test_in_a_world_of_the_same_size_every_rank_takes_its_own(world: int, rule: str, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, world - 1))
    assert rank_local_source(rule, rank=rank, world=world, saved_world=world, key="k") == rank


@given(WORLDS, WORLDS)
@settings(deadline=None)
def test_modulo_gives_every_rank_a_saved_one_and_uses_all_of_them_where_it_can(world: int, saved: int) -> None:
    found = [rank_local_source("modulo", rank=rank, world=world, saved_world=saved, key="k") for rank in range(world)]
    assert set(found) == set(range(min(world, saved)))
    assert found[: min(world, saved)] == list(range(min(world, saved)))


def test_fresh_keeps_what_is_there_and_error_refuses_by_key() -> None:
    assert rank_local_source("fresh", rank=1, world=2, saved_world=3, key="k") is None
    with pytest.raises(CallError, match="my key") as caught:
        rank_local_source("error", rank=1, world=2, saved_world=3, key="my key")
    assert caught.value.key == "my key"


def test_a_rank_local_value_is_modulo_unless_it_says_otherwise() -> None:
    assert RankLocal(5) == RankLocal(5, on_resize="modulo")
