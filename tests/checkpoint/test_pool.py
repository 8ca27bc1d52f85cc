"""Segments of a rank that saves alone: two at most, the next save waits."""

from __future__ import annotations

import threading

import pytest

from perdure.checkpoint.pool import Pool
from perdure.clock import Deadline
from perdure.errors import DeadlineExceeded


def soon(seconds: float = 5.0) -> Deadline:
    return Deadline.after(seconds, "a segment to copy to")


def test_a_segment_that_was_given_back_is_used_again() -> None:
    pool = Pool(label="test")
    first = pool.take(100, soon())
    pool.give_back(first)
    assert pool.take(100, soon()) is first
    assert pool.take(100, soon()) is not first


def test_the_third_waits_and_gets_what_is_given_back() -> None:
    pool = Pool(label="test")
    first, _ = pool.take(100, soon()), pool.take(100, soon())
    timer = threading.Timer(0.05, lambda: pool.give_back(first))
    timer.start()
    assert pool.take(50, soon()) is first
    timer.join(5)


def test_a_wait_that_is_too_long_says_why() -> None:
    pool = Pool(label="test")
    for _ in range(2):
        pool.take(100, soon())
    with pytest.raises(DeadlineExceeded, match="earlier steps are still being written"):
        pool.take(100, soon(0.02))


def test_a_larger_tree_gets_a_larger_segment_and_small_ones_are_let_go() -> None:
    pool = Pool(label="test")
    small = pool.take(100, soon())
    pool.give_back(small)
    large = pool.take(1 << 20, soon())
    assert large.nbytes >= 1 << 20
    pool.give_back(large)
    assert pool.take(100, soon()) is large


def test_giving_back_twice_does_not_lend_twice() -> None:
    pool = Pool(label="test")
    first = pool.take(100, soon())
    pool.give_back(first)
    pool.give_back(first)
    assert pool.take(100, soon()) is not pool.take(100, soon())
