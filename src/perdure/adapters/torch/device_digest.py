"""Digests of the tiles of a tensor that lies on a device, without a copy of its bytes to the host.

Theory. XXH3-128 reads blocks of 1 KiB. A block adds to 8 accumulators of 64 bits, sums modulo 2^64 that do not depend
on the order; after each block but the last the accumulators are scrambled, which does. So the sums of all blocks of all
tiles are made at once, at the speed of memory (6 % of the bytes are written), and then each tile runs through its few
thousand scrambles, all tiles side by side. What is left of a tile, its last block and the final mixing, is done on the
host: about 1 KiB a tile is copied. Source: the specification of XXH3 (xxHash); seed 0, the default secret.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import torch

from perdure.codec import digest, n_tiles

if TYPE_CHECKING:
    from perdure.adapters.torch.device_backend import Kernels

__all__ = ["device_tile_digests"]

_BLOCK_BYTES: Final = 1024
_STRIPE_BYTES: Final = 64
_TAIL_BYTES: Final = _BLOCK_BYTES + _STRIPE_BYTES
_SHORT_BYTES: Final = 240  # what is not longer is hashed in another way

_SECRET: Final = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221"
    "b8084674f743248ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb"
    "170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)
_PRIME64_1: Final = 0x9E3779B185EBCA87
_PRIME64_2: Final = 0xC2B2AE3D27D4EB4F
_FIRST: Final = (
    0xC2B2AE3D,
    _PRIME64_1,
    _PRIME64_2,
    0x165667B19E3779F9,
    0x85EBCA77C2B2AE63,
    0x85EBCA77,
    0x27D4EB2F165667C5,
    0x9E3779B1,
)
_MASK64: Final = (1 << 64) - 1

Words = npt.NDArray[np.uint64]


def device_tile_digests(tensor: torch.Tensor, tile_bytes: int, kernels: Kernels) -> bytes:
    """What `perdure.codec.tile_digests` returns for the bytes of ``tensor``, uint8[nbytes] in one aligned piece.

    Waits for the device. ``tile_bytes`` is a multiple of 1024.
    """
    nbytes = tensor.numel()
    tiles = n_tiles(nbytes, tile_bytes)
    if tiles == 0:
        return b""
    last_bytes = nbytes - (tiles - 1) * tile_bytes
    keys, first = _constants(tensor.device)
    words = tensor[: nbytes // _BLOCK_BYTES * _BLOCK_BYTES].view(torch.int64)
    blocks = (tile_bytes - 1) // _BLOCK_BYTES if tiles > 1 else 0
    last_blocks = (last_bytes - 1) // _BLOCK_BYTES
    accumulated = kernels.accumulated(words, keys, first, tiles, blocks, last_blocks, tile_bytes // _BLOCK_BYTES)
    accs = accumulated.cpu().numpy().view(np.uint64)
    found = b""
    if tiles > 1:
        whole = tensor[: (tiles - 1) * tile_bytes].view(-1, tile_bytes)
        found = _finished(accs[:-1], whole[:, -_TAIL_BYTES:].cpu().numpy(), tile_bytes)
    tail = tensor[nbytes - min(last_bytes, _TAIL_BYTES) :].cpu().numpy()
    return found + _finished(accs[-1:], tail[None, :], last_bytes)


@functools.cache
def _constants(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """The secret as 24 words and the accumulators to begin with, int64, on ``device``."""
    words = (np.frombuffer(_SECRET, "<i8"), np.array(_FIRST, np.uint64).view(np.int64))
    keys, first = (torch.tensor(each.tolist(), dtype=torch.int64, device=device) for each in words)
    return keys, first


def _finished(accs: Words, tails: npt.NDArray[np.uint8], size: int) -> bytes:
    """The digests of tiles of ``size`` bytes from their accumulators and their last bytes, uint8[tiles, up to 1088]."""
    if size <= _SHORT_BYTES:
        return b"".join(bytes.fromhex(digest(tail.tobytes())) for tail in tails)
    left = size - (size - 1) // _BLOCK_BYTES * _BLOCK_BYTES  # 1 to 1024 bytes that no device has seen
    stripes = (left - 1) // _STRIPE_BYTES
    start = tails.shape[1] - left
    accs = accs.copy()
    for stripe in range(stripes):
        at = start + stripe * _STRIPE_BYTES
        _accumulate(accs, tails[:, at : at + _STRIPE_BYTES], 8 * stripe)
    _accumulate(accs, tails[:, -_STRIPE_BYTES:], len(_SECRET) - 71)
    low = _merged(accs, 11, size * _PRIME64_1 & _MASK64)
    high = _merged(accs, len(_SECRET) - 75, ~(size * _PRIME64_2) & _MASK64)
    return np.stack((high, low), axis=1).astype(">u8").tobytes()


def _accumulate(accs: Words, stripe: npt.NDArray[np.uint8], secret_at: int) -> None:
    words = np.ascontiguousarray(stripe).view("<u8")
    keyed = words ^ _keys(secret_at)
    accs += words[:, [1, 0, 3, 2, 5, 4, 7, 6]] + (keyed & _u64(0xFFFFFFFF)) * (keyed >> _u64(32))


def _merged(accs: Words, secret_at: int, start: int) -> Words:
    """The 8 accumulators of each tile mixed to one word."""
    mixed = accs ^ _keys(secret_at)
    total = _folded(mixed[:, 0::2], mixed[:, 1::2]).sum(axis=1, dtype=np.uint64) + _u64(start)
    total ^= total >> _u64(37)
    total *= _u64(0x165667919E3779F9)
    return np.asarray(total ^ (total >> _u64(32)))


def _folded(a: Words, b: Words) -> Words:
    """The two halves of the 128-bit products, xor-ed."""
    half, low = _u64(32), _u64(0xFFFFFFFF)
    a0, a1, b0, b1 = a & low, a >> half, b & low, b >> half
    middle = (a0 * b0 >> half) + (a0 * b1 & low) + (a1 * b0 & low)
    high = a1 * b1 + (a0 * b1 >> half) + (a1 * b0 >> half) + (middle >> half)
    return np.asarray(a * b ^ high)


def _keys(secret_at: int) -> npt.NDArray[Any]:
    return np.frombuffer(_SECRET[secret_at : secret_at + _STRIPE_BYTES], "<u8")


def _u64(value: int) -> npt.NDArray[Any]:
    return np.array([value], np.uint64)  # an array, since NumPy warns when a scalar wraps round
