"""The front of a memory: what is told is kept, found and told apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.errors import CallError
from perdure.memory import Memory, State


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


def test_of_several_edits_of_one_fact_the_last_holds(tmp_path: Path) -> None:
    with Memory(tmp_path) as memory:
        memory.observe("I live in Porto.", speaker="Anna", at="2024-01-01")
        for place in ("Rome", "Oslo", "Bergen"):
            memory.edit("f1", f"I live in {place}.")
        for _ in range(2):
            assert [hit.fact.text for hit in memory.search("Where does Anna live?")] == ["I live in Bergen."]
        assert memory.status().by_state == {"current": 1, "superseded": 3}
        assert memory.doctor() == []
        memory.undo(memory.changes(limit=1)[0].id)
        assert memory.search("Where does Anna live?")[0].fact.text == "I live in Oslo."


def test_a_fact_whose_forgetting_is_taken_back_is_found_again(tmp_path: Path) -> None:
    """opencode-supermemory#5, the other way round: what the state says, the search does."""
    with Memory(tmp_path) as memory:
        memory.observe("She owes me ZEBRA dollars.")
        assert memory.search("ZEBRA")
        memory.forget(fact="f1")
        assert memory.search("ZEBRA") == []
        memory.undo(memory.changes(limit=1)[0].id)
        assert [hit.fact.id for hit in memory.search("ZEBRA")] == [1]


def test_whatever_reads_knows_what_replaces_what(tmp_path: Path) -> None:
    with Memory(tmp_path) as memory:
        memory.observe("I live in Porto.", speaker="Anna", at="2024-01-01")
        memory.observe("I live in Faro now.", speaker="Anna", at="2024-06-01")
    for read in (
        lambda memory: memory.fact("f1").state,
        lambda memory: memory.history("f2").facts[0].state,
        lambda memory: memory.tools().call("timeline", {}).text.count("superseded") and State.SUPERSEDED,
    ):
        with Memory(tmp_path) as memory:
            assert read(memory) is State.SUPERSEDED
            with memory.ledger.change() as db:  # as if nobody had read it yet
                db.execute("DELETE FROM link")
                db.execute("UPDATE fact SET state = 'current', settled = 0")
