"""Frames: how a message becomes bytes on a stream, and how bytes become messages again. No sockets here.

A frame is a header of 8 bytes and a body of JSON::

    offset 0   u32 little-endian   bytes in the body, at most the reader's bound
    offset 4   u8                  file descriptors that travel with the frame, at most `MAX_FDS`
    offset 5   u8                  format of the frame: 0
    offset 6   2 bytes             b"PD"
    offset 8   the body

Descriptors are sent (SCM_RIGHTS) with the first byte of their frame, and Linux never lets a read run past the
segment that carried descriptors. So when a frame is complete its descriptors have arrived, in order, and those left
over belong to the frame that is still arriving: a queue is enough to pair them.

`Parser` owns the descriptors it was fed until it hands them out in a `Frame`; after an error it has closed the rest.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from perdure.errors import CallError, ProtocolError

__all__ = ["HEADER_BYTES", "MAX_BODY_BYTES", "MAX_FDS", "Frame", "Parser", "decode_body", "encode", "json_of"]

MAX_BODY_BYTES = 1 << 20
MAX_FDS = 64

_HEADER = struct.Struct("<IBB2s")
_FORMAT = 0
_MAGIC = b"PD"
HEADER_BYTES = _HEADER.size


@dataclass(frozen=True, slots=True)
class Frame:
    """One whole frame: the JSON ``body``, and the descriptors that came with it (the receiver must close them)."""

    body: bytes
    fds: tuple[int, ...] = ()


def encode(message: Any, *, n_fds: int = 0, max_body_bytes: int = MAX_BODY_BYTES) -> bytes:
    """Return header and body of ``message`` (a dict or a msgspec Struct).

    Raises `CallError` if it is larger than ``max_body_bytes``, holds what JSON cannot, or has over `MAX_FDS`
    descriptors.

    >>> encode({"say": "hello"})
    b'\\x0f\\x00\\x00\\x00\\x00\\x00PD{"say":"hello"}'
    """
    body = json_of(message, max_body_bytes=max_body_bytes)
    if not 0 <= n_fds <= MAX_FDS:
        raise CallError(f"{n_fds} descriptors are over the {MAX_FDS} of one frame; send several frames")
    return _HEADER.pack(len(body), n_fds, _FORMAT, _MAGIC) + body


def json_of(message: Any, *, max_body_bytes: int) -> bytes:
    """The JSON of ``message``; `CallError` if it is no plain values or has more than ``max_body_bytes``."""
    try:
        body = msgspec.json.encode(message)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise CallError(f"a message must be plain JSON values: {error}") from error
    if len(body) > max_body_bytes:
        raise CallError(f"a message of {len(body)} bytes is over the bound of {max_body_bytes}; send it in parts")
    return body


def decode_body(body: bytes, *, type: Any) -> Any:
    """Return the message in ``body`` as ``type``; raise `ProtocolError` if it is not one."""
    try:
        return msgspec.json.decode(body, type=type)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"the peer sent a message that cannot be read: {error}") from error


class Parser:
    """Bytes and descriptors in, whole frames out. The bound is checked on the header, before the body is awaited."""

    def __init__(self, *, max_body_bytes: int = MAX_BODY_BYTES) -> None:
        self._max_body_bytes = max_body_bytes
        self._buffer = bytearray()
        self._fds: list[int] = []

    @property
    def partial(self) -> bool:
        """Whether a frame has begun to arrive and is not complete."""
        return bool(self._buffer)

    def feed(self, data: bytes, fds: Sequence[int] = ()) -> list[Frame]:
        """Take what one read gave; return the frames that are complete now.

        Raises `ProtocolError`, with all descriptors closed, if the stream breaks the rules; it cannot go on after that.
        """
        self._buffer += data
        self._fds += fds
        frames: list[Frame] = []
        try:
            while (frame := self._next()) is not None:
                frames.append(frame)
        except ProtocolError:
            for frame in frames:
                for fd in frame.fds:
                    os.close(fd)
            self.close()
            raise
        return frames

    def close(self) -> None:
        """Drop what has arrived and was not handed out; close its descriptors."""
        self._buffer.clear()
        while self._fds:
            os.close(self._fds.pop())

    def _next(self) -> Frame | None:
        if len(self._buffer) < HEADER_BYTES:
            self._check_spare(MAX_FDS if self._buffer else 0)
            return None
        n_bytes, n_fds, version, magic = _HEADER.unpack_from(self._buffer)
        if magic != _MAGIC or version != _FORMAT:
            raise ProtocolError("the peer does not speak this protocol (wrong mark or format in a frame's header)")
        if n_bytes > self._max_body_bytes or n_fds > MAX_FDS:
            raise ProtocolError(
                f"the peer announced a frame of {n_bytes} bytes and {n_fds} descriptors; "
                f"the bounds are {self._max_body_bytes} and {MAX_FDS}"
            )
        end = HEADER_BYTES + n_bytes
        if len(self._buffer) < end:
            self._check_spare(n_fds)
            return None
        if len(self._fds) < n_fds:
            raise ProtocolError(f"a frame announced {n_fds} descriptors and {len(self._fds)} came")
        frame = Frame(bytes(memoryview(self._buffer)[HEADER_BYTES:end]), tuple(self._fds[:n_fds]))
        del self._fds[:n_fds]
        del self._buffer[:end]
        return frame

    def _check_spare(self, bound: int) -> None:
        if len(self._fds) > bound:
            raise ProtocolError(f"the peer sent {len(self._fds)} descriptors that no frame announced")
