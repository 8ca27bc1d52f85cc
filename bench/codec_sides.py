"""The sides that `bench/codecs.py` compares: perdure's kernels and frames, zstd, ZipNN, and the XOR that both need.

A side codes one case into memory that is there already where its library lets it, and gives it back. zstd and ZipNN are
left out where they are not installed; `missing_peers` says so.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from codec_cases import Bytes, Case
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

__all__ = ["Side", "missing_peers", "of_frames", "of_kernel", "of_zipnn", "of_zstd", "peer_versions", "peers"]

ZIPNN_DTYPES = ("bfloat16", "float32")


@dataclass(frozen=True, slots=True)
class Side:
    """One way to code a case: ``prepare`` before the clock starts, then the coded parts, and what turns them back."""

    name: str
    encode: Callable[[], list[Any]]
    decode: Callable[[list[Any]], Bytes]
    prepare: Callable[[], object] = lambda: None
    simd: str = ""
    threads: int = 1


def missing_peers() -> list[str]:
    """What is not measured, as sentences; empty if all peers are installed."""
    found = (("zstandard", zstandard), ("zipnn", ZipNN))
    return [f"NOT MEASURED: {name} is not installed (.venv/bin/pip install {name})" for name, it in found if it is None]


def peer_versions() -> dict[str, str]:
    """The releases of the peers that are measured."""
    found = (("zstandard", zstandard), ("zipnn", ZipNN))
    return {name: importlib.metadata.version(name) for name, it in found if it is not None}


def of_kernel(codec: str, case: Case, *, simd: str, small: bool = False) -> Side:
    """The kernel alone: tile after tile from and to memory that is there already, no digest."""
    kind, (width, floats) = DTYPES[case.dtype], layout_of(DTYPES[case.dtype])
    how: dict[str, tuple[Any, ...]] = {"ulp": (KINDS.get(kind.name),), "mask": (width,), "planes": (width, floats)}
    encode_tile, decode_tile = getattr(_native, f"{codec}_encode"), getattr(_native, f"{codec}_decode")
    options = (*how[codec], 8 if small else 4) if codec == "ulp" else how[codec]
    room_nbytes = getattr(_native, f"{codec}_room")(TILE_BYTES, how[codec][0])
    tiles = [slice(at, at + TILE_BYTES) for at in range(0, case.data.size, TILE_BYTES)]
    kept = [np.zeros(room_nbytes, np.uint8) for _ in tiles]
    out = np.zeros_like(case.data)

    def under(at: slice) -> Bytes | None:
        return None if case.base is None else case.base[at]

    def forth() -> list[Any]:
        return [k[: encode_tile(case.data[at], under(at), k, *options)] for at, k in zip(tiles, kept, strict=True)]

    def back(coded: list[Any]) -> Bytes:
        for at, tile in zip(tiles, coded, strict=True):
            if not decode_tile(tile, under(at), out[at], *how[codec]):
                raise AssertionError(f"{codec} refused its own tile of {case.name}")
        return out

    return Side(f"{codec} small" if small else codec, forth, back, lambda: _native.use_simd(simd), simd)


def of_frames(codec: str, case: Case, *, simd: str, threads: int) -> Side:
    """Whole calls of `encode_parts` and `decode` into memory that is there, digests of tensor and base included."""
    out = np.zeros_like(case.data)
    how: dict[str, Any] = {"codec": codec, "dtype": case.dtype, "shape": (case.elements,), "threads": threads}
    frames: dict[int, bytes] = {}

    def forth() -> list[Any]:
        return list(encode_parts(case.data, base=case.base, **how))

    def back(coded: list[Any]) -> Bytes:
        if id(coded) not in frames:  # joined by the first call, which no clock watches
            frames[id(coded)] = b"".join(coded)
        return decode(frames[id(coded)], base=case.base, out=out, threads=threads).view(np.uint8).reshape(-1)

    return Side(f"frame {codec}", forth, back, lambda: _native.use_simd(simd), simd, threads)


def of_zstd(level: int, case: Case) -> Side:
    """zstd of each tile, after an XOR with the base if there is one."""
    forth, back = zstandard.ZstdCompressor(level=level), zstandard.ZstdDecompressor()
    tiles = [slice(at, at + TILE_BYTES) for at in range(0, case.data.size, TILE_BYTES)]
    mixed, out = np.zeros(TILE_BYTES, np.uint8), np.zeros_like(case.data)

    def encode_all() -> list[Any]:
        if case.base is None:
            return [forth.compress(case.data[at].data) for at in tiles]
        return [
            forth.compress(np.bitwise_xor(case.data[at], case.base[at], out=mixed[: case.data[at].size]).data)
            for at in tiles
        ]

    def decode_all(coded: list[Any]) -> Bytes:
        for at, tile in zip(tiles, coded, strict=True):
            plain = np.frombuffer(back.decompress(tile), np.uint8)
            if case.base is None:
                out[at] = plain
            else:
                np.bitwise_xor(plain, case.base[at], out=out[at])
        return out

    return Side(f"{'XOR + ' if case.base is not None else ''}zstd -{level}", encode_all, decode_all)


def of_zipnn(case: Case) -> Side:
    """ZipNN of the whole, on one thread. It works in place on its input, so that each turn gets its own copy before."""
    coder = ZipNN(bytearray_dtype=case.dtype, input_format="byte", threads=1)
    given = bytearray(case.data.size)
    view = np.frombuffer(given, np.uint8)

    def prepare() -> None:
        if case.base is None:
            view[:] = case.data

    def encode_all() -> list[Any]:
        if case.base is not None:
            np.bitwise_xor(case.data, case.base, out=view)
        return [coder.compress(given)]

    def decode_all(coded: list[Any]) -> Bytes:
        plain = np.frombuffer(coder.decompress(coded[0]), np.uint8)
        return plain if case.base is None else np.bitwise_xor(plain, case.base, out=view)

    return Side(f"{'XOR + ' if case.base is not None else ''}ZipNN", encode_all, decode_all, prepare)


def peers(case: Case) -> list[Side]:
    """What is installed of zstd and ZipNN, with the XOR if ``case`` has a base; ZipNN for the floats it knows."""
    made = [] if zstandard is None else [of_zstd(3, case)]
    if ZipNN is not None and case.dtype in ZIPNN_DTYPES:
        made.append(of_zipnn(case))
    return made
