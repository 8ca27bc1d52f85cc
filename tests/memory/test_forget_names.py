"""After a purge no name is left that came from what was purged: of a topic, a file, a speaker, a source, an edit."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from perdure.memory import Memory
from perdure.memory.memory_tool import MemoryTool


def left(root: Path, *words: str) -> list[tuple[str, str]]:
    found = []
    for each in root.rglob("*"):
        data = each.name.encode()
        if each.is_file():
            data += subprocess.run(["cat", each], stdout=subprocess.PIPE, check=True, timeout=30).stdout
        found += [(word, each.name) for word in words if word.encode() in data.lower()]
    return found


def begun(root: Path) -> Memory:
    memory = Memory(root)
    for at in range(5):
        memory.observe(f"I visited place{at} with Bob{at}.", speaker="Anna")
    return memory


@pytest.mark.parametrize("whole", [True, False])
def test_a_short_title_goes_with_the_words_it_was_made_of(tmp_path: Path, whole: bool) -> None:
    with begun(tmp_path) as memory:
        told = memory.observe("Floofnard sings.", speaker="Anna")
        memory.consolidate()
        assert any(topic.title == "Floofnard" for topic in memory.topics())
        memory.search("floofnard")
        memory.backup()
        memory.export(tmp_path / "out.jsonl")
        receipt = memory.forget(
            evidence=told.evidence if whole else None, fact=None if whole else told.facts[0], mode="purge"
        )
        assert receipt.clean, receipt.left
        assert left(tmp_path, "floofnard") == []
        assert "floofnard" not in str(receipt).lower()
        assert memory.doctor() == []
        memory.consolidate()
        assert memory.search("place3")
    assert left(tmp_path, "floofnard") == []


def test_a_title_stays_that_other_facts_of_its_topic_bear(tmp_path: Path) -> None:
    with begun(tmp_path) as memory:
        told = memory.observe("Floofnard sings.", speaker="Anna")
        memory.observe("Floofnard dances.", speaker="Anna")
        memory.consolidate()
        titles = [topic.title for topic in memory.topics()]
        assert memory.forget(evidence=told.evidence, mode="purge").clean
        assert [topic.title for topic in memory.topics()] == titles
        assert "Floofnard" in titles


def test_the_names_of_who_told_it_are_nowhere_when_nobody_else_has_them(tmp_path: Path) -> None:
    with begun(tmp_path) as memory:
        memory.observe("I was there.", speaker="Maximiliana Featherstone", source="mail of Featherstone")
        memory.observe("The quux is wobbly.", speaker="Vexspeaker", source="vexsource", meta={"vexmeta": "vexvalue"})
        memory.consolidate()
        memory.search("quux wobbly")
        memory.backup()
        for receipt in (
            memory.forget(speaker="Maximiliana Featherstone", mode="purge"),
            memory.forget(evidence=7, mode="purge"),
        ):
            assert receipt.clean, receipt.left
        assert left(tmp_path, "maximiliana", "featherstone", "wobbly", "vexspeaker", "vexsource", "vexvalue") == []
        assert memory.search("place3", speaker="Anna")
        assert memory.doctor() == []


def test_a_name_that_somebody_else_has_stays_in_the_index(tmp_path: Path) -> None:
    with begun(tmp_path) as memory:
        assert memory.search("place", speaker="Anna")
        memory.forget(evidence=1, mode="purge")
        assert len(memory.search("visited", speaker="Anna")) == 4


def test_an_edit_that_was_taken_back_goes_with_what_it_was_made_of(tmp_path: Path) -> None:
    with begun(tmp_path) as memory:
        told = memory.observe("My pin is wobblyx.", speaker="Anna")
        change = memory.edit(told.facts[0], "My pin is wobblyx two.")
        memory.undo(change.id)
        receipt = memory.forget(fact=told.facts[0], mode="purge")
        assert (receipt.clean, receipt.edits, len(receipt.facts)) == (True, (), 2)
        assert left(tmp_path, "wobblyx") == []
        assert memory.doctor() == []


def test_an_edit_that_stands_is_named(tmp_path: Path) -> None:
    with begun(tmp_path) as memory:
        told = memory.observe("My pin is wobblyx.", speaker="Anna")
        memory.edit(told.facts[0], "My pin is another.")
        receipt = memory.forget(fact=told.facts[0], mode="purge")
        assert receipt.clean
        assert [memory.fact(each).text for each in receipt.edits] == ["My pin is another."]
        assert left(tmp_path, "wobblyx") == []


@pytest.mark.parametrize("by_fact", [False, True])
def test_the_path_of_a_deleted_file_goes_with_its_source(tmp_path: Path, by_fact: bool) -> None:
    with begun(tmp_path) as memory:
        tool = MemoryTool(memory)
        path = "/memories/wobblyx.md"
        tool.handle({"command": "create", "path": path, "file_text": "Anna is here.\nOther line stays.\n"})
        tool.handle({"command": "str_replace", "path": path, "old_str": "is here", "new_str": "is there"})
        tool.handle({"command": "create", "path": "/memories/other.md", "file_text": "Ben is here.\n"})
        tool.handle({"command": "delete", "path": path})
        memory.search("line")
        if by_fact:  # first one of its facts, whose evidence has others
            memory.forget(fact=6, mode="purge")
        receipt = memory.forget(source=f"memory-tool:{path}", mode="purge")
        assert receipt.clean, receipt.left
        assert left(tmp_path, "wobblyx") == []
        assert "other.md" in str(tool.handle({"command": "view", "path": "/memories"}))
