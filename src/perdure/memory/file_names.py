"""Names of an agent's files: one way to write each, and none that means anything to a file system.

The files are rows of a ledger, so no path can lead out of it; the rules are as strict as if one could, for whoever
copies the tree elsewhere, and so that two names that look alike are one file.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

from perdure.errors import CallError

__all__ = ["ROOT", "file_name", "inside"]

ROOT: Final = "/memories"

_MOST_BYTES: Final = 1024
_MOST_PART_BYTES: Final = 255
_MOST_PARTS: Final = 16
_ESCAPED: Final = re.compile(r"%[0-9A-Fa-f]{2}|%u[0-9A-Fa-f]{4}")
_JOINERS: Final = "\u200c\u200d"  # scripts and emoji need them
_REFUSED: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def file_name(path: object) -> str:
    """Return ``path`` in its one form (NFC, no slash at the end). It is `ROOT` or lies below it.

    Raises `CallError` for whatever is no such path, and for what could be taken for another one: ``..``, a backslash,
    percent-escapes, control and invisible characters, look-alikes of ``.`` and ``/``, parts that end with a space or
    a dot.

    >>> file_name("/memories/notes/cafe\\u0301.md")
    '/memories/notes/café.md'
    """
    if not isinstance(path, str):
        raise CallError(f"a path must be a string, not {type(path).__name__}")
    if len(path) > _MOST_BYTES:
        raise _refused(path, f"it is longer than {_MOST_BYTES} bytes")
    name = unicodedata.normalize("NFC", path)
    for each in name:
        if unicodedata.category(each) in _REFUSED and each not in _JOINERS:
            raise _refused(path, f"U+{ord(each):04X} may not stand in a path")
    if len(name.encode()) > _MOST_BYTES:
        raise _refused(path, f"it is longer than {_MOST_BYTES} bytes")
    if "\\" in name or _ESCAPED.search(name):
        raise _refused(path, "backslashes and percent-escapes may not stand in a path")
    if name != ROOT and not name.startswith(ROOT + "/"):
        raise _refused(path, f"it must begin with {ROOT}/")
    parts = name.removesuffix("/").split("/")[2:]
    if len(parts) > _MOST_PARTS:
        raise _refused(path, f"it is more than {_MOST_PARTS} folders deep")
    for part in parts:
        _check(path, part)
    return "/".join([ROOT, *parts])


def inside(folder: str, name: str) -> bool:
    """Whether ``name`` lies below ``folder``, both from `file_name`.

    >>> inside("/memories/a", "/memories/a/b"), inside("/memories/a", "/memories/ab")
    (True, False)
    """
    return name.startswith(folder + "/")


def _check(path: str, part: str) -> None:
    seen = unicodedata.normalize("NFKC", part)
    if not part:
        raise _refused(path, "a part of it is empty")
    if set(seen) <= {".", " "} or "/" in seen or "\\" in seen or seen.count("%") > part.count("%"):
        raise _refused(path, f"{part!r} is no name of a file")
    if part != part.strip() or part.endswith("."):
        raise _refused(path, f"{part!r} begins or ends with a space, or ends with a dot")
    if len(part.encode()) > _MOST_PART_BYTES:
        raise _refused(path, f"a part of it is longer than {_MOST_PART_BYTES} bytes")


def _refused(path: str, why: str) -> CallError:
    shown = path[:80].encode("ascii", "backslashreplace").decode()
    return CallError(f"the path {shown} is refused: {why}; give one as {ROOT}/notes.md", path=shown)
