"""What a person pastes into a document is taken in, however much it is."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.memory import Memory
from perdure.memory.document_edits import Shown, edits
from perdure.memory.document_text import escaped, read, unescaped


def seconds(count: int) -> float:
    found = read("".join(f"- Bullet {at} is here.\n" for at in range(count)))
    standing = [f"Fact {at} stands." for at in range(count)]
    started = time.process_time()
    done = edits(found, Shown(), {}, standing=standing, notes="", extra="")
    assert len(done.added) == count
    return time.process_time() - started


def test_many_new_bullets_take_time_in_proportion() -> None:
    assert min(seconds(16_000) for _ in range(3)) < 30 * max(min(seconds(2_000) for _ in range(3)), 1e-3)


def test_the_same_new_bullet_twice_is_one() -> None:
    found = read("- Tea  is hot.\n- Tea is hot.\n- Caf\u00e9.\n- Cafe\u0301.\n- Known.\n")
    done = edits(found, Shown(), {}, standing=["Known."], notes="", extra="")
    assert [text for text, _ in done.added] == ["Tea  is hot.", "Caf\u00e9."]


@given(st.text(alphabet="\\`<[^f!}{#->+*=|~:1\u0663. )\t\n\x00\x7f\u200d\u202e\u2028\u00e9\U000e0001", max_size=8))
def test_whatever_means_something_is_escaped_and_read_back(text: str) -> None:
    line = escaped(text)
    assert unescaped(line) == text
    assert "\n" not in line
    assert not line.startswith(tuple("#->+*=|~:"))


@pytest.mark.slow
def test_a_bullet_of_megabytes_is_taken_in_and_examined(tmp_path: Path) -> None:
    with Memory(tmp_path) as memory:
        memory.observe("Anna sings.")
        memory.consolidate()
        path = memory.folder / memory.topic("Anna").file
        path.write_text(path.read_text().replace("# Conflicts", "- " + "x" * 4_000_000 + "\n\n# Conflicts"))
        memory.consolidate()
        started = time.process_time()
        assert memory.doctor() == []
        assert time.process_time() - started < 5
        assert memory.status().facts > 100
