"""A relay between the agents of nodes, in the process of a test: links that can be cut, slowed and held.

Each agent's address goes through it (`gated_trainer.py` asks for a port that leads to its agent's), so all that agents
say to one another, and all that ranks read from other nodes' agents, passes here. What is cut looks like a connection
that was reset, and new ones are refused; what is silent looks like a network that lets nothing through.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time

_DEPOSIT_BYTES = 200_000  # more than words: a copy for a partner
_CHUNK_BYTES = 1 << 16


class Relay:
    """Listens for whoever wants a port relayed: a connection that sends a port gets another in answer."""

    def __init__(self) -> None:
        self.cut = False
        self.silent = False
        """whether nothing that is sent arrives, and nobody is told"""
        self.slow_s = 0.0
        """seconds that each chunk takes on its way"""
        self.hold_deposit = 0
        """the number (from 1) of the copy for a partner that stops half way; 0: none"""
        self.held = threading.Event()
        self.go = threading.Event()
        self._deposits = 0
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._door = socket.create_server(("127.0.0.1", 0))
        self._start(self._take_orders)

    @property
    def port(self) -> int:
        return int(self._door.getsockname()[1])

    def cut_all(self) -> None:
        """Break every connection, and take no new one until `heal`."""
        self.cut = True
        with self._lock:
            sockets = list(self._sockets)
        for sock in sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def heal(self) -> None:
        self.cut, self.silent, self.slow_s = False, False, 0.0
        self.go.set()

    def end(self) -> None:
        self.go.set()
        self.silent = False
        self.cut_all()
        with contextlib.suppress(OSError):
            self._door.shutdown(socket.SHUT_RDWR)
        self._door.close()

    def _start(self, work: object, *args: object) -> None:
        threading.Thread(target=work, args=args, daemon=True).start()  # type: ignore[arg-type]

    def _take_orders(self) -> None:
        while True:
            try:
                asking, _ = self._door.accept()
            except OSError:
                return
            with asking:
                target = int(asking.recv(16))
                listener = socket.create_server(("127.0.0.1", 0), backlog=64)
                self._keep(listener)
                self._start(self._accept, listener, target)
                asking.sendall(str(listener.getsockname()[1]).encode())

    def _keep(self, *sockets: socket.socket) -> None:
        with self._lock:
            self._sockets.update(sockets)

    def _accept(self, listener: socket.socket, target: int) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                if self.cut:  # `cut_all` ended it for now
                    time.sleep(0.01)
                    with contextlib.suppress(OSError):
                        listener.listen(64)
                        continue
                return
            if self.cut:
                client.close()
                continue
            try:
                server = socket.create_connection(("127.0.0.1", target), timeout=5)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            self._keep(client, server)
            self._start(self._carry, client, server, True)
            self._start(self._carry, server, client, False)

    def _carry(self, source: socket.socket, target: socket.socket, giving: bool) -> None:
        carried = 0
        with contextlib.suppress(OSError):
            while data := source.recv(_CHUNK_BYTES):
                while self.silent:
                    time.sleep(0.01)
                if self.slow_s:
                    time.sleep(self.slow_s)
                before, carried = carried, carried + len(data)
                if giving and before <= _DEPOSIT_BYTES < carried:
                    self._pass_a_deposit()
                target.sendall(data)
        for sock in (source, target):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _pass_a_deposit(self) -> None:
        with self._lock:
            self._deposits += 1
            mine = self._deposits == self.hold_deposit
        if mine:
            self.held.set()
            self.go.wait(20.0)
