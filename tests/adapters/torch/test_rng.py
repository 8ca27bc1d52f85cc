"""The random generators of a rank come back exactly; a rank that was not saved gets numbers of its own."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from perdure.adapters.torch.rng import Rng
from perdure.state.scopes import RankLocal
from perdure.state.values import decode_value, encode_value

from .trips import restore, save


@pytest.fixture(autouse=True)
def generators_as_they_were() -> Iterator[None]:
    before = Rng(0).state_dict()
    yield
    Rng(0).load_state_dict(before)


def seed(number: int) -> None:
    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)


def draw() -> list[Any]:
    """Some numbers of every generator, an odd count of normal ones, which come in pairs."""
    return [
        random.random(),
        random.gauss(0, 1),
        np.random.standard_normal(3).tolist(),
        np.random.randint(1 << 30),
        torch.randn(3).tolist(),
        torch.randperm(9).tolist(),
        torch.rand(17).tolist(),
    ]


def test_every_generator_goes_on_exactly_where_it_was() -> None:
    seed(1)
    draw()
    state = decode_value(encode_value(Rng(3).state_dict(), key="rng"))
    expected = [draw() for _ in range(3)]
    seed(2)
    draw()
    Rng(3).load_state_dict(state)
    assert [draw() for _ in range(3)] == expected


def test_taking_the_state_draws_nothing() -> None:
    seed(1)
    Rng(0).state_dict()
    first = draw()
    seed(1)
    assert draw() == first


def test_a_rank_that_was_not_saved_draws_other_numbers_and_always_the_same() -> None:
    seed(1)
    state = Rng(1).state_dict()
    saved = draw()
    found = []
    for rank in (0, 2, 3, 0):
        seed(rank)
        Rng(rank).load_state_dict(state)
        found.append(draw())
    assert found[0] == found[3]
    for i, mine in enumerate((saved, *found[:3])):
        for other in (saved, *found[:3])[:i]:
            assert all(a != b for a, b in zip(mine, other, strict=True))


def test_in_a_larger_world_the_saved_ranks_go_on_and_the_others_do_not_repeat_them() -> None:
    seed(10)
    saved = save(*({"rng": RankLocal(Rng(rank))} for rank in range(2)))
    expected = draw()
    drawn: list[list[Any]] = []
    for rank in range(4):
        seed(99)
        restore(saved, {"rng": RankLocal(Rng(rank))}, rank=rank, world=4)
        drawn.append(draw())
    assert drawn[0] == drawn[1] == expected
    assert len({str(each) for each in drawn[1:]}) == 3
