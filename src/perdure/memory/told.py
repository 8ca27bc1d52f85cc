"""What is told, made ready to be kept: checked, cut into statements and given its identity before anyone waits."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from perdure.errors import CallError
from perdure.memory.records import Role
from perdure.memory.statements import statements

__all__ = ["Told", "as_body", "as_text"]


@dataclass(frozen=True, slots=True)
class Told:
    """``row`` is for the table of evidence (without the time of keeping), ``spans`` for that of facts."""

    row: tuple[Any, ...]
    spans: tuple[tuple[int, int, int, str | bytes], ...]
    identity: str | None
    key: str | None

    @classmethod
    def of(
        cls,
        text: str,
        *,
        source: str,
        speaker: str,
        role: Role,
        observed: tuple[str, float],
        key: str | None,
        dated: bool,
        meta: Mapping[str, object] | None,
    ) -> Told:
        """Make it ready. Raises `CallError` for names that are no Unicode text and for meta that is no JSON."""
        _check("source", source)
        _check("speaker", speaker)
        if key is not None:
            _check("key", key)
        identity = _identity(text, source, speaker, role, observed[0], key, dated)
        try:
            noted = json.dumps(dict(meta)) if meta else None
        except (TypeError, ValueError, RecursionError) as error:
            raise CallError(f"meta must be plain JSON values under names: {error}") from error
        return cls(
            row=(as_body(text), source, speaker, role.value, *observed, identity, noted),
            spans=tuple((start, stop, head, as_body(text[start:stop])) for start, stop, head in statements(text)),
            identity=identity,
            key=key,
        )


def as_body(text: str) -> str | bytes:
    """A text as SQLite holds it: itself, or the bytes of one that is no Unicode text (lone surrogates)."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")
    return text


def as_text(body: str | bytes) -> str:
    """The text that `as_body` was given."""
    return body if isinstance(body, str) else body.decode("utf-8", "surrogatepass")


def _check(what: str, value: object) -> None:
    if not isinstance(value, str):
        raise CallError(f"{what} must be a string, not {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise CallError(f"{what} must be Unicode text; this one has a lone surrogate") from error


def _identity(
    text: str, source: str, speaker: str, role: Role, observed: str, key: str | None, dated: bool
) -> str | None:
    if key is not None:
        return f"k:{key}"
    if not dated:
        return None
    parts = json.dumps([text, source, speaker, role.value, observed])
    return "d:" + hashlib.sha256(parts.encode()).hexdigest()[:32]
