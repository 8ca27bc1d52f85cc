"""Who may come in over HTTP: who shows the token, from where the server is meant to be reached.

A page of any site can make a browser send requests to this machine, also to a name that it lets point here (DNS
rebinding). So ``Host`` must be one of the names that the server goes by, and ``Origin``, which browsers send, too; a
bearer token is needed wherever others than this machine reach the server, and may be asked for at home. A body has a
size and a time in which it must arrive.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Collection
from typing import Final
from urllib.parse import urlsplit

import anyio
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["LOOPBACK", "MOST_BODY_BYTES", "Door"]

LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
"""The names of this machine for itself."""

MOST_BODY_BYTES: Final = 16 << 20
_BODY_S: Final = 30.0
_HOST: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::\d{1,5})?")


class Door:
    """Lets requests through to ``app``. ``hosts`` are the names that it goes by; ``token`` None asks for none."""

    def __init__(self, app: ASGIApp, *, hosts: Collection[str], token: str | None) -> None:
        self._app = app
        self._hosts = frozenset(each.lower() for each in hosts)
        self._token = None if token is None else hashlib.sha256(token.encode()).digest()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        refusal = self._refusal(Headers(scope=scope))
        if refusal is not None:
            return await refusal(scope, receive, send)
        await self._app(scope, _timely(receive) if scope["method"] == "POST" else receive, send)

    def _refusal(self, headers: Headers) -> JSONResponse | None:
        if len(headers.getlist("host")) != 1 or _host_in(headers["host"]) not in self._hosts:
            return _no(421, "this server does not go by that Host; start it with --allow-host NAME if it should")
        for origin in headers.getlist("origin"):
            if not self._is_ours(origin):
                return _no(403, "requests from pages of that Origin are refused")
        if self._token is None:
            return None
        kind, _, shown = headers.get("authorization", "").partition(" ")
        given = hashlib.sha256(shown.strip().encode("utf-8", "surrogateescape")).digest()
        if kind.lower() != "bearer" or not hmac.compare_digest(given, self._token):
            return _no(401, "show the token: Authorization: Bearer TOKEN", {"www-authenticate": "Bearer"})
        return None

    def _is_ours(self, origin: str) -> bool:
        try:
            found = urlsplit(origin)
            return found.scheme in ("http", "https") and _host_in(found.netloc) in self._hosts
        except ValueError:
            return False


def _host_in(value: str) -> str | None:
    """The name in ``HOST:PORT``.

    >>> _host_in("[::1]:80"), _host_in("LocalHost:1"), _host_in("127.0.0.1:1@evil")
    ('::1', 'localhost', None)
    """
    found = _HOST.fullmatch(value)
    return None if found is None else (found[1] or found[2]).lower()


def _timely(receive: Receive) -> Receive:
    """A body that has to arrive in time; who waits for the end of a connection waits as long as it takes."""
    until: list[float] = []
    whole = False

    async def received() -> Message:
        nonlocal whole
        if whole:
            return await receive()
        until[:] = until or [anyio.current_time() + _BODY_S]
        with anyio.move_on_at(until[0]):
            message = await receive()
            whole = message["type"] != "http.request" or not message.get("more_body", False)
            return message
        whole = True
        return {"type": "http.disconnect"}

    return received


def _no(status: int, why: str, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": {"kind": "access", "message": why}}, status_code=status, headers=headers)
