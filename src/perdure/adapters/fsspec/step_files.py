"""A committed step as files that others can read: for each top-level key a safetensors file, and the values as JSON.

No such file lies in the store. Its header follows from the catalog; any range of it is read when it is asked for, out
of the packs and under whatever cut the step was saved, tile by tile, verified.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from urllib.parse import quote

import msgspec
import numpy as np

from perdure.codec.dtypes import DTYPES
from perdure.state.index import Catalog, CatalogTensor
from perdure.state.items import Held, Memory, TensorItem
from perdure.state.load import Match, PackSource, load
from perdure.state.transfers import blocks
from perdure.store.safetensors import StoredAs, write_header

__all__ = ["VALUES", "StepFile", "files_of"]

VALUES = "values.json"


@dataclass(frozen=True, slots=True)
class _Placed:
    """A tensor whose bytes are those of the file from ``start`` on."""

    saved: CatalogTensor
    start: int


class StepFile:
    """One file of a step: its first bytes, and where in it the tensors are."""

    def __init__(
        self,
        head: bytes,
        tensors: Sequence[_Placed] = (),
        *,
        catalog: Catalog,
        sources: Callable[[str], Sequence[PackSource]],
    ) -> None:
        self._head, self._tensors, self._catalog, self._sources = head, tensors, catalog, sources

    @property
    def nbytes(self) -> int:
        """Bytes of the file."""
        return len(self._head) + sum(each.saved.nbytes for each in self._tensors)

    def read(self, start: int, stop: int, moved: Callable[[int], None] = lambda nbytes: None) -> bytes:
        """Bytes ``start <= i < stop``, verified; raises `BlobCorrupt` naming tensor and pack. ``moved`` hears of bytes.

        Holds as much memory as it returns, twice, and a tile.
        """
        stop = min(stop, self.nbytes)
        if start >= stop:
            return b""
        out = bytearray(stop - start)
        out[: max(0, len(self._head) - start)] = self._head[start:stop]
        matches: list[Match] = []
        parts: list[tuple[int, memoryview]] = []
        for placed in self._tensors:
            lo, hi = max(start, placed.start), min(stop, placed.start + placed.saved.nbytes)
            if lo < hi:
                match, part = _range(placed.saved, lo - placed.start, hi - placed.start)
                matches.append(match)
                parts.append((lo - start, part))
        load(self._catalog, matches, self._sources, on_bytes=moved)
        for at, part in parts:
            out[at : at + part.nbytes] = part
        return bytes(out)


def files_of(catalog: Catalog, sources: Callable[[str], Sequence[PackSource]]) -> dict[str, StepFile]:
    """The files of a step by name. In ``model.safetensors`` is what is called ``model.*``, without that prefix.

    A tensor with several names is there under each. What is of one rank alone is in none.
    """
    groups: dict[str, dict[str, CatalogTensor]] = {}
    for saved in catalog.tensors.values():
        for name in (saved.name, *saved.aliases):
            key, _, rest = name.partition(".")
            groups.setdefault(key, {})[rest or key] = saved
    files: dict[str, StepFile] = {}
    for key in sorted(groups):
        stored = [StoredAs(name, saved.dtype, saved.shape, saved.nbytes) for name, saved in groups[key].items()]
        head, ordered = write_header(stored, {"format": "pt"})
        tensors, at = [], len(head)
        for each in ordered:
            tensors.append(_Placed(groups[key][each.key], at))
            at += each.nbytes
        files[f"{quote(key, safe='')}.safetensors"] = StepFile(head, tensors, catalog=catalog, sources=sources)
    values = msgspec.json.format(msgspec.json.encode(dict(sorted(catalog.values.items()))), indent=2)
    files[VALUES] = StepFile(values + b"\n", catalog=catalog, sources=sources)
    return files


def _range(saved: CatalogTensor, lo: int, hi: int) -> tuple[Match, memoryview]:
    """Bytes ``lo <= i < hi`` of a tensor: what to load, whole elements, and the view that will hold the bytes."""
    width = DTYPES[saved.dtype].itemsize
    first, last = lo // width, -(-hi // width)
    data = np.empty((last - first) * width, np.uint8)
    held, at = [], 0
    for box in blocks(saved.shape, first, last):
        nbytes = box.size * width
        held.append(Held(box, Memory(data.ctypes.data + at, nbytes, data)))
        at += nbytes
    item = TensorItem(saved.name, saved.dtype, saved.shape, tuple(held))
    return Match(item, saved), data.data[lo - first * width : hi - first * width]
