"""What the policy chooses, by size, speed and slack, and when it wants a full save."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.checkpoint.policy import MOST_ON_ONE_BASE, Kind, Offered, Policy
from perdure.layout import Box
from perdure.state.again import Estimate, Findings
from perdure.state.relations import Previous, Relation

MB = 1_000_000
ALONE, ON = Kind("planes", "float32", False), Kind("planes", "float32", True)


def offered(
    key: str = "w", *, alone: float = 0.8, on: float | None = None, nbytes: int = 100 * MB, dtype: str = "float32"
) -> Offered:
    """A block that would take those parts of its bytes."""
    bits = 16 if dtype == "bfloat16" else 32
    relation: Relation | None = None if on is None else Previous()
    return Offered(key, dtype, nbytes, Estimate(relation, alone * bits, None if on is None else on * bits))


def policy(*, bandwidth: float | None = 100.0, alone: float = 1000.0, on: float = 1000.0, **more: Any) -> Policy:
    """Speeds in MB/s."""
    return Policy(
        bandwidth=None if bandwidth is None else bandwidth * MB, speeds={ALONE: alone * MB, ON: on * MB}, **more
    )


def way(found: Policy, one: Offered, goal: str) -> str:
    return found.choose([one], goal)[one.key].way


def test_auto_codes_for_a_slow_store_and_writes_raw_to_a_fast_one() -> None:
    one = offered(alone=0.8, on=0.3)
    assert way(policy(bandwidth=100), one, "auto") == "on"
    assert way(policy(bandwidth=5000), one, "auto") == "raw"
    assert way(policy(bandwidth=None), one, "auto") == "raw"


def test_auto_takes_the_larger_form_if_it_is_so_much_faster() -> None:
    one = offered(alone=0.6, on=0.5)
    assert way(policy(bandwidth=200, alone=2000, on=100), one, "auto") == "alone"
    assert way(policy(bandwidth=5, alone=2000, on=100), one, "auto") == "on"


def test_lossless_takes_the_smallest_whatever_the_store() -> None:
    assert way(policy(bandwidth=5000), offered(alone=0.8, on=0.3), "lossless") == "on"
    assert way(policy(bandwidth=5000), offered(alone=0.3, on=0.8), "lossless") == "alone"


def test_lossless_gives_up_what_saves_least_when_time_is_short() -> None:
    blocks = [offered("much", alone=0.1), offered("little", alone=0.9), offered("some", alone=0.5)]
    roomy = policy(bandwidth=5000, slack_s=1.0).choose(blocks, "lossless")
    assert {key: each.way for key, each in roomy.items()} == dict.fromkeys(("much", "little", "some"), "alone")
    short = policy(bandwidth=5000, slack_s=0.25).choose(blocks, "lossless")
    assert {key: each.way for key, each in short.items()} == {"much": "alone", "little": "raw", "some": "alone"}
    assert "longer than the 0.2 s between two saves" in short["little"].why


@given(st.lists(st.tuples(st.floats(0.01, 1.2), st.floats(0.01, 1.2)), min_size=1, max_size=12), st.floats(0.0, 5.0))
def test_nothing_is_chosen_that_grows_and_slack_is_kept_if_raw_keeps_it(
    sizes: list[tuple[float, float]], slack_s: float
) -> None:
    blocks = [offered(str(i), alone=alone, on=on) for i, (alone, on) in enumerate(sizes)]
    found = policy(bandwidth=1000, slack_s=slack_s)
    chosen = found.choose(blocks, "lossless")
    assert all(each.nbytes <= 100 * MB for each in chosen.values())
    took = sum(each.coding_s + each.nbytes / (1000 * MB) for each in chosen.values())
    assert took <= max(slack_s, 0.1 * len(blocks)) + 1e-9


def test_small_blocks_and_such_as_do_not_shrink_lie_raw() -> None:
    assert way(policy(), offered(alone=0.1, nbytes=1000), "lossless") == "raw"
    assert way(policy(), offered(alone=0.99), "lossless") == "raw"


def test_estimates_are_corrected_by_what_saves_came_to() -> None:
    found = policy()
    one = offered(alone=0.9)
    assert found.choose([one], "lossless")["w"].nbytes == pytest.approx(90 * MB)
    for _ in range(8):
        found.coded(one, "alone", 45 * MB, 0.2)
        found.learn()
    choice = found.choose([one], "lossless")["w"]
    assert choice.nbytes == pytest.approx(45 * MB, rel=0.02)
    assert choice.coding_s == pytest.approx(0.2, rel=0.02)


def test_speeds_that_are_not_known_are_asked_for_on_the_largest_block() -> None:
    blocks = [offered("a", nbytes=MB), offered("b", on=0.5), offered("c", dtype="bfloat16", on=0.5)]
    found = Policy(speeds={ALONE: 1.0})
    unknown = {kind: (each.key, way) for kind, (each, way) in found.unknown(blocks).items()}
    assert unknown == {
        ON: ("b", "on"),
        Kind("planes", "bfloat16", False): ("c", "alone"),
        Kind("ulp", "bfloat16", True): ("c", "on"),
    }


def test_a_full_save_is_due_when_deltas_make_the_mean_larger() -> None:
    found = policy()
    assert found.due(0.3) is not None
    found.ended(80, 100, delta=False)
    sizes = [0.3, 0.35, 0.4, 0.45, 0.5]
    kept = []
    for size in sizes:
        if found.due(size) is not None:
            break
        kept.append(size)
        found.ended(round(100 * size), 100, delta=True)
    # the mean of 80, 30, 35, 40, 45 is 46, less than 50
    assert kept == [0.3, 0.35, 0.4, 0.45]
    found.ended(80, 100, delta=False)
    assert found.due(0.5) is None


def test_a_full_save_is_due_after_so_many_deltas() -> None:
    found = policy()
    found.ended(80, 100, delta=False)
    for _ in range(MOST_ON_ONE_BASE):
        assert found.due(0.1) is None
        found.ended(10, 100, delta=True)
    assert "16 saves are deltas on one base" in (found.due(0.1) or "")


def test_a_base_is_worth_its_memory_only_where_coding_is_faster_than_the_store() -> None:
    assert policy(bandwidth=100, on=1000).keeps_base("auto")
    assert not policy(bandwidth=5000, on=1000).keeps_base("auto")
    assert policy(bandwidth=5000, on=1000).keeps_base("lossless")


def test_slack_shrinks_while_saves_are_late_and_comes_back() -> None:
    found = policy()
    found.paced(None, late=False)
    assert found.slack_s is None
    found.paced(10.0, late=False)
    assert found.slack_s == pytest.approx(8.0)
    for _ in range(3):
        found.paced(10.0, late=True)
    assert found.slack_s is not None
    assert found.slack_s < 3.0
    for _ in range(20):
        found.paced(10.0, late=False)
    assert found.slack_s == pytest.approx(8.0)


def test_auto_looks_no_further_for_a_while_if_looking_took_longer_than_it_gained() -> None:
    found = policy(bandwidth=100)
    found.choose([offered(alone=0.5)], "auto")  # half a second of writing, a tenth of coding
    found.looked(0.1)
    assert found.worth_a_look("auto")
    found.looked(1.0)
    assert not found.keeps_base("auto")
    looks = [found.worth_a_look("auto") for _ in range(12)]
    assert looks == [False] * 8 + [True] * 4
    assert found.worth_a_look("lossless")


def test_auto_looks_once_more_after_a_search_because_what_it_found_is_tried_first_then() -> None:
    found = policy(bandwidth=100)
    kind = ("float32", Box.whole((4,)), True)
    searched = Findings({}, {}, {kind: ("w",)}, {}, frozenset({kind}), 0)
    found.choose([offered(alone=0.5)], "auto")
    found.found(searched, on=True)
    found.looked(1.0)
    assert found.worth_a_look("auto")
    assert found.findings == {True: searched}
    found.found(replace(searched, searched=frozenset(), reused=1), on=True)
    found.looked(1.0)
    assert not found.worth_a_look("auto")


def test_auto_does_not_look_where_the_store_is_faster_than_any_codec() -> None:
    assert not policy(bandwidth=5000).worth_a_look("auto")
    assert policy(bandwidth=5000).worth_a_look("lossless")
    assert policy(bandwidth=500).worth_a_look("auto")
