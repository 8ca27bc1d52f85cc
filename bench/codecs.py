"""How small and how fast are the lossless codecs on real training states, beside memcpy, zstd and ZipNN?

Sizes are ratios over the raw bytes of the kind that is named; H0 is the order-0 entropy of the signed distance in units
of the last place, in bits an element. Speeds are GB/s of raw input for one core (kernels on tiles of 4 MiB, memory
warm, best of all turns), and parts of the speed of one memcpy in the same run; sides take turns. `frame` rows are whole
calls of `codec.encode_parts` and `codec.decode` into memory that is there, digests included. The trace is trained first
(`bench/codec_traces.py`), or read with --from. zstandard and zipnn are measured if they are installed.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from codec_traces import add_options, trace
from perdure import _native
from perdure.codec import DTYPES, TILE_BYTES, decode, encode_parts
from perdure.codec.planes import layout_of
from perdure.codec.ulp import KINDS

try:
    import zstandard
except ImportError:
    zstandard = None
try:
    from zipnn import ZipNN
except ImportError:
    ZipNN = None

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Side:
    """One way to code a tensor: the coded parts, and what turns them back."""

    name: str
    encode: Callable[[], list[Any]]
    decode: Callable[[list[Any]], object]


def tiles(data: Bytes) -> list[slice]:
    return [slice(at, at + TILE_BYTES) for at in range(0, data.size, TILE_BYTES)]


def of_kernel(codec: str, dtype: str, data: Bytes, base: Bytes | None, contexts: int = 4) -> Side:
    """The kernel alone: tile after tile from and to memory that is there already."""
    kind, (width, floats) = DTYPES[dtype], layout_of(DTYPES[dtype])
    how: dict[str, tuple[Any, ...]] = {"ulp": (KINDS.get(kind.name),), "mask": (width,), "planes": (width, floats)}
    room = np.zeros(getattr(_native, f"{codec}_room")(TILE_BYTES, how[codec][0]), np.uint8)
    encode_tile, decode_tile = getattr(_native, f"{codec}_encode"), getattr(_native, f"{codec}_decode")
    options = (*how[codec], contexts) if codec == "ulp" else how[codec]
    out = np.zeros_like(data)
    kept = [np.zeros(room.size, np.uint8) for _ in tiles(data)]

    def part(at: slice) -> Bytes | None:
        return None if base is None else base[at]

    def forth() -> list[Any]:
        return [k[: encode_tile(data[at], part(at), k, *options)] for at, k in zip(tiles(data), kept, strict=True)]

    def back(coded: list[Any]) -> object:
        for at, tile in zip(tiles(data), coded, strict=True):
            assert decode_tile(tile, part(at), out[at], *how[codec])
        return out

    return Side(f"{codec}{', small' if contexts == 8 else ''}", forth, back)


def of_frames(codec: str, dtype: str, data: Bytes, base: Bytes | None, threads: int) -> Side:
    shape, out = (data.size // DTYPES[dtype].itemsize,), np.zeros_like(data)

    def forth() -> list[Any]:
        return list(encode_parts(data, codec=codec, base=base, dtype=dtype, shape=shape, threads=threads))

    def back(coded: list[Any]) -> object:
        frames.setdefault(id(coded), b"".join(coded))
        return decode(frames[id(coded)], base=base, out=out, threads=threads).view(np.uint8)

    frames: dict[int, bytes] = {}
    return Side(f"frame {codec}, {threads} thread{'s' * (threads > 1)}", forth, back)


def of_zstd(level: int, data: Bytes, base: Bytes | None) -> Side:
    forth, back = zstandard.ZstdCompressor(level=level), zstandard.ZstdDecompressor()

    def encode_all() -> list[Any]:
        return [forth.compress(data[at] if base is None else data[at] ^ base[at]) for at in tiles(data)]

    def decode_all(coded: list[Any]) -> object:
        parts = [np.frombuffer(back.decompress(tile), np.uint8) for tile in coded]
        return np.concatenate(
            parts if base is None else [p ^ base[at] for p, at in zip(parts, tiles(data), strict=True)]
        )

    return Side(f"{'XOR + ' if base is not None else ''}zstd -{level}", encode_all, decode_all)


def of_zipnn(dtype: str, data: Bytes, base: Bytes | None) -> Side:
    coder = ZipNN(bytearray_dtype=dtype, input_format="byte", threads=1)

    def encode_all() -> list[Any]:
        return [coder.compress(bytearray(data if base is None else data ^ base))]

    def decode_all(coded: list[Any]) -> object:
        out = np.frombuffer(coder.decompress(coded[0]), np.uint8)
        return out if base is None else out ^ base

    return Side(f"{'XOR + ' if base is not None else ''}ZipNN", encode_all, decode_all)


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measure(title: str, data: Bytes, sides: list[Side], rounds: int, bits: float | None = None) -> None:
    """Print size and speeds of each side on ``data``; ``bits`` is the entropy of its elements, if it has one."""
    print(f"\n{title}" + ("" if bits is None else f", H0 {bits:.3f} bits"))
    copy, coded = np.empty_like(data), {}
    best: dict[str, list[float]] = {}
    for side in sides:
        coded[side.name] = side.encode()
        back = np.asarray(side.decode(coded[side.name]))
        assert back.tobytes() == data.tobytes(), side.name
    for _ in range(rounds):
        taken = best.setdefault("memcpy", [9e9, 9e9])
        taken[0] = min(taken[0], seconds(lambda: np.copyto(copy, data)))
        for side in sides:
            taken = best.setdefault(side.name, [9e9, 9e9])
            taken[0] = min(taken[0], seconds(side.encode))
            taken[1] = min(taken[1], seconds(lambda side=side: side.decode(coded[side.name])))  # type: ignore[misc]
    whole, memcpy = data.size / 1e9, best["memcpy"][0]
    print(f"  {'':26} {'ratio':>8} {'of H0':>6} {'enc GB/s':>9} {'dec GB/s':>9} {'enc/memcpy':>11} {'dec/memcpy':>11}")
    print(f"  {'memcpy':26} {1:8.3f} {'':6} {whole / memcpy:9.2f}")
    for side in sides:
        size = sum(len(part) for part in coded[side.name])
        entropy = "" if bits is None else f"{8 * size / (bits * data.size / 2):6.3f}"
        forth, back_s = best[side.name]
        print(
            f"  {side.name:26} {data.size / size:8.3f} {entropy:6} {whole / forth:9.2f} {whole / back_s:9.2f}"
            f" {memcpy / forth:11.3f} {memcpy / back_s:11.3f}"
        )


def order_0_bits(new: npt.NDArray[np.uint16], old: npt.NDArray[np.uint16]) -> float:
    """The order-0 entropy of the signed distance in units of the last place, bits an element."""
    now, before = (np.where(x >> 15, ~x & 0xFFFF | 0x8000, x) for x in (new.astype(np.int64), old.astype(np.int64)))
    now, before = (np.where(x >> 15, x - 65536, x) for x in (now, before))
    counts = np.bincount((now - before) & 0xFFFF)
    share = counts[counts > 0] / new.size
    return float(-(share * np.log2(share)).sum())


def peers(dtype: str, data: Bytes, base: Bytes | None) -> list[Side]:
    made = []
    if zstandard is not None:
        made += [of_zstd(level, data, base) for level in ((3,) if base is not None else (1, 3))]
    if ZipNN is not None and dtype in ("bfloat16", "float32"):
        made.append(of_zipnn(dtype, data, base))
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--from", type=Path, dest="saved", help="a .npz that bench/codec_traces.py wrote")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--simd", help="use this instruction level")
    parser.set_defaults(width=256)
    options = parser.parse_args()
    if options.saved is not None:
        states = dict(np.load(options.saved))
    else:
        kept = trace(options)
        states = {f"{name}_{s.step}": getattr(s, name) for s in kept for name in ("weights", "master", "m", "v")}
    steps = sorted({int(name.split("_")[1]) for name in states})
    missing = [name for name, found in (("zstandard", zstandard), ("zipnn", ZipNN)) if found is None]
    print(
        f"{_native.simd()}, {states[f'weights_{steps[0]}'].size} parameters, steps {steps},"
        f" not installed: {', '.join(missing) or 'nothing'}"
    )
    if options.simd:
        _native.use_simd(options.simd)
    pairs = [(a, b) for i, a in enumerate(steps) for b in steps[i + 1 : i + 3] if b - a <= 10]
    for old, new in pairs:
        now, before = states[f"weights_{new}"], states[f"weights_{old}"]
        data, base = now.view(np.uint8), before.view(np.uint8)
        ours = [of_kernel("ulp", "bfloat16", data, base), of_kernel("ulp", "bfloat16", data, base, 8),
                of_kernel("mask", "bfloat16", data, base), of_kernel("planes", "bfloat16", data, base)]  # fmt: skip
        frames = (
            [of_frames("ulp", "bfloat16", data, base, threads) for threads in (1, 2)] if old == pairs[-1][0] else []
        )
        changed = 100 * np.mean(now != before)
        title = f"bfloat16 weights, step {old} to {new}, {changed:.1f} % changed"
        sides = [*ours, *frames, *peers("bfloat16", data, base)]
        measure(title, data, sides, options.rounds, order_0_bits(now, before))
    last = steps[-1]
    for kind, dtype in (("weights", "bfloat16"), ("master", "float32"), ("m", "float32"), ("v", "float32")):
        data = states[f"{kind}_{last}"].view(np.uint8)
        sides = [of_kernel("planes", dtype, data, None), *peers(dtype, data, None)]
        measure(f"{kind} ({dtype}), step {last}, no base", data, sides, options.rounds)
        if dtype == "float32":
            old = pairs[-1][0] if pairs[-1][1] == last else steps[-2]
            base = states[f"{kind}_{old}"].view(np.uint8)
            sides = [of_kernel("planes", dtype, data, base), *peers(dtype, data, base)]
            measure(f"{kind} ({dtype}), step {old} to {last}", data, sides, options.rounds)


if __name__ == "__main__":
    main()
