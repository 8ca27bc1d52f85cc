"""A sealed pack that arrives from another node: verified tile by tile while the next one is on its way.

What came over the network is not believed: each header by the digest that an authenticated message announced, each tile
by its digest in the header, when it has just come and still lies in the processor's cache.
"""

from __future__ import annotations

from functools import partial

from perdure.checkpoint.messages import Packed
from perdure.clock import Deadline
from perdure.codec.digest import digest, digest_bytes
from perdure.errors import BlobCorrupt, IntegrityError
from perdure.state.save import packs_of
from perdure.store import PackIndex, parse_header
from perdure.wire import NodeLink

__all__ = ["receive_pack"]

_AT_ONCE_BYTES = 1 << 20


def receive_pack(
    link: NodeLink, packed: Packed, into: memoryview, *, file: str, deadline: Deadline
) -> IntegrityError | None:
    """Fill ``into``, of the bytes of ``packed``, with the bulk that comes next; return what is wrong with it, if it is.

    All bytes are received in any case, so that the link can be used on.
    """
    arriving = _Arriving(link, into, deadline)
    error: IntegrityError | None = None
    try:
        _verify(arriving, packed, file)
    except IntegrityError as why:
        error = why
    arriving.until(into.nbytes)
    return error


class _Arriving:
    """How much of ``into`` has come."""

    def __init__(self, link: NodeLink, into: memoryview, deadline: Deadline) -> None:
        self._link, self.into, self._deadline = link, into, deadline
        self._n_arrived = 0

    def until(self, end: int) -> None:
        """Receive up to byte ``end``, or somewhat further: small tensors come together."""
        if end > self._n_arrived:
            end = max(end, min(self._n_arrived + _AT_ONCE_BYTES, self.into.nbytes))
            self._link.recv_bulk(self.into[self._n_arrived : end], self._deadline)
            self._n_arrived = end


def _verify(arriving: _Arriving, packed: Packed, file: str) -> None:
    headers: list[memoryview] = []
    for placed in packs_of(packed.index):
        if placed.stop > arriving.into.nbytes:
            raise BlobCorrupt(f"{file} is cut off: {arriving.into.nbytes} bytes of {placed.stop}", file=file)
        nbytes = placed.plan.header_nbytes
        arriving.until(placed.start + nbytes)
        pack = arriving.into[placed.start : placed.stop]
        headers.append(pack[:nbytes])
        header = parse_header(partial(_part, headers[-1]), pack.nbytes, file=file)
        _verify_tiles(arriving, pack, placed.start, header)
    if digest(b"".join(headers)) != packed.headers:
        raise BlobCorrupt(f"a pack of {file} is not the one that its node announced", file=file)


def _verify_tiles(arriving: _Arriving, pack: memoryview, at: int, header: PackIndex) -> None:
    for entry in header.entries:
        for tile in range(entry.n_tiles):
            lo = entry.start + tile * header.tile_bytes
            hi = min(lo + header.tile_bytes, entry.start + entry.nbytes)
            arriving.until(at + hi)
            number = entry.first_tile + tile
            if digest_bytes(pack[lo:hi]) != header.digests[16 * number : 16 * number + 16]:
                raise BlobCorrupt(
                    f"{entry.key} of {header.file} does not hash to its digest; another copy is needed",
                    tensor=entry.key,
                    file=header.file,
                    tile=tile,
                )


def _part(view: memoryview, start: int, nbytes: int) -> memoryview:
    if start + nbytes > view.nbytes:
        raise BlobCorrupt("the header of a pack is longer than that which its node announced")
    return view[start : start + nbytes]
