"""Who sends what several ranks hold alike."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.plan.choice import Choice


def one_by_one(loads: dict[int, int], ranks: list[int], count: int, nbytes: int) -> list[int]:
    """The oracle: the least loaded, the lowest rank of several, again and again."""
    found = []
    for _ in range(count):
        rank = min(ranks, key=lambda each: (loads.get(each, 0), each))
        loads[rank] = loads.get(rank, 0) + nbytes
        found.append(rank)
    return found


asks = st.tuples(
    st.lists(st.integers(0, 12), min_size=1, max_size=9, unique=True).map(sorted),
    st.integers(1, 60),
    st.sampled_from([1, 3, 8, 1000]),
)


@given(st.lists(asks, min_size=1, max_size=8))
@settings(max_examples=150, deadline=None)
def test_many_choices_at_once_are_those_that_one_after_the_other_makes(made: list[tuple[list[int], int, int]]) -> None:
    together, apart = Choice(None), Choice(None)
    loads: dict[int, int] = {}
    for ranks, count, nbytes in made:
        expected = one_by_one(loads, ranks, count, nbytes)
        dests = list(range(100, 100 + count))
        assert together.among_each(tuple(ranks), dests, nbytes) == expected
        assert [apart.among(tuple(ranks), dest, nbytes) for dest in dests] == expected


@given(asks, st.integers(1, 5))
@settings(max_examples=60, deadline=None)
def test_nobody_farther_than_the_nearest_is_taken(asked: tuple[list[int], int, int], node: int) -> None:
    def distance(source: int, dest: int) -> int:
        return int(source // node != dest // node)

    ranks, count, nbytes = asked
    dests = list(range(count))
    for dest, source in zip(dests, Choice(distance).among_each(tuple(ranks), dests, nbytes), strict=True):
        assert distance(source, dest) == min(distance(rank, dest) for rank in ranks)
