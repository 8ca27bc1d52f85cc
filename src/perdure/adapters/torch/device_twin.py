"""The kernels of `perdure.adapters.torch.device_codec` in plain torch: the oracle of `device_kernels`.

Works on every device and needs no Triton; takes several passes over memory, a few times the tensor's bytes of it, and,
for digests, some ten thousand small launches a call.
"""

from __future__ import annotations

import torch

__all__ = [
    "accumulated",
    "compacted",
    "distances",
    "from_distances",
    "mask_and_counts",
    "restored",
]

_BLOCKS_AT_ONCE = 1 << 13  # of 1 KiB; bounds what is in memory beside the tensor


def mask_and_counts(now: torch.Tensor, before: torch.Tensor, stretch: int) -> tuple[torch.Tensor, torch.Tensor]:
    """See `device_backend.Kernels`."""
    differs = now != before
    eights = _padded(differs, 8).view(-1, 8).to(torch.uint8)
    mask = (eights << torch.arange(8, dtype=torch.uint8, device=now.device)).sum(1, dtype=torch.uint8)
    return mask, _padded(differs, stretch).view(-1, stretch).sum(1)


def compacted(
    now: torch.Tensor, mask: torch.Tensor, starts: torch.Tensor, total: int, stretch: int
) -> torch.Tensor:  # fmt: skip
    """See `device_backend.Kernels`."""
    return now[_flags(mask, now.numel())]


def restored(
    before: torch.Tensor, mask: torch.Tensor, starts: torch.Tensor, values: torch.Tensor, stretch: int
) -> torch.Tensor:
    """See `device_backend.Kernels`."""
    out = before.clone()
    out[_flags(mask, before.numel())] = values
    return out


def distances(now: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
    """See `device_backend.Kernels`."""
    return (_ordered(now) - _ordered(before)).to(torch.int16)


def from_distances(distance: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
    """See `device_backend.Kernels`."""
    return _ordered((_ordered(before) + distance).to(before.dtype)).to(before.dtype)


def accumulated(
    words: torch.Tensor, keys: torch.Tensor, first: torch.Tensor, tiles: int, blocks: int, last_blocks: int, stride: int
) -> torch.Tensor:
    """See `device_backend.Kernels`."""
    sums = _block_sums(words, keys)
    accs = first.repeat(tiles, 1)
    starts = torch.arange(tiles, device=sums.device) * stride
    key = keys[16:24]
    for block in range(max(blocks, last_blocks)):
        some = slice(0 if block < blocks else tiles - 1, tiles if block < last_blocks else tiles - 1)
        after = accs[some] + sums[starts[some] + block]
        accs[some] = (after ^ (after >> 47 & 0x1FFFF) ^ key) * 0x9E3779B1
    return accs


def _block_sums(words: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """What each block adds to the accumulators, int64[blocks, 8]."""
    n = words.numel() // 128
    stripe, lane = torch.arange(16, device=words.device)[:, None], torch.arange(8, device=words.device)[None, :]
    key = keys[stripe + lane]
    sums = torch.empty((n, 8), dtype=torch.int64, device=words.device)
    for start in range(0, n, _BLOCKS_AT_ONCE):
        word = words[128 * start : 128 * min(start + _BLOCKS_AT_ONCE, n)].view(-1, 16, 8)
        keyed = word ^ key
        product = (keyed & 0xFFFFFFFF) * (keyed >> 32 & 0xFFFFFFFF)
        sums[start : start + len(word)] = product.sum(1) + word.sum(1)[:, [1, 0, 3, 2, 5, 4, 7, 6]]
    return sums


def _padded(flags: torch.Tensor, multiple: int) -> torch.Tensor:
    return torch.nn.functional.pad(flags, (0, -flags.numel() % multiple))


def _flags(mask: torch.Tensor, n: int) -> torch.Tensor:
    bit = torch.arange(8, dtype=torch.uint8, device=mask.device)
    return (mask[:, None] >> bit & 1).view(-1)[:n].bool()


def _ordered(bits: torch.Tensor) -> torch.Tensor:
    """Integers in the order of the floats, as int32; its own inverse. -0 is -1."""
    wide = bits.to(torch.int32)
    return torch.where(wide < 0, wide ^ (0x7F if bits.element_size() == 1 else 0x7FFF), wide)
