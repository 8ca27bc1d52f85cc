"""Answers without a model: what holds, what is disputed, and that there is nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure.memory import Memory
from perdure.memory.answers import answer_by_rules, coverage
from perdure.memory.probing import diagnose


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Memory]:
    with Memory(tmp_path) as opened:
        opened.observe("Anna lives in Lisbon. She has a cat.", speaker="anna", at="2023-05-08")
        opened.observe("Anna lives in Berlin.", speaker="anna", at="2024-05-08")
        opened.observe("Bob keeps bees.", speaker="bob", at="2024-05-09")
        yield opened


def test_what_holds_comes_with_its_evidence_and_date_and_says_that_rules_answered(memory: Memory) -> None:
    """openclaw#95606: stale and corrected facts both returned."""
    answer = memory.ask("Where does Anna live?")
    assert answer.text.splitlines()[0] == "Anna lives in Berlin. [f3, e2, told 2024-05-08 by anna]"
    assert answer.by == "rules"
    assert "without a model" in answer.note
    assert "Lisbon" not in answer.text


def test_what_is_disputed_is_marked(memory: Memory) -> None:
    """What an assistant says later replaces nothing that a user said: it only stands against it."""
    memory.observe("Anna lives in Oslo.", speaker="carl", at="2024-06-08", role="assistant")
    answer = memory.ask("Where does Anna live?")
    assert answer.text.startswith("Anna lives in Berlin. [f3")
    assert "disputed: Anna lives in Oslo. [f5, e4, told 2024-06-08]" in answer.text
    assert answer.hits[0].conflicts == (5,)


@pytest.mark.parametrize(
    "question", ["What is the capital of France?", "What is Bob's blood type and size?", "", "?!", "zzz", "\ud800"]
)
def test_where_nothing_fits_it_says_so(memory: Memory, question: str) -> None:
    answer = memory.ask(question)
    assert answer.text.startswith("Nothing in this memory says")
    assert answer.hits == ()


@pytest.mark.parametrize("question", ["Does Bob keep bees?", "who keeps bees", "BOB BEES", "Bob's bee-keeping"])
def test_the_form_of_a_word_and_its_case_do_not_matter(memory: Memory, question: str) -> None:
    assert memory.ask(question).hits[0].fact.text == "Bob keeps bees."


def test_words_of_scripts_without_spaces_are_compared_by_pairs() -> None:
    """neural-memory PR#209: Chinese text silently dropped."""
    assert coverage("安娜住在哪里", "安娜住在里斯本。") > 0.5
    assert coverage("安娜住在哪里", "天气很好。") == 0


def test_what_was_found_by_meaning_needs_no_shared_word(memory: Memory) -> None:
    from perdure.memory.records import Hit

    hits = [Hit(memory.fact(4), 0.8, "meaning")]
    assert answer_by_rules(memory.tools().shelf, "Qui élève des abeilles ?", hits).hits[0].fact.id == 4


def test_a_diagnosis_says_which_step_lost_the_evidence(memory: Memory) -> None:
    shelf = memory.tools().shelf
    hits = memory.search("Where does Anna live?")
    answer = memory.ask("Where does Anna live?")
    assert diagnose(shelf, [2], hits, answer).lost_at == ""
    assert diagnose(shelf, [1, 2], hits, answer).lost_at == "citing"  # that she has a cat does not say where she lives
    assert diagnose(shelf, [3], hits, answer).lost_at == "finding"
    assert diagnose(shelf, [99], hits, answer).lost_at == "storing"
    assert diagnose(shelf, [1], hits, memory.ask("Berlin?")).lost_at == "citing"
    found = diagnose(shelf, [2, 3], hits)
    assert (found.stored, found.found, found.rank) == (1.0, 0.5, [hit.fact.evidence for hit in hits].index(2) + 1)


def test_later_prose_that_fills_no_slot_comes_before_the_slot_that_it_leaves(tmp_path: Path) -> None:
    with Memory(tmp_path) as memory:
        memory.observe("I work at Brightwell Foods, in purchasing", speaker="user", at="2024-11-02", source="chat")
        memory.observe("4 years by now", speaker="user", at="2024-11-03", source="chat")
        memory.observe(
            "first day at Oker Logistics, nobody showed me around", speaker="user", at="2025-04-28", source="chat"
        )
        assert "Oker Logistics" in memory.ask("Where does the user work?").hits[0].fact.text


def test_of_what_nobody_spoke_nothing_is_said_and_nothing_else_comes_after_an_answer(tmp_path: Path) -> None:
    with Memory(tmp_path) as memory:
        memory.observe("six floors up and no lift, my flat in Lisbon", speaker="Ines", at="2023-03-02", source="chat")
        memory.observe("haha congrats", speaker="Tariq", at="2023-03-02", source="chat")
        memory.observe("woke up in my new place in Porto", speaker="Ines", at="2024-02-14", source="chat")
        assert memory.ask("What is Ines's shoe size?").hits == ()
        answer = memory.ask("Which city does Ines live in?")
        assert "Porto" in answer.hits[0].fact.text
        assert "congrats" not in answer.text
