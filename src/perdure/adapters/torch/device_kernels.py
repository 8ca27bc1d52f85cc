"""The kernels of `perdure.adapters.torch.device_codec` in Triton, for tensors on a GPU; twins: `device_twin`.

One program takes one *stretch* of elements. A stretch is a power of two and no longer than a tile, so no program ever
looks at two tiles. Offsets are 64-bit: tensors have more than 2^31 elements.

Triton decides when this module is imported whether its kernels are compiled for a GPU or interpreted on the CPU
(`INTERPRETED`); the tests do the latter.
"""

import torch
import triton
import triton.language as tl

__all__ = [
    "INTERPRETED",
    "accumulated",
    "compacted",
    "distances",
    "from_distances",
    "mask_and_counts",
    "restored",
]

_ELEMENTS = 2048  # a program, where the caller does not say
_BLOCKS = 8  # of 1 KiB a program
_TILES = 4  # a program of the chain: 32 lanes, one warp
_UNROLL = 8


@triton.jit
def _mask(now, before, mask, counts, n, STRETCH: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * STRETCH
    row = tl.arange(0, STRETCH // 8)
    bit = tl.arange(0, 8)
    at = start + row[:, None] * 8 + bit[None, :]
    inside = at < n
    # Where neither is loaded both are 0, so the unused bits of the last byte are 0.
    differs = (tl.load(now + at, mask=inside, other=0) != tl.load(before + at, mask=inside, other=0)).to(tl.int32)
    tl.store(mask + start // 8 + row, tl.sum(differs << bit[None, :], axis=1).to(tl.uint8), mask=start + row * 8 < n)
    tl.store(counts + tl.program_id(0), tl.sum(tl.sum(differs, axis=1), axis=0).to(tl.int64))


@triton.jit
def _flags(mask, at, inside):
    return (tl.load(mask + at // 8, mask=inside, other=0).to(tl.int32) >> (at % 8).to(tl.int32)) & 1


@triton.jit
def _compact(now, mask, starts, values, n, STRETCH: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * STRETCH + tl.arange(0, STRETCH)
    inside = at < n
    flag = _flags(mask, at, inside)
    to = tl.load(starts + tl.program_id(0)) + tl.cumsum(flag, axis=0) - flag
    tl.store(values + to, tl.load(now + at, mask=inside, other=0), mask=inside & (flag == 1))


@triton.jit
def _restore(before, mask, starts, values, out, n, STRETCH: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * STRETCH + tl.arange(0, STRETCH)
    inside = at < n
    flag = _flags(mask, at, inside)
    source = tl.load(starts + tl.program_id(0)) + tl.cumsum(flag, axis=0) - flag
    changed = tl.load(values + source, mask=inside & (flag == 1), other=0)
    tl.store(out + at, tl.where(flag == 1, changed, tl.load(before + at, mask=inside, other=0)), mask=inside)


@triton.jit
def _ordered(bits, MAGNITUDE: tl.constexpr):
    """Integers in the order of the floats, from bits widened with their sign; its own inverse."""
    return tl.where(bits < 0, bits ^ MAGNITUDE, bits)


@triton.jit
def _distance(now, before, out, n, MAGNITUDE: tl.constexpr, STRETCH: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * STRETCH + tl.arange(0, STRETCH)
    inside = at < n
    to = _ordered(tl.load(now + at, mask=inside, other=0).to(tl.int32), MAGNITUDE)
    since = _ordered(tl.load(before + at, mask=inside, other=0).to(tl.int32), MAGNITUDE)
    tl.store(out + at, (to - since).to(tl.int16), mask=inside)  # the cast keeps the low 16 bits: modulo 2^16


@triton.jit
def _add_distance(distance, before, out, n, MAGNITUDE: tl.constexpr, STRETCH: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * STRETCH + tl.arange(0, STRETCH)
    inside = at < n
    since = _ordered(tl.load(before + at, mask=inside, other=0).to(tl.int32), MAGNITUDE)
    to = (since + tl.load(distance + at, mask=inside, other=0).to(tl.int32)).to(out.dtype.element_ty).to(tl.int32)
    tl.store(out + at, _ordered(to, MAGNITUDE).to(out.dtype.element_ty), mask=inside)


@triton.jit
def _sum_blocks(words, keys, sums, n, BLOCKS: tl.constexpr):
    block = tl.program_id(0).to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS)
    stripe = tl.arange(0, 16)[None, :, None]
    lane = tl.arange(0, 8)[None, None, :]
    at = block[:, None, None] * 128 + stripe * 8
    inside = (block < n)[:, None, None]
    word = tl.load(words + at + lane, mask=inside, other=0)
    neighbour = tl.load(words + at + (lane ^ 1), mask=inside, other=0)
    keyed = word ^ tl.load(keys + stripe + lane)
    sum_ = tl.sum((keyed & 0xFFFFFFFF) * (keyed >> 32) + neighbour, axis=1)
    tl.store(sums + block[:, None] * 8 + tl.arange(0, 8)[None, :], sum_, mask=(block < n)[:, None])


@triton.jit(do_not_specialize=["tiles", "blocks", "last_blocks", "stride"])  # one build for tensors of all sizes
def _chain(
    sums, keys, first, out, tiles, blocks, last_blocks, stride, TILES: tl.constexpr, UNROLL: tl.constexpr
):  # fmt: skip
    slot = tl.arange(0, TILES * 8)
    tile = tl.program_id(0).to(tl.int64) * TILES + slot // 8
    lane = slot % 8
    mine = tl.where(tile < tiles, tl.where(tile == tiles - 1, last_blocks, blocks), 0)
    acc = tl.load(first + lane)
    key = tl.load(keys + 16 + lane)
    prime = tl.full([TILES * 8], 0x9E3779B1, tl.uint64)
    for start in range(0, tl.maximum(blocks, last_blocks), UNROLL):
        for step in tl.static_range(UNROLL):  # unrolled, so that the loads of later steps need not wait for this one
            within = start + step < mine
            after = acc + tl.load(sums + (tile * stride + start + step) * 8 + lane, mask=within, other=0)
            acc = tl.where(within, (after ^ (after >> 47) ^ key) * prime, acc)
    tl.store(out + tile * 8 + lane, acc, mask=tile < tiles)


INTERPRETED = not isinstance(_mask, triton.JITFunction)


def mask_and_counts(now: torch.Tensor, before: torch.Tensor, stretch: int) -> tuple[torch.Tensor, torch.Tensor]:
    """See `device_backend.Kernels`."""
    n = now.numel()
    mask = torch.empty(-(-n // 8), dtype=torch.uint8, device=now.device)
    counts = torch.empty(-(-n // stretch), dtype=torch.int64, device=now.device)
    if n:
        with _on(now):
            _mask[(counts.numel(),)](now, before, mask, counts, n, STRETCH=stretch)
    return mask, counts


def compacted(
    now: torch.Tensor, mask: torch.Tensor, starts: torch.Tensor, total: int, stretch: int
) -> torch.Tensor:  # fmt: skip
    """See `device_backend.Kernels`."""
    values = torch.empty(total, dtype=now.dtype, device=now.device)
    if total:
        with _on(now):
            _compact[(starts.numel(),)](now, mask, starts, values, now.numel(), STRETCH=stretch)
    return values


def restored(
    before: torch.Tensor, mask: torch.Tensor, starts: torch.Tensor, values: torch.Tensor, stretch: int
) -> torch.Tensor:
    """See `device_backend.Kernels`."""
    out = torch.empty_like(before)
    if before.numel():
        with _on(before):
            _restore[(starts.numel(),)](before, mask, starts, values, out, before.numel(), STRETCH=stretch)
    return out


def distances(now: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
    """See `device_backend.Kernels`."""
    out = torch.empty(now.shape, dtype=torch.int16, device=now.device)
    n, grid = now.numel(), (-(-now.numel() // _ELEMENTS),)
    if n:
        with _on(now):
            _distance[grid](now, before, out, n, MAGNITUDE=_magnitude(now), STRETCH=_ELEMENTS)
    return out


def from_distances(distance: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
    """See `device_backend.Kernels`."""
    out = torch.empty_like(before)
    n, grid = before.numel(), (-(-before.numel() // _ELEMENTS),)
    if n:
        with _on(before):
            _add_distance[grid](distance, before, out, n, MAGNITUDE=_magnitude(before), STRETCH=_ELEMENTS)
    return out


def accumulated(
    words: torch.Tensor, keys: torch.Tensor, first: torch.Tensor, tiles: int, blocks: int, last_blocks: int, stride: int
) -> torch.Tensor:
    """See `device_backend.Kernels`."""
    n = words.numel() // 128
    sums = torch.empty((n, 8), dtype=torch.int64, device=words.device)
    out = torch.empty((tiles, 8), dtype=torch.int64, device=words.device)
    words_, keys_, first_, sums_, out_ = (each.view(torch.uint64) for each in (words, keys, first, sums, out))
    with _on(words):
        if n:
            _sum_blocks[(-(-n // _BLOCKS),)](words_, keys_, sums_, n, BLOCKS=_BLOCKS)
        grid, sizes = (-(-tiles // _TILES),), (tiles, blocks, last_blocks, stride)
        _chain[grid](sums_, keys_, first_, out_, *sizes, TILES=_TILES, UNROLL=_UNROLL, num_warps=1)
    return out


def _magnitude(bits: torch.Tensor) -> int:
    return 0x7F if bits.element_size() == 1 else 0x7FFF


def _on(tensor: torch.Tensor) -> torch.cuda.device:
    """Launches go to the tensor's GPU; nothing for one on the CPU."""
    return torch.cuda.device(tensor.get_device())
