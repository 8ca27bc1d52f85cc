"""The six commands by which a model keeps files of its own: view, create, str_replace, insert, delete, rename.

The tree ``/memories`` looks like a folder and is none: its files are evidence of the memory (`perdure.memory.
agent_files`), so a save is durable when the command returns, what was deleted or edited away is still in the ledger,
and what the files say is found by `Memory.search` beside everything else. The answers are the words that models know
from the tool of this name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Final

from perdure.errors import CallError
from perdure.memory.agent_files import AgentFiles, Version
from perdure.memory.file_names import ROOT, file_name, inside
from perdure.memory.memory import Memory

__all__ = ["COMMANDS", "MemoryTool"]

COMMANDS: Final[Mapping[str, Mapping[str, type]]] = {
    "view": {"path": str},
    "create": {"path": str, "file_text": str},
    "str_replace": {"path": str, "old_str": str, "new_str": str},
    "insert": {"path": str, "insert_line": int, "insert_text": str},
    "delete": {"path": str},
    "rename": {"old_path": str, "new_path": str},
}
"""The commands, and what each needs."""

_MOST_LINES: Final = 999_999
_MOST_SHOWN: Final = 1000
_AROUND: Final = 3


class MemoryTool:
    """The tool over one memory. Any thread may call it, and others may have the same space open.

    >>> import tempfile
    >>> from perdure.memory import Memory
    >>> with Memory(tempfile.mkdtemp()) as memory:
    ...     tool = MemoryTool(memory)
    ...     _ = tool.handle({"command": "create", "path": "/memories/anna.md", "file_text": "Anna lives in Lisbon.\\n"})
    ...     [hit.fact.text for hit in memory.search("Anna")]
    ['Anna lives in Lisbon.']
    """

    def __init__(self, memory: Memory) -> None:
        self._ledger = memory.ledger
        self._files = AgentFiles(memory.ledger)
        self._do: dict[str, Callable[[Mapping[str, Any]], str]] = {
            "view": self._view,
            "create": self._create,
            "str_replace": self._str_replace,
            "insert": self._insert,
            "delete": self._delete,
            "rename": self._rename,
        }

    def handle(self, command: Mapping[str, Any]) -> str:
        """Carry out a command as a model gives it, ``{"command": "view", "path": "/memories"}``, and return the answer.

        Raises `CallError`, in words for the model, where the command cannot be carried out: give them back to it as
        the tool's error.
        """
        what = command.get("command")
        if not isinstance(what, str) or what not in self._do:
            raise CallError(f"there is no command {str(what)[:40]!r}; there are {', '.join(COMMANDS)}")
        for name, kind in COMMANDS[what].items():
            given = command.get(name)
            if what == "str_replace" and name == "new_str" and given is None:
                continue  # to leave it out is to take the words away
            if not isinstance(given, kind) or isinstance(given, bool):
                raise CallError(f"{what} needs {name}, a {'number' if kind is int else 'string'}")
        self._files.all()
        return self._do[what](command)

    def _changing(self) -> AbstractContextManager[object]:
        """Whoever else edits waits until this edit is through, so that it is of the latest version."""
        return self._ledger.change()

    def _view(self, command: Mapping[str, Any]) -> str:
        name, files = file_name(command["path"]), self._files.all()
        if name not in files:
            return _listing(name, files)
        lines = _lines(self._files.text(name))
        if len(lines) > _MOST_LINES:
            raise CallError(f"File {name} exceeds maximum line limit of {_MOST_LINES} lines.")
        first, last = _range(command.get("view_range"), len(lines))
        return f"Here's the content of {name} with line numbers:\n{_numbered(lines, first, last)}"

    def _create(self, command: Mapping[str, Any]) -> str:
        name = _a_file(command["path"])
        self._files.save(name, command["file_text"])
        return f"File created successfully at: {name}"

    def _str_replace(self, command: Mapping[str, Any]) -> str:
        name, old, new = _a_file(command["path"]), command["old_str"], command.get("new_str") or ""
        if not old:
            raise CallError("str_replace needs an old_str that is not empty; to add lines, use insert")
        with self._changing():
            text = self._files.text(name)
            at = text.find(old)
            if at == -1:
                raise CallError(
                    f"No replacement was performed, old_str `{old[:200]}` did not appear verbatim in {name}."
                )
            if text.find(old, at + 1) != -1:
                raise CallError(
                    f"No replacement was performed. Multiple occurrences of old_str `{old[:200]}` in lines: "
                    f"{', '.join(map(str, _places(text, old)))}. Please ensure it is unique"
                )
            self._files.edit(name, at, at + len(old), new)
        lines = _lines(text[:at] + new + text[at + len(old) :])
        line = text.count("\n", 0, at)
        around = _numbered(lines, max(0, line - _AROUND), min(len(lines), line + new.count("\n") + 1 + _AROUND))
        return f"The memory file has been edited.\n{around}"

    def _insert(self, command: Mapping[str, Any]) -> str:
        name, line, words = _a_file(command["path"]), command["insert_line"], command["insert_text"]
        with self._changing():
            text = self._files.text(name)
            lines = _kept_lines(text)
            if not 0 <= line <= len(lines):
                raise CallError(
                    f"Invalid `insert_line` parameter: {line}. It should be within the range of lines of the file: "
                    f"[0, {len(lines)}]"
                )
            at = sum(map(len, lines[:line]))
            before = "\n" if at and text[at - 1] != "\n" else ""
            after = "" if words.endswith("\n") or not words else "\n"
            self._files.edit(name, at, at, before + words + after)
        return f"The file {name} has been edited."

    def _delete(self, command: Mapping[str, Any]) -> str:
        name = _a_file(command["path"])
        with self._changing():
            found = self._at_or_below(name)
            self._files.delete(found)
        return f"Successfully deleted {name}"

    def _rename(self, command: Mapping[str, Any]) -> str:
        old, new = _a_file(command["old_path"]), _a_file(command["new_path"])
        with self._changing():
            found, files = self._at_or_below(old), self._files.all()
            if new in files or any(inside(new, each) for each in files):
                raise CallError(f"The destination {new} already exists", path=new)
            if any(inside(each, new) for each in files) or inside(old, new):
                raise CallError(f"{new} would lie below a file, or within what is renamed", path=new)
            self._files.rename([(each, file_name(new + each.removeprefix(old))) for each in found])
        return f"Successfully renamed {old} to {new}"

    def _at_or_below(self, name: str) -> list[str]:
        found = [each for each in self._files.all() if each == name or inside(name, each)]
        if not found:
            raise CallError(f"The path {name} does not exist", path=name)
        return found


def _a_file(path: object) -> str:
    """The name of a file or folder that may be changed: not of the root."""
    name = file_name(path)
    if name == ROOT:
        raise CallError(f"{ROOT} itself cannot be changed; name what lies in it", path=name)
    return name


def _listing(name: str, files: Mapping[str, Version]) -> str:
    """What lies in a folder, two levels deep; hidden files are left out."""
    below = {each: version for each, version in files.items() if inside(name, each)}
    if not below and name != ROOT:
        raise CallError(f"The path {name} does not exist. Please provide a valid path.", path=name)
    sizes: dict[str, int] = {name: 0}
    for each, version in below.items():
        parts = each.removeprefix(name + "/").split("/")
        length = sum(stop - start for _, start, stop in version.pieces or ())
        sizes[name] += length
        if any(part.startswith(".") for part in parts):
            continue
        for depth in range(1, min(len(parts), 2) + 1):
            shown = "/".join([name, *parts[:depth]]) + ("/" if depth < len(parts) else "")
            sizes[shown] = sizes.get(shown, 0) + length
    rows = [f"{_size(size)}\t{shown}" for shown, size in sorted(sizes.items())]
    left = [f"... and {len(rows) - _MOST_SHOWN} more; view a folder of it"] if len(rows) > _MOST_SHOWN else []
    head = f"Here're the files and directories up to 2 levels deep in {name}, excluding hidden items:"
    return "\n".join([head, *rows[:_MOST_SHOWN], *left])


def _size(characters: int) -> str:
    return str(characters) if characters < 1024 else f"{characters / 1024:.1f}K"


def _lines(text: str) -> list[str]:
    return [each.removesuffix("\n") for each in _kept_lines(text)]


def _kept_lines(text: str) -> list[str]:
    """Lines end with a line feed alone, as an edit counts them."""
    lines = [each + "\n" for each in text.split("\n")]
    lines[-1] = lines[-1].removesuffix("\n")
    return lines if lines[-1] else lines[:-1]


def _numbered(lines: list[str], first: int, last: int) -> str:
    return "\n".join(f"{at + 1:6d}\t{lines[at]}" for at in range(first, last))


def _range(given: object, lines: int) -> tuple[int, int]:
    if given is None:
        return 0, lines
    if not (isinstance(given, list) and len(given) == 2 and all(type(each) is int for each in given)):
        raise CallError("view_range must be two numbers, as [1, 20]; -1 as the second is the end")
    first, last = given[0], lines if given[1] == -1 else given[1]
    if not 1 <= first <= max(lines, 1) or last < first:
        raise CallError(f"view_range {given} is not within the lines of the file: [1, {lines}]")
    return first - 1, min(last, lines)


def _places(text: str, old: str) -> list[int]:
    found: list[int] = []
    at = text.find(old)
    while at != -1 and len(found) < 20:
        found.append(text.count("\n", 0, at) + 1)
        at = text.find(old, at + 1)
    return found
