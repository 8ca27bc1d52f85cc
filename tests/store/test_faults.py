"""The store that goes wrong on purpose."""

from collections.abc import Callable
from pathlib import Path

import pytest

from perdure.errors import LinkLost, StorageFull
from perdure.store.api import Store
from perdure.store.disk import Disk
from perdure.store.faults import Call, Corrupt, Crash, Crashed, Delay, Fail, Faults, Rule
from perdure.store.ram import Ram
from perdure.testing.store import StoreContract


class TestFaultsWithoutRules(StoreContract):
    def make_store(self, tmp_path: Path) -> Store:
        return Faults(Ram())


class FakeClock:
    def __init__(self) -> None:
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return sum(self.slept)

    def wall(self) -> float:
        return 0.0

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


def test_the_nth_matching_call_fails_and_only_that_one() -> None:
    full = StorageFull("full", file="x")
    store = Faults(Ram(), [Rule("put", Fail(full), match="packs/*", nth=2)])
    store.put("packs/1", [b"1"])
    store.put("parts/1", [b"1"])
    with pytest.raises(StorageFull):
        store.put("packs/2", [b"2"])
    store.put("packs/2", [b"2"])
    assert store.names("") == ["packs/1", "packs/2", "parts/1"]


def test_a_lost_response_has_done_its_work() -> None:
    store = Faults(Ram(), [Rule("create", Fail(when="after"))])
    with pytest.raises(LinkLost):
        store.create("a", b"1")
    assert bytes(store.read("a")) == b"1"


@pytest.mark.parametrize(("when", "there"), [("before", False), ("during", False), ("after", True)])
@pytest.mark.parametrize("make", [lambda path: Ram(), Disk])
def test_a_crash_is_before_or_after_the_durable_point_and_kills_the_store(
    when: str, there: bool, make: Callable[[Path], Store], tmp_path: Path
) -> None:
    inside = make(tmp_path)
    store = Faults(inside, [Rule("put", Crash(when))])  # type: ignore[arg-type]
    with pytest.raises(Crashed):
        store.put("a", [b"123", b"456"])
    with pytest.raises(Crashed):
        store.size("a")
    assert (inside.size("a") is not None) == there


def test_a_read_is_corrupted_without_touching_what_is_stored() -> None:
    inside = Ram()
    inside.put("a", [b"abc"])
    store = Faults(inside, [Rule("read", Corrupt(at=-1, mask=2), times=2)])
    buffer = bytearray(3)
    store.read("a", into=buffer)
    assert bytes(store.read("a")) == bytes(buffer) == b"aba"
    assert bytes(store.read("a")) == bytes(inside.read("a")) == b"abc"


def test_time_passes_on_the_clock_that_is_handed_in() -> None:
    clock = FakeClock()
    store = Faults(Ram(), [Rule("names", Delay(30.0, clock), times=None)])
    store.names("")
    store.names("a")
    assert clock.slept == [30.0, 30.0]
    assert store.calls == [Call("names", ""), Call("names", "a")]
