"""The lexical index: what was told is found in any script, by any process, and after any damage."""

from __future__ import annotations

import multiprocessing
import os
import sqlite3
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.memory import Memory
from perdure.memory import postings as segments
from perdure.memory.postings import Tail, merge_due, pack, unpack
from perdure.memory.words import content_terms, terms


def found(memory: Memory, question: str, limit: int = 5) -> list[str]:
    return [hit.fact.text for hit in memory.search(question, limit=limit)]


@pytest.mark.parametrize(
    ("told", "asked"),
    [
        ("彼は東京に住んでいます", "東京"),
        ("彼は東京に住んでいます", "京"),
        ("我喜欢猫", "猫"),
        ("我的名字是王小明", "王小明"),
        ("แมวชอบปลา", "ปลา"),
        ("나는 서울에 산다", "서울에"),
        ("Она живёт в Москве", "москве"),
        ("Das Café in der Straße", "cafe strasse"),
        ("The key is sk-proj_42.b/7", "sk-proj_42.b/7"),
        ("We call getUserName often", "user name"),
        ("Version v1.2.3 came out", "v1.2.3"),
        ("C++ is old", "c++"),
        ("Anna went to the children's party", "Who did Anna's child go with?"),
        ("the chrysanthemums bloom", "chrysanthemum"),
        ("the antidisestablishmentarians met", "disestablish"),
        ("She lives in Lisbon", "Lisbonn"),
        ("a\x00b nul", "nul"),
        ("half \ud800 of a pair", "half"),
    ],
)
def test_a_text_is_found_by_its_words_in_any_script(tmp_path: Path, told: str, asked: str) -> None:
    """neural-memory PR#209: Chinese text dropped silently by English patterns; basic-memory#169: hyphens."""
    with Memory(tmp_path) as memory:
        memory.observe("Something else entirely.", source="other")
        memory.observe(told)
        assert found(memory, asked)[:1] == [told]


@pytest.mark.parametrize(
    "question",
    [
        '"', "'", "cats AND", "OR OR", "NOT", "NEAR(cats dogs, 2)", "body:cats", "cats*", "^cats", "(cats", "-cats",
        "{a b}: c", "cats;drop table posting", "a-b-c", "%", "_", "\x00", "\ud800", "🐈", "", "   ", "the of",
        "x" * 100_000, "cats " * 5000,
    ],
)  # fmt: skip
def test_nothing_in_a_question_is_syntax(tmp_path: Path, question: str) -> None:
    """graphiti#1426: a hyphen or a reserved sign breaks the full-text query silently."""
    with Memory(tmp_path) as memory:
        memory.observe("Cats like boxes.")
        hits = found(memory, question)
        assert hits == ["Cats like boxes."] or "cats" not in question.lower()


@given(st.text(max_size=60), st.text(max_size=60))
@settings(max_examples=150, deadline=None)
def test_terms_of_a_part_are_terms_of_the_whole(one: str, other: str) -> None:
    assert set(terms(one)) <= set(terms(f"{one} \n {other}"))
    assert all("\n" not in each and each for each in terms(one))
    assert set(content_terms(one)) <= set(terms(one))


def test_an_index_that_is_gone_or_damaged_is_made_again(tmp_path: Path) -> None:
    with Memory(tmp_path) as memory:
        memory.observe("Anna lives in Lisbon.")
        assert found(memory, "Lisbon")
        index = memory.folder / "index.db"
        for damage in (
            lambda: [each.unlink() for each in memory.folder.glob("index.db*")],
            lambda: index.write_bytes(b"no database at all" * 1000),
            lambda: index.write_bytes(b""),
            lambda: _sql(index, "UPDATE meta SET value = 'older' WHERE key = 'format'"),
            lambda: _sql(index, "UPDATE meta SET value = 'another' WHERE key = 'owner'"),
            lambda: _sql(index, "DELETE FROM tail"),
            lambda: _sql(index, "DROP TABLE posting"),
            lambda: _sql(index, "UPDATE meta SET value = 1000 WHERE key = 'follow'"),
        ):
            memory._index.close()
            damage()
            with Memory(tmp_path) as again:
                assert found(again, "Lisbon") == ["Anna lives in Lisbon."], damage
            with Memory(tmp_path) as again:
                again.observe("Bob has a cat.", key="bob")
                assert found(again, "cat")[0] == "Bob has a cat."


def test_who_has_an_index_open_notices_that_another_took_its_place(tmp_path: Path) -> None:
    with Memory(tmp_path) as memory, Memory(tmp_path) as other:
        memory.observe("Anna lives in Lisbon.")
        assert found(memory, "Lisbon")
        for each in memory.folder.glob("index.db*"):
            each.unlink()
        other.observe("Bob has a cat.")
        assert found(other, "cat")[0] == "Bob has a cat."
        assert found(memory, "cat")[0] == "Bob has a cat."
        assert found(memory, "Lisbon")[0] == "Anna lives in Lisbon."


def _sql(file: Path, statement: str) -> None:
    db = sqlite3.connect(file)
    db.execute(statement)
    db.commit()
    db.close()


def test_segments_and_the_tail_together_say_the_same_as_one_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import perdure.memory.following as following

    with Memory(tmp_path / "whole") as memory:
        texts = [f"number {at} of kind k{at % 7} and s{at % 11}." for at in range(300)]
        memory.observe_many([{"text": text, "source": f"s{at % 3}"} for at, text in enumerate(texts)])
        want = {asked: memory.search(asked, limit=20) for asked in ("k3", "k3 s5", "number 17", "s10 k6")}
    monkeypatch.setattr(segments, "TAIL", 8)
    monkeypatch.setattr(following, "TAIL", 8)
    with Memory(tmp_path / "pieces") as memory:
        for at, text in enumerate(texts):
            memory.observe(text, source=f"s{at % 3}")
            if at % 3 == 0:
                memory.search("number")
        for asked, hits in want.items():
            mine = memory.search(asked, limit=20)
            assert {hit.fact.text for hit in mine[:5]} == {hit.fact.text for hit in hits[:5]}
        counts = memory._index.frequencies(["k3", "s5", "number"])
        assert counts == (
            300,
            {"k3": sum(at % 7 == 3 for at in range(300)), "s5": sum(at % 11 == 5 for at in range(300)), "number": 300},
        )
        sizes = [row[0] for row in memory._index.connection().execute("SELECT size FROM segment ORDER BY first")]
        assert len(sizes) < 20
        assert sum(sizes) + memory._index.connection().execute("SELECT count(*) FROM tail").fetchone()[0] == 300


@given(st.lists(st.integers(0, 65_535), unique=True).map(sorted))
def test_postings_come_back_as_they_were_packed(units: list[int]) -> None:
    got, counts = unpack(pack(units, [300] * len(units)))
    assert got.tolist() == units
    assert counts.tolist() == [255] * len(units)


def test_merging_never_makes_a_segment_too_wide_and_keeps_them_few() -> None:
    sizes: list[int] = []
    for _ in range(2000):
        sizes.append(1024)
        while some := merge_due(sizes):
            sizes[len(sizes) - some :] = [sum(sizes[len(sizes) - some :])]
    assert sum(sizes) == 2000 * 1024
    assert max(sizes) <= 65_536
    assert len(sizes) < 60


def _tell_and_search(root: str, name: str, count: int) -> None:
    with Memory(root) as memory:
        for at in range(count):
            memory.observe(f"{name} told thing{at}.")
            assert memory.search(f"{name} thing{at}")


def test_processes_that_catch_up_at_once_take_nothing_in_twice(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_tell_and_search, args=(str(tmp_path), f"p{at}", 20)) for at in range(3)]
    for each in workers:
        each.start()
    for each in workers:
        each.join(60)
        assert each.exitcode == 0
    with Memory(tmp_path) as memory:
        assert memory._index.frequencies(["tell"]) == (60, {"tell": 60})


def test_threads_find_what_they_told_while_others_tell(tmp_path: Path) -> None:
    wrong: list[str] = []
    with Memory(tmp_path) as memory:

        def tell(name: str) -> None:
            for at in range(15):
                memory.observe(f"{name} told thing{at}.", source=name)
                if found(memory, f"{name} thing{at}")[:1] != [f"{name} told thing{at}."]:
                    wrong.append(f"{name} {at}")

        threads = [threading.Thread(target=tell, args=(f"t{at}",)) for at in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join(60)
        assert wrong == []
        assert memory._index.frequencies(["tell"])[0] == 60


def test_a_forked_child_searches_for_itself(tmp_path: Path) -> None:
    with Memory(tmp_path) as memory:
        memory.observe("Anna lives in Lisbon.")
        assert found(memory, "Lisbon")
        child = os.fork()
        if child == 0:
            try:
                memory.observe("Bob has a cat.")
                os._exit(0 if found(memory, "cat")[:1] == ["Bob has a cat."] else 1)
            except BaseException:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert found(memory, "cat")[0] == "Bob has a cat."


def test_what_was_dropped_leaves_no_byte_and_is_not_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import perdure.memory.following as following

    monkeypatch.setattr(following, "TAIL", 8)
    with Memory(tmp_path) as memory:
        for at in range(20):
            memory.observe(f"Thing{at} is near the zanzibarword{at}. It stays.")
        assert found(memory, "zanzibarword3")
        with memory._ledger.change() as db:
            db.execute(
                "UPDATE fact SET text = NULL WHERE text LIKE '%zanzibarword3.%' OR text LIKE '%zanzibarword19.%'"
            )
        passages = [
            row[0] for row in memory._ledger.connection().execute("SELECT passage FROM fact WHERE text IS NULL")
        ]
        memory._index.drop(passages)
        assert memory._index.frequencies(["zanzibarword3", "zanzibarword19"]) == (20, {})
        assert memory._index.frequencies(["stai"]) == (20, {"stai": 20})
    for file in memory.folder.glob("index.db*"):
        assert b"zanzibarword3\n" not in file.read_bytes()
        assert b"zanzibarword19" not in file.read_bytes()


def test_a_list_of_unrelated_facts_lends_nothing_and_a_conversation_does(tmp_path: Path) -> None:
    import random

    chance = random.Random(3)
    words = [f"w{at}" for at in range(400)]
    with Memory(tmp_path) as memory:
        memory.observe_many([{"text": " ".join(chance.sample(words, 8)), "source": "list"} for _ in range(300)])
        talk = []
        for _ in range(40):
            subject = chance.sample(words, 4)
            talk += [
                {"text": " ".join([*chance.sample(words, 5), *chance.sample(subject, 2)]), "source": "talk"}
                for _ in range(8)
            ]
        memory.observe_many(talk)
        memory.search("w1")
        state = memory._index._state
        assert state.lends[state.sources["list"]] < 0.2
        assert state.lends[state.sources["talk"]] > 0.8


def test_the_tail_counts_each_term_of_a_unit_once() -> None:
    tail = Tail()
    tail.add(4, ["a", "b", "a"])
    assert tail.by_term == {"a": [(4, 2)], "b": [(4, 1)]}
