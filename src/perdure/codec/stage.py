"""What a stage is: a tile of elements to bytes and back.

A stage is a type: what goes in and what comes out is in its signature, so a chain that cannot work is a type error.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import ClassVar, Final, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from perdure.codec.digest import BytesLike
from perdure.codec.dtypes import DType

__all__ = ["LEVELS", "ArrayToBytes", "Bytes", "Digests", "DigestsOnTheWay", "Level", "Lossy", "coded_by"]

Bytes: TypeAlias = npt.NDArray[np.uint8]

Digests: TypeAlias = npt.NDArray[np.uint8]
"""uint8[2, 16]: of a tile and of its base."""

Level: TypeAlias = Literal["normal", "small"]
"""``small`` is smaller, and slower to write or, where a codec is lossy, coarser; readers need not know."""

LEVELS: Final[tuple[Level, ...]] = ("normal", "small")

_of_thread = threading.local()


class ArrayToBytes(Protocol):
    """A stage that turns a tile of elements into bytes and back.

    A tile is uint8[n], the elements' bytes in native order, a whole number of elements (itemsizes are powers of two and
    so are tiles). Stages are pure, keep no state, and run on any thread.
    """

    name: ClassVar[str]
    """What users call it."""
    number: ClassVar[int]
    """What stands for it in a frame, for ever."""

    def encode(self, tile: Bytes, *, dtype: DType, base: Bytes | None, level: Level) -> BytesLike:
        """The coded tile; ``base`` holds the same elements of the base tensor, if there is one.

        A tile for which the stage can do nothing comes back as it is. What comes back may lie in memory that the
        thread's next call of any stage writes over.
        """
        ...

    def decode(self, coded: Bytes, out: Bytes, *, dtype: DType, base: Bytes | None) -> None:
        """Write the tile to ``out``, of exactly its size.

        Raises: `FormatRefused` if ``coded`` is nothing that `encode` returns; never reads or writes outside of the
        arrays.
        """
        ...


class Lossy(ArrayToBytes, Protocol):
    """A stage that gives back other elements, near to those that went in. Users choose it by name; nobody else does."""

    dtypes: ClassVar[tuple[str, ...]]
    """The dtypes that it takes."""


@runtime_checkable
class DigestsOnTheWay(Protocol):
    """A stage that can take the digests of a tile and its base while their bytes are in the cache anyway."""

    def encode_and_digest(
        self, tile: Bytes, *, dtype: DType, base: Bytes, level: Level, digests: Digests
    ) -> BytesLike | None:
        """What `ArrayToBytes.encode` returns, and the digests; None, and no digests, where it can do nothing."""
        ...

    def decode_and_digest(self, coded: Bytes, out: Bytes, *, dtype: DType, base: Bytes, digests: Digests) -> None:
        """What `ArrayToBytes.decode` does, and the digests.

        Raises: what `ArrayToBytes.decode` raises; ``digests`` may then hold anything.
        """
        ...


def coded_by(encode: Callable[[Bytes], int], room_bytes: int) -> Bytes:
    """What ``encode`` writes into ``room_bytes`` bytes of this thread's own, good until its next call.

    The memory stays: to make the pages of new memory takes longer than to code a tile.
    """
    room: Bytes | None = getattr(_of_thread, "room", None)
    if room is None or room.size < room_bytes:
        room = _of_thread.room = np.empty(room_bytes, np.uint8)
    return room[: encode(room)]
