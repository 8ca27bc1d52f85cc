"""The doctor finds each thing that is not as it should be, and makes right what can be made again."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from perdure.memory import Memory
from perdure.memory.doctor import examine_folder
from perdure.memory.ledger import Ledger

Damage = Callable[[Ledger], None]


def run(*statements: str) -> Damage:
    def damage(ledger: Ledger) -> None:
        with ledger.change() as db:
            for each in statements:
                db.execute(each)

    return damage


def old_leftover(ledger: Ledger) -> None:
    path = ledger.path.with_name(".tmp-" + "0" * 32)
    path.write_bytes(b"x")
    os.utime(path, (time.time() - 1e6,) * 2)


@pytest.mark.parametrize(
    ("kind", "damage"),
    [
        ("span", run("UPDATE fact SET text = 'Anna lives in Rome.' WHERE id = 1")),
        ("state", run("UPDATE fact SET state = 'superseded' WHERE id = 1")),
        ("state", run("UPDATE fact SET state = 'gone' WHERE id = 1")),
        ("value", run("UPDATE evidence SET observed = 'not a date'")),
        ("value", run("UPDATE evidence SET observed_s = 'never'")),
        ("value", run("UPDATE evidence SET role = 'king'")),
        ("value", run("UPDATE evidence SET meta = '{'")),
        ("state", run("UPDATE fact SET state = 'forgotten' WHERE id = 2")),
        ("link", run("INSERT INTO link(kind, fact, other, reason, change) VALUES ('supersedes', 2, 99, '', 7)")),
        ("slot", run("INSERT INTO slot VALUES ('k', 99)")),
        ("topic", run("UPDATE fact SET topic = 12 WHERE id = 2")),
        ("lease", run("INSERT INTO lease VALUES ('consolidate', 'process 1', 5.0)")),
        ("leftover", old_leftover),
    ],
)
def test_what_is_made_from_the_ledger_is_made_right_again(tmp_path: Path, kind: str, damage: Damage) -> None:
    with Memory(tmp_path) as memory:
        memory.observe("Anna lives in Lisbon. She has a cat.")
        memory.search("cat")
        assert memory.doctor() == []
        damage(memory._ledger)
        found = memory.doctor()
        assert [(each.kind, each.repaired) for each in found] == [(kind, False)]
        found = memory.doctor(repair=True)
        assert [(each.kind, each.repaired) for each in found] == [(kind, True)]
        assert memory.doctor() == []
        assert [each.fact.text for each in memory.search("where does Anna live")] == [
            "Anna lives in Lisbon.",
            "She has a cat.",
        ]


def test_an_index_that_lacks_a_passage_is_found_and_mended(tmp_path: Path) -> None:
    with Memory(tmp_path) as memory:
        memory.observe("Anna lives in Lisbon.")
        memory.observe("Rain is expected.")
        memory.search("rain")
        memory._index.connection().execute("DELETE FROM tail WHERE unit = 0")
        assert [(each.kind, each.fact) for each in memory.doctor()] == [("index", 1)]
        assert [each.repaired for each in memory.doctor(repair=True)] == [True]
        assert memory.search("Lisbon")


def test_words_whose_evidence_is_gone_are_told_and_not_made_up(tmp_path: Path) -> None:
    with Memory(tmp_path) as memory:
        memory.observe("Anna lives in Lisbon.")
        run("UPDATE evidence SET body = NULL WHERE id = 1")(memory._ledger)
        found = memory.doctor(repair=True)
        assert [(each.kind, each.repairable, each.repaired) for each in found] == [("span", False, False)]


def test_a_damaged_file_is_told_with_the_newest_backup(tmp_path: Path) -> None:
    with Memory(tmp_path) as memory:
        memory.observe_many([{"text": f"number {each} is told and kept."} for each in range(2000)])
        kept = memory.backup()
        path = memory.folder / "ledger.db"
    data = bytearray(path.read_bytes())
    for at in range(8 * 4096, len(data) - 4096, 4096):
        data[at : at + 64] = b"\xa5" * 64
    path.write_bytes(data)
    found = examine_folder(path.parent, repair=True)
    assert found
    assert all(each.kind == "ledger" and not each.repairable and kept in each.what for each in found)
    path.write_bytes(b"garbage " * 1000)
    assert "no SQLite file" in examine_folder(path.parent)[0].what
    path.unlink()
    assert "put a backup" in examine_folder(path.parent)[0].what


def test_reading_goes_on_where_a_stored_value_is_damaged(tmp_path: Path) -> None:
    with Memory(tmp_path) as memory:
        memory.observe("Anna lives in Lisbon since yesterday.", meta={"n": "one"})
        memory.observe("Anna lives in Porto now.")
        run("UPDATE evidence SET observed = 'not a date', role = 'king', meta = '{' WHERE id = 1")(memory._ledger)
        assert memory.search("where does Anna live")
        assert memory.ask("Where does Anna live?").hits
        assert memory.evidence(1).meta == {}
        assert [each.repaired for each in memory.doctor(repair=True)] == [True]
        assert memory.doctor() == []


def test_a_ledger_that_was_deleted_while_open_is_told_with_and_without_repair(tmp_path: Path) -> None:
    with Memory(tmp_path) as memory:
        memory.observe("Anna sings.")
        for each in memory.folder.glob("ledger.db*"):
            each.unlink()
        found = memory.doctor()
        assert [each.kind for each in found] == ["ledger"]
        assert found == memory.doctor(repair=True)
