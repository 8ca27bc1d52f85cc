"""The front of a memory: what is told is kept, found and told apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.errors import CallError
from perdure.memory import Memory


def test_what_was_told_is_found_at_once_and_after_opening_again(tmp_path: Path) -> None:
    with Memory(tmp_path) as memory:
        told = memory.observe("Anna lives in Lisbon. She has a cat.", source="chat", at="2026-01-02T10:00+01:00")
        assert told.name == "e1"
        assert told.facts == (1, 2)
        assert told.new
        assert memory.search("where does Anna live?")[0].fact.text == "Anna lives in Lisbon."
    with Memory(tmp_path) as memory:
        assert memory.evidence("e1").text == "Anna lives in Lisbon. She has a cat."
        assert not memory.observe(
            "Anna lives in Lisbon. She has a cat.", source="chat", at="2026-01-02T10:00+01:00"
        ).new


def test_spaces_do_not_know_each_other(tmp_path: Path) -> None:
    with Memory(tmp_path, space="a/../b") as one, Memory(tmp_path, space="other") as other:
        one.observe("a secret")
        assert other.search("secret") == []
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a%2F%2E%2E%2Fb", "other"]


@pytest.mark.parametrize(
    "text", ["", "\x00", "a\x00b", "\ud800 half", "日本語の文。次の文。", "e\u0301", "👩‍👩‍👧", "x" * 100_000]
)
def test_any_text_comes_back_word_for_word(tmp_path: Path, text: str) -> None:
    with Memory(tmp_path) as memory:
        assert memory.evidence(memory.observe(text).evidence).text == text


def test_one_key_for_two_texts_is_refused(tmp_path: Path) -> None:
    with Memory(tmp_path) as memory:
        memory.observe("one", key="k")
        with pytest.raises(CallError, match="other words"):
            memory.observe("two", key="k")
