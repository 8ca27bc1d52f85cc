"""Links over real sockets: messages of all sizes, descriptors, peers that go away or misbehave."""

from __future__ import annotations

import array
import os
import socket
import threading

import msgspec
import pytest

from perdure.clock import Deadline
from perdure.errors import DeadlineExceeded, LinkLost, ProtocolError
from perdure.wire import MAX_FDS, Link


@pytest.fixture
def pair():
    left, right = socket.socketpair()
    with Link(left) as a, Link(right) as b:
        yield a, b


def soon() -> Deadline:
    return Deadline.after(5.0, "the test's peer")


@pytest.mark.parametrize("n", [0, 1, 7, 8, 9, 1000, 300_000, (1 << 20) - 12])
def test_a_message_of_any_size_arrives_whole(pair: tuple[Link, Link], n: int) -> None:
    a, b = pair
    sender = threading.Thread(target=a.send, args=({"text": "x" * n},))
    sender.start()
    assert b.recv(soon()) == ({"text": "x" * n}, ())
    sender.join()


def test_descriptors_arrive_with_their_message_and_the_sender_keeps_its_own(pair: tuple[Link, Link]) -> None:
    a, b = pair
    fds = [os.memfd_create(f"f{i}") for i in range(MAX_FDS)]
    for i, fd in enumerate(fds):
        os.write(fd, bytes([i]))
    a.send({"n": 0})
    a.send({"n": 1}, fds)
    a.send({"n": 2}, fds[:1])
    assert b.recv(soon())[1] == ()
    _, got = b.recv(soon())
    assert [os.pread(fd, 1, 0) for fd in got] == [bytes([i]) for i in range(MAX_FDS)]
    assert not os.get_inheritable(got[0])
    _, again = b.recv(soon())
    assert len(again) == 1
    for fd in [*fds, *got, *again]:
        os.close(fd)


def test_an_event_loop_reads_and_answers_without_waiting(pair: tuple[Link, Link]) -> None:
    a, b = pair
    assert b.feed() == []
    for i in range(3):
        a.send({"i": i})
    assert [message["i"] for message, _ in b.feed()] == [0, 1, 2]
    n = 0
    while not b.wants_write:  # until the kernel takes no more
        b.post({"text": "y" * 100_000})
        b.flush()
        n += 1
    got = 0
    while got < n:
        got += len(a.feed())
        b.flush()
    assert not b.wants_write


def test_what_was_sent_before_the_peer_closed_still_arrives(pair: tuple[Link, Link]) -> None:
    a, b = pair
    a.send({"last": 1})
    a.close()
    assert b.recv(soon())[0] == {"last": 1}
    with pytest.raises(LinkLost):
        b.recv(soon())
    with pytest.raises(LinkLost):
        b.send({})


def test_a_silent_peer_ends_the_wait_at_the_deadline(pair: tuple[Link, Link]) -> None:
    with pytest.raises(DeadlineExceeded, match="the answer"):
        pair[0].recv(Deadline.after(0.02, "the answer"))


def test_a_peer_that_does_not_read_ends_a_send_at_the_deadline(pair: tuple[Link, Link]) -> None:
    with pytest.raises(DeadlineExceeded):
        pair[0].send({"text": "x" * 1_000_000}, deadline=Deadline.after(0.05, "the peer to read"))


def test_more_descriptors_than_a_frame_may_carry_are_refused_and_closed() -> None:
    left, right = socket.socketpair()
    with left, Link(right) as b:
        n_open = len(os.listdir("/proc/self/fd"))
        null = os.open("/dev/null", os.O_RDONLY)
        rights = array.array("i", [null] * (MAX_FDS + 40))
        left.sendmsg([b"\x02\0\0\0\0\0PD{}"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        os.close(null)
        with pytest.raises(ProtocolError):
            b.feed()
        assert len(os.listdir("/proc/self/fd")) == n_open


def test_messages_can_be_of_a_declared_type_and_others_are_refused() -> None:
    class Ping(msgspec.Struct, tag="ping"):
        n: int

    left, right = socket.socketpair()
    with Link(left) as a, Link(right, type=Ping) as b:
        a.send(Ping(3))
        assert b.recv(soon())[0] == Ping(3)
        a.send({"type": "ping", "n": "three"})
        with pytest.raises(ProtocolError):
            b.recv(soon())
