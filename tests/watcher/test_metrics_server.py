"""A scrape gets through beside connections that say nothing, or a letter now and then."""

from __future__ import annotations

import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest

from perdure.watcher.metrics_server import MetricsServer


@pytest.fixture
def server() -> Iterator[MetricsServer]:
    made = MetricsServer(lambda: "up 1\n", host="127.0.0.1", port=0)
    yield made
    made.close()


def connect(server: MetricsServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=10.0)


def scrape_s(server: MetricsServer) -> float:
    began_s = time.monotonic()
    with urllib.request.urlopen(server.url, timeout=10.0) as answer:
        assert answer.read() == b"up 1\n"
    return time.monotonic() - began_s


def n_threads() -> int:
    return sum("process_request_thread" in thread.name for thread in threading.enumerate())


def test_a_scrape_gets_through_beside_many_connections_that_say_nothing(server: MetricsServer) -> None:
    with ExitStack() as stack:
        for _ in range(200):
            stack.enter_context(connect(server))
        assert max(scrape_s(server) for _ in range(5)) < 2.0
        assert n_threads() <= 40


def test_scrapes_get_through_while_silent_connections_keep_coming(server: MetricsServer) -> None:
    over = threading.Event()

    def come() -> None:
        with ExitStack() as stack:
            while not over.wait(0.002):
                stack.enter_context(connect(server))

    coming = threading.Thread(target=come)
    coming.start()
    try:
        time.sleep(0.5)
        assert max(scrape_s(server) for _ in range(10)) < 2.0
    finally:
        over.set()
        coming.join()


def test_a_connection_that_says_a_letter_now_and_then_is_ended(server: MetricsServer) -> None:
    began_s = time.monotonic()
    with connect(server) as slow:
        slow.settimeout(0.1)
        with suppress(OSError):  # reset, if it was ended while we wrote
            for letter in b"GET /metrics HTTP/1.0" * 10:
                slow.sendall(bytes([letter]))
                try:
                    assert slow.recv(1) == b""
                except TimeoutError:
                    continue
                break
    assert 1.0 < time.monotonic() - began_s < 10.0
    assert scrape_s(server) < 2.0


def test_requests_at_once_are_all_answered(server: MetricsServer) -> None:
    took: list[float] = []
    many = [threading.Thread(target=lambda: took.append(scrape_s(server))) for _ in range(20)]
    for thread in many:
        thread.start()
    for thread in many:
        thread.join()
    assert len(took) == 20
