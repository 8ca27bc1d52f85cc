"""The store that keeps what was read: never stale, never more than its budget, never in the way."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.errors import BlobMissing, CallError
from perdure.store.api import Store
from perdure.store.cache import Cache
from perdure.store.faults import Faults
from perdure.store.ram import Ram
from perdure.testing.store import StoreContract

MIB = 1 << 20
DATA = np.random.default_rng(0).integers(0, 256, 5 * MIB + 7, dtype=np.uint8).tobytes()


class TestCacheInMemory(StoreContract):
    def make_store(self, tmp_path: Path) -> Store:
        return Cache(Ram(), of="x", budget_bytes=4 * MIB)


class TestCacheInAFolder(StoreContract):
    def make_store(self, tmp_path: Path) -> Store:
        return Cache(Ram(), of="x", budget_bytes=4 * MIB, folder=tmp_path / "cache")


def source() -> Faults:
    ram = Ram()
    ram.put("a", [DATA])
    return Faults(ram)


def reads(store: Faults) -> int:
    return sum(call.verb == "read" for call in store.calls)


def lying_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


@pytest.mark.parametrize("kind", ["memory", "folder"])
def test_what_was_read_is_not_fetched_again(kind: str, tmp_path: Path) -> None:
    inside = source()
    store = Cache(inside, of="x", budget_bytes=64 * MIB, folder=tmp_path if kind == "folder" else None)
    assert bytes(store.read("a", start=100, nbytes=3 * MIB)) == DATA[100 : 100 + 3 * MIB]
    assert reads(inside) == 1  # neighbouring blocks are one request
    assert bytes(store.read("a", start=5, nbytes=4 * MIB - 5)) == DATA[5 : 4 * MIB]
    assert reads(inside) == 1
    assert bytes(store.read("a")) == DATA
    assert reads(inside) == 2
    assert (store.hits, store.fetches) == (8, 6)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(DATA)), st.integers(0, 3 * MIB)), max_size=8))
def test_any_spans_in_any_order_are_what_the_store_holds(spans: list[tuple[int, int]]) -> None:
    store = Cache(source(), of="x", budget_bytes=2 * MIB)
    for start, nbytes in spans:
        stop = min(start + nbytes, len(DATA))
        assert bytes(store.read("a", start=start, nbytes=stop - start)) == DATA[start:stop]


def test_the_budget_holds_and_the_longest_unused_goes_first(tmp_path: Path) -> None:
    inside = source()
    store = Cache(inside, of="x", budget_bytes=3 * MIB, folder=tmp_path)
    for block in (0, 1, 2, 0, 3):  # 1 is now the longest unused, and goes
        store.read("a", start=block * MIB, nbytes=1)
        assert lying_bytes(tmp_path) <= 3 * MIB + 16 * 4
    before = reads(inside)
    for block in (0, 2, 3):
        store.read("a", start=block * MIB, nbytes=1)
    assert reads(inside) == before
    store.read("a", start=MIB, nbytes=1)
    assert reads(inside) == before + 1


def test_that_a_blob_is_not_there_is_asked_every_time() -> None:
    inside = source()
    store = Cache(inside, of="x", budget_bytes=MIB)
    with pytest.raises(BlobMissing):
        store.read("slots/1")
    inside.create("slots/1", b"1")
    assert bytes(store.read("slots/1")) == b"1"
    assert store.size("slots/2") is None
    assert store.names("slots/") == ["slots/1"]
    inside.create("slots/2", b"2")
    assert store.size("slots/2") == 1
    assert store.names("slots/") == ["slots/1", "slots/2"]


def test_another_process_finds_what_lies_in_the_folder(tmp_path: Path) -> None:
    Cache(source(), of="x", budget_bytes=64 * MIB, folder=tmp_path).read("a")
    inside = source()
    again = Cache(inside, of="x", budget_bytes=64 * MIB, folder=tmp_path)
    assert bytes(again.read("a")) == DATA
    assert reads(inside) == 0
    Cache(source(), of="x", budget_bytes=2 * MIB, folder=tmp_path)  # a smaller budget makes room at once
    assert lying_bytes(tmp_path) <= 2 * MIB + 16 * 3


def test_stores_that_share_a_folder_do_not_mix(tmp_path: Path) -> None:
    one, other = Ram(), Ram()
    one.create("a", b"one")
    other.create("a", b"two")
    for of, store, want in [("1", one, b"one"), ("2", other, b"two"), ("1", one, b"one")]:
        assert bytes(Cache(store, of=of, budget_bytes=MIB, folder=tmp_path).read("a")) == want


@pytest.mark.parametrize("damage", ["cut", "flipped", "emptied", "deleted", "swapped"])
def test_a_folder_that_a_crash_left_behind_costs_a_fetch_and_nothing_else(tmp_path: Path, damage: str) -> None:
    Cache(source(), of="x", budget_bytes=64 * MIB, folder=tmp_path).read("a")
    (tmp_path / f".half-{'0' * 16}").write_bytes(b"half")
    (tmp_path / "my notes.txt").write_bytes(b"precious")
    blocks = sorted(tmp_path.glob("*.block"))
    bytes_ = blocks[1].read_bytes()
    if damage == "cut":
        blocks[1].write_bytes(bytes_[:-9])
    elif damage == "flipped":
        blocks[1].write_bytes(bytes_[:-1] + bytes([bytes_[-1] ^ 1]))
    elif damage == "emptied":
        blocks[1].write_bytes(b"")
    elif damage == "deleted":
        blocks[1].unlink()
    else:
        os.truncate(blocks[1], 0)
        blocks[1].unlink()
        os.symlink(blocks[2], blocks[1])
    inside = source()
    store = Cache(inside, of="x", budget_bytes=64 * MIB, folder=tmp_path)
    assert bytes(store.read("a")) == DATA
    assert reads(inside) == 1
    assert not list(tmp_path.glob(".half-*"))
    assert (tmp_path / "my notes.txt").read_bytes() == b"precious"


def test_a_folder_that_takes_nothing_more_does_not_fail_a_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise OSError(28, "no space")

    inside = source()
    store = Cache(inside, of="x", budget_bytes=64 * MIB, folder=tmp_path)
    monkeypatch.setattr(os, "rename", refuse)
    for _ in range(2):
        assert bytes(store.read("a")) == DATA
    assert reads(inside) == 2
    assert list(tmp_path.iterdir()) == []


def test_a_budget_below_one_block_is_refused() -> None:
    with pytest.raises(CallError, match="at least"):
        Cache(Ram(), of="x", budget_bytes=1000)
