r"""The text of a topic document: how facts are written into Markdown, and how a document that a person edited is read.

A fact is one bullet: its words, escaped so that they can be nothing else; attributes for people to read, of which only
whose word it is is read back, for a bullet without a fact; and its block id. ``\`` before punctuation and ``\u202e``
stand for characters that would mean something in Markdown, break a line or hide. The last line tells a whole document
from one that was cut off while it was saved.

>>> escaped("see `x` ^f1 <b>"), unescaped(escaped("see `x` ^f1 <b>"))
('see \\`x\\` \\^f1 \\<b>', 'see `x` ^f1 <b>')
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from perdure.errors import FormatRefused
from perdure.memory.records import Fact, Role, State, Topic

__all__ = [
    "MAX_DOCUMENT_BYTES",
    "Bullet",
    "Read",
    "Ties",
    "escaped",
    "plain",
    "read",
    "same",
    "unescaped",
    "write",
    "write_moved",
]

MAX_DOCUMENT_BYTES: Final = 16 << 20
_SCHEMA: Final = 1
_SECTIONS: Final = ("Current", "Conflicts", "History", "Notes")
_ESCAPED: Final = re.compile(r"\\(u[0-9a-f]{4}|U[0-9a-f]{8}|[!-/:-@\[-`{-~])")
_BULLET: Final = re.compile(r"[ \t]{0,12}[-*+][ \t]+(.*)")
_BLOCK: Final = re.compile(r"(?:^|(?<=\s))\^f(\d{1,18})(?=\s|$)")
_BY: Final = rf"by=(?:[^\s{{}}]*/)?({'|'.join(Role)})(?=[ }}])"
_ATTRIBUTES: Final = re.compile(rf"\{{(?:[a-z]+=[^\s{{}}]* )*(?:src=e\d+|{_BY})(?: [a-z]+=[^\s{{}}]*)*\}}")
_WHOSE: Final = re.compile(rf"[{{ ]{_BY}")
_END: Final = re.compile(r"<!-- end of t\d+\b[^>]*-->")
_KEY: Final = re.compile(r"([A-Za-z_][\w-]{0,63}):(?:[ \t]+(.*))?")
_MEANS: Final = re.compile(r"[\\`<\[]|\^(?=f)|!(?=\[)")
_MAY_MEAN: Final = re.compile(rf"{_MEANS.pattern}|[^ -~]")
_FRONT_LINES: Final = 300


@dataclass(frozen=True, slots=True)
class Ties:
    """What is said beside a fact: which replace it, what it repeats, and what it is in conflict with."""

    by: tuple[int, ...] = ()
    of: tuple[int, ...] = ()
    conflicts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Bullet:
    """A bullet as it was read; ``fact`` is the id that it carries, ``role`` whose word its attributes say it is."""

    text: str
    fact: int | None
    section: str
    role: Role = Role.HUMAN


@dataclass(frozen=True, slots=True)
class Read:
    """A document as it was read. ``topic`` and ``revision`` are None where it does not say so; names that it does not
    give are None. ``whole`` is whether its last line was there, ``ledger`` the ledger that it was written from."""

    topic: int | None
    revision: int | None
    title: str | None
    aliases: tuple[str, ...] | None
    summary: str | None
    extra: str
    bullets: tuple[Bullet, ...]
    notes: str
    heading: str
    whole: bool
    ledger: str | None = None


def escaped(text: str) -> str:
    """Return text as one line of Markdown that shows it and does nothing."""
    numbered = re.match(r"\d{1,9}(?=[.)])", text)
    out = (_MEANS if text.isprintable() else _MAY_MEAN).sub(_escape, text)
    if numbered:
        out = f"{out[: numbered.end()]}\\{out[numbered.end() :]}"
    elif out[:1] in tuple("#->+*=|~:"):
        out = "\\" + out
    return f"{out[:-1]}\\}}" if text.endswith("}") else out


def _escape(found: re.Match[str]) -> str:
    each = found[0]
    if " " < each <= "~":
        return "\\" + each
    if each in "\u200c\u200d\t" or unicodedata.category(each) not in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp"):
        return each
    return f"\\u{ord(each):04x}" if ord(each) < 0x10000 else f"\\U{ord(each):08x}"


def unescaped(text: str) -> str:
    """Return what `escaped` was given; other backslashes stay as a person wrote them."""

    def one(found: re.Match[str]) -> str:
        code = found[1]
        if len(code) == 1:
            return code
        number = int(code[1:], 16)
        return chr(number) if number < 0x110000 else found[0]

    return _ESCAPED.sub(one, text)


def same(one: str, other: str) -> bool:
    """Whether two texts differ in no more than an editor changes by itself: white space, and how accents are coded."""
    return plain(one) == plain(other)


def plain(text: str) -> str:
    """Return what `same` compares."""
    return " ".join(unicodedata.normalize("NFC", text).split())


def write(
    topic: Topic,
    facts: Sequence[Fact],
    ties: Mapping[int, Ties],
    *,
    notes: str,
    extra: str,
    updated: str,
    ledger: str = "",
) -> str:
    """Return the document of a topic, as ``ledger`` has it."""
    parts: dict[str, list[str]] = {"Current": [], "Conflicts": [], "History": []}
    for fact in sorted(facts, key=lambda each: (each.observed_s, each.id)):
        if fact.state is State.FORGOTTEN:
            continue
        tied = ties.get(fact.id, Ties())
        part = "Current" if not tied.conflicts else "Conflicts"
        parts[part if fact.state is State.CURRENT else "History"].append(_bullet(fact, tied))
    lines = _front(topic, extra, updated, ledger)
    for part, bullets in parts.items():
        lines += ["", f"# {part}", "", *bullets] if bullets else ["", f"# {part}"]
    lines += ["", "# Notes", "", *([notes, ""] if notes else [])]
    return "\n".join([*lines, f"<!-- end of {topic.name}: keep this line last -->", ""])


def write_moved(topic: Topic, updated: str, ledger: str = "") -> str:
    """Return what stays of the document of a topic that holds nothing any more."""
    where = f"Its facts are in t{topic.into}." if topic.into is not None else "It holds no facts."
    return "\n".join(
        [*_front(topic, "", updated, ledger), "", where, "", f"<!-- end of {topic.name}: keep this line last -->", ""]
    )


def _front(topic: Topic, extra: str, updated: str, ledger: str) -> list[str]:
    lines = ["---", f"schema: {_SCHEMA}", f"id: {topic.name}", f"title: {_quoted(topic.title)}"]
    lines += [f"aliases: [{', '.join(_quoted(each) for each in topic.aliases)}]", f"summary: {_quoted(topic.summary)}"]
    lines += [f"into: t{topic.into}"] if topic.into is not None else []
    return [
        *lines,
        f"revision: {topic.revision}",
        f"updated: {_quoted(updated)}",
        *([f"ledger: {_quoted(ledger)}"] if ledger else []),
        *(extra.split("\n") if extra else []),
        "---",
    ]


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _bullet(fact: Fact, tied: Ties) -> str:
    said = {"since": fact.since, "until": fact.until, "obs": fact.observed, "src": f"e{fact.evidence}"}
    said["by"] = f"{fact.speaker}/{fact.role.value}" if fact.speaker else fact.role.value
    for name, ids in (("replaced", tied.by), ("repeats", tied.of), ("conflicts", tied.conflicts)):
        said[name] = ",".join(f"f{each}" for each in ids)
    told = " ".join(f"{name}={_value(value)}" for name, value in said.items() if value)
    return f"- {escaped(fact.text)} {{{told}}} ^{fact.name}"


def _value(text: str) -> str:
    return re.sub(r"[^\w.,:+/@-]", "_", text.encode("utf-8", "replace").decode())[:80]


def read(text: str) -> Read:
    """Read a document as a person left it. Raises `FormatRefused` where its front matter cannot be understood."""
    lines = re.split(r"\r\n|\n|\r", text.removeprefix("\ufeff"))
    front: dict[str, str | list[str]] = {}
    extra: list[str] = []
    at = 0
    if lines[0].rstrip() == "---":
        front, extra, at = _front_of(lines)
    section, heading, whole = "Current", "", False
    bullets: list[list[str]] = []
    places: list[str] = []
    notes: list[str] = []
    for line in lines[at:]:
        title = line.rstrip()
        if _END.fullmatch(title.strip()):
            section, whole = "Current", True
        elif title.startswith("# ") and title[2:].strip() in _SECTIONS:
            section = title[2:].strip()
        elif section == "Notes":
            notes.append(line)
        elif found := _BULLET.fullmatch(title):
            bullets.append([found[1]])
            places.append(section)
        elif title[:1] in (" ", "\t") and title.strip() and bullets and places[-1] == section:
            bullets[-1].append(title.strip())
        elif title.startswith("# ") and not heading and not front:
            heading = title[2:].strip()
        elif title.strip():
            notes += ["", line] if not notes or notes[-1].strip() else [line]
    aliases = front.get("aliases")
    return Read(
        _number(front.get("id"), "t"),
        _number(front.get("revision"), ""),
        _word(front.get("title")),
        None if aliases is None else tuple(aliases if isinstance(aliases, list) else filter(None, [aliases])),
        _word(front.get("summary")),
        "\n".join(extra),
        tuple(_read_bullet(" ".join(each), where) for each, where in zip(bullets, places, strict=True)),
        "\n".join(notes).strip("\n").rstrip(),
        heading,
        whole,
        _word(front.get("ledger")),
    )


def _read_bullet(line: str, section: str) -> Bullet:
    fact = None
    found = list(_BLOCK.finditer(line))
    if found:
        fact = int(found[-1][1])
        line = f"{line[: found[-1].start()].rstrip()} {line[found[-1].end() :].lstrip()}"
    line = line.rstrip()
    at = line.rfind("{") if line.endswith("}") else -1
    if at < 0 or not _ATTRIBUTES.fullmatch(line, at):
        return Bullet(unescaped(line).strip(), fact, section)
    whose = _WHOSE.search(line, at)
    return Bullet(unescaped(line[:at]).strip(), fact, section, Role(whose[1]) if whose else Role.TOOL)


_OURS: Final = frozenset({"schema", "id", "title", "aliases", "summary", "into", "revision", "updated", "ledger"})


def _front_of(lines: Sequence[str]) -> tuple[dict[str, str | list[str]], list[str], int]:
    """Read the strict subset of YAML that documents and common editors write: scalars and flat lists."""
    front: dict[str, str | list[str]] = {}
    extra: list[str] = []
    key = ""
    for at, line in enumerate(lines[1 : _FRONT_LINES + 1], 1):
        if line.rstrip() == "---":
            return front, extra, at + 1
        found = _KEY.fullmatch(line.rstrip())
        if found:
            key = found[1]
            if key in front:
                raise FormatRefused(f"the front matter says {key!r} twice; leave one of them")
            front[key] = _scalar((found[2] or "").strip(), key)
        elif key in _OURS and (item := re.fullmatch(r"\s*-\s+(.*)", line.rstrip())):
            there = front[key]
            front[key] = [*(there if isinstance(there, list) else []), str(_scalar(item[1].strip(), key))]
        elif key in _OURS and line.strip():
            raise FormatRefused(f"line {at + 1} of the front matter is neither 'name: value' nor '- item'; correct it")
        if key not in _OURS:
            extra.append(line)
    raise FormatRefused("the front matter has no end; put a line --- behind it")


def _scalar(text: str, key: str) -> str | list[str]:
    if text[:1] in ('"', "["):
        try:
            value = json.loads(text)
        except ValueError:
            if key not in _OURS:
                return text
            if text.startswith("[") and text.endswith("]") and '"' not in text:
                return [each.strip().strip("'") for each in text[1:-1].split(",") if each.strip()]
            raise FormatRefused(f"the value of {key!r} in the front matter is not closed; correct its quotes") from None
        return [str(each) for each in value] if isinstance(value, list) else str(value)
    if len(text) > 1 and text[0] == text[-1] == "'":
        return text[1:-1].replace("''", "'")
    return text


def _number(value: str | list[str] | None, letter: str) -> int | None:
    found = re.fullmatch(rf"{letter}(\d{{1,18}})", value) if isinstance(value, str) else None
    return int(found[1]) if found else None


def _word(value: str | list[str] | None) -> str | None:
    return value if isinstance(value, str) else None
