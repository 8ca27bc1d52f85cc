"""Frames without sockets: any cutting of the stream gives the same messages, hostile streams are refused by name."""

from __future__ import annotations

import os
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.errors import CallError, ProtocolError
from perdure.wire.frames import HEADER_BYTES, MAX_FDS, Parser, decode_body, encode

messages = st.dictionaries(
    st.text(max_size=8), st.integers(-(2**53), 2**53) | st.text(max_size=300) | st.none(), max_size=6
)


@settings(max_examples=40, deadline=None)
@given(st.lists(messages, max_size=6), st.data())
def test_any_cutting_of_the_stream_gives_the_same_messages(sent: list[dict[str, object]], data: st.DataObject) -> None:
    stream = b"".join(encode(message) for message in sent)
    parser, got, at = Parser(), [], 0
    while at < len(stream):
        n = data.draw(st.integers(1, len(stream) - at))
        got += [decode_body(frame.body, type=dict) for frame in parser.feed(stream[at : at + n])]
        at += n
    assert got == sent
    assert not parser.partial


def test_descriptors_go_to_the_frames_that_announced_them() -> None:
    fds = [os.open("/dev/null", os.O_RDONLY) for _ in range(3)]
    parser = Parser()
    one, two = encode({}, n_fds=1), encode({}, n_fds=2)
    assert parser.feed(one[:3], fds[:1]) == []
    frames = parser.feed(one[3:] + two, fds[1:])
    assert [frame.fds for frame in frames] == [(fds[0],), (fds[1], fds[2])]
    for fd in fds:
        os.close(fd)


def header(n_bytes: int, n_fds: int = 0, version: int = 0, magic: bytes = b"PD") -> bytes:
    return struct.pack("<IBB2s", n_bytes, n_fds, version, magic)


HOSTILE = {
    "a body over the bound": header(2**20 + 1),
    "a body of four gigabytes": header(2**32 - 1),
    "too many descriptors": header(2, MAX_FDS + 1),
    "another protocol": b"GET / HTTP/1.1\r\n\r\n",
    "another format": header(2, version=1),
    "descriptors that never came": header(2, 1) + b"{}",
}


@pytest.mark.parametrize("stream", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_stream_is_refused(stream: bytes) -> None:
    with pytest.raises(ProtocolError):
        Parser().feed(stream)


@pytest.mark.parametrize("body", [b"", b"[1]", b"{", b"\xff\xfe", b'{"a":NaN}', b"[" * 500_000, b'{"a":' * 150_000])
def test_a_hostile_body_is_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_body(body, type=dict[str, object])


@given(st.binary(max_size=64))
def test_no_bytes_make_the_parser_fail_otherwise_than_by_protocol_error(stream: bytes) -> None:
    try:
        for frame in Parser().feed(stream):
            decode_body(frame.body, type=dict)
    except ProtocolError:
        pass


def test_descriptors_without_a_frame_are_closed_and_refused() -> None:
    fd = os.open("/dev/null", os.O_RDONLY)
    with pytest.raises(ProtocolError):
        Parser().feed(encode({}), [fd])
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_a_refused_stream_leaves_no_descriptor_open() -> None:
    fds = [os.open("/dev/null", os.O_RDONLY) for _ in range(2)]
    with pytest.raises(ProtocolError):
        Parser().feed(encode({}, n_fds=1) + b"\xff" * HEADER_BYTES, fds)
    for fd in fds:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


def test_a_message_that_cannot_be_a_frame_is_a_call_error() -> None:
    with pytest.raises(CallError, match="over the bound"):
        encode({"a": "x" * 100}, max_body_bytes=50)
    with pytest.raises(CallError, match="several frames"):
        encode({}, n_fds=MAX_FDS + 1)
    with pytest.raises(CallError, match="plain JSON"):
        encode({"a": object()})
