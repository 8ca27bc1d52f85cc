"""Plain TCP streams between two processes: what the loopback link can carry, for `bench/peer_restore.py`.

Nothing is verified. Socket buffers are the kernel's own choice, as those of perdure's links are.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence

from measure import Stopwatch
from perdure.shm import Segment

__all__ = ["STREAMS", "Streamer", "serve"]

STREAMS = {"TCP stream, send": b"w", "TCP stream, sendfile": b"s", "TCP stream, as iperf3 does": b"i"}
_IPERF_BYTES = 128 << 10  # what iperf3 writes and reads at once by default


class Streamer:
    """A process that sends as many bytes as ``targets`` have, from memory like an agent's, over a connection each."""

    def __init__(self, targets: Sequence[memoryview]) -> None:
        self._targets = targets
        nbytes = sum(view.nbytes for view in targets)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._process: subprocess.Popen[bytes] | None = None
        if nbytes:
            fd, here = self._listener.fileno(), str(pathlib.Path(__file__).parent)
            command = [sys.executable, "-c", f"import peer_streams as s; s.serve({fd}, {nbytes})"]
            env = os.environ | {"PYTHONPATH": here}
            self._process = subprocess.Popen(command, pass_fds=[fd], env=env)

    def turn(self, kind: bytes) -> Mapping[str, float]:
        """Receive all bytes once."""
        watch = Stopwatch()
        if self._process is None:
            return {"restore": 0.0}
        with socket.create_connection(self._listener.getsockname()) as sock:
            sock.sendall(kind)
            for view in self._targets:
                if kind == b"i":
                    small = view[:_IPERF_BYTES]
                    left = view.nbytes
                    while left:
                        left -= _some(sock.recv_into(small[:left]))
                    continue
                while view.nbytes:
                    view = view[_some(sock.recv_into(view)) :]
        return {"restore": watch.s()}

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def _some(nbytes: int) -> int:
    assert nbytes, "the stream ended early"
    return nbytes


def serve(listening_fd: int, nbytes: int) -> None:
    """Send ``nbytes`` to whoever connects, in the way that the first byte asks for."""
    listener = socket.socket(fileno=listening_fd)
    with Segment.create(nbytes, label="bench stream") as segment:
        segment.populate()
        while True:
            sock, _ = listener.accept()
            with sock, contextlib.suppress(ConnectionError):
                kind = sock.recv(1)
                if kind == b"w":
                    sock.sendall(segment.view)
                elif kind == b"i":
                    for at in range(0, nbytes, _IPERF_BYTES):
                        sock.sendall(segment.view[: min(_IPERF_BYTES, nbytes - at)])
                else:
                    at = 0
                    while at < nbytes:
                        at += os.sendfile(sock.fileno(), segment.fd, at, nbytes - at)
