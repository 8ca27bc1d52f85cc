"""What every store must do. Subclass `StoreContract`, give it ``make_store``, and let pytest collect it.

class TestMyStore(StoreContract):
    def make_store(self, tmp_path):
        return MyStore(tmp_path)
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from perdure.errors import BlobCorrupt, BlobMissing, CallError
from perdure.store.api import Store

__all__ = ["ESCAPES", "StoreContract"]

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


class StoreContract:
    """The contract of `perdure.store.api.Store`, as tests."""

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
