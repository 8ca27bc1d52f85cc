"""A TCP port that is kept for a program which will listen on it later.

The port is bound and never listened on. Linux lets another socket bind the same port if both have SO_REUSEADDR (as
every server sets it) and neither listens; but it never picks such a port by itself, neither for a bind to port 0 nor
for an outgoing connection. So nobody else gets it by chance between its choice and its use, nor during the attempt that
uses it.
"""

from __future__ import annotations

import socket

__all__ = ["ReservedPort"]


class ReservedPort:
    """A free port of this machine, on all its addresses, until `close`."""

    def __init__(self) -> None:
        try:
            self._socket = _bind(socket.AF_INET6, "::")
        except OSError:  # no IPv6 here
            self._socket = _bind(socket.AF_INET, "0.0.0.0")
        self.number = int(self._socket.getsockname()[1])

    def close(self) -> None:
        """Let the port go; twice is fine."""
        self._socket.close()


def _bind(family: int, address: str) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind((address, 0))
    except BaseException:
        sock.close()
        raise
    return sock
