"""Read what a model replies: the calls of tools in it, however it wraps them.

A reply should be ``{"calls": [{"tool": ..., "arguments": {...}}]}``. Models put prose, fences and thoughts around it,
name the fields otherwise, or answer at once; what can be told apart is understood, and nothing in it is run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["Call", "calls_in", "reply_schema"]

_MOST: Final = 64_000
_TRIES: Final = 40
_THOUGHT: Final = re.compile(r"^\s*<think(?:ing)?>.*?</think(?:ing)?>", re.DOTALL)
_TOOL: Final = ("tool", "name", "action", "function")
_ARGUMENTS: Final = ("arguments", "args", "parameters", "input")
_DONE: Final = frozenset({"answer", "citations"})


@dataclass(frozen=True, slots=True)
class Call:
    """One call that a model asks for; nothing about it has been checked."""

    tool: str
    arguments: Mapping[str, Any]


def reply_schema(tools: Mapping[str, Mapping[str, Any]], *, calls: int) -> dict[str, Any]:
    """JSON Schema of a reply with at most ``calls`` calls, for endpoints that can hold a model to it."""
    each = [
        {
            "type": "object",
            "properties": {"tool": {"const": name}, "arguments": dict(schema)},
            "required": ["tool", "arguments"],
            "additionalProperties": False,
        }
        for name, schema in tools.items()
    ]
    return {
        "type": "object",
        "properties": {"calls": {"type": "array", "items": {"anyOf": each}, "minItems": 1, "maxItems": calls}},
        "required": ["calls"],
        "additionalProperties": False,
    }


def calls_in(reply: str) -> list[Call]:
    """Return the calls in a reply, none where it has none that can be read.

    >>> calls_in('Sure!\\n```json\\n{"tool": "search", "arguments": {"query": "Anna"}}\\n```')
    [Call(tool='search', arguments={'query': 'Anna'})]
    >>> calls_in("I cannot do that.")
    []
    """
    text = _THOUGHT.sub("", reply[:_MOST], count=1)
    decoder = json.JSONDecoder()
    found: list[Call] = []
    at = 0
    for _ in range(_TRIES):
        starts = [each for each in (text.find("{", at), text.find("[", at)) if each >= 0]
        if not starts:
            break
        at = min(starts)
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            at += 1
            continue
        found += _calls(value)
    return found


def _calls(value: Any) -> list[Call]:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [call for each in value[:20] if isinstance(each, Mapping) for call in _calls(each)]
    if not isinstance(value, Mapping):
        return []
    several = value.get("calls", value.get("tool_calls"))
    if isinstance(several, list):
        return _calls([each for each in several if isinstance(each, Mapping) and "calls" not in each])
    if value.keys() & _DONE and not value.keys() & set(_TOOL):
        return [_done(value)]
    inner = value.get("function")
    if isinstance(inner, Mapping):
        value = inner
    name = next((value[key] for key in _TOOL if isinstance(value.get(key), str)), None)
    if name is None:
        return []
    arguments = next((value[key] for key in _ARGUMENTS if key in value), None)
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            arguments = None
    if arguments is None:
        arguments = {key: each for key, each in value.items() if key not in _TOOL and key not in _ARGUMENTS}
    if not isinstance(arguments, Mapping):
        return []
    return [_done(arguments)] if name == "done" else [Call(name, arguments)]


def _done(arguments: Mapping[str, Any]) -> Call:
    """The answer in ``arguments``, with its citations in whatever form, without what else a model adds."""
    cited = arguments.get("citations")
    if isinstance(cited, str):
        cited = cited.replace(",", " ").split()
    names = [
        f"f{each}" if isinstance(each, int) else str(each).strip(" []^")
        for each in (cited if isinstance(cited, list) else [])
    ]
    return Call("done", {"answer": arguments.get("answer", ""), "citations": names})
