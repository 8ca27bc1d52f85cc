"""The words of a memory as plain JSON values: the one shape that the command line, MCP and the console give out.

Ids are written with their letters, moments as they were given; what is no Unicode text (a lone surrogate) is escaped,
so that whatever carries the JSON can carry it.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import unicodedata
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, Final

from perdure.memory.records import Answer, Change, Evidence, Fact, Hit, Link, Observed, Role, Topic

__all__ = ["plain", "unicode_of", "visible", "who_of"]

_REFUSED: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_JOINERS: Final = "\u200c\u200d"  # scripts and emoji need them


def unicode_of(text: str) -> str:
    """``text`` with what is no Unicode text escaped.

    >>> unicode_of("a\\ud800b")
    'a\\\\ud800b'
    """
    return text.encode("utf-8", "backslashreplace").decode()


def visible(text: str, *, keeping: str = "\n\t") -> str:
    """``text`` with control and invisible characters escaped, also those that turn the direction of writing.

    >>> visible("a\\x1b[2Jb\\nc")
    'a\\\\x1b[2Jb\\nc'
    """
    return "".join(
        each
        if each in keeping or each in _JOINERS or unicodedata.category(each) not in _REFUSED
        else each.encode("unicode_escape").decode()
        for each in text
    )


def who_of(told: Fact | Evidence) -> str:
    """Whose word it is, in short: the name, and the role where that is not simply the user's."""
    name = visible(told.speaker, keeping="")
    if not name:
        return told.role.value
    return name if told.role is Role.USER else f"{name} ({told.role.value})"


def plain(value: Any) -> Any:
    """Return ``value``, a record or whatever is made of records, as JSON values.

    >>> plain(Observed(3, (7, 8)))
    {'id': 'e3', 'facts': ['f7', 'f8'], 'new': True}
    """
    match value:
        case str() if not isinstance(value, enum.Enum):
            return unicode_of(value)
        case enum.Enum():
            return value.value
        case None | bool() | int() | float():
            return value
        case Fact():
            return _fact(value)
        case Hit():
            score = {"score": round(value.score, 6), "why": value.why}
            return _fact(value.fact) | score | {"by": _ids("f", value.by), "conflicts": _ids("f", value.conflicts)}
        case Evidence():
            return {"id": value.name} | {name: plain(getattr(value, name)) for name in _EVIDENCE}
        case Link():
            ids = {"fact": f"f{value.fact}", "other": f"f{value.other}", "change": f"c{value.change}"}
            return {"kind": value.kind.value} | ids | {"reason": unicode_of(value.reason)}
        case Change():
            at = dt.datetime.fromtimestamp(value.at_s, dt.UTC).isoformat(timespec="seconds")
            rest = {name: plain(getattr(value, name)) for name in ("kind", "by", "outcome", "note")}
            return {"id": f"c{value.id}", "at": at} | rest
        case Topic():
            rest = {name: plain(getattr(value, name)) for name in ("title", "aliases", "summary", "revision", "file")}
            return {"id": value.name} | rest | {"into": None if value.into is None else f"t{value.into}"}
        case Observed():
            return {"id": value.name, "facts": _ids("f", value.facts), "new": value.new}
        case Answer():
            return {
                "answer": unicode_of(value.text),
                "by": unicode_of(value.by),
                "note": unicode_of(value.note),
                "facts": [plain(each) for each in value.hits],
            }
        case Mapping():
            return {unicode_of(str(key)): plain(each) for key, each in value.items()}
        case PurePath():
            return unicode_of(str(value))
        case list() | tuple() | set() | frozenset():
            return [plain(each) for each in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: plain(getattr(value, each.name)) for each in dataclasses.fields(value)}
    raise TypeError(f"{type(value).__name__} is no record of a memory")


_EVIDENCE = ("text", "source", "speaker", "role", "observed", "key", "meta")
_FACT = ("text", "state", "speaker", "role", "source", "observed", "since", "until")


def _fact(fact: Fact) -> dict[str, Any]:
    where = {"evidence": f"e{fact.evidence}", "start": fact.start, "stop": fact.stop}
    topic = None if fact.topic is None else f"t{fact.topic}"
    return {"id": fact.name} | {name: plain(getattr(fact, name)) for name in _FACT} | where | {"topic": topic}


def _ids(letter: str, numbers: tuple[int, ...]) -> list[str]:
    return [f"{letter}{each}" for each in numbers]
