"""Ranks of a node hand units to one another, and nobody waits for one that is gone."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest

from perdure.errors import CallError, StorageError
from perdure.state.relay import Relay, Unit

BAY = 4096


@contextmanager
def met(world: int, *, n_bays: int = 2, wait_s: float = 20.0) -> Iterator[list[Relay]]:
    """The relays of ``world`` ranks, all in this process."""
    relays = [
        Relay(f"letter of {rank}".encode(), n_bays=n_bays, bay_bytes=BAY, label="test", wait_s=wait_s)
        for rank in range(world)
    ]
    try:
        for rank, relay in enumerate(relays):
            others = {number: other.invitation for number, other in enumerate(relays) if number != rank}
            letters = relay.meet(rank, others)
            assert letters == {number: f"letter of {number}".encode() for number in others}
        yield relays
    finally:
        for relay in relays:
            relay.close()


def content(number: int, nbytes: int) -> bytes:
    return bytes((number + at) % 251 for at in range(nbytes))


def work(relay: Relay, units: Sequence[Unit], pause: Callable[[], float]) -> None:
    """What one rank does: all its units, in order."""
    for number, unit in enumerate(units):
        if relay.rank not in unit.wanters:
            continue
        time.sleep(pause())
        if unit.reader == relay.rank:
            room = relay.room(number)
            assert room is not None
            room[:] = content(number, unit.nbytes)
            relay.filled(number)
        else:
            assert bytes(relay.given(number)) == content(number, unit.nbytes)
            time.sleep(pause())
            assert bytes(relay.given(number)) == content(number, unit.nbytes), "the bay was used again too early"
            relay.taken(number)


@pytest.mark.parametrize("seed", range(6))
def test_every_unit_reaches_all_who_want_it_through_a_few_bays(seed: int) -> None:
    chance = random.Random(seed)
    world = chance.randint(2, 4)
    units = []
    for _ in range(60):
        wanters = tuple(sorted(chance.sample(range(world), chance.randint(2, world))))
        units.append(Unit(chance.choice(wanters), wanters, chance.randint(1, BAY)))
    failures: list[BaseException] = []

    def run(relay: Relay) -> None:
        own = random.Random(f"{seed} {relay.rank}")
        try:
            work(relay, units, lambda: own.choice([0.0, 0.0, 0.001]))
        except BaseException as error:
            failures.append(error)
            raise

    with met(world, n_bays=chance.randint(1, 3)) as relays:
        for relay in relays:
            relay.begin(units)
        threads = [threading.Thread(target=run, args=(relay,)) for relay in relays]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads)
        assert not failures


def test_a_unit_that_its_reader_skips_is_read_by_whoever_wants_it() -> None:
    with met(2) as (one, other):
        for relay in (one, other):
            relay.begin([Unit(0, (0, 1), 10)])
        one.skipped(0)
        with pytest.raises(StorageError, match=r"rank 0 .*is read again"):
            other.given(0)


def test_nobody_waits_for_a_rank_that_has_left_and_its_reason_is_told() -> None:
    with met(2) as (one, other):
        for relay in (one, other):
            relay.begin([Unit(0, (0, 1), 10)])
        one.leave("its disk is broken")
        with pytest.raises(StorageError, match="rank 0 has left: its disk is broken"):
            other.given(0)


def test_a_silent_rank_is_waited_for_once() -> None:
    with met(2, wait_s=0.2) as (one, other):
        units = [Unit(0, (0, 1), 10)] * 3
        for relay in (one, other):
            relay.begin(units)
        began = time.monotonic()
        for number in range(3):
            with pytest.raises(StorageError, match=r"rank 0 did nothing for 0\.2 s"):
                other.given(number)
        assert time.monotonic() - began < 20 * 0.2


def test_a_reader_whose_bays_are_not_taken_goes_on_without_them() -> None:
    with met(2, n_bays=1, wait_s=0.2) as (one, other):
        for relay in (one, other):
            relay.begin([Unit(0, (0, 1), 10)] * 2)
        assert one.room(0) is not None
        one.filled(0)
        assert one.room(1) is None
        assert bytes(other.given(0)[:1]) == b"\0"


def in_child(work: Callable[[int], None]) -> tuple[int, int]:
    """A child process that does ``work`` with the end of a pipe: its pid, and the other end."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            work(theirs)
        finally:
            os._exit(1)
    os.close(theirs)
    return pid, ours


def test_a_rank_that_is_killed_is_noticed_long_before_the_deadline() -> None:
    def other(pipe: int) -> None:
        relay = Relay(b"", n_bays=1, bay_bytes=BAY, label="test", wait_s=60)
        os.write(pipe, json.dumps(relay.invitation).encode())
        signal.pause()

    pid, pipe = in_child(other)
    own = Relay(b"", n_bays=1, bay_bytes=BAY, label="test", wait_s=60)
    try:
        number, fd, token = json.loads(os.read(pipe, 1000))
        own.meet(1, {0: (number, fd, token)})
        own.begin([Unit(0, (0, 1), 10), Unit(1, (0, 1), 10), Unit(1, (0, 1), 10)])
        threading.Timer(0.3, os.kill, (pid, signal.SIGKILL)).start()
        began = time.monotonic()
        with pytest.raises(StorageError, match="rank 0 has ended"):
            own.given(0)
        assert own.room(1) is not None
        own.filled(1)
        assert own.room(2) is not None, "the dead rank will never take what is in the bay"
        assert time.monotonic() - began < 30
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        own.close()


def test_what_is_not_the_segment_that_was_meant_is_refused() -> None:
    with met(1) as (relay,):
        pid, fd, token = relay.invitation
        own = Relay(b"", n_bays=1, bay_bytes=BAY, label="test", wait_s=1)
        try:
            for wrong in [(pid, fd, "00" * 16), (pid, 9999, token), (1 << 22, fd, token), (pid, 0, token)]:
                with pytest.raises(StorageError, match="rank 0"):
                    own.meet(1, {0: wrong})
            with pytest.raises(CallError, match="too much to relay"):
                own.begin([Unit(0, (0, 1), BAY + 1)])
        finally:
            own.close()
