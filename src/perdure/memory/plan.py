"""A plan of consolidation: operations over ids, and nothing that could rewrite or delete a fact.

Whoever plans (rules or a model) may say where a fact belongs, what it repeats, replaces or contradicts, and how topics
are cut and called. There is no operation that carries the words of a fact, and none that takes one away. The JSON form
is strict: an unknown field, a wrong type or an overlong list is refused as a whole.

>>> plan = Plan((Assign((1, 2), title="Anna"), Duplicate(2, 1)))
>>> decode(encode(plan)) == plan
True
"""

from __future__ import annotations

import unicodedata
from typing import Annotated, Final

import msgspec

from perdure.errors import CallError

__all__ = [
    "MAX_PLAN_BYTES",
    "Alias",
    "Assign",
    "Conflict",
    "Duplicate",
    "Group",
    "Merge",
    "Op",
    "Plan",
    "Retitle",
    "Split",
    "Summarise",
    "Supersede",
    "decode",
    "encode",
    "folded",
    "sane_title",
    "sane_words",
]

MAX_PLAN_BYTES: Final = 4 << 20
_MAX_OPS: Final = 20_000
_MAX_FACTS: Final = 20_000
_TITLE: Final = 120

Id = Annotated[int, msgspec.Meta(gt=0, lt=1 << 62)]
Ids = Annotated[tuple[Id, ...], msgspec.Meta(min_length=1, max_length=_MAX_FACTS)]
Words = Annotated[str, msgspec.Meta(max_length=1000)]


class _Op(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="op"):
    pass


class Assign(_Op, frozen=True, tag="assign"):
    """Put ``facts`` into ``topic``, or into the topic called ``title``, which is made where there is none."""

    facts: Ids
    topic: Id | None = None
    title: Words = ""


class Duplicate(_Op, frozen=True, tag="duplicate"):
    """``fact`` says what ``of`` says, of the same time."""

    fact: Id
    of: Id


class Supersede(_Op, frozen=True, tag="supersede"):
    """``new`` replaces ``old``; ``reason`` quotes the words that say so, or names the slot that both fill."""

    new: Id
    old: Id
    reason: Words = ""


class Conflict(_Op, frozen=True, tag="conflict"):
    """``fact`` and ``other`` cannot both hold."""

    fact: Id
    other: Id
    reason: Words = ""


class Group(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Facts that leave a topic together, for the one called ``title``."""

    title: Words
    facts: Ids


class Split(_Op, frozen=True, tag="split"):
    """Take ``groups`` out of ``topic``; what no group names stays."""

    topic: Id
    groups: Annotated[tuple[Group, ...], msgspec.Meta(min_length=1, max_length=1000)]


class Merge(_Op, frozen=True, tag="merge"):
    """Put all that ``topics`` hold into ``into``; their ids go on meaning it."""

    into: Id
    topics: Annotated[tuple[Id, ...], msgspec.Meta(min_length=1, max_length=1000)]


class Retitle(_Op, frozen=True, tag="retitle"):
    """Call ``topic`` by another title."""

    topic: Id
    title: Words


class Summarise(_Op, frozen=True, tag="summary"):
    """Say in short what ``topic`` holds: words to find it by, never evidence."""

    topic: Id
    summary: Words


class Alias(_Op, frozen=True, tag="aliases"):
    """Other names of ``topic``."""

    topic: Id
    aliases: Annotated[tuple[Words, ...], msgspec.Meta(max_length=32)]


Op = Assign | Duplicate | Supersede | Conflict | Split | Merge | Retitle | Summarise | Alias


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Operations that hold together or not at all."""

    ops: Annotated[tuple[Op, ...], msgspec.Meta(max_length=_MAX_OPS)] = ()


_DECODER: Final = msgspec.json.Decoder(Plan, strict=True)


def encode(plan: Plan) -> bytes:
    """Return the JSON form."""
    return msgspec.json.encode(plan)


def decode(data: bytes | str) -> Plan:
    """Read the JSON form. Raises `CallError`, which says where it is wrong, for anything else."""
    if len(data) > MAX_PLAN_BYTES:
        raise CallError(f"a plan may take {MAX_PLAN_BYTES} bytes; this one takes {len(data)}")
    try:
        return _DECODER.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise CallError(f"this is no plan: {str(error)[:200]}") from error


def sane_words(text: str, *, longest: int) -> str:
    """Return one line of text without controls, marks of direction and lone surrogates, in NFC.

    >>> sane_words("a" + chr(0x202e) + "b\\n c", longest=10)
    'ab c'
    """
    kept = "".join(
        " " if unicodedata.category(each) in ("Zl", "Zp", "Cc", "Zs") else each
        for each in text[: 8 * longest]
        if unicodedata.category(each) not in ("Cs", "Cf", "Co", "Cn") or each in "\u200c\u200d"
    )
    return " ".join(unicodedata.normalize("NFC", kept).split())[:longest].strip()


def sane_title(title: str) -> str:
    """Return a title as it is kept, or the empty string where nothing of it can be.

    >>> sane_title("  # [[Anna]]\\n---  ")
    'Anna'
    """
    plain = sane_words(title[: 8 * _TITLE].translate(_UNTITLED), longest=_TITLE)
    return plain.strip("#-+*=>|~ ")


_UNTITLED: Final = {ord(each): None for each in "[]<>{}`\\"}


def folded(title: str) -> str:
    """Return what two titles have in common that a person takes for the same."""
    return " ".join(unicodedata.normalize("NFKC", title).casefold().split())
