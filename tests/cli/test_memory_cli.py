"""``perdure memory``: each command, its text from everywhere, its JSON, its exit codes, and what must be sure."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from perdure.cli.main import main
from perdure.errors import TryAgain
from perdure.memory import Memory


class Shell:
    """Runs commands in this process."""

    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self._capsys, self._patch = root, capsys, monkeypatch
        monkeypatch.setenv("PERDURE_MEMORY", str(root))

    def __call__(self, *words: object, stdin: bytes | None = None, code: int = 0) -> str:
        self._patch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin or b"")))
        self._capsys.readouterr()
        assert main(["memory", *map(str, words)]) == code
        self.out, self.err = self._capsys.readouterr()
        return self.out

    def json(self, *words: object, **rest: Any) -> Any:
        return json.loads(self(*words, "--json", **rest))


@pytest.fixture
def shell(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    return Shell(tmp_path / "root", capsys, monkeypatch)


def test_a_text_is_the_argument_a_file_or_stdin(shell: Shell, tmp_path: Path) -> None:
    assert shell("observe", "Anna lives in Porto.", "--speaker", "Ben") == "e1: 1 fact\n"
    (tmp_path / "note").write_text("Anna moved to Lisbon. 你好\nShe likes tea.\n")
    assert shell("observe", "--file", tmp_path / "note").startswith("e2: ")
    assert shell("observe", stdin=b"Ben has a dog.") == "e3: 1 fact\n"
    assert shell("observe", "-", stdin=b"Ben has a cat.") == "e4: 1 fact\n"
    assert shell("observe", "again", "--key", "k") == "e5: 1 fact\n"
    assert shell("observe", "again", "--key", "k") == "e5: 1 fact, known already\n"
    with Memory(shell.root) as memory:
        assert memory.evidence("e2").text == "Anna moved to Lisbon. 你好\nShe likes tea.\n"
        assert memory.fact("f1").speaker == "Ben"
    shell("observe", "x", "--file", "y", code=64)
    shell("observe", "--file", tmp_path / "none", code=64)
    shell("observe", stdin=b"\xff\xfe", code=64)
    shell("observe", "x", "--at", "yesterday", code=64)
    assert "ISO 8601" in shell.err


def test_lines_for_a_pipe_and_json_for_programs(shell: Shell) -> None:
    shell("observe", "Anna lives in Lisbon.", "--at", "2023-05-08T13:56+02:00")
    assert shell("search", "Anna") == "f1\tAnna lives in Lisbon.\tuser\t2023-05-08\tcurrent\n"
    (fact,) = shell.json("search", "Anna")["facts"]
    assert (fact["id"], fact["text"], fact["observed"]) == ("f1", "Anna lives in Lisbon.", "2023-05-08T13:56:00+02:00")
    assert shell.json("ask", "Where does Anna live?")["facts"][0]["id"] == "f1"
    assert "Anna lives in Lisbon." in shell("ask", "Where does Anna live?")
    assert shell("history", "f1").startswith("f1\tAnna lives in Lisbon.")
    assert shell.json("status")["facts"] == 1
    assert shell.json("spaces")["spaces"][0]["name"] == "default"
    assert shell("search", "Anna", "--speaker", "Ben") == shell("search", "Anna", "--as-of", "2020-01-01") == ""
    assert "f1" in shell("search", "Anna", "--as-of", "2024-01-01")
    shell("search", "Anna", "--as-of", "then", code=64)
    shell("search", "Anna", "--limit", "0", code=64)
    shell("history", "f9", code=64)
    shell("history", "e1", code=64)


def test_a_terminal_is_not_driven_by_what_was_told(shell: Shell) -> None:
    shell("observe", "Anna \x1b]0;owned\x07 likes \x9b2J tea \u202egpj.exe\r and more.")
    said = shell("search", "Anna")
    assert not {"\x1b", "\x07", "\x9b", "\r", "\u202e"} & set(said)
    assert all(line.count("\t") == 4 for line in said.splitlines())
    assert json.loads(shell("search", "Anna", "--json"))["facts"][0]["text"].count("\x1b") == 1


def test_text_that_is_no_unicode_is_kept_and_shown_as_json(shell: Shell) -> None:
    with Memory(shell.root) as memory:
        memory.observe("half a pair \ud83d")
    assert shell.json("history", "f1")["facts"][0]["text"] == "half a pair \\ud83d"
    assert "half a pair \\ud83d" in shell("history", "f1")


def test_forget_shows_asks_and_can_be_tried(shell: Shell) -> None:
    shell("observe", "Anna lives in Lisbon.")
    shell("observe", "The code is 4711.", "--source", "chat")
    assert shell("forget", "--source", "chat", "--dry-run") == "f2\tThe code is 4711.\t\n"
    assert shell.json("forget", "f2", "--dry-run")["dry_run"]
    assert "--yes" in (shell("forget", "f2", code=64), shell.err)[1]
    assert "4711" in shell("search", "code")
    assert shell("forget", "f2", "--yes") == "c1: forgot 1 fact\n"
    assert shell("search", "code") == ""
    done = shell.json("forget", "e2", "--purge", "--yes")
    assert done["mode"] == "purge"
    assert done["left"] == []
    assert b"4711" not in b"".join(each.read_bytes() for each in shell.root.rglob("*") if each.is_file())
    for wrong in ([], ["x1"], ["f1", "--speaker", "Ben"], ["f99"]):
        shell("forget", *wrong, "--yes", code=64)


def test_a_copy_goes_out_and_comes_back(shell: Shell, tmp_path: Path) -> None:
    shell("observe", "Anna lives in Lisbon.")
    place = shell.json("backup")["backup"]
    assert shell.json("export", tmp_path / "out.jsonl")["lines"] > 1
    shell("export", tmp_path / "out.jsonl", code=64)
    assert "1 evidence, 1 facts" in shell("import", tmp_path / "out.jsonl", "--space", "other")
    assert "Anna" in shell("search", "Anna", "--space", "other")
    shell("backup", "--restore", place, "--space", "third")
    assert "Anna" in shell("search", "Anna", "--space", "third")
    shell("backup", "--restore", place, "--space", "third", code=64)
    (tmp_path / "bad").write_text("{")
    shell("import", tmp_path / "bad", "--space", "other", code=65)


def test_doctor_says_what_is_wrong_and_mends_what_it_can(shell: Shell) -> None:
    shell("observe", "Anna lives in Lisbon.")
    assert shell("doctor") == "everything is as it should be\n"
    with Memory(shell.root) as memory, memory._ledger.change() as db:
        db.execute("UPDATE fact SET state = 'superseded'")
    assert shell.json("doctor", code=65)["findings"]
    shell("doctor", "--repair")
    assert shell("doctor") == "everything is as it should be\n"
    ledger = shell.root / "default" / "ledger.db"
    ledger.write_bytes(b"no database at all" * 1000)
    assert "ledger" in shell("doctor", code=65)


def test_reading_makes_no_memory_and_names_those_that_there_are(shell: Shell) -> None:
    for words in (["search", "x"], ["ask", "x"], ["status"], ["forget", "f1", "--yes"], ["doctor"], ["backup"]):
        shell(*words, code=64)
        assert "perdure memory observe makes one" in shell.err
    assert not shell.root.exists()
    shell("observe", "x", "--space", "anna/../ben")
    shell("search", "x", code=64)
    assert "'anna/../ben'" in shell.err
    assert [each.parent for each in shell.root.parent.rglob("ledger.db")] == [next(shell.root.iterdir())]


def test_the_folder_is_the_option_the_variable_or_the_users_data(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell("observe", "x", "--root", tmp_path / "a")
    assert (tmp_path / "a/default/ledger.db").exists()
    monkeypatch.delenv("PERDURE_MEMORY")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    shell("observe", "x")
    assert (tmp_path / "data/perdure/memory/default/ledger.db").exists()
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    shell("observe", "x")
    assert (tmp_path / "home/.local/share/perdure/memory/default/ledger.db").exists()


def test_on_a_terminal_there_is_a_table_and_a_question(tmp_path: Path) -> None:
    with Memory(tmp_path) as memory:
        memory.observe("Anna [red]lives[/red] in Lisbon.")
    assert "│ Anna [red]lives[/red] in" in _on_a_terminal(tmp_path, b"", "search", "Anna")
    assert "nothing was forgotten" in _on_a_terminal(tmp_path, b"n\n", "forget", "f1")
    assert "forgot 1 fact" in _on_a_terminal(tmp_path, b"y\n", "forget", "f1")


def _on_a_terminal(root: Path, answer: bytes, *words: str) -> str:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "perdure", "memory", *words, "--root", str(root)]
    with subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=os.environ | {"COLUMNS": "120"}
    ) as it:
        os.close(theirs)
        os.write(ours, answer)
        said = b""
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:
                break
            if not part:
                break
            said += part
        assert it.wait(60) == 0, said
    os.close(ours)
    return said.decode()


def test_help_imports_nothing_heavy() -> None:
    code = """
import sys
from perdure.cli.main import main
for words in (["--help"], ["memory", "--help"], ["memory", "search", "--help"], ["memory", "mcp", "--help"]):
    try:
        main(words)
    except SystemExit:
        pass
heavy = {"numpy", "msgspec", "sqlite3", "mcp", "starlette", "rich", "asyncio", "torch", "perdure.memory"}
print(sorted(heavy & set(sys.modules)), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stderr == "[]\n"
    for name in ("observe", "search", "ask", "history", "forget", "backup", "export", "import", "doctor", "mcp"):
        assert f"\n    {name} " in done.stdout


def test_topics_are_sorted_shown_edited_and_taken_back(shell: Shell) -> None:
    for text in ("Anna lives in Porto.", "Anna has a cat.", "Anna works for a bakery.", "Ben has a dog."):
        shell("observe", text)
    assert shell.json("consolidate", "--dry-run")["consolidation"]["staged"] == 4
    assert shell("consolidate").startswith("c")
    assert shell("consolidate").startswith("nothing was left to sort")
    topics = shell.json("topics")["topics"]
    anna = next(each for each in topics if "Anna" in each["title"])
    assert f"{anna['id']}\t{anna['title']}" in shell("topics")
    for name in (anna["id"], anna["title"]):
        assert "Anna lives in Porto." in shell("show", name)
    assert shell.json("show", anna["id"])["topic"]["id"] == anna["id"]
    change = shell("edit", "f1", "Anna lives in Lisbon.").partition(":")[0]
    document = shell("show", anna["id"])
    assert document.index("Anna lives in Lisbon.") < document.index("Anna lives in Porto.")
    assert "f1 (superseded" in shell("show", "f1")
    assert shell.json("show", "f1")["fact"]["state"] == "superseded"
    assert "e1, told by user" in shell("show", "e1")
    assert change in shell("undo")
    assert change in shell("undo", change, "--dry-run")
    shell("undo", change, code=64)
    assert "--yes" in shell.err
    assert "takes back" in shell("undo", change, "--yes")
    assert "f1 (current" in shell("show", "f1")
    shell("show", "nobody", code=64)
    shell("edit", "f99", "x", code=64)
    shell("edit", "f1", " ", code=64)
    shell("consolidate", "--endpoint", "http://127.0.0.1:1/v1", code=64)


def test_bench_compares_with_a_plain_file_and_leaves_nothing(shell: Shell) -> None:
    found = shell.json("bench", "--facts", "200")
    assert found["facts"] == 200
    assert found["observe_over_append"] == pytest.approx(found["observe_s"] / found["append_s"])
    assert list(shell.root.iterdir()) == []
    shell("bench", "--facts", "1", code=64)


def test_status_says_why_the_last_consolidation_fell_back_and_what_was_left_alone(shell: Shell) -> None:
    def fail(*_words: Any, **_more: Any) -> Any:
        raise TryAgain("the model\x1b[2J is away")

    with Memory(shell.root, model=types.SimpleNamespace(name="m", complete=fail)) as memory:  # type: ignore[arg-type]
        memory.observe("Anna sings.")
        change = memory.consolidate()
        assert change is not None
        assert change.outcome == "fallback"
        assert change.note
        (memory.folder / "topics" / "x.md").write_text("---\nid: t99\n---\n- a\n")
    out = shell("status")
    assert "fallback (" in out
    assert "x.md is of t99, which this ledger does not have" in out
    assert "\x1b" not in out
