"""One POST of JSON with a deadline over all of it, a bound on what comes back, and no redirects.

The whole exchange (name, connection, TLS, sending, each byte of the answer) runs in a thread of its own. When the
deadline comes, the caller closes the socket under it and goes on: a server that drips a byte a second, or a resolver
that hangs, holds nobody up.
"""

from __future__ import annotations

import http.client
import json
import queue
import socket
import ssl
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from perdure.adapters.llm.address import Address
from perdure.errors import DeadlineExceeded, LinkLost, TryAgain

__all__ = ["Response", "post"]

_PIECE: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Response:
    """What came back: ``headers`` by their names in small letters."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(slots=True)
class _Exchange:
    """What the thread and its caller share."""

    outcome: queue.SimpleQueue[Response | Exception] = field(default_factory=queue.SimpleQueue)
    lock: threading.Lock = field(default_factory=threading.Lock)
    held: socket.socket | None = None
    over: bool = False

    def hold(self, link: socket.socket) -> None:
        """Let the caller close ``link`` when the time is over; at once if it is."""
        with self.lock:
            self.held = link
            if self.over:
                _shut(link)

    def end(self) -> None:
        """The time is over."""
        with self.lock:
            self.over = True
            if self.held is not None:
                _shut(self.held)


class _Link(http.client.HTTPConnection):
    """A connection that shows its socket to the exchange before the TLS handshake."""

    def __init__(self, address: Address, exchange: _Exchange, timeout_s: float, context: ssl.SSLContext | None) -> None:
        super().__init__(address.host, address.port, timeout=timeout_s)
        self._exchange = exchange
        self._context = context

    def connect(self) -> None:
        super().connect()
        self._exchange.hold(self.sock)
        if self._context is not None:
            self.sock = self._context.wrap_socket(self.sock, server_hostname=self.host)
            self._exchange.hold(self.sock)


def post(
    address: Address,
    path: str,
    value: Mapping[str, Any],
    *,
    deadline_s: float,
    most_bytes: int,
    context: ssl.SSLContext | None,
) -> Response:
    """Send ``value`` as JSON to ``path``; return what comes back, whatever its status.

    Raises `DeadlineExceeded` after ``deadline_s``, `LinkLost` where the connection fails or ends early, and `TryAgain`
    for an answer of more than ``most_bytes``.
    """
    exchange = _Exchange()
    body = json.dumps(value).encode()

    def carry_out() -> None:
        try:
            exchange.outcome.put(_exchanged(exchange, address, path, body, deadline_s, most_bytes, context))
        except Exception as error:  # raised again by the caller, who waits for it
            exchange.outcome.put(error)

    threading.Thread(target=carry_out, name="llm-http", daemon=True).start()
    try:
        outcome = exchange.outcome.get(timeout=max(0.0, deadline_s))
    except queue.Empty:
        raise DeadlineExceeded(
            f"{address.shown} gave no whole answer within {deadline_s:.3g} s; try again, or allow more time",
            missing=[address.shown],
        ) from None
    finally:
        exchange.end()
    if isinstance(outcome, Response):
        return outcome
    if isinstance(outcome, TimeoutError):
        raise DeadlineExceeded(
            f"{address.shown} gave no whole answer within {deadline_s:.3g} s; try again, or allow more time",
            missing=[address.shown],
        )
    if isinstance(outcome, ssl.SSLCertVerificationError):
        raise LinkLost(f"the certificate of {address.shown} is not trusted: {outcome.verify_message}")
    if isinstance(outcome, OSError | http.client.HTTPException):
        raise LinkLost(f"the connection to {address.shown} failed: {type(outcome).__name__}; is the server up?")
    raise outcome


def _exchanged(
    exchange: _Exchange,
    address: Address,
    path: str,
    body: bytes,
    timeout_s: float,
    most_bytes: int,
    context: ssl.SSLContext | None,
) -> Response:
    link = _Link(address, exchange, timeout_s, context)
    headers = {"Content-Type": "application/json", "Accept": "application/json", "User-Agent": "perdure"}
    if address.key is not None:
        headers["Authorization"] = f"Bearer {address.key}"
    try:
        link.request("POST", f"{address.path}{path}", body, headers)
        answer = link.getresponse()
        got = bytearray()
        while piece := answer.read(min(_PIECE, most_bytes + 1 - len(got))):
            got += piece
            if len(got) > most_bytes:
                raise TryAgain(f"{address.shown} sent more than {most_bytes} bytes for one answer")
        length = answer.headers.get("Content-Length", "")
        if length.isdigit() and int(length) > len(got):
            raise ConnectionError("the answer ended early")
        return Response(answer.status, {name.lower(): each for name, each in answer.headers.items()}, bytes(got))
    finally:
        link.close()


def _shut(link: socket.socket) -> None:
    try:
        link.shutdown(socket.SHUT_RDWR)
    except OSError:  # not connected, or closed already
        pass
