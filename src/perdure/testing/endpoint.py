"""An OpenAI-compatible endpoint that says what a test tells it to: a real HTTP server in the test's own process.

>>> with ScriptedEndpoint(["hello"]) as endpoint:
...     endpoint.url.startswith("http://127.0.0.1:")
True

Also the `ChatModel` of a script, for tests that need no server.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Final

from perdure.memory.powers import Message

__all__ = ["Raw", "Request", "ScriptedEndpoint", "ScriptedModel", "done", "vector_of"]

_MOST: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class Request:
    """What the endpoint was asked: ``body`` is the JSON."""

    path: str
    headers: Mapping[str, str]
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Raw:
    """A response as it goes over the wire. ``drip_s`` is waited before each byte of the head and the body, ``wait_s``
    before the first; ``cut`` closes the connection before all of the body is sent."""

    status: int = 200
    body: bytes = b"{}"
    headers: Mapping[str, str] = field(default_factory=dict)
    wait_s: float = 0.0
    drip_s: float = 0.0
    cut: bool = False


Reply = str | Raw | Callable[[Request], "str | Raw"]
"""The words of a reply, a response, or what makes one of a request."""


def done(answer: str, *citations: str) -> str:
    """The reply that ends a reading loop."""
    return json.dumps({"calls": [{"tool": "done", "arguments": {"answer": answer, "citations": list(citations)}}]})


def vector_of(text: str, dims: int) -> list[float]:
    """A vector for a text: the sum of one random vector for each of its words, so that like texts lie near."""
    total = [0.0] * dims
    for word in text.lower().split() or [text]:
        dice = random.Random(hashlib.sha256(word.encode("utf-8", "replace")).digest())
        total = [each + dice.gauss(0, 1) for each in total]
    length = math.sqrt(sum(each * each for each in total)) or 1.0
    return [each / length for each in total]


class ScriptedEndpoint:
    """Serves ``/v1/chat/completions`` from ``replies``, in order, and ``/v1/embeddings`` with `vector_of`.

    When the replies are used up, the last is given again if ``again``, else status 500. ``embeddings`` replies go
    before the vectors. ``requests`` holds all that it was asked.
    """

    def __init__(
        self,
        replies: Iterable[Reply] = (),
        *,
        embeddings: Iterable[Reply] = (),
        dims: int = 16,
        again: bool = False,
    ) -> None:
        self.requests: list[Request] = []
        self.dims = dims
        self._replies = list(replies)
        self._embeddings = list(embeddings)
        self._again = again
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, name="scripted-endpoint", daemon=True
        )

    @property
    def url(self) -> str:
        """What to give as the base URL."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self) -> ScriptedEndpoint:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def pause(self, seconds: float) -> bool:
        """Wait, but not past the end of the endpoint; return whether it is over."""
        return seconds > 0 and self._over.wait(seconds)

    def answer(self, request: Request) -> Raw:
        """The response to a request."""
        with self._lock:
            self.requests.append(request)
            chat = request.path.endswith("/chat/completions")
            script = self._replies if chat else self._embeddings
            reply: Reply | None = None
            if script:
                reply = script[0] if chat and self._again and len(script) == 1 else script.pop(0)
        if callable(reply):
            reply = reply(request)
        if isinstance(reply, Raw):
            return reply
        if reply is not None:
            message = {"role": "assistant", "content": reply}
            body: Any = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
        elif request.path.endswith("/embeddings"):
            texts = request.body.get("input", [])
            rows = [{"index": at, "embedding": vector_of(text, self.dims)} for at, text in enumerate(texts)]
            body = {"data": rows[::-1], "model": request.body.get("model")}
        else:
            return Raw(status=500, body=b'{"error": {"message": "the script is over"}}')
        return Raw(body=json.dumps(body).encode())


class ScriptedModel:
    """A `ChatModel` that replies from a list; an exception in it is raised. ``asked`` holds each call's messages."""

    def __init__(
        self, replies: Iterable[str | Exception | Callable[[Sequence[Message]], str]], *, name: str = "scripted"
    ):
        self.name = name
        self.asked: list[list[Message]] = []
        self._replies = list(replies)

    def complete(
        self,
        messages: Sequence[Message],
        *,
        schema: Mapping[str, Any] | None = None,
        max_tokens: int,
        deadline_s: float,
    ) -> str:
        """The next reply; the last again when there is no other."""
        self.asked.append(list(messages))
        reply = self._replies.pop(0) if len(self._replies) > 1 else self._replies[0]
        if isinstance(reply, Exception):
            raise reply
        return reply if isinstance(reply, str) else reply(messages)


def _handler(endpoint: ScriptedEndpoint) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            size = min(int(self.headers.get("Content-Length", "0")), _MOST)
            try:
                body = json.loads(self.rfile.read(size) or b"{}")
            except ValueError:
                body = {}
            found = endpoint.answer(Request(self.path, dict(self.headers.items()), body))
            try:
                self._send(found)
            except OSError:  # who asked has gone: a deadline
                pass

        def _send(self, found: Raw) -> None:
            headers = {"Content-Type": "application/json", "Content-Length": str(len(found.body)), **found.headers}
            lines = [f"HTTP/1.1 {found.status} Scripted", *(f"{name}: {value}" for name, value in headers.items())]
            whole = "\r\n".join([*lines, "Connection: close", "", ""]).encode() + found.body
            if found.cut:
                whole = whole[: -max(1, len(found.body) // 2)]
            if endpoint.pause(found.wait_s):
                return
            pieces = [whole[at : at + 1] for at in range(len(whole))] if found.drip_s else [whole]
            for piece in pieces:
                if endpoint.pause(found.drip_s):
                    return
                self.wfile.write(piece)
                self.wfile.flush()
            self.close_connection = True

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing: the tests read ``requests``."""

    return Handler
