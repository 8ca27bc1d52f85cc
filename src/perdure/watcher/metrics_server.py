"""Answer ``GET /metrics`` beside a watcher: one page, few connections at a time, nothing else.

A connection may be silent for a moment only, and if all places are taken, the oldest one that has asked for nothing
makes room: whoever comes and asks at once is answered, whatever others hold open.

The page has no secrets, but a loss is nobody else's business: on an address that other machines reach, a token is asked
for (``Authorization: Bearer``); on this machine's own, names are refused by which a foreign web page could have led a
browser here.
"""

from __future__ import annotations

import hmac
import ipaddress
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from perdure.errors import CallError
from perdure.watcher.exposition import CONTENT_TYPE

__all__ = ["MetricsServer", "is_own"]

_MOST_AT_ONCE: Final = 32
_SILENT_S: Final = 2.0
_ANSWER_S: Final = 10.0


def is_own(host: str) -> bool:
    """Whether ``host`` is a name or address by which only this machine is reached; nothing is looked up.

    >>> is_own("localhost"), is_own("127.0.0.1"), is_own("::1"), is_own("0.0.0.0"), is_own("node-3")
    (True, True, True, False, False)
    """
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class MetricsServer:
    """Serves ``page()`` at ``host`` and ``port`` (0: a free one, see `port`) until `close`.

    ``page`` is called from other threads, by one at a time. Raises `CallError` if it cannot listen there, or if others
    could reach it and there is no ``token``.
    """

    def __init__(self, page: Callable[[], str], *, host: str, port: int, token: str = "") -> None:
        if not is_own(host) and not token:
            raise CallError(f"{host} may be reached by others than this machine, and there is no token to ask them for")
        if not 0 <= port < 1 << 16:
            raise CallError(f"there is no port {port}: ports are 0 (a free one) to 65535")
        try:
            family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            self._server = _server(_handler(page, token), family, (str(address[0]), port))
        except OSError as error:
            raise CallError(f"cannot listen at {host}:{port}: {error.strerror}; give another port") from error
        self.port = int(self._server.server_address[1])
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self.port}/metrics"
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.2}, name="perdure-metrics", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Listen no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(1.0)


def _server(handler: type[BaseHTTPRequestHandler], of: socket.AddressFamily, address: Any) -> _Server:
    class Server(_Server):
        address_family = of

    return Server(address, handler)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, address: Any, handler: type[BaseHTTPRequestHandler]) -> None:
        self._lock = threading.Lock()
        self._open: dict[socket.socket, float] = {}
        "When each began, the oldest first."
        self._asked: set[socket.socket] = set()
        super().__init__(address, handler)

    def asked(self, request: socket.socket) -> None:
        """All of what it wants has been read."""
        with self._lock:
            self._asked.add(request)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            if len(self._open) >= _MOST_AT_ONCE:
                self._end(next((each for each in self._open if each not in self._asked), next(iter(self._open))))
            self._open[request] = time.monotonic()
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._lock:
                self._open.pop(request, None)
                self._asked.discard(request)

    def service_actions(self) -> None:
        """End what has lasted too long, also what says a letter now and then; called after each wait of the loop."""
        now_s = time.monotonic()
        with self._lock:
            for request, began_s in list(self._open.items()):
                if now_s - began_s >= (_ANSWER_S if request in self._asked else _SILENT_S):
                    self._end(request)

    def _end(self, request: socket.socket) -> None:
        """Its thread reads or writes no more, and closes it."""
        del self._open[request]
        with suppress(OSError):  # the other side has gone
            request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away in the middle is no news."""


def _handler(page: Callable[[], str], token: str) -> type[BaseHTTPRequestHandler]:
    one_at_a_time = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        timeout = _ANSWER_S
        server: _Server
        server_version, sys_version = "perdure", ""

        def do_GET(self) -> None:
            self.server.asked(self.connection)
            if self.path.partition("?")[0] != "/metrics":
                self._answer(HTTPStatus.NOT_FOUND, b"there is only /metrics\n")
            elif not self._may():
                self._answer(HTTPStatus.UNAUTHORIZED, b"show the token: Authorization: Bearer TOKEN\n")
            else:
                with one_at_a_time:
                    body = page().encode()
                self._answer(HTTPStatus.OK, body, CONTENT_TYPE)

        do_HEAD = do_GET

        def _may(self) -> bool:
            if token:
                kind, _, shown = self.headers.get("Authorization", "").partition(" ")
                return kind.lower() == "bearer" and hmac.compare_digest(shown.strip().encode(), token.encode())
            host = self.headers.get("Host", "localhost")
            name = host.partition("]")[0][1:] if host.startswith("[") else host.partition(":")[0]
            return is_own(name)

        def _answer(self, status: HTTPStatus, body: bytes, kind: str = "text/plain; charset=utf-8") -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Who asks is not written down."""

    return Handler
