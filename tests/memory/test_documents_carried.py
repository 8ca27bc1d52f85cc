"""Topics and documents beside the rest of a memory: purge, export and import, the doctor, many writers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from perdure.memory import Memory

SECRET = "Anna keeps the spare key under the blue flower pot."


def test_a_purge_leaves_no_byte_in_documents_or_notes(tmp_path: Path) -> None:
    with Memory(tmp_path) as memory:
        memory.observe(SECRET)
        memory.observe("Anna sings.")
        memory.consolidate()
        path = memory.folder / memory.topic("Anna").file
        path.write_text(path.read_text().replace("# Notes\n", f"# Notes\n\nMind: {SECRET}\n"))
        assert SECRET in memory.show("Anna").split("# Notes")[1]
        receipt = memory.forget(fact=1, mode="purge")
        assert receipt.clean, receipt.left
        assert "Anna sings." in path.read_text()
        assert "flower" not in "".join(each.read_text() for each in memory.folder.rglob("*.md"))


def test_what_a_tombstone_took_out_of_a_document_comes_back_with_its_undo(tmp_path: Path) -> None:
    with Memory(tmp_path) as memory:
        memory.observe(SECRET)
        memory.consolidate()
        memory.forget(fact=1)
        assert SECRET not in memory.show("t1")
        memory.undo(memory.changes()[0].id)
        assert SECRET in memory.show("t1")
        memory.undo(memory.changes()[0].id)
        assert SECRET not in memory.show("t1")
        assert [each.what for each in memory.doctor()] == []


def test_the_doctor_agrees_with_what_people_removed_and_took_back(tmp_path: Path) -> None:
    with Memory(tmp_path) as memory:
        memory.observe("Anna lives in Lisbon. She has a cat. Bob likes tea.")
        memory.consolidate()
        path = memory.folder / memory.topic("Anna").file
        lines = path.read_text().replace("lives in Lisbon", "lives in Faro").split("\n")
        path.write_text("\n".join(line for line in lines if "cat" not in line))
        memory.topics()
        assert memory.doctor() == []
        memory.undo(memory.changes()[0].id)
        assert memory.doctor() == []
        memory.undo(memory.changes()[0].id)
        assert memory.doctor() == []
        assert memory.fact("f2").state == "forgotten"


def test_topics_and_notes_travel_and_later_facts_find_them(tmp_path: Path) -> None:
    with Memory(tmp_path / "one") as memory:
        memory.observe("Anna lives in Lisbon. Bob likes tea.")
        memory.consolidate()
        path = memory.folder / memory.topic("Anna").file
        path.write_text(path.read_text().replace("# Notes\n", "# Notes\n\nMy note.\n"))
        memory.topics()
        memory.export(tmp_path / "all.jsonl")
    with Memory(tmp_path / "two") as memory:
        memory.import_(tmp_path / "all.jsonl")
        assert [topic.title for topic in memory.topics()] == ["Anna", "Bob"]
        assert "My note." in (memory.folder / memory.topic("Anna").file).read_text()
        memory.observe("Anna sings.")
        memory.consolidate()
        assert len(memory.topics()) == 2
        assert "Anna sings." in memory.show("Anna")


def test_many_processes_tell_and_consolidate_at_once(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom perdure.memory import Memory\nwith Memory(sys.argv[1]) as memory:\n"
        " for n in range(8):\n  memory.observe(f'Thing {n} of {sys.argv[2]} is here.')\n  memory.consolidate()\n"
    )
    children = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path), f"child{n}"]) for n in range(3)]
    assert [child.wait(60) for child in children] == [0, 0, 0]
    with Memory(tmp_path) as memory:
        text = "".join(memory.show(topic.id) for topic in memory.topics())
        for n in range(3):
            assert text.count(f"of child{n} is here.") == 8
        assert memory.consolidation().left_alone == {}
        assert memory.consolidation().behind == 0
