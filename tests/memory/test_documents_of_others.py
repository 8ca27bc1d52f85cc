"""Documents of a ledger that is lost, or of another: whose words they are is not made up."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.memory import Memory
from perdure.memory.backup import restore
from perdure.memory.document_text import read
from perdure.memory.records import Role


def lose_the_ledger(folder: Path) -> None:
    for each in folder.glob("ledger.db*"):
        each.unlink()


def told(root: Path) -> Path:
    with Memory(root) as memory:
        memory.observe("Anna lives in Lisbon.", speaker="Bob")
        memory.observe("Anna is a robot from Mars.", role="tool")
        memory.consolidate()
        return memory.folder


@pytest.mark.parametrize("legacy", [False, True])
def test_the_word_of_a_tool_is_not_a_persons_after_the_ledger_was_lost(tmp_path: Path, legacy: bool) -> None:
    folder = told(tmp_path)
    lose_the_ledger(folder)
    path = next((folder / "topics").glob("*.md"))
    if legacy:
        path.write_text("\n".join(each for each in path.read_text().split("\n") if not each.startswith("ledger:")))
    before = path.read_bytes()
    with Memory(tmp_path) as memory:
        assert memory.status().facts == 0
        assert "restore a backup" in memory.consolidation().left_alone[f"topics/{path.name}"]
        memory.observe("Anna sings.")
        memory.consolidate()
        assert [hit.fact.text for hit in memory.search("Anna", history=True)] == ["Anna sings."]
        assert path.read_bytes() == before
        own = memory.folder / memory.topic("Anna").file
        assert own != path
        assert "Anna sings." in own.read_text()
        own.write_text(own.read_text().replace("sings", "dances"))
        assert "Anna dances." in memory.show("Anna")
        assert memory.status().facts == 2
        path.unlink()
        memory.observe("Anna swims.")
        memory.consolidate()
        assert "Anna swims." in path.read_text()
        assert memory.consolidation().left_alone == {}


def test_a_document_that_is_ahead_of_an_older_copy_of_the_ledger_is_left_alone(tmp_path: Path) -> None:
    with Memory(tmp_path) as memory:
        memory.observe("Anna lives in Lisbon.")
        memory.consolidate()
        memory.backup(tmp_path / "copy.db")
        memory.observe("Anna is a robot.", role="tool")
        memory.consolidate()
        path = memory.folder / memory.topic("Anna").file
    lose_the_ledger(path.parent.parent)
    restore(tmp_path / "copy.db", path.parent.parent)
    with Memory(tmp_path) as memory:
        assert memory.status().facts == 1
        assert "ahead of this ledger" in memory.consolidation().left_alone[f"topics/{path.name}"]


def test_documents_go_on_with_a_ledger_that_was_restored_in_its_place(tmp_path: Path) -> None:
    with Memory(tmp_path) as memory:
        memory.observe("Anna lives in Lisbon. Bob likes tea.")
        memory.consolidate()
        memory.backup(tmp_path / "copy.db")
        path = memory.folder / memory.topic("Anna").file
        other = memory.folder / memory.topic("Bob").file
    lose_the_ledger(path.parent.parent)
    path.write_text(path.read_text().replace("Lisbon", "Faro"))
    restore(tmp_path / "copy.db", path.parent.parent)
    with Memory(tmp_path) as memory:
        assert memory.consolidation().left_alone == {}
        assert "Anna lives in Faro." in path.read_text()
        for each in (path, other):
            assert read(each.read_text()).ledger == memory.ledger.id


@pytest.mark.parametrize(
    ("attributes", "role"),
    [
        ("", Role.HUMAN),
        (" {by=tool}", Role.TOOL),
        (" {obs=2099-01-01 src=e1 by=Eve/assistant} ^f77", Role.ASSISTANT),
        (" {src=e1 obs=2020}", Role.TOOL),
        (" {by=Eve/human src=e1}", Role.HUMAN),
        (" {by=godot}", Role.HUMAN),
    ],
)
def test_a_new_bullet_is_a_persons_unless_it_says_that_it_is_the_word_of_less(
    tmp_path: Path, attributes: str, role: Role
) -> None:
    told(tmp_path)
    with Memory(tmp_path) as memory:
        path = memory.folder / memory.topic("Anna").file
        path.write_text(path.read_text().replace("# Conflicts", f"- Anna plays chess.{attributes}\n\n# Conflicts"))
        memory.topics()
        assert {hit.fact.role for hit in memory.search("chess")} == {role}


def test_a_correction_is_a_persons_whatever_its_attributes_say(tmp_path: Path) -> None:
    told(tmp_path)
    with Memory(tmp_path) as memory:
        path = memory.folder / memory.topic("Anna").file
        path.write_text(path.read_text().replace("a robot from Mars", "a pilot from Mars"))
        memory.topics()
        assert memory.search("pilot")[0].fact.role == Role.HUMAN


def test_a_bullet_of_blanks_and_braces_is_read_in_no_time() -> None:
    found = read("- x" + " " * 200_000 + "{" * 100_000 + " " * 200_000 + "}")
    assert len(found.bullets) == 1
