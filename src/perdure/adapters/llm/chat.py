"""`OpenAIChat`: a model behind any endpoint that speaks the chat completions of OpenAI's API.

Servers differ in what they take. What one refuses (a schema for the reply, a name of the limit, a temperature) is
left out from then on.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from perdure.adapters.llm.address import address_of
from perdure.adapters.llm.calling import Caller, Refused
from perdure.clock import SYSTEM, Clock
from perdure.errors import CallError
from perdure.memory.powers import Message

__all__ = ["OpenAIChat"]

_MOST_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class _Dialect:
    """What an endpoint is asked with."""

    form: Literal["json_schema", "json_object", ""] = "json_schema"
    limit: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    temperature: bool = True


class OpenAIChat:
    """A `ChatModel` behind ``base_url`` (as ``https://host/v1``), authorised by ``key``.

    The key is in no error, no ``repr`` and no log, and goes to no other host: redirects are not followed. Plain http
    needs ``insecure=True`` unless it stays on this machine. ``tries`` bounds how often one call is sent when the
    server is busy. Safe to use from any thread.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        key: str | None = None,
        insecure: bool = False,
        tries: int = 4,
        certificates: ssl.SSLContext | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        address = address_of(base_url, key=key, insecure=insecure)
        context = (certificates or ssl.create_default_context()) if address.tls else None
        self._caller = Caller(address, clock, tries, context)
        self._model = model
        self._dialect = _Dialect()

    def __repr__(self) -> str:
        return f"OpenAIChat({self._model!r} at {self._caller.address.shown})"

    @property
    def name(self) -> str:
        """The model's name."""
        return self._model

    def complete(
        self,
        messages: Sequence[Message],
        *,
        schema: Mapping[str, Any] | None = None,
        max_tokens: int,
        deadline_s: float,
    ) -> str:
        """Return the words of the reply, which may be none.

        Raises `TryAgain` (also `DeadlineExceeded` and `LinkLost`) where the endpoint is away, busy or too slow, and
        `CallError` where the key, the path or the request is wrong.
        """
        clock = self._caller.clock
        end = clock.monotonic() + deadline_s
        dialect = self._dialect
        while True:
            asked = _request(self._model, messages, schema, max_tokens, dialect)
            try:
                value = self._caller.call(
                    "/chat/completions", asked, deadline_s=end - clock.monotonic(), most_bytes=_MOST_BYTES
                )
            except Refused as refusal:
                weaker = _weaker(dialect, refusal, with_schema=schema is not None)
                if weaker is None:
                    raise
                dialect = weaker
                continue
            self._dialect = dialect
            return self._words(value)

    def _words(self, value: Any) -> str:
        try:
            content = value["choices"][0]["message"].get("content")
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise CallError(
                f"{self._caller.address.shown} answered with no chat completion; is its base URL right?"
            ) from error
        if isinstance(content, list):
            return "".join(str(each.get("text", "")) for each in content if isinstance(each, Mapping))
        return content if isinstance(content, str) else ""


def _request(
    model: str,
    messages: Sequence[Message],
    schema: Mapping[str, Any] | None,
    max_tokens: int,
    dialect: _Dialect,
) -> dict[str, Any]:
    asked: dict[str, Any] = {
        "model": model,
        "messages": [{name: _sendable(each) for name, each in message.items()} for message in messages],
        dialect.limit: max_tokens,
        "stream": False,
    }
    if dialect.temperature:
        asked["temperature"] = 0
    if schema is not None and dialect.form:
        form: dict[str, Any] = {"type": dialect.form}
        if dialect.form == "json_schema":
            form["json_schema"] = {"name": "reply", "schema": dict(schema)}
        asked["response_format"] = form
    return asked


def _weaker(dialect: _Dialect, refusal: Refused, *, with_schema: bool) -> _Dialect | None:
    """What to ask with after a refusal; None where nothing is left to leave out."""
    if refusal.facts["status"] not in (400, 404, 415, 422):
        return None
    said = str(refusal.facts["said"]).lower()
    if dialect.limit == "max_tokens" and "max_completion_tokens" in said:
        return replace(dialect, limit="max_completion_tokens")
    if dialect.temperature and "temperature" in said:
        return replace(dialect, temperature=False)
    if with_schema and dialect.form == "json_schema":
        return replace(dialect, form="json_object")
    if with_schema and dialect.form == "json_object":
        return replace(dialect, form="")
    return None


def _sendable(text: str) -> str:
    """``text`` as Unicode: lone surrogates have no place in what is sent."""
    return text.encode("utf-8", "replace").decode()
