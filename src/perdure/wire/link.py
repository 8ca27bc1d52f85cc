"""A link: one connected Unix socket that carries messages both ways.

Two ways to use it, both over the same parser. A rank talks and waits: `send`, `recv`. The agent's event loop never
waits: `feed` when the socket is readable, `post` to queue an answer, `flush` when it is writable.

A link belongs to one thread at a time.
"""

from __future__ import annotations

import array
import contextlib
import errno
import os
import select
import socket
import struct
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from perdure.clock import Deadline
from perdure.errors import DeadlineExceeded, LinkLost, ProtocolError
from perdure.wire.frames import MAX_BODY_BYTES, MAX_FDS, Frame, Parser, decode_body, encode

__all__ = ["Link", "Message"]

Message = tuple[Any, tuple[int, ...]]

_READ_BYTES = 1 << 18
_CONTROL_BYTES = socket.CMSG_SPACE(MAX_FDS * 4)
_UCRED = struct.Struct("3i")
_SEND_S = 30.0


class Link:
    """Messages and descriptors over ``sock``, whose peer must run as this user.

    Raises `ProtocolError` when made if the peer is another user. ``type`` is what messages are decoded to: ``dict``
    unless a msgspec Struct (or a tagged union of them) is given. The link owns ``sock``.
    """

    def __init__(
        self, sock: socket.socket, *, type: Any = dict[str, Any], max_body_bytes: int = MAX_BODY_BYTES
    ) -> None:
        self._sock = sock
        self._type = type
        self._max_body_bytes = max_body_bytes
        self._parser = Parser(max_body_bytes=max_body_bytes)
        self._inbox: deque[Frame] = deque()
        self._outbox: deque[tuple[bytes, tuple[int, ...]]] = deque()
        try:
            self.peer_pid, self.peer_uid = _check_peer(sock)
            sock.setblocking(False)
        except BaseException:
            sock.close()
            raise

    def fileno(self) -> int:
        """The socket's descriptor, for selectors; -1 once closed."""
        return self._sock.fileno()

    def send(self, message: Any, fds: Sequence[int] = (), *, deadline: Deadline | None = None) -> None:
        """Send ``message`` and copies of ``fds`` (the caller keeps its own); return when the kernel has taken all of
        it.

        Raises `LinkLost` if the peer is gone, `DeadlineExceeded` if it does not read in time (30 s unless told), after
        which the link is of no more use; `CallError` if the message cannot be a frame.
        """
        self.post(message, fds)
        deadline = deadline or Deadline.after(_SEND_S, "the peer to read a message")
        while not self.flush():
            self._await(select.POLLOUT, deadline)

    def recv(self, deadline: Deadline) -> Message:
        """Wait for one message; return it with its descriptors, which the caller must close.

        Raises `LinkLost` if the peer is gone, `DeadlineExceeded`, or `ProtocolError`.
        """
        while not self._inbox:
            self._fill()
            if not self._inbox:
                self._await(select.POLLIN, deadline)
        return self._take()

    def feed(self) -> list[Message]:
        """Read what is there now, without waiting; return the messages that are complete.

        Raises `LinkLost` when the peer has closed (all messages before that were already returned), or `ProtocolError`.
        """
        self._fill()
        return [self._take() for _ in range(len(self._inbox))]

    def post(self, message: Any, fds: Sequence[int] = ()) -> None:
        """Queue ``message`` and copies of ``fds`` for `flush`."""
        data = encode(message, n_fds=len(fds), max_body_bytes=self._max_body_bytes)
        self._outbox.append((data, tuple(os.dup(fd) for fd in fds)))

    def flush(self) -> bool:
        """Send what can be sent without waiting; return whether all is out. Raises `LinkLost` if the peer is gone."""
        while self._outbox:
            data, fds = self._outbox[0]
            try:
                n_sent = self._send_some(data, fds)
            except BlockingIOError:
                return False
            except OSError as error:
                raise LinkLost(f"the peer closed the connection: {os.strerror(error.errno or 0)}") from error
            for fd in fds:
                os.close(fd)
            if n_sent == len(data):
                self._outbox.popleft()
            else:
                self._outbox[0] = (data[n_sent:], ())
        return True

    @property
    def wants_write(self) -> bool:
        """Whether `post` has queued what `flush` has not sent."""
        return bool(self._outbox)

    def shutdown(self) -> None:
        """End both directions without closing; may be called by any thread: whoever waits in `recv` gets `LinkLost`."""
        with contextlib.suppress(OSError):  # the peer was faster
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket and every descriptor that was not handed out; twice is fine."""
        for _, fds in self._outbox:
            for fd in fds:
                os.close(fd)
        self._outbox.clear()
        while self._inbox:
            for fd in self._inbox.popleft().fds:
                os.close(fd)
        self._parser.close()
        self._sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _send_some(self, data: bytes, fds: tuple[int, ...]) -> int:
        if not fds:
            return self._sock.send(data, socket.MSG_NOSIGNAL)
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))
        return self._sock.sendmsg([data], [rights], socket.MSG_NOSIGNAL)

    def _fill(self) -> None:
        try:
            data, control, flags, _ = self._sock.recvmsg(_READ_BYTES, _CONTROL_BYTES, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return
        except OSError as error:
            raise LinkLost(f"the connection broke: {os.strerror(error.errno or 0)}") from error
        fds: list[int] = []
        for level, kind, payload in control:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds += array.array("i", payload[: len(payload) - len(payload) % 4])
        if flags & socket.MSG_CTRUNC:
            for fd in fds:
                os.close(fd)
            self._parser.close()
            raise ProtocolError("the peer sent more descriptors than a frame may carry, or this process has none left")
        if not data:
            self._parser.close()
            raise LinkLost("the peer closed the connection")
        self._inbox.extend(self._parser.feed(data, fds))

    def _take(self) -> Message:
        frame = self._inbox.popleft()
        try:
            return decode_body(frame.body, type=self._type), frame.fds
        except ProtocolError:
            for fd in frame.fds:
                os.close(fd)
            raise

    def _await(self, what: int, deadline: Deadline) -> None:
        poller = select.poll()
        poller.register(self._sock, what)
        if not poller.poll(deadline.left() * 1000) and deadline.passed():
            raise DeadlineExceeded(f"gave up waiting for {deadline.what}", what=deadline.what, missing="")


def _check_peer(sock: socket.socket) -> tuple[int, int]:
    """Return the peer's pid and uid as the kernel knows them; raise `ProtocolError` if it is another user."""
    try:
        credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    except OSError as error:
        if error.errno in (errno.ENOTCONN, errno.ECONNRESET):
            raise LinkLost("the peer closed the connection before it could be checked") from error
        raise
    pid, uid, _ = _UCRED.unpack(credentials)
    if uid != os.geteuid():
        raise ProtocolError(f"refused a peer that runs as user {uid}; only user {os.geteuid()} may connect", uid=uid)
    return pid, uid
