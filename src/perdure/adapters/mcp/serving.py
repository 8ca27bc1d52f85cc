"""Serving until the other side is done: over stdin and stdout, or over HTTP until a signal."""

from __future__ import annotations

import socket
from collections.abc import Collection
from typing import Final

import anyio
import uvicorn
from mcp.server.stdio import stdio_server
from starlette.types import ASGIApp

from perdure.adapters.mcp.door import LOOPBACK, MOST_BODY_BYTES, Door
from perdure.adapters.mcp.server import server_of
from perdure.adapters.mcp.tools import Toolbox
from perdure.errors import CallError

__all__ = ["app_of", "serve_http", "serve_stdio"]

_MOST_SESSIONS: Final = 256
_IDLE_S: Final = 600.0
_END_S: Final = 3


def serve_stdio(toolbox: Toolbox) -> None:
    """Serve whoever started this process, until its stdin ends. Nothing else may be printed to stdout."""
    server = server_of(toolbox)

    async def run() -> None:
        async with stdio_server() as (reads, writes):
            await server.run(reads, writes, server.create_initialization_options())

    anyio.run(run)


def app_of(toolbox: Toolbox, *, token: str | None, hosts: Collection[str] = LOOPBACK) -> ASGIApp:
    """The server as an ASGI application, at ``/mcp``."""
    app = server_of(toolbox).streamable_http_app(
        max_request_body_size=MOST_BODY_BYTES,
        session_idle_timeout=_IDLE_S,
        max_sessions=_MOST_SESSIONS,
        host="",  # the door looks at Host and Origin
    )
    return Door(app, hosts=hosts, token=token)


def serve_http(toolbox: Toolbox, *, host: str, port: int, token: str | None, hosts: Collection[str] = ()) -> None:
    """Serve at ``host`` and ``port`` (0: a free one), and print where, until SIGINT or SIGTERM.

    Raises `CallError` where it cannot listen.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        sock = socket.create_server(address[:2], family=family)
    except OSError as error:
        raise CallError(f"cannot listen at {host}:{port}: {error.strerror}; give another port") from error
    shown = f"[{host}]" if ":" in host else host
    print(f"memory: http://{shown}:{sock.getsockname()[1]}/mcp", flush=True)
    config = uvicorn.Config(
        app_of(toolbox, token=token, hosts=[*LOOPBACK, host, *hosts]),
        log_level="warning",
        access_log=False,
        limit_concurrency=512,
        timeout_keep_alive=15,
        timeout_graceful_shutdown=_END_S,
    )
    uvicorn.Server(config).run(sockets=[sock])
