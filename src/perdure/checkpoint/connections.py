"""The agent's connections: buffered links in one selector, served by the thread of its loop."""

from __future__ import annotations

import os
import selectors
import socket
import traceback
from collections.abc import Callable
from typing import Any

from perdure.checkpoint.messages import MAX_MESSAGE_BYTES, Message
from perdure.errors import LinkLost, ProtocolError
from perdure.wire import Link, accept

__all__ = ["Connections"]


class Connections:
    """Connections have numbers. ``heard`` is called with each message of one, ``closed`` when one has ended.

    A message that ``heard`` raises for costs its connection. All but `wake` is for one thread.
    """

    def __init__(
        self, listener: socket.socket, *, heard: Callable[[int, Any], None], closed: Callable[[int], None]
    ) -> None:
        self._listener, self._heard, self._closed = listener, heard, closed
        self._links: dict[int, Link] = {}
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._selector.register(self._wake, selectors.EVENT_READ)

    def serve(self, within_s: float) -> None:
        """Wait so long for something to come, or to be woken; take and send what can be."""
        for key, events in self._selector.select(within_s):
            if key.fileobj is self._listener:
                self._welcome()
            elif key.fileobj == self._wake:
                os.eventfd_read(self._wake)
            else:
                self._serve(key.fd, events)

    def wake(self) -> None:
        """End the wait of `serve`; from any thread or signal handler."""
        os.eventfd_write(self._wake, 1)

    def post(self, connection: int, message: Any, fds: tuple[int, ...] = ()) -> None:
        """Send ``message``, as far as it goes now; the rest when there is room. Nothing if the connection is gone."""
        link = self._links.get(connection)
        if link is None:
            return
        link.post(message, fds)
        try:
            self._flush(connection)
        except LinkLost:
            self._drop(connection)

    def keeps_up(self, connection: int) -> bool:
        """Whether it is there, and all that was posted has been sent."""
        link = self._links.get(connection)
        return link is not None and not link.wants_write

    def close(self) -> None:
        """End all, and take no more: nobody takes this process for one that serves."""
        for link in self._links.values():
            link.close()
        self._listener.close()

    def _serve(self, connection: int, events: int) -> None:
        link = self._links.get(connection)
        if link is None:
            return
        try:
            if events & selectors.EVENT_WRITE:
                self._flush(connection)
            if events & selectors.EVENT_READ:
                for message, fds in link.feed():
                    for fd in fds:  # no message to the agent carries any
                        os.close(fd)
                    self._heard(connection, message)
        except (LinkLost, ProtocolError):
            self._drop(connection)
        except Exception:  # a bug must cost one connection, not the memory of all
            traceback.print_exc()
            self._drop(connection)

    def _welcome(self) -> None:
        try:
            link = accept(self._listener, type=Message, max_body_bytes=MAX_MESSAGE_BYTES)
        except (ProtocolError, LinkLost):  # another user, or gone already: nothing of ours is touched
            return
        if link is not None:
            self._links[link.fileno()] = link
            self._selector.register(link.fileno(), selectors.EVENT_READ)

    def _drop(self, connection: int) -> None:
        link = self._links.pop(connection, None)
        if link is None:
            return
        self._selector.unregister(connection)
        link.close()
        self._closed(connection)

    def _flush(self, connection: int) -> None:
        done = self._links[connection].flush()
        self._selector.modify(connection, selectors.EVENT_READ | (0 if done else selectors.EVENT_WRITE))
