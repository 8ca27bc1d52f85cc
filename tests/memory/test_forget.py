"""Forgetting: a tombstone hides, a purge leaves no byte, and both say what they did."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.errors import CallError, DeadlineExceeded
from perdure.memory import Memory
from perdure.memory import forget as forgetting
from perdure.memory.forget import Derived, Target, forget
from perdure.memory.trace_scan import LEAST_BYTES, Needles, find

SECRET = "My blood type is AB negative and my locker is 7741-Zürich."


def bytes_of(folder: Path) -> dict[str, bytes]:
    files = [each for each in folder.rglob("*") if each.is_file()]
    done = [subprocess.run(["cat", each], stdout=subprocess.PIPE, check=True, timeout=30).stdout for each in files]
    return {str(path.relative_to(folder)): data for path, data in zip(files, done, strict=True)}


def check_gone(folder: Path, text: str) -> None:
    for encoded in (text.encode(), text.encode("utf-16-le"), text.encode("utf-16-be"), text.lower().encode()):
        for name, data in bytes_of(folder).items():
            for at in range(len(encoded) - LEAST_BYTES + 1):
                assert encoded[at : at + LEAST_BYTES] not in data, name


def test_what_has_a_tombstone_is_not_found_but_kept(tmp_path: Path) -> None:
    """opencode-supermemory#5: forget says 200 and the item stays. MemOS#881: merged-away nodes are still recalled."""
    with Memory(tmp_path) as memory:
        memory.observe(SECRET)
        memory.observe("Rain is expected.")
        assert memory.search("blood type")
        receipt = memory.forget(fact="f1", reason="asked to")
        assert (receipt.facts, receipt.clean) == ((1,), True)
        assert memory.search("blood type") == []
        assert memory.search("blood type", history=True) == []
        assert memory.fact("f1").text == SECRET
        assert memory.evidence("e1").text == SECRET
        assert memory.search("rain")


def test_ids_from_a_search_are_taken_by_forget(tmp_path: Path) -> None:
    """openclaw#95606: ids from recall are not accepted by forget."""
    with Memory(tmp_path) as memory:
        memory.observe(SECRET)
        memory.forget(fact=memory.search("blood type")[0].fact.name)
        assert memory.search("blood type") == []


def test_after_a_purge_no_byte_is_left_in_any_file(tmp_path: Path) -> None:
    """AutoGPT PR#12720: "all data deleted" while a log that can be replayed remains."""
    with Memory(tmp_path) as memory:
        memory.observe(f"Before. {SECRET} After that, rain.", source="chat", key="k1", meta={"title": SECRET})
        memory.observe("Something else that is to stay.")
        memory.search("blood type")
        kept = memory.backup()
        exported = memory.folder / "out.jsonl"
        memory.export(exported)
        receipt = memory.forget(evidence="e1", mode="purge")
        assert receipt.clean, receipt.left
        assert (receipt.evidence, receipt.facts, receipt.told_elsewhere) == ((1,), (1, 2, 3), ())
        assert {each.file for each in receipt.looked} >= {"ledger.db", "index.db", "out.jsonl"}
        assert set(receipt.copies) == {kept, str(exported)}
        check_gone(tmp_path, SECRET)
        assert memory.search("blood type", history=True) == []
        with pytest.raises(CallError, match="no evidence e1"):
            memory.evidence("e1")
        assert memory.observe("new").name == "e3"
        written = json.loads((memory.folder / "receipts" / f"purge-{receipt.change}.json").read_text())
        assert receipt.key not in str(written)
        assert written["digests"] == list(receipt.digests)
        assert memory.search("something stay")
    with Memory(tmp_path, space="again") as again:
        again.import_(exported)
        assert again.evidence("e2").text == "Something else that is to stay."
        assert again.status().evidence == 1


def test_a_fact_that_is_purged_alone_leaves_the_rest_of_its_evidence_in_place(tmp_path: Path) -> None:
    with Memory(tmp_path) as memory:
        memory.observe(f"Before it. {SECRET} After it, rain.", at="2026-01-01")
        memory.search("blood")
        receipt = memory.forget(fact="f2", mode="purge")
        assert receipt.clean, receipt.left
        assert receipt.redacted == (1,)
        check_gone(tmp_path, SECRET)
        text = memory.evidence("e1").text
        assert text == f"Before it. {'█' * len(SECRET)} After it, rain."
        assert memory.fact("f3").text == text[memory.fact("f3").start : memory.fact("f3").stop] == "After it, rain."
        assert memory.doctor() == []


def test_the_same_words_told_elsewhere_are_no_leak_and_are_named(tmp_path: Path) -> None:
    with Memory(tmp_path) as memory:
        memory.observe(SECRET, source="one")
        memory.observe(f"I say it again: {SECRET}", source="two")
        receipt = memory.forget(source="one", mode="purge")
        assert receipt.clean, receipt.left
        assert receipt.told_elsewhere == (2,)
        assert any(each.shared for each in receipt.looked)
        receipt = memory.forget(source="two", mode="purge")
        assert receipt.clean, receipt.left
        check_gone(tmp_path, SECRET)


def test_what_a_person_wrote_into_a_file_of_the_space_is_told_and_not_touched(tmp_path: Path) -> None:
    with Memory(tmp_path) as memory:
        memory.observe(SECRET)
        (memory.folder / "topics").mkdir()
        (memory.folder / "topics" / "note.md").write_bytes(f"my note: {SECRET[3:]}".encode("utf-16"))
        receipt = memory.forget(evidence=1, mode="purge")
        assert not receipt.clean
        assert receipt.left[0].startswith("topics/note.md: ")


def test_notes_plans_and_titles_that_repeat_it_go_with_it(tmp_path: Path) -> None:
    with Memory(tmp_path) as memory:
        memory.observe(SECRET)
        memory.observe("The weather is fine.")
        with memory._ledger.change() as db:
            db.execute(
                "INSERT INTO topic(title, summary) VALUES (?, ?)", (SECRET[:30], "all about the weather is fine")
            )
            db.execute(
                "INSERT INTO change(kind, by, outcome, at_s, note, plan) VALUES ('settle', 'rules', 'ok', 0, '', ?)",
                (json.dumps({"says": SECRET}),),
            )
            db.execute("INSERT INTO slot VALUES (?, 1)", (SECRET.lower()[:20],))
            db.execute(
                "INSERT INTO link(kind, fact, other, reason, change) VALUES ('supersedes', 2, 1, ?, 1)", (SECRET[5:],)
            )
        assert memory.forget(evidence=1, mode="purge").clean
        check_gone(tmp_path, SECRET)
        row = memory._ledger.connection().execute("SELECT title, summary FROM topic").fetchone()
        assert row == ("Topic 1", "all about the weather is fine")


def test_what_others_said_as_well_is_shown_when_what_stood_for_it_is_forgotten(tmp_path: Path) -> None:
    with Memory(tmp_path) as memory:
        memory.observe("The office is in Bern.", source="one")
        memory.observe("The office is in Bern!", source="two")
        memory.observe("The office is in Basel.", source="three")
        with memory._ledger.change() as db:
            db.execute("INSERT INTO change(kind, by, outcome, at_s) VALUES ('settle', 'rules', 'ok', 0)")
            db.execute("INSERT INTO link(kind, fact, other, reason, change) VALUES ('duplicates', 2, 1, '', 1)")
            db.execute("INSERT INTO link(kind, fact, other, reason, change) VALUES ('supersedes', 3, 1, 'newer', 1)")
            db.execute("UPDATE fact SET state = 'duplicate' WHERE id = 2")
            db.execute("UPDATE fact SET state = 'superseded' WHERE id = 1")
        memory.forget(source="one")
        assert [memory.fact(each).state.value for each in (1, 2, 3)] == ["forgotten", "superseded", "current"]
        assert memory.doctor() == []
        assert [each.id for each in memory.history("f3").facts] == [2, 3]
        memory.forget(fact="f2")
        assert memory.doctor() == []


def test_documents_of_touched_topics_are_to_be_written_anew(tmp_path: Path) -> None:
    with Memory(tmp_path) as memory:
        memory.observe("One thing. Another thing.")
        with memory._ledger.change() as db:
            db.execute("INSERT INTO topic(title) VALUES ('a'), ('b')")
            db.execute("UPDATE fact SET topic = 1")
        seen: list[object] = []
        read = "SELECT revision FROM topic ORDER BY id"
        first, second = [row[0] for row in memory._ledger.connection().execute(read)]
        derived = Derived(
            index=seen.append, documents=lambda: seen.append(memory.status().by_state.get("forgotten", "purged"))
        )
        forget(memory._ledger, Target(fact=1), derived=derived)
        raised, same = [row[0] for row in memory._ledger.connection().execute(read)]
        assert raised > first
        assert same == second
        forget(memory._ledger, Target(topic=1), mode="purge", derived=derived)
        last, same = [row[0] for row in memory._ledger.connection().execute(read)]
        assert last > raised
        assert same == second
        assert seen == [[1], 1, [1], "purged"]


def test_forgetting_names_exactly_one_thing_that_there_is(tmp_path: Path) -> None:
    with Memory(tmp_path) as memory:
        for wrong in (
            {},
            {"fact": 1, "source": "x"},
            {"fact": 1},
            {"evidence": 7},
            {"topic": 2},
            {"speaker": "nobody"},
        ):
            with pytest.raises(CallError):
                memory.forget(**wrong)  # type: ignore[arg-type]
        memory.observe("x")
        with pytest.raises(CallError, match="tombstone or purge"):
            memory.forget(fact=1, mode="gone")  # type: ignore[arg-type]


def test_a_purge_that_is_killed_anywhere_is_finished_at_the_next_opening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages = ["_make_again", "scrub_copies", "_settle_files", "look_through", "write_whole"]
    for at, stage in enumerate(stages):
        root = tmp_path / str(at)
        with Memory(root) as memory:
            memory.observe(f"Well. {SECRET} So it is.", key="k")
            memory.observe("Something else.")
            memory.search("blood")
            memory.backup()

            def die(*_: object, **__: object) -> None:
                raise KeyboardInterrupt

            with monkeypatch.context() as patch:
                patch.setattr(forgetting, stage, die)
                with pytest.raises(KeyboardInterrupt):
                    memory.forget(evidence="e1", mode="purge")
            assert memory.status().pending_purges == 1
        with Memory(root) as memory:
            assert memory.status().pending_purges == 0
            receipt = json.loads(next((memory.folder / "receipts").iterdir()).read_text())
            assert receipt["left"] == []
            assert "not searched" in receipt["method"] or "were not searched" in receipt["method"]
            check_gone(root, SECRET)
            assert memory.search("something")
            assert memory.doctor() == []


def test_a_reader_that_holds_on_is_waited_for_and_then_told(tmp_path: Path) -> None:
    with Memory(tmp_path) as memory:
        memory.observe(SECRET)
        script = (
            "import sqlite3, sys; db = sqlite3.connect(sys.argv[1], isolation_level=None); db.execute('BEGIN');"
            "db.execute('SELECT * FROM evidence').fetchall(); print('in', flush=True); sys.stdin.read()"
        )
        command = [sys.executable, "-c", script, str(memory.folder / "ledger.db")]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as reader:
            assert reader.stdout is not None
            reader.stdout.readline()
            memory._ledger.deadline_s = 0.2
            memory._ledger.connection().execute("PRAGMA busy_timeout = 100")
            assert memory._ledger._writer is not None
            memory._ledger._writer.execute("PRAGMA busy_timeout = 100")
            with pytest.raises(DeadlineExceeded, match=f"process {reader.pid}"):
                forget(memory._ledger, Target(evidence=1), mode="purge", derived=Derived(), deadline_s=0.3)
            reader.kill()
    with Memory(tmp_path) as memory:
        assert memory.status().pending_purges == 0
        check_gone(tmp_path, SECRET)


@settings(max_examples=150, deadline=None)
@given(
    needle=st.binary(min_size=12, max_size=60).filter(lambda data: len(set(data)) > 5),
    before=st.binary(max_size=50),
    after=st.binary(max_size=50),
    data=st.data(),
)
def test_every_piece_of_twelve_bytes_is_found_wherever_it_lies(
    needle: bytes, before: bytes, after: bytes, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(needle) - LEAST_BYTES))
    stop = data.draw(st.integers(start + LEAST_BYTES, len(needle)))
    piece = needle[start:stop]
    if any(len(set(piece[at : at + LEAST_BYTES])) < 3 for at in range(len(piece) - LEAST_BYTES + 1)):
        return
    hay = before + piece + after
    cut = data.draw(st.integers(0, len(hay) // 4)) * 4
    found = list(find([hay[:cut], hay[cut:]], Needles([needle])))
    assert found
    assert all(hay[at : at + len(each)] == each for at, each, _ in found)
    assert all(each in needle for _, each, _ in found)


def test_short_texts_are_looked_for_whole() -> None:
    needles = Needles([b"4711", b"ab", b"aaaaaaaaaaaaaaaa"])
    assert list(find([b"my pin is 4711 ab aaaaaaaaaaaaaaaaaaaa"], needles)) == [(10, b"4711", 1)]
