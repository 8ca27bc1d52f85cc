"""What agents hold of one step, as sources of a restore: the own node's first, other nodes' for what it lacks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from perdure.checkpoint.link import Loan
from perdure.checkpoint.meeting import Peers
from perdure.checkpoint.memory_packs import MemoryPacks
from perdure.checkpoint.peer_messages import SaveName
from perdure.checkpoint.peer_packs import PeerPacks
from perdure.errors import PerdureError
from perdure.state.index import Catalog, RankIndex, StoredPiece
from perdure.state.load import PackSource

__all__ = ["StepMemory"]


class StepMemory:
    """Grows while a restore finds out who holds what. A node that cannot be reached is noted, and does without."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._indexes: dict[int, RankIndex] = {}
        self._holders: dict[str, PackSource] = {}
        self._peers: list[PeerPacks] = []
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
            packs = PeerPacks(
                peers.addresses[node],
                session=peers.session,
                secret=peers.secret,
                url=url,
                save=save,
                file=f"{self._file} on node {node}",
            )
        except PerdureError as error:
            self._problems.append(str(error))
            return
        self._peers.append(packs)
        self._add(packs, (packed.index for packed in packs.packs))

    def holder(self, piece: StoredPiece) -> PackSource | None:
        """Who holds a piece; None if nobody does."""
        return self._holders.get(piece.key)

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
                for tensor in index.tensors:
                    self._holders.update((piece.key, source) for piece in tensor.pieces)
