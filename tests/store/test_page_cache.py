"""The page cache is asked what it holds, without being filled by the question."""

from __future__ import annotations

import os
from pathlib import Path

from perdure.store import Disk
from perdure.store.page_cache import is_cached


def test_what_was_read_is_cached_and_what_was_dropped_is_not(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(1 << 20))
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        path.read_bytes()
        assert is_cached(fd, 0)
        assert is_cached(fd, (1 << 20) - 1)
        assert not is_cached(fd, 1 << 20)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        again = [is_cached(fd, 5000) for _ in range(3)]
        assert len(set(again)) == 1, "the question itself brings nothing in"
    finally:
        os.close(fd)


def test_a_disk_counts_the_places_that_it_holds_in_memory(tmp_path: Path) -> None:
    store = Disk(tmp_path)
    store.put("packs/a", [bytes(1 << 16)])
    bytes(store.read("packs/a"))
    assert store.resident("packs/a", [0, 5000, 1 << 20]) <= 2
