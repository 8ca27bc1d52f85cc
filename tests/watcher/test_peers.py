"""Slow ranks and nodes are named, healthy ones are not."""

from __future__ import annotations

import numpy as np
import pytest

from perdure.errors import CallError
from perdure.watcher.evidence import Evidence
from perdure.watcher.peers import Peers


def nodes(ranks: int, per_node: int = 8) -> list[str]:
    return [f"n{rank // per_node}" for rank in range(ranks)]


def replay(peers: Peers, times: np.ndarray) -> list[Evidence]:
    return [e for step, row in enumerate(times) for e in peers.observe(step, row, at_s=step / 10)]


def healthy(seed: int, steps: int, ranks: int, *, noise: float = 0.01, skew: float = 0.01) -> np.ndarray:
    """Own compute times with what healthy jobs have: shared work that varies, long steps, evaluation, small skew."""
    rng = np.random.default_rng(seed)
    times = 0.1 * (1 + noise * rng.standard_normal((steps, ranks)))
    times *= 1 + 0.3 * rng.random((steps, 1))
    times *= 1 + skew * rng.uniform(-1, 1, ranks)
    long = np.flatnonzero(rng.random(steps) < 1 / 400)
    times[long, rng.integers(0, ranks, len(long))] *= 3
    times[rng.random(steps) < 1 / 400] *= 3
    times[99::100] *= 1.5
    return times


@pytest.mark.parametrize(("slowdown", "within"), [(1.1, 8), (1.05, 20)])
@pytest.mark.parametrize("ranks", [2, 3, 8, 100])
def test_a_slow_rank_is_named_soon(ranks: int, slowdown: float, within: int) -> None:
    named = 0
    for seed in range(10):
        rng = np.random.default_rng([seed, ranks])
        start, slow = int(rng.integers(30, 120)), int(rng.integers(ranks))
        times = 0.1 * (1 + 0.01 * rng.standard_normal((start + 30, ranks)))
        times[start:, slow] *= slowdown
        found = replay(Peers(range(ranks), nodes(ranks)), times)
        named += [e.ranks for e in found] == [(slow,)] and 0 <= (found[0].step or 0) - start < within
    assert named >= 9


@pytest.mark.parametrize("noise", [0.01, 0.02])
@pytest.mark.parametrize("ranks", [2, 3, 8, 33])
def test_healthy_ranks_are_not_accused(ranks: int, noise: float) -> None:
    assert replay(Peers(range(ranks), nodes(ranks)), healthy(ranks, 600, ranks, noise=noise)) == []


@pytest.mark.parametrize("slow", [(8, 11), tuple(range(8, 16))], ids=["two ranks", "all ranks"])
@pytest.mark.parametrize("seed", range(3))
def test_slow_ranks_of_a_node_are_one_incident(slow: tuple[int, ...], seed: int) -> None:
    times = healthy(seed, 160, 32)
    times[100:, slow] *= 1.1
    found = replay(Peers(range(32), nodes(32)), times)
    assert [(e.kind, e.nodes, e.ranks) for e in found] == [("slow_node", ("n1",), slow)]


def test_half_of_a_job_of_two_nodes_can_be_slow() -> None:
    times = healthy(1, 160, 8)
    times[100:, 4:] *= 1.1
    found = replay(Peers(range(8), nodes(8, 4)), times)
    assert [(e.kind, e.nodes) for e in found] == [("slow_node", ("n1",))]


def test_a_rank_that_is_slow_from_the_start_has_only_its_peers_to_be_compared_with() -> None:
    times = healthy(2, 60, 16)
    times[:, 5] *= 1.1
    found = replay(Peers(range(16), nodes(16)), times)
    assert [e.ranks for e in found] == [(5,)]
    assert (found[0].step or 0) < 8


def test_a_rank_that_creeps_is_found_although_its_past_creeps_along() -> None:
    times = healthy(3, 1500, 16)
    times[:, 5] *= np.linspace(1, 1.1, 1500)
    assert [e.ranks for e in replay(Peers(range(16), nodes(16)), times)] == [(5,)]


def test_an_episode_is_told_once_and_its_end_once_and_the_next_one_again() -> None:
    times = healthy(4, 900, 8)
    times[200:500, 2] *= 1.1
    times[700:, 2] *= 1.1
    peers = Peers(range(8), nodes(8))
    found = replay(peers, times)
    assert [e.kind for e in found] == ["slow_rank", "slow_rank_over", "slow_rank"]
    assert 500 <= (found[1].step or 0) < 520
    assert peers.accused == (2,)
    peers.reset()
    assert peers.accused == ()


def test_when_most_ranks_change_nobody_is_named() -> None:
    times = healthy(5, 400, 8)
    times[200:, 1:] *= 1.2
    assert replay(Peers(range(8), nodes(8)), times) == []


def test_of_two_ranks_the_one_that_stayed_as_it_was_is_not_accused() -> None:
    times = 0.1 * (1 + 0.01 * np.random.default_rng(6).standard_normal((400, 2)))
    times[200:, 1] *= 0.9
    assert replay(Peers(range(2), nodes(2)), times) == []


def test_what_is_not_known_is_left_out() -> None:
    times = healthy(7, 300, 8)
    times[:100, 7] = np.nan  # it joins late
    times[150, :] = np.nan
    times[160, 3], times[161, 3], times[162, 3] = 0.0, -1.0, np.inf
    times[np.random.default_rng(7).random(times.shape) < 0.05] = np.nan
    times[200:, 7] *= 1.1
    assert [e.ranks for e in replay(Peers(range(8), nodes(8)), times)] == [(7,)]


def test_one_rank_none_and_equal_ranks_accuse_nobody() -> None:
    assert replay(Peers([0], ["a"]), healthy(8, 100, 1)) == []
    assert replay(Peers([], []), np.zeros((3, 0))) == []
    assert replay(Peers(range(8), nodes(8)), np.full((200, 8), 0.1)) == []
    assert replay(Peers(range(8), nodes(8)), np.zeros((200, 8))) == []


def test_noise_that_lasts_for_some_steps_is_still_noise() -> None:
    rng = np.random.default_rng(9)
    noise = np.zeros((1500, 8))
    for step in range(1, 1500):
        noise[step] = 0.9 * noise[step - 1] + 0.19**0.5 * rng.standard_normal(8)
    assert replay(Peers(range(8), nodes(8, 4)), 0.1 * (1 + 0.01 * noise)) == []


def test_wrong_shapes_are_refused() -> None:
    with pytest.raises(CallError, match="each rank's node"):
        Peers(range(2), ["a"])
    with pytest.raises(CallError, match="give one a rank"):
        Peers(range(2), ["a", "a"]).observe(0, [1.0], at_s=0.0)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 8, 64])
def test_a_hundred_thousand_healthy_steps_accuse_nobody(ranks: int) -> None:
    peers = Peers(range(ranks), nodes(ranks))
    always = 1 + 0.01 * np.random.default_rng(ranks).uniform(-1, 1, ranks)
    for block in range(20):
        assert replay(peers, always * healthy(1000 + block, 5000, ranks, noise=0.02, skew=0.0)) == []
