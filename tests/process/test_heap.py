"""Memory that was freed is the system's again."""

from __future__ import annotations

import resource
import threading
from pathlib import Path

import pytest

from perdure.process import heap
from perdure.process.heap import trim_heap

MIB = 1 << 20


def private_bytes() -> int:
    words = Path("/proc/self/statm").read_text().split()
    return (int(words[1]) - int(words[2])) * resource.getpagesize()


def test_what_a_thread_has_freed_goes_back() -> None:
    """Blocks below the size that is mapped by itself, one of them kept so that the others cannot simply be cut off."""
    kept = []
    before = private_bytes()

    def work() -> None:
        blocks = [bytearray(b"x") * (100 << 10) for _ in range(1000)]
        kept.append(blocks[-1])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    trim_heap()
    assert private_bytes() < before + 30 * MIB


def test_where_the_c_library_cannot_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heap, "_trim", None)
    trim_heap()
