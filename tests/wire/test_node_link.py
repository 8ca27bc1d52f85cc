"""Links between nodes: only who knows the secret is believed, whatever is done to the bytes on the way."""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

import pytest

from perdure.clock import Deadline
from perdure.codec.digest import digest_bytes
from perdure.errors import CallError, DeadlineExceeded, LinkLost, PerdureError, ProtocolError
from perdure.wire import NodeLink, accept_node, connect_node, listen_node, node_link, own_address

SECRET = b"s" * 32
NEEDS_NATIVE = pytest.mark.skipif(not node_link.NATIVE, reason="the native code is not built here")


def soon(seconds: float = 10.0) -> Deadline:
    return Deadline.after(seconds, "a test")


@contextmanager
def server(
    work: Callable[[NodeLink], None], secret: bytes = SECRET
) -> Iterator[tuple[tuple[str, int], list[PerdureError]]]:
    """Serve one connection on a thread; the errors that it ended with."""
    listener, errors = listen_node("127.0.0.1"), list[PerdureError]()

    def serve() -> None:
        try:
            with accept_node(listener.accept()[0], {"job": secret}.get, deadline=soon()) as link:
                work(link)
        except PerdureError as error:
            errors.append(error)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield listener.getsockname(), errors
    finally:
        listener.close()
        thread.join(20)
        assert not thread.is_alive()


def echo(link: NodeLink) -> None:
    message, nbytes = link.recv(soon())
    room = memoryview(bytearray(nbytes))
    link.recv_bulk(room, soon())
    link.send(message, room, deadline=soon())


def test_messages_and_bulk_come_as_they_were_sent() -> None:
    bulk = memoryview(os.urandom(9_000_001))
    with server(echo) as (address, errors), connect_node(address, name="job", secret=SECRET, deadline=soon()) as link:
        link.send({"n": 1}, bulk, deadline=soon())
        message, nbytes = link.recv(soon())
        back = memoryview(bytearray(nbytes))
        link.recv_bulk(back, soon())
        assert (message, back) == ({"n": 1}, bulk)
    assert not errors


def test_another_secret_is_refused_at_the_first_message() -> None:
    with server(echo) as (address, errors):
        with connect_node(address, name="job", secret=b"x" * 32, deadline=soon()) as link:
            link.send({"n": 1}, deadline=soon())
            with pytest.raises(LinkLost):
                link.recv(soon())
    assert [type(each) for each in errors] == [ProtocolError]
    assert "secret" in str(errors[0])


def test_an_impostor_of_the_server_is_not_believed() -> None:
    with (
        server(echo, secret=b"x" * 32) as (address, _),
        connect_node(address, name="job", secret=SECRET, deadline=soon()) as link,
    ):
        link.send({"n": 1}, deadline=soon())
        with pytest.raises((ProtocolError, LinkLost)):
            link.recv(soon())


def test_a_session_that_is_not_known_is_refused() -> None:
    with server(echo) as (address, errors):
        with pytest.raises(LinkLost):
            connect_node(address, name="other", secret=SECRET, deadline=soon())
    assert "other" in str(errors[0])


@pytest.mark.parametrize("at", [0, 4, 12, 30, -1])
def test_an_altered_byte_of_a_message_is_refused(at: int) -> None:
    """A man in the middle who flips one bit of the client's first frame."""
    with server(echo) as (address, errors):
        front = socket.create_server(("127.0.0.1", 0))

        def relay() -> None:
            near, _ = front.accept()
            with near, socket.create_connection(address) as far:
                far.sendall(near.recv(4 + 1 + 3 + 32, socket.MSG_WAITALL))
                near.sendall(far.recv(32, socket.MSG_WAITALL))
                frame = bytearray(near.recv(4096))
                frame[at] ^= 1
                with suppress(OSError):  # refused at once
                    far.sendall(frame)
                    far.shutdown(socket.SHUT_WR)
                    far.recv(4096)

        thread = threading.Thread(target=relay)
        thread.start()
        with connect_node(front.getsockname(), name="job", secret=SECRET, deadline=soon()) as link:
            link.send({"n": "a message"}, deadline=soon())
            with pytest.raises(LinkLost):
                link.recv(soon())
        thread.join(20)
        front.close()
    assert [type(each) for each in errors] in ([ProtocolError], [LinkLost])


def test_a_repeated_message_is_refused() -> None:
    def twice(link: NodeLink) -> None:
        link.recv(soon())
        link.recv(soon())

    with server(twice) as (address, errors):
        with connect_node(address, name="job", secret=SECRET, deadline=soon()) as link:
            link.send({"n": 1}, deadline=soon())
            link._n_sent = 0  # as one would who has recorded it
            link.send({"n": 1}, deadline=soon())
            with pytest.raises(LinkLost):
                link.recv(soon())
    assert [type(each) for each in errors] == [ProtocolError]


def test_what_is_announced_is_bounded() -> None:
    with server(echo) as (address, errors):
        with socket.create_connection(address) as raw:
            raw.sendall(b"PDN0\x03job" + b"n" * 32)
            raw.recv(32, socket.MSG_WAITALL)
            raw.sendall(b"\xff" * 28)
            with suppress(OSError):
                assert raw.recv(1) == b""
    assert "bound" in str(errors[0])


@pytest.mark.parametrize(
    "garbage", [b"", b"GET / HTTP/1.1\r\n\r\n", b"PDN0\xff", bytes(range(64))], ids=["none", "http", "cut", "bytes"]
)
def test_garbage_costs_the_connection_and_nothing_else(garbage: bytes) -> None:
    with server(echo) as (address, errors):
        with socket.create_connection(address) as raw:
            with suppress(OSError):  # closed with bytes unread
                raw.sendall(garbage)
                raw.shutdown(socket.SHUT_WR)
                raw.recv(64)
    assert len(errors) == 1


def test_waits_have_deadlines() -> None:
    with server(echo) as (address, _):
        with connect_node(address, name="job", secret=SECRET, deadline=soon()) as link:
            with pytest.raises(DeadlineExceeded):
                link.recv(soon(0.05))
    with pytest.raises(LinkLost, match="cannot reach"):
        connect_node(address, name="job", secret=SECRET, deadline=soon(0.1))


def test_bulk_is_received_in_parts_and_never_more_than_was_announced() -> None:
    bulk = memoryview(os.urandom(1000))
    taken = bytearray(1000)

    def in_parts(link: NodeLink) -> None:
        link.recv(soon())
        with pytest.raises(CallError, match="have not been received"):
            link.recv(soon())
        for at in range(0, 1000, 300):
            link.recv_bulk(memoryview(taken)[at : at + 300], soon())
        with pytest.raises(CallError, match="0 are to come"):
            link.recv_bulk(memoryview(bytearray(1)), soon())
        link.send({"n": 2}, deadline=soon())

    with server(in_parts) as (address, errors):
        with connect_node(address, name="job", secret=SECRET, deadline=soon()) as link:
            link.send({"n": 1}, bulk, deadline=soon())
            assert link.recv(soon()) == ({"n": 2}, 0)
    assert taken == bulk
    assert not errors


def test_a_peer_that_takes_bytes_too_slowly_or_sends_them_drop_by_drop_is_given_up_at_the_deadline() -> None:
    stop = threading.Event()

    def drop_by_drop(link: NodeLink) -> None:
        message, _ = link.recv(soon())
        if message == {"n": "take nothing"}:
            stop.wait(20)
            return
        link.send({"n": 2}, memoryview(bytes(1)), deadline=soon())
        while not stop.wait(0.01):
            with suppress(OSError):
                link._sock.send(b"d")

    for n, bulk in (("take nothing", memoryview(bytes(64 << 20))), ("send", None), ("send tiles", None)):
        stop.clear()
        with server(drop_by_drop) as (address, _):
            with connect_node(address, name="job", secret=SECRET, deadline=soon()) as link:
                if bulk is not None:
                    with pytest.raises(DeadlineExceeded):
                        link.send({"n": n}, bulk, deadline=soon(0.3))
                else:
                    link.send({"n": n}, deadline=soon())
                    link.recv(soon())
                    link._n_bulk = 1 << 20  # as if so much had been announced
                    room, tiles = memoryview(bytearray(1 << 20)), partial(link.recv_tiles, digest=digest_bytes)
                    with pytest.raises(DeadlineExceeded):
                        link.recv_bulk(room, soon(0.3)) if n == "send" else tiles(room, 1 << 18, soon(0.3))
            stop.set()


@pytest.mark.parametrize("native", [pytest.param(True, marks=NEEDS_NATIVE), False])
@pytest.mark.parametrize("nbytes", [0, 1, 240, 241, 4096, 300_000, (20 << 20) + 7])
@pytest.mark.parametrize("tile_bytes", [1 << 18, 300_000, 4 << 20])
def test_tiles_are_digested_as_they_come(
    native: bool, nbytes: int, tile_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_link, "NATIVE", native)
    bulk, room = memoryview(os.urandom(nbytes)), memoryview(bytearray(nbytes))
    with server(echo) as (address, errors), connect_node(address, name="job", secret=SECRET, deadline=soon()) as link:
        link.send({"n": 1}, bulk, deadline=soon())
        link.recv(soon())
        with pytest.raises(CallError, match="are to come"):
            link.recv_tiles(memoryview(bytearray(nbytes + 1)), tile_bytes, soon(), digest=digest_bytes)
        found = link.recv_tiles(room, tile_bytes, soon(), digest=digest_bytes)
    assert room == bulk
    assert found == b"".join(digest_bytes(bulk[at : at + tile_bytes]) for at in range(0, nbytes, tile_bytes))
    assert not errors


@NEEDS_NATIVE
@pytest.mark.parametrize("into", [b"read-only bytes.", bytearray(33)])
def test_tiles_need_room_for_themselves_and_their_digests(into: bytes | bytearray) -> None:
    from perdure import _native

    with pytest.raises((TypeError, ValueError)):
        _native.recv_tiles(-1, memoryview(into), 16, bytearray(16), 1.0)


def test_tiles_of_a_peer_that_is_gone_are_not_waited_for() -> None:
    def half(link: NodeLink) -> None:
        link.recv(soon())
        link.send({"n": 2}, memoryview(bytes(1000)), deadline=soon())

    with server(half) as (address, _), connect_node(address, name="job", secret=SECRET, deadline=soon()) as link:
        link.send({"n": 1}, deadline=soon())
        link.recv(soon())
        link._n_bulk = 1 << 20  # as if so much had been announced
        with pytest.raises(LinkLost):
            link.recv_tiles(memoryview(bytearray(1 << 20)), 1 << 16, soon(), digest=digest_bytes)


def test_a_wait_without_end_is_ended_from_another_thread() -> None:
    with server(echo) as (address, _):
        with connect_node(address, name="job", secret=SECRET, deadline=soon()) as link:
            threading.Timer(0.1, link.shutdown).start()
            with pytest.raises(LinkLost):
                link.recv(Deadline.after(10.0**8, "a message that never comes"))


def test_the_address_towards_a_host() -> None:
    assert own_address(None) == own_address("127.0.0.1") == "127.0.0.1"
    with pytest.raises(LinkLost):
        own_address("no-such-host.invalid")


SILENT = """
import sys, threading
sys.path.insert(0, sys.argv[1])
from test_node_link import SECRET, a_link_whose_packets_vanish
a_link_whose_packets_vanish()
"""


def a_link_whose_packets_vanish() -> None:
    """In a network of its own, with bytes on their way when nothing arrives any more."""
    assert ctypes.CDLL(None, use_errno=True).unshare(0x40000000) == 0, os.strerror(ctypes.get_errno())  # CLONE_NEWNET
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    from perdure.wire import node_link

    node_link._SILENT_S = 2  # type: ignore[misc]
    gone, ended = threading.Event(), threading.Event()

    def stay(link: NodeLink) -> None:
        link.recv(soon())
        gone.wait(30)
        ended.wait(30)

    with server(stay) as (address, _), connect_node(address, name="job", secret=SECRET, deadline=soon()) as link:
        link.send({"n": 1}, deadline=soon())
        subprocess.run(["ip", "link", "set", "lo", "down"], check=True)
        link.send({"n": 2}, deadline=soon())
        try:
            link.recv(soon(20))
        except PerdureError as error:
            print(type(error).__name__, error)
        ended.set()
        gone.set()


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("ip") is None, reason="A SILENT LINK IS NOT TESTED: no root or ip"
)
def test_a_node_that_falls_silent_is_noticed_while_bytes_are_on_their_way_to_it() -> None:
    command = [sys.executable, "-c", SILENT, os.path.dirname(__file__)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("LinkLost the connection to a node broke"), done.stdout + done.stderr
