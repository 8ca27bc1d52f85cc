"""What agents hold of one step, as sources of a restore: the own node's first, other nodes' for what it lacks, and
further copies on other nodes for what turns out to be bad in those.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence

from perdure.checkpoint.link import Loan
from perdure.checkpoint.meeting import Peers
from perdure.checkpoint.memory_packs import MemoryPacks
from perdure.checkpoint.peer_messages import SaveName
from perdure.checkpoint.peer_packs import PeerPacks
from perdure.errors import IntegrityError, PerdureError, StorageError
from perdure.state.index import Catalog, RankIndex, StoredPiece
from perdure.state.load import PackSource
from perdure.store import PackIndex

__all__ = ["StepMemory"]


class StepMemory:
    """Grows while a restore finds out who holds what. A node that cannot be reached is noted, and does without.

    A node that is silent for ``silent_s`` seconds is given up. ``on_bytes`` may be set for the time of a load: it is
    called, in any thread, with the bytes that have come from other nodes since the last call.
    """

    def __init__(self, file: str, *, silent_s: float) -> None:
        self._file, self._silent_s = file, silent_s
        self.on_bytes: Callable[[int], None] = lambda nbytes: None
        self._indexes: dict[int, RankIndex] = {}
        self._holders: dict[str, tuple[PackSource, ...]] = {}
        self._peers: list[PeerPacks | _Later] = []
        self._problems: list[str] = []
        self.world = 0
        """how many ranks saved the step, if agents hold any of it"""

    @property
    def ranks(self) -> set[int]:
        """The ranks whose packs have been found."""
        return set(self._indexes)

    @property
    def whole(self) -> bool:
        """Whether all of the step is there."""
        return 0 < self.world == len(self._indexes)

    @property
    def problems(self) -> Sequence[str]:
        """Which nodes could not be reached, and why."""
        return self._problems

    @property
    def because(self) -> str:
        """What kept pieces from being found, as the end of a sentence."""
        return f" ({'; '.join(self._problems)})" if self._problems else ""

    def add_loans(self, loans: Sequence[Loan]) -> None:
        """What the own agent has lent."""
        if loans:
            segments = [(loan.packed.index, loan.view) for loan in loans]
            self._add(MemoryPacks(segments, file=self._file), (index for index, _ in segments))

    def add_peer(self, peers: Peers, node: int, *, url: str, save: SaveName) -> None:
        """What the agent of ``node`` holds."""
        try:
            packs = self._packs_on(peers, node, url, save)
        except PerdureError as error:
            self._problems.append(str(error))
            return
        self._peers.append(packs)
        self._add(packs, (packed.index for packed in packs.packs))

    def add_spare(self, peers: Peers, node: int, ranks: Iterable[int], *, url: str, save: SaveName) -> None:
        """The agent of ``node`` holds what ``ranks`` saved too: it is asked for what is bad in the copies before."""
        known = [self._indexes[rank] for rank in ranks if rank in self._indexes]
        if not known:
            return
        later = _Later(lambda: self._packs_on(peers, node, url, save), self._label(peers, node))
        self._peers.append(later)
        for index in known:
            self._hold(later, index)

    def _packs_on(self, peers: Peers, node: int, url: str, save: SaveName) -> PeerPacks:
        return PeerPacks(
            peers.addresses[node],
            session=peers.session,
            secret=peers.secret,
            url=url,
            save=save,
            file=self._label(peers, node),
            silent_s=self._silent_s,
            moved=lambda nbytes: self.on_bytes(nbytes),
        )

    def _label(self, peers: Peers, node: int) -> str:
        return f"{self._file} on node {node} ({peers.names[node]})"

    def holders(self, piece: StoredPiece) -> tuple[PackSource, ...]:
        """Who holds a piece, the nearest first."""
        return self._holders.get(piece.key, ())

    def catalog(self) -> Catalog:
        """What the step is, by those who saved it."""
        return Catalog.join((f"memory-{rank}", index) for rank, index in sorted(self._indexes.items()))

    def close(self) -> None:
        """Let go of other nodes."""
        for packs in self._peers:
            packs.close()

    def _add(self, source: PackSource, indexes: Iterable[RankIndex]) -> None:
        for index in indexes:
            if index.rank not in self._indexes:
                self._indexes[index.rank] = index
                self._hold(source, index)

    def _hold(self, source: PackSource, index: RankIndex) -> None:
        for tensor in index.tensors:
            for piece in tensor.pieces:
                self._holders[piece.key] = (*self._holders.get(piece.key, ()), source)


class _Later:
    """Packs on another node, which is not connected to before somebody needs them."""

    tier = "peer"
    mapped = False
    raw = True

    def __init__(self, connect: Callable[[], PeerPacks], file: str) -> None:
        self.file = file
        self._connect = connect
        self._packs: PeerPacks | None = None
        self._lock = threading.Lock()

    def index(self) -> PackIndex:
        """The headers of what is there, checked."""
        return self._there().index()

    def fetch(self, start: int, nbytes: int, into: memoryview | None = None) -> memoryview:
        """Read from the other node."""
        return self._there().fetch(start, nbytes, into)

    def read_digested(self, start: int, nbytes: int, into: memoryview, tile_bytes: int) -> bytes:
        """Read from the other node and hash what has come."""
        return self._there().read_digested(start, nbytes, into, tile_bytes)

    def close(self) -> None:
        """Close all connections, if there are any."""
        if self._packs is not None:
            self._packs.close()

    def _there(self) -> PeerPacks:
        with self._lock:
            if self._packs is None:
                try:
                    self._packs = self._connect()
                except (IntegrityError, StorageError):
                    raise
                except PerdureError as error:  # to a load that is a copy that cannot be read
                    raise StorageError(f"{self.file} cannot be read: {error}", file=self.file) from error
            return self._packs
