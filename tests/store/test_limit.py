"""The store that takes no more than its share."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from perdure.errors import CallError
from perdure.store.api import Store
from perdure.store.limit import Limit
from perdure.store.ram import Ram
from perdure.testing.store import StoreContract

MB = 1_000_000


class FakeClock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def wall(self) -> float:
        return 0.0

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


class TestLimit(StoreContract):
    def make_store(self, tmp_path: Path) -> Store:
        return Limit(Ram(), bytes_per_s=1e12, requests=8)


def test_the_average_is_kept_by_reads_and_writes_together() -> None:
    clock = FakeClock()
    store = Limit(Ram(), bytes_per_s=10 * MB, clock=clock)
    store.put("a", [bytes(20 * MB), bytes(10 * MB)])
    store.create("b", bytes(10 * MB))
    store.read("a")
    store.read("a", nbytes=5 * MB)
    store.size("a")  # moves no bytes
    # 75 MB moved; the last 5 MB are a debt of whoever comes next.
    assert clock.monotonic() == pytest.approx(7.0)
    store.read("b", nbytes=1)
    assert clock.monotonic() == pytest.approx(7.5)


def test_a_large_chunk_is_handed_on_in_slices() -> None:
    class Counting(Ram):
        sizes: list[int]

        def put(self, name, chunks):  # type: ignore[no-untyped-def]
            pieces = [bytes(chunk) for chunk in chunks]
            self.sizes = [len(piece) for piece in pieces]
            super().put(name, pieces)

    inside = Counting()
    Limit(inside, bytes_per_s=10 * MB, clock=FakeClock()).put("a", [bytes(3_500_000)])
    assert inside.sizes == [MB, MB, MB, MB // 2]


def test_time_that_passed_unused_is_not_saved_up() -> None:
    clock = FakeClock()
    store = Limit(Ram(), bytes_per_s=MB, clock=clock)
    clock.sleep(1000.0)
    store.create("a", bytes(5 * MB))
    store.size("a")
    store.create("b", b"1")
    assert clock.monotonic() == pytest.approx(1005.0)


def test_no_more_requests_than_allowed_are_under_way() -> None:
    class Gauge(Ram):
        now = most = 0
        lock = threading.Lock()

        def size(self, name: str) -> int | None:
            with self.lock:
                self.now += 1
                self.most = max(self.most, self.now)
            threading.Event().wait(0.01)
            with self.lock:
                self.now -= 1
            return 1

    gauge = Gauge()
    store = Limit(gauge, requests=3)
    with ThreadPoolExecutor(12) as pool:
        list(pool.map(lambda i: store.size("a"), range(24)))
    assert gauge.most == 3


def test_a_failure_gives_its_turn_back() -> None:
    def chunks() -> Iterator[bytes]:
        raise OSError("broken")
        yield b""

    store = Limit(Ram(), requests=1)
    for _ in range(3):
        with pytest.raises(OSError, match="broken"):
            store.put("a", chunks())
    store.put("a", [b"1"])


@pytest.mark.parametrize("options", [{"bytes_per_s": 0}, {"bytes_per_s": -1.0}, {"requests": 0}])
def test_a_limit_of_nothing_is_refused(options: dict[str, int]) -> None:
    with pytest.raises(CallError, match="more than 0"):
        Limit(Ram(), **options)
