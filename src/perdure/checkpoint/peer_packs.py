"""The packs of a save in the memory of another node's agent, as one source of a load; and how the agent serves them.

Keys are unique in a step, so all packs together answer for a key, as `memory_packs` does on the own node. Each thread
that reads takes a connection of its own. What is read is compared with the digests of the packs' headers, as from any
other source.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from perdure.checkpoint.memory_packs import APART, merged_index
from perdure.checkpoint.messages import MAX_MESSAGE_BYTES, PROTOCOL, Packed
from perdure.checkpoint.peer_messages import Fetch, Fetched, Held, PeerMessage, Reader, SaveName
from perdure.clock import Deadline
from perdure.codec.digest import digest, digest_bytes
from perdure.errors import BlobCorrupt, LinkLost, PerdureError, ProtocolError, StorageError
from perdure.state.save import packs_of
from perdure.store import PackIndex
from perdure.wire import Address, NodeLink, connect_node

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["PeerPacks", "serve_packs"]

_ANSWER_S = 60.0
_IDLE_S = 600.0


class PeerPacks:
    """What the agent at ``address`` holds of ``save``. Raises what keeps it from being read.

    ``secret`` is that of ``session``, a session of which this process is a rank.
    """

    tier = "peer"
    mapped = False
    raw = True

    def __init__(self, address: Address, *, session: str, secret: bytes, url: str, save: SaveName, file: str) -> None:
        self.file = file
        self._address, self._session, self._secret, self._url, self._save = address, session, secret, url, save
        self._idle: list[NodeLink] = []
        self._lock = threading.Lock()
        self._index: PackIndex | None = None
        self._closed = False
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
            link.recv_bulk(room, deadline)
        return room

    def read_digested(self, start: int, nbytes: int, into: memoryview, tile_bytes: int) -> bytes:
        """Read from the other node, and hash what has come while the next is on its way."""
        with self._asked(start, nbytes) as (link, deadline):
            return link.recv_tiles(into[:nbytes], tile_bytes, deadline, digest=digest_bytes)

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
        deadline = Deadline.after(_ANSWER_S, f"{nbytes} bytes of {self.file}")
        with self._link() as link:
            link.send(Fetch(number=self.packs[number].number, start=at, nbytes=nbytes), deadline=deadline)
            answer, found = link.recv(deadline)
            if not isinstance(answer, Fetched) or found != nbytes:
                raise ProtocolError(f"an agent answered with a {type(answer).__name__} and {found} bytes")
            yield link, deadline

    @contextmanager
    def _link(self) -> Iterator[NodeLink]:
        """A connection that nobody else uses meanwhile.

        What breaks it is told as an error of the storage that it stands for.
        """
        try:
            with self._lock:
                link = self._idle.pop() if self._idle else None
            if link is None:
                link, _ = self._connect()
            try:
                yield link
            except BaseException:
                link.close()
                raise
        except (LinkLost, ProtocolError) as error:
            raise StorageError(f"{self.file} cannot be read: {error}", file=self.file) from error
        with self._lock:
            if not self._closed:
                self._idle.append(link)
                return
        link.close()

    def _connect(self) -> tuple[NodeLink, list[Packed]]:
        deadline = Deadline.after(_ANSWER_S, f"{self.file} to answer")
        link = connect_node(
            self._address,
            name=self._session,
            secret=self._secret,
            deadline=deadline,
            type=PeerMessage,
            max_body_bytes=MAX_MESSAGE_BYTES,
        )
        try:
            link.send(Reader(protocol=PROTOCOL, url=self._url, save=self._save), deadline=deadline)
            answer, _ = link.recv(deadline)
            if not isinstance(answer, Held):
                raise ProtocolError(f"an agent answered with a {type(answer).__name__}")
        except BaseException:
            link.close()
            raise
        return link, answer.packs


def serve_packs(link: NodeLink, packs: Sequence[tuple[Packed, memoryview]]) -> None:
    """Serve a reader until it leaves; ``packs`` are sealed, each with its memory."""
    views = {packed.number: view for packed, view in packs}
    link.send(Held(packs=[packed for packed, _ in packs]), deadline=Deadline.after(_ANSWER_S, "a reader"))
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
        link.send(Fetched(), part, deadline=Deadline.after(_ANSWER_S, "a reader to take its bytes"))
