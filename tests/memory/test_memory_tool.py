"""The memory tool: its six commands against a model of dicts, strict paths, and nothing lost by an edit."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perdure.errors import CallError
from perdure.memory import Memory
from perdure.memory.agent_files import MOST_BYTES
from perdure.memory.file_names import file_name
from perdure.memory.memory_tool import MemoryTool
from perdure.memory.records import State


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Memory]:
    with Memory(tmp_path / "m") as opened:
        yield opened


@pytest.fixture
def tool(memory: Memory) -> MemoryTool:
    return MemoryTool(memory)


def do(tool: MemoryTool, command: str, path: str = "/memories/a.md", **rest: Any) -> str:
    return tool.handle({"command": command, "path": path, **rest})


def found(memory: Memory, question: str, **options: Any) -> list[str]:
    return [hit.fact.text for hit in memory.search(question, **options)]


def test_a_file_is_created_viewed_edited_renamed_and_deleted(tool: MemoryTool, memory: Memory) -> None:
    assert do(tool, "create", file_text="# Anna\nAnna lives in Porto.\nShe likes tea.\n").endswith("/memories/a.md")
    assert do(tool, "view").splitlines()[1:] == [
        "     1\t# Anna",
        "     2\tAnna lives in Porto.",
        "     3\tShe likes tea.",
    ]
    assert do(tool, "view", view_range=[2, 2]).splitlines()[1:] == ["     2\tAnna lives in Porto."]
    assert "2\tAnna lives in Lisbon." in do(tool, "str_replace", old_str="Porto", new_str="Lisbon")
    do(tool, "insert", insert_line=1, insert_text="She is a doctor.")
    assert [line[7:] for line in do(tool, "view").splitlines()[1:]] == [
        "# Anna", "She is a doctor.", "Anna lives in Lisbon.", "She likes tea.",
    ]  # fmt: skip
    tool.handle({"command": "rename", "old_path": "/memories/a.md", "new_path": "/memories/people/anna.md"})
    assert "/memories/people/anna.md" in do(tool, "view", "/memories")
    with pytest.raises(CallError, match="does not exist"):
        do(tool, "view")
    assert found(memory, "Anna Lisbon")[0] == "Anna lives in Lisbon."
    do(tool, "delete", "/memories/people")
    assert found(memory, "Anna Lisbon") == []
    assert do(tool, "view", "/memories").splitlines()[1:] == ["0\t/memories"]


def test_nothing_that_was_told_is_lost_by_an_edit_or_a_delete(tool: MemoryTool, memory: Memory) -> None:
    do(tool, "create", file_text="Anna lives in Porto.\nBen has a dog.\n")
    do(tool, "str_replace", old_str="Porto", new_str="Lisbon")
    assert found(memory, "Anna lives")[0] == "Anna lives in Lisbon."
    assert "Anna lives in Porto." not in found(memory, "Anna lives")
    assert "Anna lives in Porto." in found(memory, "Anna lives", history=True)
    do(tool, "delete")
    assert memory.evidence("e1").text == "Anna lives in Porto.\nBen has a dog.\n"
    assert found(memory, "Ben dog") == []
    assert memory.fact("f1").state is State.FORGOTTEN


def test_an_edit_tells_its_own_lines_alone(tool: MemoryTool, memory: Memory) -> None:
    lines = [f"Person {n} has the number {n * 7}." for n in range(50)]
    do(tool, "create", file_text="\n".join(lines))
    do(tool, "str_replace", old_str="number 140.", new_str="number 141.")
    assert memory.evidence("e2").text == "Person 20 has the number 141.\n"
    assert memory.fact("f1").state is State.CURRENT
    do(tool, "insert", insert_line=0, insert_text="All of them.")
    assert memory.evidence("e3").text == "All of them.\n"


def test_a_line_taken_away_is_recalled_no_more(tool: MemoryTool, memory: Memory) -> None:
    do(tool, "create", file_text="Anna has a cat.\nBen has a dog.\n")
    do(tool, "str_replace", old_str="Anna has a cat.\n")
    assert do(tool, "view").splitlines()[1:] == ["     1\tBen has a dog."]
    assert found(memory, "cat") == []
    assert memory.fact("f1").state is State.FORGOTTEN


def test_what_somebody_else_told_as_well_stays_when_the_file_goes(tool: MemoryTool, memory: Memory) -> None:
    do(tool, "create", file_text="Anna has a cat.")
    memory.observe("Anna has a cat.", source="chat")
    do(tool, "delete")
    assert found(memory, "cat") == ["Anna has a cat."]


def test_files_are_there_when_the_memory_is_opened_again(tool: MemoryTool, memory: Memory) -> None:
    do(tool, "create", file_text="one\ntwo\n")
    do(tool, "insert", insert_line=2, insert_text="three")
    memory.close()
    with Memory(memory.folder.parent) as again:
        assert do(MemoryTool(again), "view").splitlines()[1:] == ["     1\tone", "     2\ttwo", "     3\tthree"]


def test_a_person_can_take_back_what_an_agent_did_to_its_file(tool: MemoryTool, memory: Memory) -> None:
    do(tool, "create", file_text="Anna has a cat.\nBen has a dog.\n")
    do(tool, "str_replace", old_str="cat", new_str="bird")
    do(tool, "delete")
    assert [memory.fact(n).state for n in (1, 2, 3)] == [State.FORGOTTEN] * 3
    assert memory.doctor() == []
    for change in [each for each in memory.changes() if each.by == "memory-tool"]:
        memory.undo(change.id)
    assert [memory.fact(n).state for n in (1, 2)] == [State.CURRENT, State.CURRENT]
    assert memory.doctor() == []


def test_files_travel_with_an_export_also_beside_others_of_the_same_name(
    tool: MemoryTool, memory: Memory, tmp_path: Path
) -> None:
    do(tool, "create", file_text="one\ntwo\n")
    do(tool, "insert", insert_line=2, insert_text="three")
    do(tool, "create", "/memories/b", file_text="else")
    do(tool, "delete", "/memories/b")
    memory.export(tmp_path / "out")
    with Memory(tmp_path / "n") as other:
        mine = MemoryTool(other)
        do(mine, "create", file_text="uno\ndue\n")
        do(mine, "insert", insert_line=0, insert_text="zero")
        other.import_(tmp_path / "out")
        assert do(mine, "view").splitlines()[1:] == ["     1\tone", "     2\ttwo", "     3\tthree"]
        assert "/memories/b" not in do(mine, "view", "/memories")
        assert "zero" in found(other, "zero")


def test_what_is_purged_is_gone_from_the_file(tool: MemoryTool, memory: Memory) -> None:
    do(tool, "create", file_text="Anna has a cat.\nThe code is 4711.\n")
    do(tool, "insert", insert_line=2, insert_text="Ben has a dog.")
    (hit,) = memory.search("code", limit=1)
    memory.forget(fact=hit.fact.name, mode="purge")
    assert "4711" not in do(tool, "view")
    assert "Ben has a dog." in do(tool, "view")
    memory.forget(evidence="e1", mode="purge")
    assert do(MemoryTool(memory), "view").splitlines()[1:] == ["     1\tBen has a dog."]
    do(tool, "str_replace", old_str="dog", new_str="bird")
    assert found(memory, "Ben")[0] == "Ben has a bird."


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        "notes.md",
        "/etc/passwd",
        "/memories/..",
        "/memories/../etc/passwd",
        "/memories/a/../../b",
        "/memories/./a",
        "/memories//a",
        "/memoriesx/a",
        "/memories/a\\..\\b",
        "/memories/%2e%2e/a",
        "/memories/%2E%2e%2fa",
        "/memories/%252e%252e/a",
        "/memories/%u002e%u002e/a",
        "/memories/\uff0e\uff0e/a",
        "/memories/\u2025/a",
        "/memories/a\uff0fb",
        "/memories/a\x00b",
        "/memories/a\nb",
        "/memories/a\u202eb",
        "/memories/a\u200bb",
        "/memories/\ud800",
        "/memories/ a",
        "/memories/a.",
        "/memories/" + "x" * 256,
        "/memories/" + "a/" * 17 + "b",
        "/memories/" + "x/" * 600,
        "file:///memories/a",
        "C:\\memories\\a",
        7,
        None,
        ["/memories/a"],
    ],
)
def test_supermemory_accepted_a_path_with_dots(tool: MemoryTool, path: Any) -> None:
    with pytest.raises(CallError):
        tool.handle({"command": "create", "path": path, "file_text": "x"})
    with pytest.raises(CallError):
        tool.handle({"command": "rename", "old_path": "/memories/a", "new_path": path})


@given(st.text())
@settings(max_examples=100, deadline=None)
def test_a_name_that_is_taken_has_one_form_and_no_way_up(text: str) -> None:
    try:
        name = file_name("/memories/" + text)
    except CallError:
        return
    assert file_name(name) == name
    assert not {"..", ".", ""} & set(name.split("/")[1:])


def test_two_spellings_of_a_letter_are_one_file(tool: MemoryTool) -> None:
    do(tool, "create", "/memories/cafe\u0301.md", file_text="x")
    assert do(tool, "view", "/memories/caf\u00e9.md").endswith("1\tx")
    with pytest.raises(CallError, match="already exists"):
        do(tool, "create", "/memories/caf\u00e9.md", file_text="y")


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ({"command": "view", "path": "/memories/no"}, "does not exist"),
        ({"command": "create", "path": "/memories/a.md", "file_text": "x"}, "already exists"),
        ({"command": "create", "path": "/memories/a.md/b", "file_text": "x"}, "is a file"),
        ({"command": "create", "path": "/memories/dir", "file_text": "x"}, "is a directory"),
        ({"command": "create", "path": "/memories/c"}, "needs file_text"),
        ({"command": "create", "path": "/memories/c", "file_text": "x" * (MOST_BYTES + 1)}, "is the most"),
        ({"command": "str_replace", "path": "/memories/a.md", "old_str": "no", "new_str": "x"}, "did not appear"),
        ({"command": "str_replace", "path": "/memories/a.md", "old_str": "o", "new_str": "x"}, "lines: 1, 2"),
        ({"command": "str_replace", "path": "/memories/a.md", "old_str": "", "new_str": "x"}, "not empty"),
        ({"command": "insert", "path": "/memories/a.md", "insert_line": 9, "insert_text": "x"}, r"\[0, 2\]"),
        ({"command": "insert", "path": "/memories/a.md", "insert_line": True, "insert_text": "x"}, "a number"),
        ({"command": "delete", "path": "/memories"}, "itself"),
        ({"command": "delete", "path": "/memories/no"}, "does not exist"),
        ({"command": "rename", "old_path": "/memories/a.md", "new_path": "/memories/dir/b"}, "already exists"),
        ({"command": "rename", "old_path": "/memories/dir", "new_path": "/memories/dir/c"}, "below"),
        ({"command": "rename", "old_path": "/memories", "new_path": "/memories/c"}, "itself"),
        ({"command": "view", "path": "/memories/a.md", "view_range": [3, 9]}, "not within"),
        ({"command": "view", "path": "/memories/a.md", "view_range": "all"}, "two numbers"),
        ({"command": "chmod", "path": "/memories/a.md"}, "no command"),
        ({}, "no command"),
    ],
)
def test_what_cannot_be_done_is_said_in_words_for_the_model(tool: MemoryTool, command: Any, words: str) -> None:
    do(tool, "create", file_text="one\ntwo\n")
    do(tool, "create", "/memories/dir/b", file_text="x")
    with pytest.raises(CallError, match=words):
        tool.handle(command)
    assert do(tool, "view").endswith("1\tone\n     2\ttwo")


def test_no_answer_tells_where_the_memory_lies(tool: MemoryTool, memory: Memory) -> None:
    """anthropic-sdk-typescript#1182: raw errors of the system exposed paths of the host."""
    for path in ("/memories/no", "/memories/../x", "/memories/\x00"):
        with pytest.raises(CallError) as caught:
            do(tool, "view", path)
        assert str(memory.folder.parent) not in str(caught.value)


words = st.text(st.sampled_from(list("ab .\n")), max_size=12)
commands = st.one_of(
    st.tuples(st.just("create"), st.sampled_from("xyz"), words),
    st.tuples(st.just("insert"), st.sampled_from("xyz"), words, st.integers(0, 5)),
    st.tuples(st.just("str_replace"), st.sampled_from("xyz"), st.text("ab \n", min_size=1, max_size=3), words),
    st.tuples(st.just("delete"), st.sampled_from("xyz")),
    st.tuples(st.just("rename"), st.sampled_from("xyz"), st.sampled_from("xyz")),
)


@given(st.lists(commands, max_size=12))
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_tree_is_what_a_dict_of_texts_would_be(tmp_path_factory: pytest.TempPathFactory, steps: list[Any]) -> None:
    with Memory(tmp_path_factory.mktemp("m")) as memory:
        tool, model = MemoryTool(memory), {}
        for step in steps:
            _both(tool, model, *step)
        texts = {name.rpartition("/")[2]: tool._files.text(name) for name in tool._files.all()}
        assert texts == model
        shown = {fact.text for hit in memory.search("a b ab ba aa bb", limit=1000) for fact in [hit.fact]}
        assert all(any(each in text for text in model.values()) for each in shown)


def _both(tool: MemoryTool, model: dict[str, str], what: str, name: str, *rest: Any) -> None:
    path, had = f"/memories/{name}", model.get(name)
    try:
        if what == "create":
            do(tool, what, path, file_text=rest[0])
            assert had is None
            model[name] = rest[0]
        elif what == "insert":
            do(tool, what, path, insert_line=rest[1], insert_text=rest[0])
            assert had is not None
            lines = had.split("\n")
            ended = lines[-1] == ""
            lines = lines[:-1] if ended else lines
            assert rest[1] <= len(lines)
            new = rest[0] if rest[0].endswith("\n") or not rest[0] else rest[0] + "\n"
            head = "".join(each + "\n" for each in lines[: rest[1]])
            tail = "\n".join(lines[rest[1] :]) + ("\n" if ended and lines[rest[1] :] else "")
            model[name] = head + new + tail
        elif what == "str_replace":
            do(tool, what, path, old_str=rest[0], new_str=rest[1])
            assert had is not None
            model[name] = had.replace(rest[0], rest[1])
        elif what == "delete":
            do(tool, what, path)
            del model[name]
        else:
            tool.handle({"command": what, "old_path": path, "new_path": f"/memories/{rest[0]}"})
            assert rest[0] not in model
            model[rest[0]] = model.pop(name)
    except CallError:
        assert model.get(name) == had


def test_threads_that_insert_at_once_all_find_their_line(memory: Memory) -> None:
    """tigerless agent-memory#16: what was found was no longer there when it was written, and edits vanished."""
    tools = [MemoryTool(memory) for _ in range(4)]
    do(tools[0], "create", file_text="first\n")

    def work(at: int) -> None:
        for n in range(5):
            do(tools[at], "insert", insert_line=1, insert_text=f"line {at}-{n}")

    threads = [threading.Thread(target=work, args=(at,)) for at in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    lines = [line[7:] for line in do(tools[0], "view").splitlines()[1:]]
    assert sorted(lines[1:]) == sorted(f"line {at}-{n}" for at in range(4) for n in range(5))


def test_an_edit_that_was_killed_is_there_or_is_not(tmp_path: Path) -> None:
    code = """
import os, signal, sys, threading
from perdure.memory import Memory
from perdure.memory.memory_tool import MemoryTool
tool = MemoryTool(Memory(sys.argv[1]))
tool.handle({"command": "create", "path": "/memories/a", "file_text": ""})
for n in range(100000):
    tool.handle({"command": "insert", "path": "/memories/a", "insert_line": n, "insert_text": f"line {n}"})
    print(n, flush=True)
"""
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if int(line) == 8:
                process.kill()
                break
        said = [8, *map(int, process.stdout.read().split())]
    with Memory(tmp_path) as memory:
        lines = [line[7:] for line in do(MemoryTool(memory), "view", "/memories/a").splitlines()[1:]]
    assert lines[: said[-1] + 1] == [f"line {n}" for n in range(said[-1] + 1)]
    assert len(lines) <= said[-1] + 2
