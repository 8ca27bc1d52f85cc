"""Where a NaN began, and parameters that should be equal."""

from __future__ import annotations

from looks import kinds, sample

from perdure.watcher.replicas import Replicas, far_norms, nan_source
from perdure.watcher.samples import RankSample


def bad(steps: dict[int, int], *, now_step: int = 60, n_ranks: int = 4) -> list[RankSample]:
    return [sample(rank, 1.0, step=now_step, local_bad_step=steps.get(rank)) for rank in range(n_ranks)]


def test_the_rank_whose_own_gradient_was_bad_first_is_the_source() -> None:
    (found,) = nan_source(bad({0: 51, 1: 51, 2: 50, 3: 51}), 1.0, n_ranks=4)
    assert (found.kind, found.ranks, found.step) == ("nan-source", (2,), 50)


def test_where_it_began_on_most_ranks_at_once_nobody_is() -> None:
    (found,) = nan_source(bad(dict.fromkeys(range(4), 50)), 1.0, n_ranks=4)
    assert (found.kind, found.ranks) == ("nan-everywhere", ())


def test_what_nobody_had_looked_at_is_not_said_to_have_begun_everywhere() -> None:
    looks = [sample(rank, 1.0, step=60, local_bad_step=50, local_every=3) for rank in range(4)]
    (found,) = nan_source(looks, 1.0, n_ranks=4)
    assert (found.kind, found.ranks, found.step) == ("nan-unseen", (), 47)  # a step saved since then may be bad


def test_one_step_that_overflows_is_by_design_of_loss_scalers() -> None:
    assert nan_source(bad({2: 60}, now_step=61), 1.0, n_ranks=4) == []
    assert nan_source(bad({}), 1.0, n_ranks=4) == []


def test_when_the_attempt_is_over_there_is_no_second_step_to_wait_for() -> None:
    assert kinds(nan_source(bad({2: 60}, now_step=61), 1.0, n_ranks=4, over=True)) == ["nan-source"]


def test_a_norm_beyond_those_of_all_peers_at_the_same_step_is_far() -> None:
    looks = [sample(rank, 1.0, local_norm=1e9 if rank == 1 else 1.0 + rank) for rank in range(6)]
    assert [(e.kind, e.ranks) for e in far_norms(looks, 1.0)] == [("norm-far", (1,))]
    assert far_norms([sample(rank, 1.0, local_norm=10.0**rank) for rank in range(4)], 1.0) == []
    assert far_norms(looks[:3], 1.0) == []


def sums(values: dict[int, str], step: int = 500, name: str = "dp") -> list[RankSample]:
    return [sample(rank, 1.0, checksum=each, checksum_step=step, replicas=name) for rank, each in values.items()]


def compared(*looks: list[RankSample]) -> list[tuple[str, tuple[int, ...]]]:
    replicas, found = Replicas(), []
    for number, look in enumerate([*looks, *[[]] * 12]):
        found += replicas.feed(look, float(number))
    return [(each.kind, each.ranks) for each in found]


def test_the_replica_with_other_parameters_is_named_once() -> None:
    odd = {0: "x", 1: "x", 2: "y", 3: "x"}
    assert compared(sums(odd), sums(odd), sums(odd, step=1000)) == [("replica-differs", (2,))]


def test_equal_replicas_and_other_steps_are_no_difference() -> None:
    assert compared(sums({0: "x", 1: "x"}) + sums({2: "y", 3: "y"}, step=510)) == []


def test_of_two_that_differ_nobody_is_named() -> None:
    assert compared(sums({0: "x", 1: "y"})) == [("replicas-differ", ())]


def test_replicas_are_compared_within_their_name_only() -> None:
    assert compared(sums({0: "x", 1: "x"}, name="stage-0") + sums({2: "y", 3: "y"}, name="stage-1")) == []


def test_a_replica_that_tells_later_is_waited_for() -> None:
    assert compared(sums({0: "x", 2: "y"}), sums({1: "x", 3: "x"})) == [("replica-differs", (2,))]
