"""Where an agent takes connections of other nodes, each served by a thread of its own.

There is a listener only once a session of several nodes has come; who connects proves to know the secret of a session
that a rank of this node has introduced.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress

from perdure.checkpoint.messages import MAX_MESSAGE_BYTES
from perdure.checkpoint.peer_messages import PeerMessage
from perdure.clock import Deadline
from perdure.errors import LinkLost, PerdureError
from perdure.wire import NodeLink, accept_node, listen_node

__all__ = ["PeerServer"]

_GREET_S = 30.0
_MOST_CONNECTIONS = 4096


class PeerServer:
    """``secret_of`` gives the secret of a session; ``serve`` is called with each link and its first message."""

    def __init__(self, secret_of: Callable[[str], bytes | None], serve: Callable[[NodeLink, object], None]) -> None:
        self._secret_of, self._serve = secret_of, serve
        self._listener: socket.socket | None = None
        self._host = ""
        self._room = threading.BoundedSemaphore(_MOST_CONNECTIONS)

    def listen(self, host: str) -> int:
        """Listen at ``host``, if that is not so yet; return the port."""
        if self._listener is None or host != self._host:
            self.close()
            self._listener, self._host = listen_node(host), host
            threading.Thread(target=self._accept, args=(self._listener,), name="peers", daemon=True).start()
        return int(self._listener.getsockname()[1])

    def close(self) -> None:
        """Take no more connections."""
        if self._listener is not None:
            with suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)  # wakes whoever accepts
            self._listener.close()
            self._listener = None

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return  # closed
            if self._room.acquire(blocking=False):
                threading.Thread(target=self._welcome, args=(sock,), name="peer", daemon=True).start()
            else:
                sock.close()

    def _welcome(self, sock: socket.socket) -> None:
        try:
            deadline = Deadline.after(_GREET_S, "the first message of another node")
            link = accept_node(
                sock, self._secret_of, deadline=deadline, type=PeerMessage, max_body_bytes=MAX_MESSAGE_BYTES
            )
            with link:
                message, nbytes = link.recv(deadline)
                if nbytes:
                    raise LinkLost("a first message has no bytes behind it")
                self._serve(link, message)
        except PerdureError:
            pass  # a stranger, or one that broke off: it costs the connection and nothing else
        finally:
            self._room.release()
