"""A link between nodes: framed messages over TCP that both ends authenticate with a secret of the job.

Theory. Whoever may connect knows a *secret* that the job's ranks have agreed on, under a *name* (their session). Client
and server each send 32 random bytes; from those, the name and the secret each direction gets a key of its own (HMAC-
SHA256), and every frame carries 16 bytes of HMAC-SHA256 over its number in its direction and all its bytes. So a frame
that was forged, altered, left out, repeated or taken from another connection or direction is refused, and neither end
believes the other before its first frame. Nothing is encrypted.

On the wire: the client's greeting is ``b"PDN0"``, the length of the name (u8), the name and its nonce; the server
answers with its nonce. A frame is u32 bytes of JSON, u64 bytes of *bulk* that follow it, the HMAC, and the JSON; then
the bulk. Bulk is bare: an authenticated message of the caller's says what its digests must be, and the caller compares
them.

Blocking, under deadlines: a call waits in the kernel, which fills whole buffers, until its deadline; bytes that only
trickle do not extend it. A call that is given ``silent_s`` is given up sooner, once not a byte has moved for so long:
its deadline can then be a late one, for a link that is slow. One thread may send while another receives; `shutdown`
may come from any.
"""

from __future__ import annotations

import contextlib
import hmac
import math
import os
import select
import socket
import struct
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Self

from perdure.clock import Deadline
from perdure.errors import CallError, LinkLost, ProtocolError
from perdure.wire.frames import MAX_BODY_BYTES, decode_body, json_of
from perdure.wire.patience import Patience

try:
    from perdure import _native
except ImportError:  # not built for this platform: bytes are received and digested in two steps, and `NATIVE` says so
    _native = None  # type: ignore[assignment]

__all__ = ["NATIVE", "Address", "NodeLink", "accept_node", "connect_node", "listen_node", "own_address"]

Address = tuple[str, int]

NATIVE: Final[bool] = _native is not None
"""Whether bulk is received and digested by one C++ call; `perdure doctor` shows it."""

_GREETING: Final = b"PDN0"
_NONCE_BYTES: Final = 32
_MAC_BYTES: Final = 16
_HEADER: Final = struct.Struct(f"<IQ{_MAC_BYTES}s")
_COUNTED: Final = struct.Struct("<QIQ")
_BACKLOG: Final = 256
_RETRY_S: Final = 0.05
_BUFFER_BYTES: Final = 4 << 20
_CALL_BYTES: Final = 16 << 20  # between two native calls signals are seen
_CALL_S: Final = 1e6  # the longest that a native call takes
_CUT, _LATE, _SILENT = -1, -2, -3
_DIGEST_BYTES: Final = 16
_MAX_BULK_BYTES: Final = 1 << 46
_SILENT_S: Final = 30


class NodeLink:
    """One authenticated connection; made by `connect_node` and `accept_node`. Messages are decoded to ``type``.

    Every method raises `LinkLost` if the peer is gone, `DeadlineExceeded`, or `ProtocolError` if it does not know the
    secret or breaks the rules; after any of them the link is of no more use.
    """

    def __init__(
        self, sock: socket.socket, *, name: str, send_key: bytes, recv_key: bytes, type: Any, max_body_bytes: int
    ) -> None:
        self.name = name
        """what the secret is called: the session of whoever connected"""
        self._sock = sock
        self._send_key, self._recv_key = send_key, recv_key
        self._type, self._max_body_bytes = type, max_body_bytes
        self._n_sent = self._n_received = self._n_bulk = 0

    def send(
        self, message: Any, bulk: memoryview | None = None, *, deadline: Deadline, silent_s: float = math.inf
    ) -> None:
        """Send ``message`` and after it the bytes of ``bulk``."""
        body = json_of(message, max_body_bytes=self._max_body_bytes)
        nbytes = 0 if bulk is None else bulk.nbytes
        mac = _mac(self._send_key, self._n_sent, nbytes, body)
        self._n_sent += 1
        _send_all(self._sock, memoryview(_HEADER.pack(len(body), nbytes, mac) + body), deadline, silent_s)
        if bulk is not None:
            _send_all(self._sock, bulk.cast("B"), deadline, silent_s)

    def recv(self, deadline: Deadline, *, silent_s: float = math.inf) -> tuple[Any, int]:
        """Wait for a message; return it and how many bytes of bulk follow, which `recv_bulk` must take next.

        Raises `CallError` if it has not taken those of the message before.
        """
        if self._n_bulk:
            raise CallError(f"{self._n_bulk} bytes of the message before have not been received")
        n_body, nbytes, mac = _HEADER.unpack(_recv_exactly(self._sock, _HEADER.size, deadline, silent_s))
        if n_body > self._max_body_bytes or nbytes > _MAX_BULK_BYTES:
            raise ProtocolError(f"a peer announced a message of {n_body} bytes; the bound is {self._max_body_bytes}")
        body = _recv_exactly(self._sock, n_body, deadline, silent_s)
        if not hmac.compare_digest(mac, _mac(self._recv_key, self._n_received, nbytes, body)):
            raise ProtocolError(
                "a message between nodes is not from whom it claims to be: it does not know the job's secret"
            )
        self._n_received += 1
        self._n_bulk = nbytes
        return decode_body(body, type=self._type), nbytes

    def recv_bulk(self, into: memoryview, deadline: Deadline, *, silent_s: float = math.inf) -> None:
        """Fill ``into`` with the next bytes that `recv` announced: all at once or in several calls.

        Raises `CallError` if ``into`` has more bytes than are to come.
        """
        if into.nbytes > self._n_bulk:
            raise CallError(f"{into.nbytes} bytes are wanted and {self._n_bulk} are to come")
        _recv_into(self._sock, into.cast("B"), deadline, silent_s)
        self._n_bulk -= into.nbytes

    def recv_tiles(
        self,
        into: memoryview,
        tile_bytes: int,
        deadline: Deadline,
        *,
        digest: Callable[[memoryview], bytes],
        silent_s: float = math.inf,
    ) -> bytes:
        """Fill ``into`` as `recv_bulk` does, and digest each tile of it while it still lies in the cache.

        The digests have 16 bytes each. ``digest`` is XXH3-128, for where the native code that does both in one call is
        not built. Raises `CallError` if ``into`` has more bytes than are to come, or ``tile_bytes`` is below 1.
        """
        if into.nbytes > self._n_bulk or tile_bytes < 1:
            raise CallError(f"{into.nbytes} bytes in tiles of {tile_bytes} are wanted and {self._n_bulk} are to come")
        room = into.cast("B")
        digests: list[bytes] = []
        call_bytes = max(1, _CALL_BYTES // tile_bytes) * tile_bytes if NATIVE else tile_bytes
        for at in range(0, room.nbytes, call_bytes):
            part = room[at : at + call_bytes]
            if NATIVE:
                digests.append(_recv_digested(self._sock, part, tile_bytes, deadline, silent_s))
            else:
                _recv_into(self._sock, part, deadline, silent_s)
                digests.append(digest(part))
            self._n_bulk -= part.nbytes
        return b"".join(digests)

    def fileno(self) -> int:
        """The descriptor, to wait on among others."""
        return self._sock.fileno()

    def readable(self, within_s: float) -> bool:
        """Whether something has come, or the link has ended, within so many seconds."""
        return _ready(self._sock, select.POLLIN, within_s)

    def writable(self) -> bool:
        """Whether a short message would be sent without waiting."""
        return _ready(self._sock, select.POLLOUT, 0.0)

    def shutdown(self) -> None:
        """End both directions; whoever waits gets `LinkLost`."""
        with contextlib.suppress(OSError):  # the peer was faster
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket; twice is fine."""
        self._sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def listen_node(host: str, *, port: int = 0) -> socket.socket:
    """A listening socket at ``host``; `LinkLost` if it is not this node's. Port 0 is one that the kernel chooses."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        sock = socket.socket(family, kind, proto)
    except OSError as error:
        raise LinkLost(f"cannot listen at {host}: {error}") from error
    try:
        if port:  # one that was just in use may be taken over
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        raise LinkLost(f"cannot listen at {host}:{port}: {error}") from error
    return sock


def accept_node(
    sock: socket.socket,
    secret_of: Callable[[str], bytes | None],
    *,
    deadline: Deadline,
    type: Any = dict[str, Any],
    max_body_bytes: int = MAX_BODY_BYTES,
) -> NodeLink:
    """The link on ``sock``, which a listener has just accepted and which the link owns from now on.

    ``secret_of`` gives the secret of a name, None if there is no such: then the peer is refused. That the peer knows
    the secret is proved by its first message.
    """
    try:
        _prepare(sock)
        if _recv_exactly(sock, len(_GREETING), deadline) != _GREETING:
            raise ProtocolError("a peer does not speak this protocol between nodes")
        n_name = _recv_exactly(sock, 1, deadline)[0]
        name = _recv_exactly(sock, n_name, deadline).decode("utf-8", "replace")
        theirs = _recv_exactly(sock, _NONCE_BYTES, deadline)
        secret = secret_of(name)
        if secret is None:
            raise ProtocolError(f"a peer belongs to a session that is not known here: {name[:64]!r}")
        mine = os.urandom(_NONCE_BYTES)
        _send_all(sock, memoryview(mine), deadline)
        client, server = _keys(secret, name, theirs, mine)
        return NodeLink(sock, name=name, send_key=server, recv_key=client, type=type, max_body_bytes=max_body_bytes)
    except BaseException:
        sock.close()
        raise


def connect_node(
    address: Address,
    *,
    name: str,
    secret: bytes,
    deadline: Deadline,
    type: Any = dict[str, Any],
    max_body_bytes: int = MAX_BODY_BYTES,
) -> NodeLink:
    """A link to whoever listens at ``address``, as a member of session ``name``; tries again until the deadline."""
    while True:
        try:
            sock = socket.create_connection(address, timeout=max(deadline.left(), _RETRY_S))
            break
        except OSError as error:
            if deadline.passed():
                raise LinkLost(
                    f"cannot reach the node at {address[0]}:{address[1]} ({error}), for {deadline.what}"
                ) from error
            deadline.clock.sleep(min(_RETRY_S, deadline.left()))
    try:
        _prepare(sock)
        encoded, mine = name.encode(), os.urandom(_NONCE_BYTES)
        if len(encoded) > 255:
            raise CallError("the name of a session has at most 255 bytes")
        _send_all(sock, memoryview(_GREETING + bytes((len(encoded),)) + encoded + mine), deadline)
        theirs = _recv_exactly(sock, _NONCE_BYTES, deadline)
        client, server = _keys(secret, name, mine, theirs)
        return NodeLink(sock, name=name, send_key=client, recv_key=server, type=type, max_body_bytes=max_body_bytes)
    except BaseException:
        sock.close()
        raise


def own_address(towards: str | None) -> str:
    """The address by which other nodes reach this one: that from which it would send to the host ``towards``."""
    if towards is None:
        return "127.0.0.1"
    try:
        family, kind, proto, _, address = socket.getaddrinfo(towards, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, proto) as probe:
            probe.connect(address)  # sends nothing
            return str(probe.getsockname()[0])
    except OSError as error:
        raise LinkLost(f"no way to {towards}, which the launcher named as the job's first node: {error}") from error


def _keys(secret: bytes, name: str, client: bytes, server: bytes) -> tuple[bytes, bytes]:
    salt = client + server + name.encode()
    return hmac.digest(secret, b"client" + salt, "sha256"), hmac.digest(secret, b"server" + salt, "sha256")


def _mac(key: bytes, number: int, n_bulk: int, body: bytes) -> bytes:
    return hmac.digest(key, _COUNTED.pack(number, len(body), n_bulk) + body, "sha256")[:_MAC_BYTES]


def _prepare(sock: socket.socket) -> None:
    sock.setblocking(True)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, seconds in ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 4)):
        sock.setsockopt(socket.IPPROTO_TCP, option, seconds)  # a node that lost its power shows within half a minute
    # Also while something is on its way to it: then the kernel sends no keepalive, and would resend for a quarter of an
    # hour.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _SILENT_S * 1000)


def _send_all(sock: socket.socket, data: memoryview, deadline: Deadline, silent_s: float = math.inf) -> None:
    patience = Patience(sock, socket.SO_SNDTIMEO, deadline, silent_s)
    while data.nbytes:
        try:
            patience.arm()
            n = sock.send(data, socket.MSG_NOSIGNAL)
        except BlockingIOError:
            n = 0
        except OSError as error:
            raise LinkLost(f"the connection to a node broke: {error.strerror or error}") from error
        data = data[n:]
        if data.nbytes:
            patience.moved(n)


def _recv_exactly(sock: socket.socket, nbytes: int, deadline: Deadline, silent_s: float = math.inf) -> bytes:
    data = bytearray()
    while len(data) < nbytes:  # grows with what comes, whatever was announced
        part = bytearray(min(nbytes - len(data), _BUFFER_BYTES))
        _recv_into(sock, memoryview(part), deadline, silent_s)
        data += part
    return bytes(data)


def _recv_into(sock: socket.socket, into: memoryview, deadline: Deadline, silent_s: float = math.inf) -> None:
    patience = Patience(sock, socket.SO_RCVTIMEO, deadline, silent_s)
    while into.nbytes:
        try:
            patience.arm()
            n = sock.recv_into(into, 0, socket.MSG_WAITALL)
        except BlockingIOError:
            patience.moved(0)
            continue
        except OSError as error:
            raise LinkLost(f"the connection to a node broke: {error.strerror or error}") from error
        if n == 0:
            raise LinkLost("a node closed the connection")
        into = into[n:]
        if into.nbytes:
            patience.moved(n)


def _recv_digested(
    sock: socket.socket, into: memoryview, tile_bytes: int, deadline: Deadline, silent_s: float
) -> bytes:
    digests = bytearray(-(-into.nbytes // tile_bytes) * _DIGEST_BYTES)
    patience = Patience(sock, socket.SO_RCVTIMEO, deadline, silent_s)
    within_s = max(min(deadline.left(), _CALL_S), 0.0)
    try:
        patience.arm()
        code = _native.recv_tiles(sock.fileno(), into, tile_bytes, digests, within_s, patience.most_silent)
    except OSError as error:
        raise LinkLost(f"the connection to a node broke: {error.strerror or error}") from error
    if code == _SILENT:
        patience.silent()
    if code == _LATE:
        patience.late()
    if code != 0:
        raise LinkLost(
            "a node closed the connection" if code == _CUT else f"the connection to a node broke: {os.strerror(code)}"
        )
    return bytes(digests)


def _ready(sock: socket.socket, what: int, within_s: float) -> bool:
    poller = select.poll()
    try:
        poller.register(sock, what)
    except ValueError:
        raise LinkLost("the connection to a node is closed") from None
    return bool(poller.poll(within_s * 1000))
