"""Patterns find every kind of bit that memory does not hold; too little memory is told."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.supervisor import check_memory
from perdure.supervisor.checks import Context


@given(st.integers(1, 3 << 20), st.data())
def test_a_flipped_bit_is_found_in_every_pattern(count: int, data: st.DataObject) -> None:
    name, first, step = data.draw(st.sampled_from(list(check_memory.patterns())))
    index, bit = data.draw(st.integers(0, count - 1)), data.draw(st.integers(0, 63))
    words = np.empty(count, dtype=np.uint64)
    check_memory.fill(words, first, step)
    assert check_memory.faults(words, first, step) == []
    words[index] ^= np.uint64(1 << bit)
    assert check_memory.faults(words, first, step) == [(index, 1 << bit)], name


def test_stuck_bits_and_stuck_address_lines_are_seen_by_some_pattern() -> None:
    def seen_by(spoil: Callable[[check_memory.Words], None]) -> set[str]:
        seen = set()
        for name, first, step in check_memory.patterns():
            words = np.empty(4096, dtype=np.uint64)
            check_memory.fill(words, first, step)
            spoil(words)
            if check_memory.faults(words, first, step):
                seen.add(name)
        return seen

    def stuck_at_one(words: check_memory.Words) -> None:
        words |= np.uint64(1 << 17)

    def one_line_dead(words: check_memory.Words) -> None:
        words.reshape(-1, 2, 64)[:, 1] = words.reshape(-1, 2, 64)[:, 0]

    assert "zeros" in seen_by(stuck_at_one)
    assert seen_by(one_line_dead) == {"addresses", "complements"}


def test_memory_that_forgets_is_a_problem_that_names_the_bits() -> None:
    found = check_memory.verdict({"ones": [(5, 1 << 40)]}, nbytes=1 << 20, took_s=1.0)
    assert found.word == "problem"
    assert "pattern ones, bits 0000010000000000" in found.says


def test_too_little_memory_is_a_problem_for_a_job_that_needs_it() -> None:
    assert check_memory.free_memory(Context()).word in ("ok", "note")
    found = check_memory.free_memory(Context(need_memory_bytes=1 << 60))
    assert found.word == "problem"
    assert "are needed" in found.says


@pytest.mark.parametrize(
    ("free", "total", "word"), [(60 << 20, 64 << 20, "note"), (1 << 20, 8 << 30, "note"), (8 << 30, 8 << 30, "ok")]
)
def test_a_small_or_full_dev_shm_is_a_note(monkeypatch: pytest.MonkeyPatch, free: int, total: int, word: str) -> None:
    usage = type("usage", (), {"free": free, "total": total, "used": total - free})
    monkeypatch.setattr(check_memory.shutil, "disk_usage", lambda path: usage)
    monkeypatch.setattr(check_memory, "available_nbytes", lambda: 8 << 30)
    assert check_memory.free_memory(Context()).word == word
