"""The store that tries again: what it repeats, what it never repeats, and how long."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure.errors import BlobMissing, CallError, DeadlineExceeded, LinkLost, StorageFull, TryAgain
from perdure.store.api import Store
from perdure.store.faults import Fail, Faults, Rule
from perdure.store.ram import Ram
from perdure.store.retry import Retry
from perdure.testing.store import StoreContract

VERBS = ("put", "create", "read", "size", "names", "delete")


class FakeClock:
    def __init__(self) -> None:
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return sum(self.slept)

    def wall(self) -> float:
        return 0.0

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


def trying(store: Store, **options: object) -> tuple[Retry, FakeClock]:
    clock = FakeClock()
    return Retry(store, clock=clock, chance=lambda: 1.0, **options), clock  # type: ignore[arg-type]


class TestRetry(StoreContract):
    def make_store(self, tmp_path: Path) -> Store:
        return Retry(Ram())


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("when", ["before", "after"])
def test_every_verb_comes_through_after_lost_links(verb: str, when: str) -> None:
    inside = Ram()
    store, clock = trying(Faults(inside, [Rule(verb, Fail(when=when), times=2)]), first_wait_s=1.0)  # type: ignore[arg-type]
    store.put("a", [b"12", b"3"])
    assert store.create("b", b"4") is True
    assert bytes(store.read("a")) == b"123"
    assert store.size("a") == 3
    assert store.names("") == ["a", "b"]
    store.delete("a")
    # A put whose answer was lost is found whole by the next try, which is refused and so has no answer to lose.
    assert clock.slept == ([1.0] if (verb, when) == ("put", "after") else [1.0, 2.0])
    assert inside.names("") == ["b"]


def test_waits_grow_to_their_longest_and_are_drawn_at_random() -> None:
    clock = FakeClock()
    faults = Faults(Ram(), [Rule("size", Fail(), times=None)])
    draws = iter([1.0, 0.5, 0.0, 1.0, 0.25])
    store = Retry(faults, attempts=6, first_wait_s=1, longest_wait_s=4, clock=clock, chance=lambda: next(draws))
    with pytest.raises(LinkLost):
        store.size("a")
    assert clock.slept == [1.0, 1.0, 0.0, 4.0, 1.0]
    assert len(faults.calls) == 6


def test_no_try_begins_after_the_budget() -> None:
    faults = Faults(Ram(), [Rule("size", Fail(), times=None)])
    store, clock = trying(faults, attempts=100, budget_s=10.0, first_wait_s=1.0, longest_wait_s=4.0)
    with pytest.raises(LinkLost):
        store.size("a")
    assert clock.slept == [1.0, 2.0, 4.0, 3.0]  # the last try begins when the budget ends
    assert len(faults.calls) == 5


@pytest.mark.parametrize("verb", ["put", "create", "read", "size", "names"])
def test_the_time_decides_and_not_the_number_of_tries(verb: str) -> None:
    down = Rule(verb, Fail(), times=None)  # type: ignore[arg-type]
    faults = Faults(Ram(), [down])
    store, clock = trying(faults)
    if verb == "names":
        store.size("a")  # it has answered once
    else:
        store.names("")
    calls = {
        "put": lambda: store.put("a", [b"1"]),
        "create": lambda: store.create("a", b"1"),
        "read": lambda: store.read("a"),
        "size": lambda: store.size("a"),
        "names": lambda: store.names("a"),
    }
    with pytest.raises(LinkLost):
        calls[verb]()
    assert sum(clock.slept) == pytest.approx(120.0)
    assert max(clock.slept) == 10.0
    assert len(faults.calls) > 12


def test_a_server_that_is_back_within_the_budget_is_met() -> None:
    class Restarts(Ram):
        def create(self, name, data):  # type: ignore[no-untyped-def]
            if clock.monotonic() < 100.0:
                raise LinkLost("connection refused")
            return super().create(name, data)

    store, clock = trying(Restarts())
    assert store.names("") == []
    assert store.create("slots/1", b"1") is True
    assert 100.0 <= clock.monotonic() <= 110.0


def test_a_store_that_has_never_answered_is_given_up_sooner() -> None:
    store, clock = trying(Faults(Ram(), [Rule("size", Fail(), times=None)]))
    with pytest.raises(LinkLost):
        store.size("a")
    assert sum(clock.slept) == pytest.approx(30.0)


def test_what_cannot_be_deleted_is_left_after_seconds() -> None:
    store, clock = trying(Faults(Ram(), [Rule("delete", Fail(), times=None)]))
    with pytest.raises(LinkLost):
        store.delete("a")
    assert sum(clock.slept) == pytest.approx(10.0)


@pytest.mark.parametrize("error", [StorageFull("full"), CallError("no"), BlobMissing("gone")])
@pytest.mark.parametrize("verb", VERBS)
def test_what_a_person_must_see_to_is_not_repeated(verb: str, error: Exception) -> None:
    faults = Faults(Ram(), [Rule(verb, Fail(error))])  # type: ignore[arg-type]
    store, clock = trying(faults)
    calls = {
        "put": lambda: store.put("a", [b"1"]),
        "create": lambda: store.create("a", b"1"),
        "read": lambda: store.read("a"),
        "size": lambda: store.size("a"),
        "names": lambda: store.names("a"),
        "delete": lambda: store.delete("a"),
    }
    with pytest.raises(type(error)):
        calls[verb]()
    assert clock.slept == []
    assert len(faults.calls) == 1


def test_a_refused_creation_is_a_no_and_not_asked_again() -> None:
    ram = Ram()
    ram.create("a", b"theirs")
    faults = Faults(ram)
    store, _ = trying(faults)
    assert store.create("a", b"ours") is False
    assert len(faults.calls) == 1


def test_after_a_lost_answer_the_bytes_say_whose_blob_it_is() -> None:
    ram = Ram()
    ram.create("theirs", b"theirs")
    store, _ = trying(Faults(ram, [Rule("create", Fail()), Rule("put", Fail())]))
    assert store.create("theirs", b"ours!!") is False
    ram.put("pack", [b"theirs"])
    with pytest.raises(CallError, match="exists"):
        store.put("pack", [b"our", b"s!!"])
    assert bytes(ram.read("pack")) == b"theirs"


@pytest.mark.parametrize("theirs", [b"", b"12", b"1234", b"124"])
def test_a_blob_of_other_bytes_is_never_taken_for_ours(theirs: bytes) -> None:
    ram = Ram()
    ram.put("a", [theirs])
    store, _ = trying(Faults(ram, [Rule("put", Fail())]))
    with pytest.raises(CallError, match="exists"):
        store.put("a", [b"12", b"3"])


def test_an_iterator_that_was_begun_is_not_repeated_and_says_so() -> None:
    ram = Ram()
    store, clock = trying(Faults(ram, [Rule("put", Fail(DeadlineExceeded("slow", file="a"), "after"))]))
    with pytest.raises(DeadlineExceeded, match="once only") as caught:
        store.put("a", iter([b"1", b"2"]))
    assert caught.value.file == "a"
    assert clock.slept == []


def test_an_iterator_that_was_not_begun_is_handed_over_again() -> None:
    ram = Ram()
    store, _ = trying(Faults(ram, [Rule("put", Fail(), times=3)]))
    store.put("a", (chunk for chunk in [b"1", b"2"]))
    assert bytes(ram.read("a")) == b"12"


def test_what_can_be_read_anew_is_repeated_from_its_beginning() -> None:
    class Chunks:
        read = 0

        def __iter__(self) -> Iterator[bytes]:
            self.read += 1
            yield from (b"1", b"2")

    class Breaks(Ram):
        left = 2

        def put(self, name, chunks):  # type: ignore[no-untyped-def]
            if self.left:
                self.left -= 1
                next(iter(chunks))
                raise LinkLost("the link broke")
            super().put(name, chunks)

    inside, chunks = Breaks(), Chunks()
    store, _ = trying(inside)
    store.put("a", chunks)
    assert bytes(inside.read("a")) == b"12"
    assert chunks.read == 3


def test_an_error_of_the_chunks_themselves_is_not_repeated() -> None:
    source = TryAgain("the source is not ready")

    class Chunks:
        read = 0

        def __iter__(self) -> Iterator[bytes]:
            self.read += 1
            yield b"1"
            raise source

    store, clock = trying(Ram())
    chunks = Chunks()
    with pytest.raises(TryAgain) as caught:
        store.put("a", chunks)
    assert caught.value is source
    assert (chunks.read, clock.slept) == (1, [])
