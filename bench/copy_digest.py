"""Do the native kernels copy and digest at the speed of memory?

Four ratios, each against a named peer measured in the same run, interleaved, on the same warm buffers: the ratio of the
two medians, above 1 where the kernel is faster. `./dev bench copy_digest` runs it.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import xxhash

from perdure.codec import NATIVE, TILE_BYTES, copy_and_digest, tile_digests
from perdure.shm import Segment, copy_many

BLOCK_BYTES = 1 << 20


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def compare(question: str, nbytes: int, rounds: int, ours: Callable[[], object], peer: Callable[[], object]) -> None:
    """Print the ratio of medians of ``rounds`` alternating calls after one call of each that does not count."""
    ours(), peer()
    pairs = [(seconds(ours), seconds(peer)) if i % 2 else (seconds(peer), seconds(ours))[::-1] for i in range(rounds)]
    mine, theirs = (statistics.median(side) for side in zip(*pairs, strict=True))
    print(f"{question:52} {theirs / mine:5.2f}x   {nbytes / mine / 1e9:6.1f} GB/s against {nbytes / theirs / 1e9:6.1f}")


def measure(source: npt.NDArray[np.uint8], copy: npt.NDArray[np.uint8], rounds: int) -> None:
    """All ratios on two buffers of the same size, a multiple of 1 MiB."""
    nbytes = source.nbytes

    def memcpy() -> None:
        np.copyto(copy, source)

    def digest_by_xxhash() -> None:
        for start in range(0, nbytes, TILE_BYTES):
            xxhash.xxh3_128_digest(copy[start : start + TILE_BYTES].data)

    def copy_then_digest() -> None:
        memcpy()
        digest_by_xxhash()

    src, dst = source.ctypes.data, copy.ctypes.data
    starts = np.arange(0, nbytes, BLOCK_BYTES, dtype=np.uint64)
    blocks = (starts + np.uint64(src), starts + np.uint64(dst), np.full_like(starts, BLOCK_BYTES))

    def ask(question: str, ours: Callable[[], object], peer: Callable[[], object]) -> None:
        compare(question, nbytes, rounds, ours, peer)

    ask("copy_many, one block / numpy.copyto (memcpy)", lambda: copy_many([src], [dst], [nbytes]), memcpy)
    ask("copy_many, blocks of 1 MiB / numpy.copyto (memcpy)", lambda: copy_many(*blocks), memcpy)
    ask("tile_digests / xxhash.xxh3_128_digest of each tile", lambda: tile_digests(copy), digest_by_xxhash)
    ask("copy_and_digest / numpy.copyto, then xxhash", lambda: copy_and_digest(source, copy), copy_then_digest)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=256, help="size of each of the two buffers")
    parser.add_argument("--rounds", type=int, default=15, help="calls of each side that count")
    options = parser.parse_args()
    nbytes = options.mib << 20
    kernels = "native" if NATIVE else "missing: the twins are measured"
    print(f"{options.mib} MiB of random bytes in shared memory, warm, one thread; kernels {kernels}")
    with Segment.create(nbytes, label="bench source") as one, Segment.create(nbytes, label="bench copy") as two:
        one.populate()
        two.populate()
        one.view[:] = np.random.default_rng(0).integers(0, 256, nbytes, dtype=np.uint8).data
        measure(np.frombuffer(one.view, np.uint8), np.frombuffer(two.view, np.uint8), options.rounds)


if __name__ == "__main__":
    main()
