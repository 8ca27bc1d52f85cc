"""What every store must do. Subclass `StoreContract`, give it ``make_store``, and let pytest collect it.

class TestMyStore(StoreContract):
    def make_store(self, tmp_path):
        return MyStore(tmp_path)
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest

from perdure.errors import BlobCorrupt, BlobMissing, CallError
from perdure.store.api import Store

__all__ = ["ESCAPES", "StoreContract"]

T = TypeVar("T")

ESCAPES = [
    "",
    "/etc/passwd",
    "../up",
    "a/../b",
    "a/./b",
    "a//b",
    "a/",
    ".hidden",
    "a/.tmp-0",
    "a\\b",
    "a b",
    "a\0b",
    "a\nb",
    "a\n",
    "caf\u00e9",
    "a" * 201,
    "/".join(["a" * 100] * 6),
    "C:x",
    "~",
    "$HOME",
]


def _at_once(n: int, work: Callable[[int], T]) -> list[T]:
    """What ``work`` returned in each of ``n`` threads that began together."""
    gate = threading.Barrier(n)

    def begin(i: int) -> T:
        gate.wait(10)
        return work(i)

    with ThreadPoolExecutor(n) as pool:
        return list(pool.map(begin, range(n)))


class StoreContract:
    """The contract of `perdure.store.api.Store`, as tests."""

    many = 1100  # blobs in a listing: more than one page of any object store

    def make_store(self, tmp_path: Path) -> Store:
        """An empty store that nobody else uses."""
        raise NotImplementedError

    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return self.make_store(tmp_path)

    def test_a_blob_is_the_concatenation_of_its_chunks(self, store: Store) -> None:
        store.put("a/b", [b"12", bytearray(b"345"), memoryview(b"6"), b""])
        assert bytes(store.read("a/b")) == b"123456"
        assert store.size("a/b") == 6

    def test_chunks_may_be_arrays_of_any_shape_and_dtype(self, store: Store) -> None:
        array = np.arange(6, dtype=np.float32).reshape(2, 3)
        store.put("a", [array.data, np.zeros((0, 3)).data, np.ones(1, np.float16).data])
        assert bytes(store.read("a")) == array.tobytes() + np.ones(1, np.float16).tobytes()

    def test_a_chunk_that_is_not_contiguous_is_refused_and_leaves_nothing(self, store: Store) -> None:
        with pytest.raises(CallError, match="contiguous"):
            store.put("a", [b"x", np.arange(10)[::2].data])
        assert store.size("a") is None
        assert store.names("") == []

    def test_a_generator_may_reuse_its_buffer(self, store: Store) -> None:
        buffer = bytearray(3)

        def chunks() -> Iterator[bytearray]:
            for letter in b"abc":
                buffer[:] = bytes([letter]) * 3
                yield buffer

        store.put("a", chunks())
        assert bytes(store.read("a")) == b"aaabbbccc"

    def test_an_empty_blob_is_there(self, store: Store) -> None:
        store.put("a", [])
        assert store.create("b", b"")
        assert not store.create("b", b"")
        assert store.size("a") == store.size("b") == 0
        assert bytes(store.read("a")) == b""

    def test_a_blob_is_never_replaced(self, store: Store) -> None:
        store.put("a", [b"old"])
        with pytest.raises(CallError, match="exists"):
            store.put("a", [b"new"])
        assert not store.create("a", b"new")
        assert bytes(store.read("a")) == b"old"

    def test_chunks_that_fail_leave_nothing_and_their_error_passes_unchanged(self, store: Store) -> None:
        def chunks() -> Iterator[bytes]:
            yield b"half"
            raise OSError("the source broke")

        with pytest.raises(OSError, match="the source broke"):
            store.put("a", chunks())
        assert store.size("a") is None
        assert store.names("") == []
        store.put("a", [b"whole"])
        assert bytes(store.read("a")) == b"whole"

    def test_create_says_whether_it_wrote(self, store: Store) -> None:
        assert store.create("a", b"1") is True
        assert store.create("a", b"1") is False
        assert bytes(store.read("a")) == b"1"

    def test_of_many_creators_exactly_one_wins_and_its_bytes_are_there(self, store: Store) -> None:
        won: list[int] = []
        gate = threading.Barrier(8)

        def create(i: int) -> None:
            gate.wait(10)
            won.extend(r * 8 + i for r in range(5) if store.create(f"race/{r}", bytes([i]) * 100))

        threads = [threading.Thread(target=create, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert sorted(number // 8 for number in won) == list(range(5))
        for number in won:
            assert bytes(store.read(f"race/{number // 8}")) == bytes([number % 8]) * 100

    def test_of_many_creators_of_the_same_bytes_exactly_one_wins(self, store: Store) -> None:
        won = _at_once(8, lambda i: store.create("a/b", b"same"))
        assert won.count(True) == 1
        assert won.count(False) == 7

    def test_of_many_writers_exactly_one_wins_whatever_verb_they_use(self, store: Store) -> None:
        def write(i: int) -> bool:
            if i % 2:
                return store.create("a", bytes([i]) * 1000)
            try:
                store.put("a", [bytes([i]) * 500, bytes([i]) * 500])
            except CallError as error:
                return "exists" not in str(error)
            return True

        won = _at_once(8, write)
        assert won.count(True) == 1
        assert bytes(store.read("a")) == bytes([won.index(True)]) * 1000

    def test_nothing_is_seen_of_a_blob_before_it_is_whole(self, store: Store) -> None:
        seen: list[tuple[int | None, list[str]]] = []

        def chunks() -> Iterator[bytes]:
            for _ in range(3):
                yield b"x" * 3_000_000
                seen.append((store.size("a/b"), store.names("")))

        store.put("a/b", chunks())
        assert seen == [(None, [])] * 3
        assert store.size("a/b") == 9_000_000

    def test_chunks_that_are_interrupted_leave_nothing(self, store: Store) -> None:
        class Interrupted(BaseException):
            pass

        def chunks() -> Iterator[bytes]:
            yield b"x" * 12_000_000
            raise Interrupted

        with pytest.raises(Interrupted):
            store.put("a", chunks())
        assert store.size("a") is None
        assert store.names("") == []

    def test_a_large_blob_is_read_whole_and_in_odd_spans(self, store: Store) -> None:
        data = np.random.default_rng(1).integers(0, 256, (20 << 20) + 3, dtype=np.uint8)
        store.put("a", [data[: 7 << 20].data, data[7 << 20 :].data])
        assert np.array_equal(np.frombuffer(store.read("a"), np.uint8), data)
        for start, nbytes in [(0, 8 << 20), (1, 16 << 20), ((8 << 20) - 1, (8 << 20) + 2), (5, len(data) - 5)]:
            into = np.zeros(nbytes, np.uint8)
            store.read("a", start=start, nbytes=nbytes, into=into.data)
            assert np.array_equal(into, data[start : start + nbytes])
            assert np.array_equal(np.frombuffer(store.read("a", start=start, nbytes=nbytes), np.uint8), into)
        assert store.read("a", start=len(data) - 1) == data[-1:].tobytes()
        with pytest.raises(BlobCorrupt):
            store.read("a", start=1, nbytes=len(data))

    @pytest.mark.parametrize(("start", "nbytes"), [(1 << 60, 1), (1 << 62, 1 << 62), (1 << 64, 1), (3, 1 << 64)])
    def test_a_span_beyond_all_reason_is_corrupt_and_allocates_nothing(
        self, store: Store, start: int, nbytes: int
    ) -> None:
        store.put("a", [b"0123456789"])
        with pytest.raises(BlobCorrupt):
            store.read("a", start=start, nbytes=nbytes)

    def test_a_listing_of_many_pages_is_whole_and_sorted(self, store: Store) -> None:
        wanted = [f"slots/{i * 7919 % self.many:010d}.json" for i in range(self.many)]
        _at_once(8, lambda i: [store.create(name, b"{}") for name in wanted[i::8]])
        store.create("slotsmore", b"1")
        assert store.names("slots/") == sorted(wanted)
        assert store.names("slots/000000000") == sorted(wanted)[:10]
        assert len(store.names("")) == self.many + 1

    def test_a_span_is_read_on_its_own(self, store: Store) -> None:
        store.put("a", [b"0123456789"])
        assert bytes(store.read("a", start=3)) == b"3456789"
        assert bytes(store.read("a", start=3, nbytes=2)) == b"34"
        assert bytes(store.read("a", start=10)) == b""
        assert bytes(store.read("a", nbytes=0)) == b""

    def test_a_span_is_read_into_the_callers_buffer(self, store: Store) -> None:
        store.put("a", [b"0123456789"])
        buffer = bytearray(b"........")
        view = store.read("a", start=2, nbytes=3, into=buffer)
        assert bytes(view) == b"234"
        assert bytes(buffer) == b"234....."
        store.read("a", start=1, into=buffer)
        assert bytes(buffer) == b"12345678"
        array = np.zeros(2, np.uint32)
        store.read("a", into=array.data)
        assert array.tobytes() == b"01234567"

    def test_a_buffer_that_does_not_serve_is_refused(self, store: Store) -> None:
        store.put("a", [b"0123456789"])
        with pytest.raises(CallError):
            store.read("a", nbytes=4, into=bytearray(3))
        with pytest.raises(CallError):
            store.read("a", nbytes=3, into=b"abc")
        for start, nbytes in [(-1, 1), (0, -1)]:
            with pytest.raises(CallError):
                store.read("a", start=start, nbytes=nbytes)

    def test_a_blob_that_is_too_short_is_corrupt(self, store: Store) -> None:
        store.put("a", [b"0123456789"])
        with pytest.raises(BlobCorrupt) as caught:
            store.read("a", start=8, nbytes=3)
        assert "a" in caught.value.file
        with pytest.raises(BlobCorrupt):
            store.read("a", into=bytearray(11))
        with pytest.raises(BlobCorrupt):
            store.read("a", start=11)
        with pytest.raises(BlobCorrupt):  # before anything of that size is allocated
            store.read("a", nbytes=1 << 60)

    def test_what_is_not_there_is_missing(self, store: Store) -> None:
        store.put("a/b", [b"1"])
        for name in ["b", "a/c", "a/b/c", "a", "x/y/z"]:
            with pytest.raises(BlobMissing) as caught:
                store.read(name)
            assert caught.value.file.endswith(name)
            assert store.size(name) is None

    def test_names_are_sorted_and_begin_with_the_prefix(self, store: Store) -> None:
        for name in ["b/2", "b/1", "a", "b/1x/y", "bc/1", "B"]:
            store.put(name, [name.encode()])
        assert store.names("") == ["B", "a", "b/1", "b/1x/y", "b/2", "bc/1"]
        assert store.names("b") == ["b/1", "b/1x/y", "b/2", "bc/1"]
        assert store.names("b/") == ["b/1", "b/1x/y", "b/2"]
        assert store.names("b/1") == ["b/1", "b/1x/y"]
        assert store.names("nothing/") == []
        assert store.names("a/") == []

    def test_a_deleted_blob_is_gone_and_may_be_deleted_again(self, store: Store) -> None:
        store.put("a/b", [b"1"])
        store.delete("a/b")
        store.delete("a/b")
        store.delete("never/there")
        assert store.size("a/b") is None
        assert store.names("") == []
        store.put("a/b", [b"2"])
        assert bytes(store.read("a/b")) == b"2"

    @pytest.mark.parametrize("name", ESCAPES)
    def test_what_is_no_name_is_refused_by_every_verb(self, store: Store, name: str) -> None:
        for verb in (
            lambda: store.put(name, [b"x"]),
            lambda: store.create(name, b"x"),
            lambda: store.read(name),
            lambda: store.size(name),
            lambda: store.delete(name),
        ):
            with pytest.raises(CallError):
                verb()
        if name and name != "a/":
            with pytest.raises(CallError):
                store.names(name)
        assert store.names("") == []

    def test_readers_in_parallel_each_get_their_span(self, store: Store) -> None:
        data = np.random.default_rng(0).integers(0, 256, 1 << 20, dtype=np.uint8)
        store.put("a", [data.data])
        target = np.zeros_like(data)
        edges = list(range(0, (1 << 20) + 1, 1 << 16))

        def read(lo: int, hi: int) -> None:
            store.read("a", start=lo, nbytes=hi - lo, into=target[lo:hi].data)

        threads = [threading.Thread(target=read, args=span) for span in itertools.pairwise(edges)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert np.array_equal(target, data)
