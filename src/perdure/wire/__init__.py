"""Framed messages between processes of one user on one node, with file descriptors beside them."""

from perdure.wire.frames import MAX_BODY_BYTES, MAX_FDS, Frame, Parser, encode
from perdure.wire.link import Link
from perdure.wire.unix import accept, clear_stale, connect, listen

__all__ = [
    "MAX_BODY_BYTES",
    "MAX_FDS",
    "Frame",
    "Link",
    "Parser",
    "accept",
    "clear_stale",
    "connect",
    "encode",
    "listen",
]
