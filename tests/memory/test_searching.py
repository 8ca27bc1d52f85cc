"""What a search shows: what holds, once, with what replaced or contradicts it on request."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from perdure.errors import CallError
from perdure.memory import Memory
from perdure.memory.asked import time_named


def texts(memory: Memory, question: str, **more: object) -> list[str]:
    return [hit.fact.text for hit in memory.search(question, **more)]  # type: ignore[arg-type]


def link(memory: Memory, kind: str, fact: int, other: int) -> None:
    state = {"supersedes": ("superseded", other), "duplicates": ("duplicate", fact)}.get(kind)
    with memory._ledger.change() as db:
        db.execute("UPDATE fact SET settled = 1")  # rules do not look at it again
        db.execute("INSERT INTO change(kind, by, outcome, at_s) VALUES ('settle', 'rules', 'ok', 0)")
        change = db.execute("SELECT max(id) FROM change").fetchone()[0]
        db.execute(
            "INSERT INTO link(kind, fact, other, reason, change) VALUES (?, ?, ?, '', ?)", (kind, fact, other, change)
        )
        if state:
            db.execute("UPDATE fact SET state = ? WHERE id = ?", state)


def test_who_asks_with_the_old_words_is_shown_what_replaces_them(tmp_path: Path) -> None:
    """openclaw#95606: stale and corrected facts both returned; memoria#89: both versions active."""
    with Memory(tmp_path) as memory:
        memory.observe("Anna lives in Lisbon.", at="2023-01-01")
        memory.observe("She has moved to Porto now.", at="2024-01-01")
        link(memory, "supersedes", 2, 1)
        hit = memory.search("Does Anna live in Lisbon?")[0]
        assert hit.fact.text == "She has moved to Porto now."
        assert "f1" in hit.why
        assert "Anna lives in Lisbon." not in texts(memory, "Lisbon")
        both = memory.search("Lisbon Porto", history=True)
        assert {each.fact.id: each.by for each in both} == {1: (2,), 2: ()}
        assert texts(memory, "Anna Lisbon", as_of="2023-06-01") == ["Anna lives in Lisbon."]
        assert texts(memory, "Anna Lisbon", as_of="2022-06-01") == []


def test_the_same_note_stored_thrice_is_shown_once(tmp_path: Path) -> None:
    """deja-vu#1736: identical note stored each time; recall prints it three times."""
    with Memory(tmp_path) as memory:
        for _ in range(3):
            memory.observe("Anna lives in Lisbon.")
        link(memory, "duplicates", 2, 1)
        link(memory, "duplicates", 3, 1)
        assert [hit.fact.id for hit in memory.search("Lisbon")] == [1]


def test_conflicts_are_shown_as_such(tmp_path: Path) -> None:
    with Memory(tmp_path) as memory:
        memory.observe("The door code is 1234.")
        memory.observe("The door code is 9999.")
        link(memory, "conflicts", 2, 1)
        assert {hit.fact.id: hit.conflicts for hit in memory.search("door code")} == {1: (2,), 2: (1,)}


def test_what_was_forgotten_is_never_shown_even_as_a_replacement(tmp_path: Path) -> None:
    with Memory(tmp_path) as memory:
        memory.observe("Anna lives in Lisbon.")
        memory.observe("Anna lives in Porto.")
        link(memory, "supersedes", 2, 1)
        with memory._ledger.change() as db:
            db.execute("UPDATE fact SET state = 'forgotten' WHERE id = 2")
        for history in (False, True):
            assert "Anna lives in Porto." not in texts(memory, "Anna", history=history)


def test_a_ring_of_replacements_ends(tmp_path: Path) -> None:
    with Memory(tmp_path) as memory:
        memory.observe("Anna lives in Lisbon.")
        memory.observe("Anna lives in Porto.")
        link(memory, "supersedes", 2, 1)
        link(memory, "supersedes", 1, 2)
        assert memory.search("Anna", history=False) == memory.search("Anna", history=False)


def test_many_replaced_ones_do_not_hide_the_one_that_holds(tmp_path: Path) -> None:
    with Memory(tmp_path) as memory:
        memory.observe_many([{"text": f"Anna's desk has number {at}."} for at in range(60)])
        for at in range(1, 60):
            link(memory, "supersedes", at + 1, at)
        assert texts(memory, "Anna desk number", limit=3)[:1] == ["Anna's desk has number 59."]


def test_only_what_was_asked_for_is_found(tmp_path: Path) -> None:
    """adk-python#1019 and others: a filter that some read path ignores."""
    with Memory(tmp_path) as memory:
        memory.observe("The cat is grey.", speaker="Anna", source="chat", at="2023-05-01")
        memory.observe("The cat is old.", speaker="Bob", source="mail", at="2023-06-01", role="tool")
        assert texts(memory, "cat", speaker="Anna") == ["The cat is grey."]
        assert texts(memory, "cat", source="mail") == ["The cat is old."]
        assert texts(memory, "cat", since="2023-05-15") == ["The cat is old."]
        assert texts(memory, "cat", until="2023-05-15") == ["The cat is grey."]
        assert texts(memory, "cat", role="tool") == ["The cat is old."]
        assert texts(memory, "cat", speaker="nobody") == []
        assert texts(memory, "", speaker="Anna") == ["The cat is grey."]
        with pytest.raises(CallError, match="must be a string"):
            memory.search(None)  # type: ignore[arg-type]


def test_a_speaker_named_in_the_question_is_looked_to_first(tmp_path: Path) -> None:
    with Memory(tmp_path) as memory:
        memory.observe("I like hiking a lot.", speaker="Bob", source="a")
        memory.observe("I like hiking very much.", speaker="Anna", source="b")
        memory.observe("I like hiking so much.", speaker="Carl", source="c")
        for name in ("Bob", "Anna", "Carl"):
            assert memory.search(f"Does {name} like hiking?")[0].fact.speaker == name


def test_a_time_named_in_the_question_is_looked_to_first(tmp_path: Path) -> None:
    with Memory(tmp_path) as memory:
        for month in (3, 5, 7):
            memory.observe(
                f"We went to the market and bought fish, {month} of them.", at=f"2023-0{month}-10", source=f"s{month}"
            )
        assert memory.search("What did we buy at the market in May 2023?")[0].fact.observed.startswith("2023-05")
        assert memory.search("market last week")[0].fact.observed.startswith("2023-07")


@pytest.mark.parametrize("asked", ["on 31 February 2023", "in 0000-99", "99999 days ago", "on 2023-13-45", "in May"])
def test_a_time_that_there_is_not_is_no_error(asked: str) -> None:
    time_named(asked, 0.0)


def test_words_in_meta_find_the_turn(tmp_path: Path) -> None:
    with Memory(tmp_path) as memory:
        memory.observe("Look at this!", meta={"caption": "a photo of a lighthouse", "url": "https://x.example/zebra"})
        memory.observe("Nothing here.", source="b")
        assert texts(memory, "lighthouse")[0] == "Look at this!"
        assert texts(memory, "zebra") == []


def test_the_answer_in_the_next_turn_of_a_conversation_is_found(tmp_path: Path) -> None:
    with Memory(tmp_path) as memory:
        talk = []
        for at in range(60):
            talk.append({"text": f"What about topic{at} and matter{at}?", "speaker": "Anna", "source": "chat"})
            talk.append({"text": f"Well, topic{at} went as planned, answer{at}.", "speaker": "Bob", "source": "chat"})
        memory.observe_many(talk)
        assert "answer30." in " ".join(texts(memory, "How is matter30?", limit=3))


class Backwards:
    """A reranker that likes short sections."""

    name = "short first"

    def score(self, question: str, sections: Sequence[str]) -> Sequence[float]:
        return [-float(len(each)) for each in sections]


def test_a_reranker_orders_whole_passages(tmp_path: Path) -> None:
    with Memory(tmp_path, reranker=Backwards()) as memory:
        memory.observe("The cat sat. " + "It was a long day for everybody in the house. " * 3)
        memory.observe("A cat.")
        hit = memory._searcher.find("cat")[0]
        assert hit.fact.text == "A cat."
        assert "short first" in hit.why


def test_a_search_does_not_become_slow_where_every_fact_has_the_word(tmp_path: Path) -> None:
    with Memory(tmp_path) as memory:
        memory.observe_many([{"text": f"the common word and thing{at}"} for at in range(3000)])
        memory.search("common")
        start = time.perf_counter()
        assert texts(memory, "common word thing1234", limit=1) == ["the common word and thing1234"]
        assert time.perf_counter() - start < 5.0
