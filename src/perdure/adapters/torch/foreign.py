"""What a checkpoint of another format holds, in the terms of a save: tensors as blocks of mapped memory, and values.

Files are mapped, not read: a tensor is a view of its file, paged in when it is copied, and the kernel may take the
pages away again. A mapping is private, so that nothing written to it could reach the file. Whoever truncates a file
that is being imported ends the import with a bus error.
"""

from __future__ import annotations

import mmap
import os
import stat
import zlib
from dataclasses import dataclass, field
from typing import Any

import torch

from perdure.adapters.torch.tensors import LocalBlock, torch_dtype
from perdure.codec.dtypes import DTYPES
from perdure.errors import CallError, FormatRefused
from perdure.store.refusals import explained

__all__ = ["Crc", "Foreign", "ForeignTensor", "Mapped", "inside"]

_NORESERVE = 0x4000  # of Linux: a mapping larger than the memory is fine, nothing is written to it
_CRC_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Crc:
    """What bytes of a file should hash to; 0 says that the writer computed nothing."""

    mapped: Mapped
    start: int
    nbytes: int
    crc: int

    def check(self, what: str) -> None:
        """Read the bytes; raise `FormatRefused` naming ``what`` if they have another CRC-32."""
        self.mapped.check_crc(self.start, self.nbytes, self.crc, what)


@dataclass(frozen=True, slots=True)
class ForeignTensor:
    """A whole tensor: its blocks cover it once; ``aliases`` are its other names, ``crcs`` say what its bytes are."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    blocks: tuple[LocalBlock, ...] = field(repr=False)
    aliases: tuple[str, ...] = ()
    crcs: tuple[Crc, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class Foreign:
    """A checkpoint of another format. Values may refer to tensors by `TensorRef`.

    ``notes`` says what does not come along.
    """

    kind: str
    tensors: tuple[ForeignTensor, ...]
    values: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


class Mapped:
    """The bytes of one regular file, without reading it. ``file`` names it for people."""

    def __init__(self, path: str) -> None:
        self.file = path
        with explained(path, "open"):
            try:
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            except FileNotFoundError:
                raise CallError(f"there is no file {path}", file=path) from None
        try:
            with explained(path, "map"):
                found = os.fstat(fd)
                if not stat.S_ISREG(found.st_mode):
                    raise CallError(f"{path} is no regular file", file=path)
                self.nbytes = found.st_size
                flags = mmap.MAP_PRIVATE | _NORESERVE
                protection = mmap.PROT_READ | mmap.PROT_WRITE  # torch wants memory that could be written
                self._map = mmap.mmap(fd, self.nbytes, flags=flags, prot=protection) if self.nbytes else None
        finally:
            os.close(fd)
        self.view = memoryview(b"") if self._map is None else memoryview(self._map)

    def tensor(self, start: int, dtype: str, count: int) -> torch.Tensor:
        """``count`` elements from byte ``start``, of one dim. The caller has checked that they are in the file."""
        assert 0 <= start <= start + count * DTYPES[dtype].itemsize <= self.nbytes
        if count == 0 or self._map is None:
            return torch.empty(0, dtype=torch_dtype(dtype))
        return torch.frombuffer(self._map, dtype=torch_dtype(dtype), count=count, offset=start)

    def check_crc(self, start: int, nbytes: int, crc: int, what: str) -> None:
        """Raise `FormatRefused` naming ``what`` unless the bytes have that CRC-32; 0 says that there is none."""
        if crc == 0:
            return
        have = 0
        for at in range(start, start + nbytes, _CRC_BYTES):
            have = zlib.crc32(self.view[at : min(at + _CRC_BYTES, start + nbytes)], have)
        if have != crc:
            raise FormatRefused(
                f"{what} in {self.file} is corrupt: it does not have its CRC-32; use another copy",
                file=self.file,
                tensor=what,
            )


def inside(folder: str, name: Any, *, file: str) -> str:
    """The path of the file ``name`` in ``folder``; raise `FormatRefused` for a name that leads out of it."""
    if not isinstance(name, str) or not name or name in (".", "..") or "/" in name or "\\" in name or "\0" in name:
        raise FormatRefused(f"{file} is refused: it names the file {str(name)[:80]!r}, which leads out of its folder")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise FormatRefused(f"{file} is refused: it names a file by what is no Unicode") from None
    return os.path.join(folder, name)
