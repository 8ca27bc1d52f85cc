"""Threads that leave nothing behind, and buffers that stay within their budget."""

from __future__ import annotations

import signal
import threading
import time
from functools import partial
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.state.crew import Buffers, work_off


@pytest.mark.parametrize("threads", [0, 1, 2, 5])
def test_every_job_is_done_once_and_no_thread_is_left(threads: int) -> None:
    before = threading.active_count()
    done: list[int] = []
    work_off([partial(done.append, number) for number in range(100)], threads=threads)
    assert sorted(done) == list(range(100))
    assert threading.active_count() == before


def test_a_system_that_refuses_threads_gets_the_work_done_all_the_same() -> None:
    done: list[int] = []
    with patch.object(threading.Thread, "start", side_effect=RuntimeError("can't start new thread")):
        work_off([partial(done.append, number) for number in range(9)], threads=4)
    assert done == list(range(9))


def test_ctrl_c_while_others_work_waits_for_them_and_is_raised() -> None:
    main, ended = threading.main_thread(), threading.Event()
    begun = threading.Barrier(2, timeout=10)

    def long() -> None:
        if threading.current_thread() is main:  # the other thread took, or will take, the job that waits
            begun.wait()
            return
        begun.wait()
        signal.pthread_kill(main.ident or 0, signal.SIGINT)
        time.sleep(0.2)
        ended.set()

    before = threading.active_count()
    kept = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    try:
        with pytest.raises(KeyboardInterrupt):
            work_off([long, long], threads=2)
    finally:
        signal.signal(signal.SIGINT, kept)
    assert ended.is_set()
    assert threading.active_count() == before


@given(st.lists(st.integers(1, 300_000), max_size=30), st.integers(1, 400_000))
@settings(max_examples=60, deadline=None)
def test_buffers_never_have_more_than_the_budget_or_one_large_one(sizes: list[int], budget: int) -> None:
    buffers = Buffers(budget)

    def use(nbytes: int) -> None:
        with buffers.take(nbytes) as buffer:
            assert buffer.nbytes == nbytes
            assert np.frombuffer(buffer, np.uint8).ctypes.data % 4096 == 0
            buffer[-1] = 1

    work_off([partial(use, nbytes) for nbytes in sizes], threads=3)
    assert buffers.high_nbytes <= max(budget, max(sizes, default=0))


def test_a_buffer_is_used_again() -> None:
    buffers = Buffers(1 << 20)
    addresses = set()
    for nbytes in (4096, 100, 4000):
        with buffers.take(nbytes) as buffer:
            addresses.add(np.frombuffer(buffer, np.uint8).ctypes.data)
    assert len(addresses) == 1


def test_a_buffer_is_waited_for() -> None:
    buffers, order = Buffers(1000), []
    taken = threading.Event()

    def hold() -> None:
        with buffers.take(800):
            taken.set()
            time.sleep(0.05)
            order.append("given back")

    def wait() -> None:
        taken.wait()
        with buffers.take(900):
            order.append("taken")

    work_off([hold, wait], threads=2)
    assert order == ["given back", "taken"]
