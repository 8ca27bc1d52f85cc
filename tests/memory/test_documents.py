"""What people do to topic documents is taken in and never overwritten, however and whenever they save."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from perdure.memory import Memory, document_writer
from perdure.memory.document_files import swap


@pytest.fixture
def memory(tmp_path: Path) -> Memory:
    memory = Memory(tmp_path)
    memory.observe("Anna lives in Lisbon. She has a cat.")
    memory.observe("Bob likes tea.")
    memory.consolidate()
    return memory


def path_of(memory: Memory, topic: str) -> Path:
    return memory.folder / memory.topic(topic).file


def current(memory: Memory) -> set[str]:
    db = memory._ledger.connection()
    return {row[0] for row in db.execute("SELECT text FROM fact WHERE state = 'current'")}


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_a_changed_bullet_is_a_new_fact_by_a_human_and_the_old_one_is_history(memory: Memory) -> None:
    change(path_of(memory, "Anna"), "lives in Lisbon", "lives in Porto")
    text = memory.show("Anna")
    assert "- Anna lives in Porto." in text.split("# History")[0]
    assert "- Anna lives in Lisbon." in text.split("# History")[1]
    new = memory.fact("f4")
    assert (new.role, new.text, new.topic) == ("human", "Anna lives in Porto.", memory.topic("Anna").id)
    assert memory.evidence(new.evidence).text == "Anna lives in Porto."
    assert memory.fact("f1").state == "superseded"
    assert memory.fact("f1").text == "Anna lives in Lisbon."
    assert memory.search("Porto")[0].fact.id == 4
    assert memory.changes()[0].by == "human"
    count = len(memory.changes())
    memory.topics()
    memory.topics()
    assert len(memory.changes()) == count


def test_a_removed_bullet_is_forgotten_and_its_evidence_stays(memory: Memory) -> None:
    change(path_of(memory, "Anna"), next(x for x in memory.show("Anna").split("\n") if "cat" in x) + "\n", "")
    memory.topics()
    assert memory.fact("f2").state == "forgotten"
    assert "She has a cat." in memory.evidence("e1").text
    assert "cat" not in path_of(memory, "Anna").read_text()
    memory.undo(memory.changes()[0].id)
    assert memory.fact("f2").state == "current"
    assert "She has a cat." in path_of(memory, "Anna").read_text()


@pytest.mark.parametrize("where", ["# Conflicts", "# History", "<!-- end"])
def test_a_new_bullet_is_a_fact_wherever_it_is_put(memory: Memory, where: str) -> None:
    change(path_of(memory, "Anna"), where, f"- Anna plays chess.\n  On Sundays\n{where}")
    if where == "<!-- end":
        assert "- Anna plays chess." in memory.show("Anna").split("# Notes")[1], "what is under Notes is a note"
        with path_of(memory, "Anna").open("a") as file:
            file.write("* Anna plays go.\n")
        assert "- Anna plays go." in memory.show("Anna").split("# History")[0]
        return
    assert "- Anna plays chess." in memory.show("Anna").split("# Conflicts")[0]
    assert "Anna plays chess." in " ".join(current(memory))


def test_names_notes_and_prose_are_taken_over(memory: Memory) -> None:
    path = path_of(memory, "Anna")
    change(path, 'title: "Anna"\naliases: []', "title: Anna Maria\naliases:\n  - Annie\ntags: [person]")
    change(path, "# Notes\n", "# Notes\n\nSee [[Bob]].\n- a bullet of notes\n")
    change(path, "# Conflicts", "This line is prose of mine.\n\n# Conflicts")
    topic = memory.topic("t1") if memory.topics() else None
    assert topic is not None
    assert (topic.title, topic.aliases) == ("Anna Maria", ("Annie",))
    assert topic.file == "topics/anna-maria--t1.md"
    text = path_of(memory, "Annie").read_text()
    for each in ("See [[Bob]].", "- a bullet of notes", "This line is prose of mine.", "tags: [person]"):
        assert each in text.replace("\n", "\n")
    assert not path.exists()
    memory.observe("Anna Maria sings.")
    memory.consolidate()
    again = path_of(memory, "Annie").read_text()
    assert "Anna Maria sings." in again
    assert "See [[Bob]]." in again
    assert "tags: [person]" in again


def test_a_bullet_moved_to_another_document_changes_its_topic(memory: Memory) -> None:
    line = next(x for x in memory.show("Anna").split("\n") if "cat" in x) + "\n"
    change(path_of(memory, "Anna"), line, "")
    change(path_of(memory, "Bob"), "# Conflicts", line + "\n# Conflicts")
    memory.topics()
    assert memory.fact("f2").topic == memory.topic("Bob").id
    assert memory.fact("f2").state == "current"
    assert len(current(memory)) == 3


def test_a_bullet_that_is_moved_by_two_saves_comes_back(memory: Memory) -> None:
    line = next(x for x in memory.show("Anna").split("\n") if "cat" in x) + "\n"
    change(path_of(memory, "Anna"), line, "")
    memory.topics()
    change(path_of(memory, "Bob"), "# Conflicts", line + "\n# Conflicts")
    memory.topics()
    assert (memory.fact("f2").topic, memory.fact("f2").state) == (memory.topic("Bob").id, "current")


def test_an_editor_that_holds_an_old_view_removes_nothing_that_came_later(memory: Memory) -> None:
    path = path_of(memory, "Anna")
    held = path.read_text()
    memory.observe("Anna sings.")
    memory.consolidate()
    memory.edit("f2", "She has a dog.")
    path.write_text(held.replace("lives in Lisbon", "lives in Faro"))
    memory.topics()
    assert current(memory) == {"Anna lives in Faro.", "She has a dog.", "Anna sings.", "Bob likes tea."}
    text = path_of(memory, "Anna").read_text()
    assert all(each in text for each in ("Anna lives in Faro.", "She has a dog.", "Anna sings."))


@pytest.mark.parametrize(
    ("what", "spoil"),
    [
        ("empty", lambda data: b""),
        ("blank", lambda data: b"\n \n"),
        ("cut off", lambda data: data[: len(data) * 2 // 3]),
        ("cut off in its front", lambda data: data[:30]),
        ("not UTF-8", lambda data: data + "Müller".encode("latin-1")),
        ("UTF-16", lambda data: data.decode().encode("utf-16")),
        ("NUL bytes", lambda data: data + b"\0"),
        ("conflict markers", lambda data: b"<<<<<<< mine\n" + data + b"=======\n" + data + b">>>>>>> theirs\n"),
        ("another's id", lambda data: data.replace(b"id: t1", b"id: t2")),
    ],
)
def test_a_file_that_cannot_be_understood_is_left_alone_and_said_so(
    memory: Memory, what: str, spoil: Callable[[bytes], bytes]
) -> None:
    path = path_of(memory, "Anna")
    good = path.read_bytes()
    path.write_bytes(spoil(good))
    memory.observe("Anna sings.")
    memory.consolidate()
    assert path.read_bytes() == spoil(good)
    assert len(memory.consolidation().left_alone[f"topics/{path.name}"]) > 10
    assert all(memory.fact(each).state == "current" for each in (1, 2, 3, 4))
    if spoil(good).strip():
        assert [each.read_bytes() for each in (memory.folder / "kept").iterdir()] == [spoil(good)]
    path.write_bytes(good.replace(b"Lisbon", b"Faro"))
    memory.topics()
    assert memory.consolidation().left_alone == {}
    assert "Anna lives in Faro." in path.read_text()
    assert "Anna sings." in path.read_text()


def test_an_editor_that_saves_by_rename_is_understood(memory: Memory) -> None:
    path = path_of(memory, "Anna")
    text = path.read_text()
    path.rename(path.with_suffix(".md~"))
    fresh = path.with_name(".anna.swp")
    fresh.write_text(text.replace("Lisbon", "Faro"))
    fresh.rename(path)
    memory.topics()
    assert "Anna lives in Faro." in current(memory)


def test_a_deleted_document_is_written_again_and_forgets_nothing(memory: Memory) -> None:
    path = path_of(memory, "Anna")
    before = path.read_text().split("# Current")[1]
    path.unlink()
    memory.topics()
    assert path.read_text().split("# Current")[1] == before
    assert memory.fact("f1").state == "current"


def test_a_renamed_document_keeps_the_name_that_a_person_gave_it(memory: Memory) -> None:
    path = path_of(memory, "Anna")
    path.rename(path.with_name("My Anna.md"))
    change(path.with_name("My Anna.md"), "Lisbon", "Faro")
    memory.topics()
    assert memory.topic("Anna").file == "topics/My Anna.md"
    assert "Anna lives in Faro." in current(memory)
    assert not path.exists()


def test_a_copy_of_a_document_is_left_alone(memory: Memory) -> None:
    path = path_of(memory, "Anna")
    path.with_name("copy.md").write_text(path.read_text())
    path.with_name("other.md").write_text(path.read_text().replace("cat", "dog"))
    memory.topics()
    assert set(memory.consolidation().left_alone) == {"topics/copy.md", "topics/other.md"}
    assert len(memory.topics()) == 2


def test_a_document_made_by_hand_is_a_topic(memory: Memory) -> None:
    path = memory.folder / "topics" / "Recipes.md"
    path.write_text("# Things to cook\n\nSome words.\n\n- Soup needs salt.\n- [ ] try bread\n")
    topics = memory.topics()
    assert topics[2].title == "Things to cook"
    assert topics[2].file == "topics/Recipes.md"
    text = path.read_text()
    assert "- Soup needs salt." in text
    assert "Some words." in text
    assert "^f" in text
    assert text.startswith("---\n")
    assert memory.search("soup")[0].fact.role == "human"
    count = len(memory.changes())
    path.write_text("# Things to cook\n\nSome words.\n\n- Soup needs salt.\n- [ ] try bread\n- Tea needs time.\n")
    memory.topics()
    assert len(memory.changes()) == count + 1
    assert len([each for each in current(memory) if "Soup" in each]) == 1
    assert "Tea needs time." in " ".join(current(memory))


def test_links_and_odd_files_are_never_followed(memory: Memory, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("- the password is hunter2\n")
    topics = memory.folder / "topics"
    (topics / "link.md").symlink_to(secret)
    (topics / "folder.md").mkdir()
    os.mkfifo(topics / "pipe.md")
    anna = path_of(memory, "Anna")
    anna.unlink()
    anna.symlink_to(secret)
    memory.observe("Anna sings.")
    memory.consolidate()
    assert memory.search("hunter2") == []
    assert secret.read_text() == "- the password is hunter2\n"
    assert {f"topics/{each}.md" for each in ("link", "folder", "pipe")} <= set(memory.consolidation().left_alone)


@pytest.mark.parametrize("way", ["in place", "by rename"])
def test_hermes_26045_an_edit_in_the_very_moment_of_a_rewrite_is_not_overwritten(
    memory: Memory, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    done = []

    def at_the_worst_moment(path: Path, fresh: Path, *, topic: int, expected: str) -> Path | None:
        if path.name.startswith("anna") and not done:
            done.append(path)
            edited = path.read_text().replace("Lisbon", "Faro")
            if way == "in place":
                path.write_text(edited)
            else:
                path.with_name("x~").write_text(edited)
                path.with_name("x~").rename(path)
        return swap(path, fresh, topic=topic, expected=expected)

    monkeypatch.setattr(document_writer, "swap", at_the_worst_moment)
    memory.observe("Anna sings.")
    memory.consolidate()
    assert done
    assert {"Anna lives in Faro.", "Anna sings."} <= current(memory)
    assert "Anna lives in Lisbon." not in current(memory)
    text = path_of(memory, "Anna").read_text()
    assert "Anna lives in Faro." in text
    assert "Anna sings." in text


def test_an_editor_that_writes_through_an_open_file_is_heard(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    path = path_of(memory, "Anna")
    edited = path.read_bytes().replace(b"Lisbon", b"Faroon")
    held = os.open(path, os.O_WRONLY)

    def and_then_save(there: Path, fresh: Path, *, topic: int, expected: str) -> Path | None:
        aside = swap(there, fresh, topic=topic, expected=expected)
        if there == path:
            os.pwrite(held, edited, 0)
        return aside

    monkeypatch.setattr(document_writer, "swap", and_then_save)
    memory.observe("Anna sings.")
    memory.consolidate()
    os.close(held)
    assert {"Anna lives in Faroon.", "Anna sings."} <= current(memory)


def test_people_and_consolidation_at_the_same_time_lose_nothing(memory: Memory, tmp_path: Path) -> None:
    stop = threading.Event()
    failed: list[BaseException] = []

    def consolidate() -> None:
        try:
            with Memory(tmp_path) as other:
                n = 0
                while not stop.is_set():
                    other.observe(f"Anna has thing {n}.")
                    other.consolidate()
                    n += 1
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=consolidate)
    thread.start()
    saved = 0
    end = time.monotonic() + 3
    while saved < 25 and time.monotonic() < end:
        path = path_of(memory, "Anna")
        try:
            text = path.read_text()
        except FileNotFoundError:
            continue
        fresh = path.with_name("save~")
        fresh.write_text(text.replace("# Conflicts", f"- Anna said word{saved}.\n\n# Conflicts"))
        fresh.rename(path)
        saved += 1
        time.sleep(0.005 * (saved % 4))
    stop.set()
    thread.join(30)
    assert not failed
    memory.topics()
    known = {row[0] for row in memory._ledger.connection().execute("SELECT text FROM fact")}
    # A person who saves over an edit of their own that was not taken in yet has overwritten it themselves.
    assert f"Anna said word{saved - 1}." in known
    assert current(memory) == known, "a save from an old view removed what came later"


def test_a_stale_save_onto_a_merged_topic_reaches_the_one_that_it_is_in_now(memory: Memory) -> None:
    old = path_of(memory, "Bob")
    text = old.read_text()
    with memory._ledger.change() as db:
        from perdure.memory.carry_out import carry_out
        from perdure.memory.plan import Merge, Plan
        from perdure.memory.steps import Journal, add_change

        number = add_change(db, kind="consolidate", by="rules", outcome="ok", at_s=0.0)
        carry_out(db, Plan((Merge(1, (2,)),)), keys={}, change=number, journal=Journal())
    memory.topics()
    assert not old.exists()
    assert (memory.folder / "archive" / old.name).exists()
    old.write_text(text.replace("likes tea", "likes coffee"))
    memory.topics()
    assert "Bob likes coffee." in path_of(memory, "Anna").read_text()
    assert not old.exists()
    assert memory.topic("t2").id == 1


def test_a_big_store_rewrites_only_what_was_touched(memory: Memory) -> None:
    memory.observe("\n".join(f"{name} has thing {n}." for name in ("Carla", "Dora", "Emil") for n in range(20)))
    memory.consolidate()
    before = {each.name: each.stat().st_ino for each in (memory.folder / "topics").iterdir()}
    memory.observe("Dora sings.")
    memory.consolidate()
    after = {each.name: each.stat().st_ino for each in (memory.folder / "topics").iterdir()}
    assert [name for name in after if after[name] != before.get(name)] == [memory.topic("Dora").file.split("/")[1]]


def test_memoria_89_a_correction_leaves_one_version_active_and_can_be_taken_back(memory: Memory) -> None:
    done = memory.edit("f1", "Anna lives in Porto.")
    assert (done.kind, done.by) == ("edit", "human")
    assert current(memory) == {"Anna lives in Porto.", "She has a cat.", "Bob likes tea."}
    memory.undo(done.id)
    assert current(memory) == {"Anna lives in Lisbon.", "She has a cat.", "Bob likes tea."}
    memory.undo(memory.changes()[0].id)
    assert current(memory) == {"Anna lives in Porto.", "She has a cat.", "Bob likes tea."}
    with pytest.raises(ValueError, match="taken back"):
        memory.undo(memory.changes()[1].id)


def test_after_a_purge_no_copy_and_no_document_holds_the_words(memory: Memory) -> None:
    anna, bob = path_of(memory, "Anna"), path_of(memory, "Bob")
    bob.write_bytes(b"\xff" + bob.read_bytes())
    held = anna.read_text()
    memory.topics()
    with memory._ledger.change() as db:  # as a purge does it
        db.execute("UPDATE fact SET text = NULL, state = 'forgotten', topic = 0 WHERE id = 2")
        db.execute("UPDATE topic SET title = 'Topic 1', file = '' WHERE id = 1")
    memory._documents.make_again()
    names = [each for each in (memory.folder / "topics").iterdir() if each != bob]
    assert [each.name for each in names] == ["topic-1--t1.md"]
    assert "cat" not in names[0].read_text()
    assert not list((memory.folder / "kept").iterdir())
    names[0].write_text(held.replace("Lisbon", "Faro"))  # from an editor that still has the old view
    memory.topics()
    assert "cat" not in "".join(row[0] or "" for row in memory._ledger.connection().execute("SELECT text FROM fact"))
    assert "Anna lives in Faro." in current(memory)


@pytest.mark.parametrize(
    "name", ["../../victim.md", "topics/../../../victim.md", "/etc/victim.md", "topics/a\0.md", "x"]
)
def test_no_file_name_in_a_ledger_leads_out_of_its_folder(memory: Memory, tmp_path: Path, name: str) -> None:
    victim = tmp_path / "victim.md"
    victim.write_text("- not ours\n")
    with memory._ledger.change() as db:
        db.execute("UPDATE topic SET file = ?, title = '../../x', written = -1 WHERE id = 1", (name,))
        intent = '{"file": "' + name.replace("\0", "") + '", "digest": "", "shown": {}}'
        db.execute("UPDATE document SET intent = ? WHERE topic = 2", (intent,))
    memory.topics()
    assert victim.read_text() == "- not ours\n"
    assert memory.topic("t1").file == "topics/x--t1.md"
    assert memory.search("not ours") == []
