"""Which ranks may be compared: replicas, members of groups that are used at each step, and no stages of a pipeline."""

from __future__ import annotations

from collections.abc import Callable

from looks import group, sample

from perdure.watcher.equals import counts_of, equals
from perdure.watcher.samples import GroupState, RankSample

Groups = Callable[[int, int], tuple[GroupState, ...]]


def classes(n_ranks: int, groups: Groups, replicas: Callable[[int], str] = lambda _: "") -> list[tuple[int, ...]]:
    """The classes of ranks whose groups at a step are ``groups(rank, step)``."""

    def at(step: int) -> list[RankSample]:
        return [sample(r, 0.0, step=step, groups=groups(r, step), replicas=replicas(r)) for r in range(n_ranks)]

    return equals(counts_of(at(10)), at(30))


def test_without_groups_and_with_the_whole_job_in_one_all_are_equal() -> None:
    assert classes(4, lambda rank, step: ()) == [(0, 1, 2, 3)]
    assert classes(4, lambda rank, step: (group("world", 4, 100 + 2 * step),)) == [(0, 1, 2, 3)]


def test_tensor_parallel_ranks_are_joined_over_the_replicas_and_stages_are_not() -> None:
    def groups(rank: int, step: int) -> tuple[GroupState, ...]:
        stage, replica = rank % 8 // 4, rank // 8
        return (
            group("world", 16, 300 + step),  # parameters were sent around at the start; then a norm a step
            group(f"t{rank // 2}", 2, 96 * step),
            group(f"d{rank % 8}", 2, 6 * step),
            group(f"s{rank % 4 + 4 * replica}", 2, step),
            group(f"side{stage}", 8, 3),
        )

    joined = classes(16, groups)
    assert joined == [(0, 1, 8, 9), (2, 3, 10, 11), (4, 5, 12, 13), (6, 7, 14, 15)]


def test_replicas_are_equal_whatever_their_groups_do() -> None:
    found = classes(4, lambda rank, step: (group("world", 4, step),), lambda rank: f"stage{rank % 2}")
    assert found == [(0, 2), (1, 3)]


def test_a_pipeline_over_all_ranks_compares_nobody() -> None:
    def uneven(rank: int, step: int) -> tuple[GroupState, ...]:
        return (group("world", 4, step * (8 if rank in (0, 3) else 16), op=""),)

    assert classes(4, uneven) == []
    assert classes(4, lambda rank, step: (group("world", 4, 4, op=""),)) == []
    assert classes(4, lambda rank, step: (group("world", 4, 8 * step, op="send"),)) == []
    assert classes(4, lambda rank, step: (group("mesh_pp", 4, 8 * step),)) == []


def test_of_two_groups_that_are_used_alike_neither_joins() -> None:
    def groups(rank: int, step: int) -> tuple[GroupState, ...]:
        return group(f"x{rank // 2}", 2, step), group(f"y{rank % 2}", 2, step)

    assert classes(4, groups) == []
