"""Framed messages: between processes of one user on a node, with descriptors; and, authenticated, between nodes."""

from perdure.wire.frames import MAX_BODY_BYTES, MAX_FDS, Frame, Parser, encode
from perdure.wire.link import Link
from perdure.wire.node_link import Address, NodeLink, accept_node, connect_node, listen_node, own_address
from perdure.wire.unix import accept, clear_stale, connect, listen

__all__ = [
    "MAX_BODY_BYTES",
    "MAX_FDS",
    "Address",
    "Frame",
    "Link",
    "NodeLink",
    "Parser",
    "accept",
    "accept_node",
    "clear_stale",
    "connect",
    "connect_node",
    "encode",
    "listen",
    "listen_node",
    "own_address",
]
