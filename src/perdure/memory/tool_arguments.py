"""The arguments of the reading tools, bounded, and their JSON Schemas: what a model or another agent may ask for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from perdure.errors import CallError

__all__ = ["ALL", "Arguments", "Done", "Grep", "History", "ListTopics", "OfEvidence", "Read", "Resolve", "Search"]
__all__ += ["Timeline", "Tool", "parsed"]

_Words = Annotated[str, Meta(min_length=1, max_length=1000)]
_Id = Annotated[str, Meta(min_length=1, max_length=20, description="an id as shown, such as f12, e3 or t2")]
_Moment = Annotated[
    str, Meta(max_length=40, description="ISO 8601, or a year, month or day: 2023, 2023-05, 2023-05-08")
]
_Few = Annotated[int, Meta(ge=1, le=50)]
_After = Annotated[int, Meta(ge=0, le=2**53, description="go on after this number, as the last answer says")]


class Arguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a tool is called with."""


class ListTopics(Arguments, frozen=True, kw_only=True):
    """List the topics of this memory, with their summaries."""

    after: _After = 0
    limit: _Few = 20


class Search(Arguments, frozen=True, kw_only=True):
    """Find the facts that fit a question or some words, best first. With history also those that no longer hold."""

    query: _Words
    limit: _Few = 10
    history: bool = False


class Grep(Arguments, frozen=True, kw_only=True):
    """Find the lines of what was told, word for word, that contain a text (or match a regular expression without
    backreferences and lookaround), upper and lower case alike."""

    pattern: Annotated[str, Meta(min_length=1, max_length=200)]
    regex: bool = False
    after: Annotated[str, Meta(max_length=40, description="go on after this line, as the last answer says: e3:12")] = ""
    limit: _Few = 20


class Read(Arguments, frozen=True, kw_only=True):
    """Read a topic (t2), what was told (e3), or what stands around a fact (f12): `lines` lines or facts from `line`
    on, or of what was told the characters from `start` to `stop`."""

    id: _Id
    line: Annotated[int, Meta(ge=1, le=2**53)] = 1
    lines: Annotated[int, Meta(ge=1, le=100)] = 40
    start: Annotated[int, Meta(ge=0, le=2**53)] | None = None
    stop: Annotated[int, Meta(ge=0, le=2**53)] | None = None


class History(Arguments, frozen=True, kw_only=True):
    """Show what a fact replaces, repeats or contradicts, and what replaces it, oldest first."""

    fact: _Id


class Timeline(Arguments, frozen=True, kw_only=True):
    """List facts in the order of time: about a subject, or all that was told between two times."""

    about: Annotated[str, Meta(max_length=1000)] = ""
    since: _Moment = ""
    until: _Moment = ""
    after: _After = 0
    limit: _Few = 20


class Resolve(Arguments, frozen=True, kw_only=True):
    """Say what holds now of what a question asks for. Of facts that exclude each other, the winner is chosen by fixed
    rules: the greater authority, then the newest."""

    question: _Words


class OfEvidence(Arguments, frozen=True, kw_only=True):
    """Show what a fact stands on: the piece that was told, by whom, when and where."""

    id: _Id


class Done(Arguments, frozen=True, kw_only=True):
    """Give the answer, with the ids of the facts (f12) that it stands on; only ids that were shown. If nothing that
    was shown answers the question, leave answer and citations empty."""

    answer: Annotated[str, Meta(max_length=4000)]
    citations: Annotated[list[_Id], Meta(max_length=50)] = []


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool: its ``name``, what it says of itself, and its arguments."""

    name: str
    arguments: type[Arguments]

    @property
    def description(self) -> str:
        """What it does, in the words of the docstring of its arguments."""
        return " ".join((self.arguments.__doc__ or "").split())

    @property
    def schema(self) -> dict[str, Any]:
        """JSON Schema of its arguments, whole in itself."""
        (found,), parts = msgspec.json.schema_components([self.arguments])
        schema = dict(parts[found["$ref"].rpartition("/")[2]])
        schema.pop("description", None)
        schema.pop("title", None)
        return schema


ALL: Final = {
    each.name: each
    for each in (
        Tool("search", Search),
        Tool("grep", Grep),
        Tool("read", Read),
        Tool("list_topics", ListTopics),
        Tool("timeline", Timeline),
        Tool("history", History),
        Tool("resolve", Resolve),
        Tool("evidence", OfEvidence),
        Tool("done", Done),
    )
}
"""All tools by name."""


def parsed(name: str, arguments: Mapping[str, Any]) -> Arguments:
    """Return the arguments for tool ``name``. Raises `CallError` that says what is wrong, for the caller to mend."""
    tool = ALL.get(name)
    if tool is None:
        raise CallError(f"there is no tool {name[:40]!r}; there are {', '.join(ALL)}")
    try:
        return msgspec.convert(dict(arguments), tool.arguments)
    except (msgspec.ValidationError, TypeError, ValueError) as error:
        raise CallError(f"{name}: {str(error)[:300]}") from error
