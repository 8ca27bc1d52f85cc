"""The codec `mask` on the device; `perdure.adapters.torch.device_codec` tells why and how."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from perdure.adapters.torch.device_backend import Backend, flat_on, pair
from perdure.adapters.torch.device_digest import device_tile_digests
from perdure.adapters.torch.tensors import dtype_name, torch_dtype
from perdure.codec import TILE_BYTES, frame_info, nbytes
from perdure.codec.digest import BytesLike, as_bytes
from perdure.codec.header import FrameInfo, render, root_digest
from perdure.errors import BlobCorrupt, CallError, FormatRefused

__all__ = ["Masked", "mask_on_device", "unmask_on_device"]

_STRETCH: Final = 2048  # elements of one program
_TILE_BYTES: Final = tuple(1 << log2 for log2 in range(12, 27))


@dataclass(frozen=True, slots=True, kw_only=True)
class Masked:
    """A tensor as its changes since a base: bits and elements on the device, everything small on the host."""

    dtype: str
    """true dtype of the tensor"""
    shape: tuple[int, ...]
    mask: torch.Tensor
    """uint8[ceil(n / 8)] on the device; all ones in tiles that are raw"""
    values: torch.Tensor
    """the elements whose bit is set, in order, as integers, on the device"""
    coded_nbytes: tuple[int, ...]
    """bytes of each coded tile"""
    tile_bytes: int
    tile_digests: bytes
    """digests of the tensor's tiles, 16 bytes each, made on the device"""
    base_digest: str
    """digest of the base, made on the device"""
    backend: Backend
    """who made it"""

    @property
    def nbytes(self) -> int:
        """Bytes that `frame_parts` copies from the device."""
        return self.mask.nbytes + self.values.nbytes

    def frame_parts(self) -> list[memoryview]:
        """The frame in pieces: header, then bits and elements of each tile (raw tiles: elements alone).

        Copies bits and elements to the host once, and waits for it; what comes back are views of that copy. Together
        they are what `perdure.codec.encode` returns.
        """
        mask, values = (_host_bytes(each) for each in (self.mask, self.values))
        tiles = _tiles(torch_dtype(self.dtype), nbytes(self.dtype, self.shape), self.tile_bytes)
        raw = self.coded_nbytes == tuple(size for size, _ in tiles)
        head = render(
            codec="raw" if raw else "mask",
            dtype=self.dtype,
            shape=self.shape,
            base=None if raw else self.base_digest,
            tile_bytes=self.tile_bytes,
            coded_nbytes=self.coded_nbytes,
            tile_digests=self.tile_digests,
        )
        parts, mask_at, at = [memoryview(head)], 0, 0
        for coded, (size, mask_bytes) in zip(self.coded_nbytes, tiles, strict=True):
            n = coded if coded == size else coded - mask_bytes
            if coded != size:
                parts.append(mask[mask_at : mask_at + mask_bytes].data)
            parts.append(values[at : at + n].data)
            mask_at, at = mask_at + mask_bytes, at + n
        return parts

    def frame(self) -> bytes:
        """The frame in one piece."""
        return b"".join(self.frame_parts())


def mask_on_device(
    tensor: torch.Tensor, *, base: torch.Tensor, tile_bytes: int = TILE_BYTES, backend: Backend | None = None
) -> Masked:
    """Find what changed in ``tensor`` since ``base``, an earlier state of it, on the device where both lie.

    Any dtype that has bytes, compared bit for bit. Needs room on the device for a bit an element and the changed
    elements, and waits for it. A tensor that is not contiguous, or lies at an odd address, is copied there first.
    Neither may change before this returns. ``tile_bytes`` is a power of two from 2^12 to 2^26; `encode` has 2^22.

    Raises: `CallError` if the two differ in dtype, shape or device, have no plain bytes (sparse, quantized, wrapped),
    or the backend cannot work on them.
    """
    now, before, kernels, chosen = pair(tensor, base, backend)
    if tile_bytes not in _TILE_BYTES:
        raise CallError(f"tile_bytes must be a power of two from 2^12 to 2^26, not {tile_bytes}")
    name, width = dtype_name(tensor.dtype), now.element_size()
    stretch = min(_STRETCH, tile_bytes // width)
    mask, counts = kernels.mask_and_counts(now, before, stretch)
    by_tile = _by_tile(counts, tile_bytes // width // stretch)
    tiles = _tiles(tensor.dtype, now.nbytes, tile_bytes)
    changed: list[int] = by_tile.sum(1).tolist()  # waits for the device
    raw = [mask_bytes + width * n >= size for n, (size, mask_bytes) in zip(changed, tiles, strict=True)]
    if any(raw):
        by_tile = _all_of_raw_tiles(raw, mask, by_tile, now.numel(), stretch)
    wanted = [size // width if whole else n for n, whole, (size, _) in zip(changed, raw, tiles, strict=True)]
    starts = (by_tile.view(-1).cumsum(0) - by_tile.view(-1))[: counts.numel()]
    values = kernels.compacted(now, mask, starts, sum(wanted), stretch)
    return Masked(
        dtype=name,
        shape=tuple(tensor.shape),
        mask=mask,
        values=values,
        coded_nbytes=tuple(
            size if whole else mask_bytes + width * n
            for n, whole, (size, mask_bytes) in zip(changed, raw, tiles, strict=True)
        ),
        tile_bytes=tile_bytes,
        tile_digests=device_tile_digests(now.view(torch.uint8), tile_bytes, kernels),
        base_digest=root_digest(device_tile_digests(before.view(torch.uint8), tile_bytes, kernels)),
        backend=chosen,
    )


def unmask_on_device(frame: BytesLike, *, base: torch.Tensor, backend: Backend | None = None) -> torch.Tensor:
    """Give back the tensor of ``frame`` on the device of ``base``: a new one, its digests compared there.

    For frames of `mask_on_device` and of ``perdure.codec.encode(..., codec="mask")`` (or ``"raw"``, which make no use
    of the base's bytes). Bits and elements go to the device and nothing else does. Waits for the device.

    Raises: `BlobCorrupt` if the frame was cut off or altered: use another copy (facts: ``tile``); `FormatRefused` if it
    is none that this release reads; `CallError` if it is of another codec, dtype or shape, or ``base`` is another one.
    """
    data = as_bytes(frame)
    info = frame_info(data)
    if info.frame_nbytes != data.size:
        raise BlobCorrupt(f"the frame has {data.size} bytes, its header tells of {info.frame_nbytes}")
    if info.codec not in ("mask", "raw"):
        raise CallError(f"frames of {info.codec} are decoded on the host: perdure.codec.decode", codec=info.codec)
    before, kernels, _ = flat_on(base, backend)
    if (info.dtype, info.shape) != (dtype_name(base.dtype), tuple(base.shape)):
        raise CallError(
            f"the frame holds {info.dtype} {info.shape}, the base is {dtype_name(base.dtype)} {tuple(base.shape)}",
            dtype=info.dtype,
            shape=list(info.shape),
        )
    if info.base is not None:
        found = root_digest(device_tile_digests(before.view(torch.uint8), info.tile_bytes, kernels))
        if found != info.base:
            raise CallError(f"this frame was made on base {info.base}, not {found}", base=info.base, found=found)
    width = before.element_size()
    stretch = min(_STRETCH, info.tile_bytes // width)
    bits, elements = _bits_and_elements(info, data, base.dtype)
    ends = np.bitwise_count(_rows(bits, stretch // 8)).sum(axis=1, dtype=np.int64).cumsum()
    starts = np.concatenate((np.zeros(1, np.int64), ends))[: -(-before.numel() // stretch)]
    mask, at, values = (torch.from_numpy(each).to(base.device) for each in (bits, starts, elements))
    out = kernels.restored(before, mask, at, values, stretch)
    digests = device_tile_digests(out.view(torch.uint8), info.tile_bytes, kernels)
    for tile in range(len(info.coded_nbytes)):
        if digests[16 * tile : 16 * tile + 16] != info.tile_digests[16 * tile : 16 * tile + 16]:
            raise BlobCorrupt(f"tile {tile} of the frame does not have its digest", tile=tile)
    return out.view(base.dtype).view(base.shape)


def _bits_and_elements(
    info: FrameInfo, data: npt.NDArray[np.uint8], dtype: torch.dtype
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[Any]]:
    """The bits of all tiles and their elements as integers, proved to fit each other; raw tiles have all bits set."""
    width = min(dtype.itemsize, 8)
    tiles = _tiles(dtype, info.nbytes, info.tile_bytes)
    bits = np.empty(sum(mask_bytes for _, mask_bytes in tiles), np.uint8)
    elements, at, bits_at = [], info.header_nbytes, 0
    for tile, (coded, (size, mask_bytes)) in enumerate(zip(info.coded_nbytes, tiles, strict=True)):
        mine, n = bits[bits_at : bits_at + mask_bytes], size // width
        part = data[at : at + coded]
        if coded == size:
            mine[:] = 0xFF  # unused bits too: nobody looks at them
            elements.append(part)
        else:
            if coded < mask_bytes:
                raise FormatRefused(f"{coded} bytes are no mask of a tile of {size} bytes", tile=tile)
            mine[:] = part[:mask_bytes]
            elements.append(part[mask_bytes:])
            if int(mine[-1]) >> (8 - -n % 8) or int(np.bitwise_count(mine).sum()) * width != coded - mask_bytes:
                raise FormatRefused(f"{coded} bytes are no mask of a tile of {size} bytes and its changes", tile=tile)
        at, bits_at = at + coded, bits_at + mask_bytes
    return bits, np.concatenate(elements or [np.empty(0, np.uint8)]).view("u1" if width == 1 else f"i{width}")


def _all_of_raw_tiles(
    raw: list[bool], mask: torch.Tensor, by_tile: torch.Tensor, n: int, stretch: int
) -> torch.Tensor:  # fmt: skip
    """Set all bits of raw tiles in ``mask``; the counts with those of raw tiles made as large as the tiles are."""
    whole = torch.tensor(raw, device=mask.device)
    mask.masked_fill_(whole.repeat_interleave(by_tile.shape[1] * stretch // 8)[: mask.numel()], 0xFF)
    begins = torch.arange(by_tile.numel(), device=mask.device) * stretch
    return torch.where(whole[:, None], (n - begins).clamp(0, stretch).view_as(by_tile), by_tile)


def _by_tile(counts: torch.Tensor, per_tile: int) -> torch.Tensor:
    """Counts of stretches as a row for each tile; where the last tile is shorter, zeros."""
    return torch.nn.functional.pad(counts, (0, -counts.numel() % per_tile)).view(-1, per_tile)


def _rows(bits: npt.NDArray[np.uint8], length: int) -> npt.NDArray[np.uint8]:
    return np.pad(bits, (0, -bits.size % length)).reshape(-1, length)


def _tiles(dtype: torch.dtype, nbytes: int, tile_bytes: int) -> list[tuple[int, int]]:
    """The bytes of each tile and of its bits."""
    width = min(dtype.itemsize, 8)
    sizes = [min(tile_bytes, nbytes - start) for start in range(0, nbytes, tile_bytes)]
    return [(size, -(-(size // width) // 8)) for size in sizes]


def _host_bytes(tensor: torch.Tensor) -> npt.NDArray[np.uint8]:
    found: npt.NDArray[np.uint8] = tensor.view(torch.uint8).cpu().numpy()
    return found
