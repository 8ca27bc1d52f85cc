"""A reserved port is free for who was told and for nobody else."""

from __future__ import annotations

import socket

from perdure.process.ports import ReservedPort


def test_a_server_that_was_told_the_port_can_listen_on_it_and_be_reached() -> None:
    port = ReservedPort()
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", port.number))
        server.listen()
        socket.create_connection(("127.0.0.1", port.number), timeout=5).close()
    port.close()
    port.close()


def test_nobody_is_given_the_port_by_chance() -> None:
    ports = [ReservedPort() for _ in range(20)]
    numbers = {port.number for port in ports}
    assert len(numbers) == 20
    for _ in range(3000):
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            other.bind(("127.0.0.1", 0))
            assert other.getsockname()[1] not in numbers
    for port in ports:
        port.close()
