"""A plain loader made resumable: the same order always, an exact position, no sample lost or seen twice."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from perdure.adapters.torch.loader import is_resumable, make_resumable
from perdure.errors import CallError

from .trips import restore, save


def loader_of(
    length: int, *, batch: int = 4, seed: int = 0, rank: int = 0, world: int = 1, shuffle: bool = True, **options: Any
) -> Any:
    plain = DataLoader(range(length), batch_size=batch, shuffle=shuffle, **options)  # type: ignore[arg-type]
    return make_resumable(plain, seed=seed, rank=rank, world=world)


def epoch(loader: Any) -> list[list[int]]:
    return [batch.tolist() for batch in loader]


def flat(batches: list[list[int]]) -> list[int]:
    return [sample for batch in batches for sample in batch]


# --- order -----------------------------------------------------------------------------------------------------------


@given(st.integers(1, 40), st.integers(0, 5), st.integers(1, 6), st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_the_order_of_an_epoch_follows_from_seed_epoch_and_length_alone(
    length: int, seed: int, batch: int, world: int
) -> None:
    reference = loader_of(length, batch=1, seed=seed)
    orders = [flat(epoch(reference)) for _ in range(3)]
    assert all(sorted(order) == list(range(length)) for order in orders)
    ranks = [loader_of(length, batch=batch, seed=seed, rank=rank, world=world) for rank in range(world)]
    for order in orders:
        steps = list(zip(*(epoch(each) for each in ranks), strict=True))
        seen = [sample for step in steps for share in step for sample in share]
        assert seen[:length] == order
        assert set(seen[length:]) <= set(order)  # filled up to equal shares
        assert len(seen) - length < world
        assert all(len({len(share) for share in step}) == 1 for step in steps)


def test_epochs_and_seeds_differ() -> None:
    loader = loader_of(50)
    assert epoch(loader) != epoch(loader)
    assert epoch(loader_of(50, seed=1)) != epoch(loader_of(50, seed=2))


def test_without_shuffling_the_order_is_that_of_the_data_set() -> None:
    loader = loader_of(10, shuffle=False)
    for _ in range(2):
        assert flat(epoch(loader)) == list(range(10))


@given(st.integers(1, 40), st.integers(1, 6), st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_drop_last_leaves_out_what_does_not_fill_a_batch_on_every_rank(length: int, batch: int, world: int) -> None:
    ranks = [loader_of(length, batch=batch, rank=rank, world=world, drop_last=True) for rank in range(world)]
    assert all(len(each) == length // (batch * world) for each in ranks)
    taken = [epoch(each) for each in ranks]
    assert all(len(each) == length // (batch * world) for each in taken)
    seen = [sample for each in taken for sample in flat(each)]
    assert len(seen) == len(set(seen)) == length // (batch * world) * batch * world


def test_the_length_is_the_number_of_batches() -> None:
    for length in range(1, 14):
        assert len(loader_of(length, world=2)) == len(epoch(loader_of(length, world=2)))


# --- position --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("drop_last", [False, True])
def test_a_loader_resumes_at_every_position_exactly(drop_last: bool, workers: int) -> None:
    """Also at 0, at the end, and right after it; what workers have fetched ahead does not count."""
    whole = loader_of(13, drop_last=drop_last)
    expected = [epoch(whole) for _ in range(3)]
    if workers:  # starting workers takes its time
        cuts = [0, 2, len(expected[0])]
    else:
        cuts = list(range(len(expected[0]) + 1))
    for first in (0, 1):
        for cut in cuts:
            options: dict[str, Any] = {"num_workers": workers, "prefetch_factor": 3} if workers else {}
            one, live = (loader_of(13, drop_last=drop_last, **options) for _ in range(2))
            for _ in range(first):
                epoch(one)
            iterator = iter(one)
            begun = [next(iterator).tolist() for _ in range(cut)]
            assert begun == expected[first][:cut]
            restore(save({"loader": one}), {"loader": live})
            assert epoch(live) == expected[first][cut:]
            assert epoch(live) == expected[first + 1]
            del iterator


def test_a_position_is_the_count_of_samples_that_all_ranks_have_consumed() -> None:
    loader = loader_of(30, batch=4, rank=1, world=3)
    assert loader.state_dict()["position"] == 0
    iterator = iter(loader)
    for expected in (12, 24, 30):
        next(iterator)
        assert loader.state_dict()["position"] == expected
    assert next(iterator, None) is None
    assert loader.state_dict() == {"epoch": 0, "position": 30, "seed": 0, "length": 30, "shuffle": True}


def test_at_the_start_of_the_next_epoch_the_position_is_its_own() -> None:
    loader = loader_of(8)
    epoch(loader)
    iterator = iter(loader)
    assert (loader.state_dict()["epoch"], loader.state_dict()["position"]) == (1, 0)
    first = next(iterator).tolist()
    live = loader_of(8)
    live.load_state_dict(loader.state_dict())
    assert [first, *epoch(live)] == [first, *(batch.tolist() for batch in iterator)]


def test_the_seed_of_the_run_is_kept_whatever_seed_is_given_later() -> None:
    one, live = loader_of(20, seed=1), loader_of(20, seed=2)
    live.load_state_dict(one.state_dict())
    assert epoch(live) == epoch(one)


def test_a_loop_that_breaks_off_begins_a_new_epoch_and_an_old_iterator_counts_no_more() -> None:
    loader = loader_of(20)
    old = iter(loader)
    next(old)
    new = iter(loader)
    assert loader.state_dict()["epoch"] == 1
    next(new)
    next(old)
    next(old)
    assert loader.state_dict()["position"] == 4


def test_the_hook_is_called_before_every_draw_and_the_one_that_ends() -> None:
    loader = loader_of(8)
    positions: list[int] = []
    loader.before_draw = lambda: positions.append(loader.state_dict()["position"])
    epoch(loader)
    assert positions == [0, 4, 8]


def test_another_data_set_is_refused() -> None:
    state = loader_of(8).state_dict()
    for other in (loader_of(9), loader_of(8, shuffle=False)):
        with pytest.raises(CallError, match="give the same data set") as caught:
            other.load_state_dict(state)
        assert caught.value.key == "loader"


# --- another world ---------------------------------------------------------------------------------------------------


@given(
    st.integers(1, 80),
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(0, 4)), min_size=1, max_size=4),
)
@settings(max_examples=60, deadline=None)
def test_in_worlds_of_other_sizes_no_sample_is_lost_or_repeated(
    length: int, worlds: list[tuple[int, int, int]]
) -> None:
    """Each stretch: how many ranks, how large batches, how many steps; the last goes to the end of the epoch."""
    order = flat(epoch(loader_of(length, batch=1)))
    state = loader_of(length).state_dict()
    seen: list[int] = []
    for number, (world, batch, steps) in enumerate(worlds):
        ranks = [loader_of(length, batch=batch, rank=rank, world=world, seed=9) for rank in range(world)]
        for each in ranks:
            each.load_state_dict(state)
        iterators = [iter(each) for each in ranks]
        last = number + 1 == len(worlds)
        for _ in range(length if last else steps):
            step = [next(iterator, None) for iterator in iterators]
            if step[0] is None:
                assert step == [None] * world
                break
            seen += [sample for share in step if share is not None for sample in share.tolist()]
        states = [each.state_dict() for each in ranks]
        assert states == [states[0]] * world
        state = states[0]
    assert seen[:length] == order
    assert len(seen) - length < max(world for world, _, _ in worlds)


def test_four_ranks_then_two_then_three() -> None:
    order = flat(epoch(loader_of(60, batch=1)))
    state = loader_of(60).state_dict()
    seen: list[int] = []
    for world, steps in ((4, 2), (2, 2), (3, 1)):
        ranks = [loader_of(60, rank=rank, world=world) for rank in range(world)]
        for each in ranks:
            each.load_state_dict(state)
        for step in zip(*([next(it) for _ in range(steps)] for it in map(iter, ranks)), strict=True):
            seen += [sample for share in step for sample in share.tolist()]
        state = ranks[-1].state_dict()
    assert seen == order
    assert state["position"] == 60


# --- randomness ------------------------------------------------------------------------------------------------------


def states() -> tuple[Any, ...]:
    return random.getstate(), np.random.get_state()[1].tobytes(), torch.get_rng_state().numpy().tobytes()


@pytest.mark.parametrize("workers", [0, 2])
def test_iterating_draws_nothing_from_the_global_generators(workers: int) -> None:
    before = states()
    for _ in range(2):
        epoch(loader_of(8, num_workers=workers))
    assert states() == before


class Noisy(Dataset[Any]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.rand(())


def test_what_workers_draw_differs_between_epochs_and_is_alike_in_every_run() -> None:
    def run() -> list[list[float]]:
        loader = make_resumable(DataLoader(Noisy(), batch_size=4, num_workers=1), seed=0, rank=0, world=1)
        return [[batch.tolist() for batch in loader] for _ in range(2)]

    first = run()
    assert first == run()
    assert first[0] != first[1]


def test_the_workers_of_each_rank_draw_numbers_of_their_own() -> None:
    def drawn(rank: int) -> list[list[float]]:
        loader = make_resumable(DataLoader(Noisy(), batch_size=4, num_workers=1), seed=0, rank=rank, world=2)
        return [batch.tolist() for batch in loader]

    assert drawn(0)[0] != drawn(1)[0]


# --- what it takes and what not --------------------------------------------------------------------------------------


class Mine(SequentialSampler):
    def __iter__(self) -> Iterator[int]:
        return iter(range(4))


class MyShare(DistributedSampler[Any]):
    pass


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(4))


DATA: Any = range(8)


@pytest.mark.parametrize(
    "make",
    [
        lambda: DataLoader(Stream()),
        lambda: DataLoader(DATA, batch_size=None),
        lambda: DataLoader(DATA, sampler=WeightedRandomSampler([1.0] * 8, 8)),
        lambda: DataLoader(DATA, sampler=SubsetRandomSampler([1, 2])),
        lambda: DataLoader(DATA, sampler=RandomSampler(DATA, replacement=True)),
        lambda: DataLoader(DATA, sampler=RandomSampler(DATA, num_samples=4)),
        lambda: DataLoader(DATA, sampler=RandomSampler(range(4))),
        lambda: DataLoader(DATA, sampler=SequentialSampler(range(4))),
        lambda: DataLoader(DATA, sampler=DistributedSampler(range(4), 2, 0)),
        lambda: DataLoader(DATA, sampler=Mine(DATA)),
        lambda: DataLoader(DATA, sampler=MyShare(DATA, 2, 0)),
        lambda: DataLoader(DATA, sampler=[3, 1, 2]),
        lambda: DataLoader(DATA, batch_sampler=BatchSampler(SequentialSampler(DATA), 2, False)),
        lambda: DataLoader(DATA, num_workers=1, in_order=False),
    ],
    ids=[
        "iterable", "no batches", "weighted", "a subset", "replacement", "fewer samples", "another source",
        "another sequence", "another distribution", "a subclass", "a subclass of the distributed one", "a list",
        "a batch sampler", "out of order",
    ],
)  # fmt: skip
def test_what_cannot_be_resumed_exactly_is_refused(make: Callable[[], Any]) -> None:
    loader = make()
    with pytest.raises(CallError, match="cannot be resumed exactly"):
        make_resumable(loader, seed=0, rank=0, world=1)
    assert not is_resumable(loader)
    assert type(loader) is DataLoader


def test_a_loader_with_a_state_of_its_own_is_left_alone() -> None:
    class Stateful(DataLoader[Any]):
        def state_dict(self) -> dict[str, int]:
            return {}

        def load_state_dict(self, state: Any) -> None:
            pass

    loader = Stateful(DATA)
    assert make_resumable(loader, seed=0, rank=0, world=1) is loader
    assert type(loader) is Stateful
    assert not is_resumable(loader)
    again = loader_of(8)
    assert make_resumable(again, seed=5, rank=0, world=1) is again
    assert again.state_dict()["seed"] == 0


def test_a_loader_stays_what_it_was_otherwise() -> None:
    class MyLoader(DataLoader[Any]):
        pass

    loader: Any = make_resumable(MyLoader(DATA, batch_size=2, collate_fn=sum), seed=0, rank=0, world=1)
    assert isinstance(loader, MyLoader)
    assert is_resumable(loader)
    assert list(loader) == [1, 5, 9, 13]
    assert loader.batch_size == 2


def test_subsets_are_data_sets() -> None:
    loader = make_resumable(DataLoader(Subset(DATA, [7, 5, 3]), shuffle=True), seed=0, rank=0, world=1)
    assert sorted(flat(epoch(loader))) == [3, 5, 7]


def test_a_distributed_sampler_says_which_share_a_rank_takes() -> None:
    """As with tensor parallelism: ranks 2 and 3 of 4 are one replica of 2 and read the same samples."""
    taken = []
    for rank in range(4):
        sampler = DistributedSampler(DATA, num_replicas=2, rank=rank // 2, shuffle=True)
        loader = make_resumable(DataLoader(DATA, batch_size=2, sampler=sampler), seed=0, rank=rank, world=4)
        taken.append(flat(epoch(loader)))
        assert loader.state_dict()["position"] == 8
    assert taken[0] == taken[1]
    assert taken[2] == taken[3]
    assert sorted(taken[0] + taken[2]) == list(range(8))


def test_persistent_workers_follow_every_epoch_and_position() -> None:
    whole = loader_of(13)
    expected = [epoch(whole) for _ in range(3)]
    loader = loader_of(13, num_workers=1, persistent_workers=True)
    assert epoch(loader) == expected[0]
    loader.load_state_dict({**loader.state_dict(), "epoch": 1, "position": 8})
    assert epoch(loader) == expected[1][2:]
    assert epoch(loader) == expected[2]
