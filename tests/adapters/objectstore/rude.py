"""Servers that behave badly over a real socket: a scripted one, and a proxy that loses answers."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


@dataclass
class Script:
    """What the server holds and says. ``answers`` are said first, one a request: a status and a body."""

    keeps_conditions: bool = True
    blobs: dict[str, bytes] = field(default_factory=dict)
    tokens: dict[str, str] = field(default_factory=dict)
    answers: list[tuple[int, bytes]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)


class ScriptedServer:
    """A little of S3, and faults on demand."""

    def __init__(self, script: Script) -> None:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name.replace("_", "-"), value)
                if "content_length" not in headers:
                    self.send_header("content-length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            def scripted(self, sent: bytes = b"") -> bool:
                script.asked.append(f"{self.command} {self.path}")
                if not script.answers:
                    return False
                self.answer(*script.answers.pop(0))
                return True

            def do_PUT(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                if self.scripted():
                    return
                if script.keeps_conditions and self.headers.get("if-none-match") == "*" and self.path in script.blobs:
                    self.answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
                    return
                script.blobs[self.path] = body
                script.tokens[self.path] = self.headers.get("x-amz-meta-perduretoken", "")
                self.answer(200, etag='"1"')

            def do_HEAD(self) -> None:
                if self.scripted():
                    return
                blob = script.blobs.get(self.path)
                if blob is None:
                    self.answer(404)
                else:
                    token = {"x_amz_meta_perduretoken": script.tokens[self.path]}
                    stamp = "Mon, 30 Nov 2026 18:15:11 GMT"
                    self.answer(200, etag='"1"', last_modified=stamp, content_length=str(len(blob)), **token)

            do_GET = do_HEAD
            do_DELETE = do_HEAD

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)


class Proxy:
    """Forwards to ``endpoint``. Once ``armed``, the answer to the next PUT is lost, after ``meanwhile`` was called."""

    def __init__(self, endpoint: str, meanwhile: Callable[[], None] = lambda: None) -> None:
        self._target = (str(urlsplit(endpoint).hostname), int(urlsplit(endpoint).port or 0))
        self.armed = False
        self.lost = 0
        self._meanwhile = meanwhile
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError), socket.create_connection(self._target, timeout=10) as server:
            lose = threading.Event()

            def back() -> None:
                with contextlib.suppress(OSError):
                    while data := server.recv(1 << 16):
                        if lose.is_set():
                            self.lost += 1
                            self._meanwhile()
                            break
                        client.sendall(data)
                with contextlib.suppress(OSError):
                    client.shutdown(socket.SHUT_RDWR)

            answers = threading.Thread(target=back, daemon=True)
            answers.start()
            while data := client.recv(1 << 16):
                if self.armed and data.startswith(b"PUT"):
                    self.armed = False
                    lose.set()
                server.sendall(data)
            answers.join(10)
