"""Where packs are read from: one copy of a pack, in memory or in a store, and what was done with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from perdure.codec.dtypes import nbytes
from perdure.errors import NotCovered
from perdure.state.index import CatalogTensor
from perdure.store.pack import PackIndex

__all__ = ["LoadReport", "PackSource", "check_room"]


class PackSource(Protocol):
    """One copy of a pack. ``tier`` is "memory", "peer", "disk" or "remote"; ``file`` names it for people.

    ``raw`` says that all tensors lie in it as they are, also those that are frames in the store. ``mapped`` says that
    the bytes are in this process's memory, so that `fetch` without ``into`` costs nothing. Any thread may call any
    method.
    """

    tier: str
    file: str
    mapped: bool
    raw: bool

    def index(self) -> PackIndex:
        """The pack's header, checked."""
        ...

    def fetch(self, start: int, nbytes: int, into: memoryview | None = None) -> memoryview:
        """``nbytes`` bytes from ``start``, in ``into`` if given; without it maybe a view of the source itself."""
        ...

    def read_digested(self, start: int, nbytes: int, into: memoryview, tile_bytes: int) -> bytes:
        """Fill ``into``, of ``nbytes`` bytes, from ``start`` on; the digests of what lies there now, 16 bytes each."""
        ...


@dataclass(slots=True)
class LoadReport:
    """What a load did.

    ``tier_nbytes`` are the bytes that each tier brought into live memory, together the ``wanted_nbytes``.
    ``read_nbytes`` of tensors and frames were read for them, whole tiles, and ``pad_nbytes`` between small tensors that
    came in one read; ``shared_nbytes`` of what was wanted another rank of the node had read. ``lossy`` are the tensors
    of which a part came out of a lossy frame, and the largest relative error that any of their frames tells. ``notes``
    has a sentence for each bad copy that was passed over, and one for what is lossy.
    """

    tier_nbytes: dict[str, int] = field(default_factory=dict)
    wanted_nbytes: int = 0
    read_nbytes: int = 0
    pad_nbytes: int = 0
    shared_nbytes: int = 0
    verified_tiles: int = 0
    lossy: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def check_room(saved: CatalogTensor, packs: Mapping[str, PackSource]) -> None:
    """Before memory is taken for all of ``saved``: its pieces are there, and together as large as it claims to be.

    Raises what `PackSource.index` raises, `BlobMissing` for a piece that its pack lacks, `NotCovered` if they are less.
    """
    there = 0
    for piece in saved.pieces:
        if not piece.box.empty:
            entry = packs[piece.pack].index().entry(piece.key)
            there += nbytes(saved.dtype, piece.box.shape) if piece.coded else entry.nbytes
    if there < saved.nbytes:
        raise NotCovered(
            f"{saved.name} has {saved.nbytes} bytes, of which {there} were saved; use another copy or an older step",
            tensor=saved.name,
        )
