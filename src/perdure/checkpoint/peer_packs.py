"""The packs of a save in the memory of another node's agent, as one source of a load; and how the agent serves them.

Keys are unique in a step, so all packs together answer for a key, as `memory_packs` does on the own node. Each thread
that reads takes a connection of its own. What is read is compared with the digests of the packs' headers, as from any
other source.

A transfer may take as long as it needs while bytes come, but for a lower bound of their rate. A node from which nothing
comes for a while (its agent is stopped, or it is cut off) is given up for good: then no read waits for it any more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from perdure.checkpoint.memory_packs import APART, merged_index
from perdure.checkpoint.messages import MAX_MESSAGE_BYTES, PROTOCOL, Packed
from perdure.checkpoint.peer_messages import Fetch, Fetched, Held, PeerMessage, Reader, SaveName
from perdure.clock import Deadline
from perdure.codec.digest import digest, digest_bytes
from perdure.errors import BlobCorrupt, DeadlineExceeded, LinkLost, PerdureError, ProtocolError, StorageError
from perdure.state.save import packs_of
from perdure.store import PackIndex
from perdure.wire import Address, NodeLink, connect_node

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["PeerPacks", "serve_packs"]

_IDLE_S: Final = 600.0
_READER_SILENT_S: Final = 60.0  # that a reader may take nothing: it may itself be stopped, and costs a thread
_LEAST_BYTES_PER_S: Final = 64 << 10  # less is no link
_PART_BYTES: Final = 4 << 20  # after each, whoever waits is told that it goes on


class PeerPacks:
    """What the agent at ``address`` holds of ``save``. Raises what keeps it from being read.

    ``secret`` is that of ``session``, a session of which this process is a rank. ``file`` names the packs and their
    node for people. After ``silent_s`` seconds without a byte the node is given up: `StorageError`, at once for every
    read from then on. ``moved`` is called, in any thread, with the bytes that have come since the last call.
    """

    tier = "peer"
    mapped = False
    raw = True

    def __init__(
        self,
        address: Address,
        *,
        session: str,
        secret: bytes,
        url: str,
        save: SaveName,
        file: str,
        silent_s: float,
        moved: Callable[[int], None] = lambda nbytes: None,
    ) -> None:
        self.file = file
        self._silent_s, self._moved = silent_s, moved
        self._given_up = ""
        self._address, self._session, self._secret, self._url, self._save = address, session, secret, url, save
        self._idle: list[NodeLink] = []
        self._lock = threading.Lock()
        self._index: PackIndex | None = None
        self._closed = False
        with self._told():
            link, self.packs = self._connect()
        self._idle.append(link)

    def index(self) -> PackIndex:
        """The headers of all packs as one, read and checked once."""
        with self._lock:
            known = self._index
        if known is None:
            segments = [(each.index, each.nbytes, self._headers_of(i)) for i, each in enumerate(self.packs)]
            known = self._index = merged_index(segments, file=self.file)
        return known

    def fetch(self, start: int, nbytes: int, into: memoryview | None = None) -> memoryview:
        """Read from the other node."""
        room = memoryview(bytearray(nbytes)) if into is None else into[:nbytes]
        with self._asked(start, nbytes) as (link, deadline):
            for at in range(0, nbytes, _PART_BYTES):
                part = room[at : at + _PART_BYTES]
                link.recv_bulk(part, deadline, silent_s=self._silent_s)
                self._moved(part.nbytes)
        return room

    def read_digested(self, start: int, nbytes: int, into: memoryview, tile_bytes: int) -> bytes:
        """Read from the other node, and hash what has come while the next is on its way."""
        with self._asked(start, nbytes) as (link, deadline):
            digests: list[bytes] = []
            part_bytes = max(1, _PART_BYTES // tile_bytes) * tile_bytes
            for at in range(0, nbytes, part_bytes):
                part = into[at : min(at + part_bytes, nbytes)]
                digests.append(
                    link.recv_tiles(part, tile_bytes, deadline, digest=digest_bytes, silent_s=self._silent_s)
                )
                self._moved(part.nbytes)
        return b"".join(digests)

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for link in idle:
            link.close()

    def _headers_of(self, number: int) -> Callable[[int, int], memoryview]:
        """The headers of a rank's packs: read once, compared with what the agent has announced, then given in parts."""
        packed = self.packs[number]
        room = {
            placed.start: self.fetch(number * APART + placed.start, placed.plan.header_nbytes)
            for placed in packs_of(packed.index)
        }
        if digest(b"".join(room.values())) != packed.headers:
            raise BlobCorrupt(f"{self.file}: a pack is not the one that its node announced", file=self.file)

        def read(start: int, nbytes: int) -> memoryview:
            at = max(begin for begin in room if begin <= start)
            return room[at][start - at : start - at + nbytes]

        return read

    @contextmanager
    def _asked(self, start: int, nbytes: int) -> Iterator[tuple[NodeLink, Deadline]]:
        """A connection on which ``nbytes`` bytes are on their way, and until when."""
        number, at = divmod(start, APART)
        deadline = _until(nbytes, f"{nbytes} bytes of {self.file}", self._silent_s)
        with self._link() as link:
            fetch = Fetch(number=self.packs[number].number, start=at, nbytes=nbytes)
            link.send(fetch, deadline=deadline, silent_s=self._silent_s)
            answer, found = link.recv(deadline, silent_s=self._silent_s)
            if not isinstance(answer, Fetched) or found != nbytes:
                raise ProtocolError(f"an agent answered with a {type(answer).__name__} and {found} bytes")
            yield link, deadline

    @contextmanager
    def _link(self) -> Iterator[NodeLink]:
        """A connection that nobody else uses meanwhile."""
        with self._told():
            with self._lock:
                if self._given_up:
                    raise StorageError(self._given_up, file=self.file)
                link = self._idle.pop() if self._idle else None
            if link is None:
                link, _ = self._connect()
            try:
                yield link
            except BaseException:
                link.close()
                raise
        with self._lock:
            if not self._closed:
                self._idle.append(link)
                return
        link.close()

    @contextmanager
    def _told(self) -> Iterator[None]:
        """What breaks a connection is told as an error of the storage that it stands for."""
        try:
            yield
        except (LinkLost, ProtocolError) as error:
            raise StorageError(f"{self.file} cannot be read: {error}", file=self.file) from error
        except DeadlineExceeded as error:
            silent = f"nothing has come from it for {self._silent_s:g} s (stopped, or cut off)"
            raise self._give_up(silent if "silent_s" in error.facts else str(error)) from error

    def _give_up(self, why: str) -> StorageError:
        """Nobody waits for the node again. What was wrong first is the error of every read."""
        with self._lock:
            self._given_up = self._given_up or f"{self.file} cannot be read: {why}"
            return StorageError(self._given_up, file=self.file)

    def _connect(self) -> tuple[NodeLink, list[Packed]]:
        try:
            link = connect_node(
                self._address,
                name=self._session,
                secret=self._secret,
                deadline=Deadline.after(self._silent_s, f"{self.file} to answer"),
                type=PeerMessage,
                max_body_bytes=MAX_MESSAGE_BYTES,
            )
        except DeadlineExceeded as error:
            raise DeadlineExceeded(str(error), silent_s=self._silent_s) from error
        except LinkLost as error:  # it was tried again all the while
            raise self._give_up(str(error)) from error
        deadline = _until(MAX_MESSAGE_BYTES, f"what there is of {self.file}", self._silent_s)
        try:
            reader = Reader(protocol=PROTOCOL, url=self._url, save=self._save)
            link.send(reader, deadline=deadline, silent_s=self._silent_s)
            answer, _ = link.recv(deadline, silent_s=self._silent_s)
            if not isinstance(answer, Held):
                raise ProtocolError(f"an agent answered with a {type(answer).__name__}")
        except BaseException:
            link.close()
            raise
        return link, answer.packs


def serve_packs(link: NodeLink, packs: Sequence[tuple[Packed, memoryview]]) -> None:
    """Serve a reader until it leaves; ``packs`` are sealed, each with its memory."""
    views = {packed.number: view for packed, view in packs}
    held = Held(packs=[packed for packed, _ in packs])
    link.send(held, deadline=_until(MAX_MESSAGE_BYTES, "a reader", _READER_SILENT_S), silent_s=_READER_SILENT_S)
    while True:
        try:
            message, _ = link.recv(Deadline.after(_IDLE_S, "a reader to ask for more"))
        except PerdureError:
            return  # it has what it wanted
        if not isinstance(message, Fetch) or message.number not in views:
            raise ProtocolError("a reader asks for bytes of packs that are there")
        view = views[message.number]
        if not 0 <= message.start <= message.start + message.nbytes <= view.nbytes:
            raise ProtocolError("a reader asks for bytes beyond a pack")
        part = view[message.start : message.start + message.nbytes]
        deadline = _until(part.nbytes, "a reader to take its bytes", _READER_SILENT_S)
        link.send(Fetched(), part, deadline=deadline, silent_s=_READER_SILENT_S)


def _until(nbytes: int, what: str, silent_s: float) -> Deadline:
    """When the slowest link that is one has brought ``nbytes`` bytes."""
    return Deadline.after(silent_s + nbytes / _LEAST_BYTES_PER_S, what)
