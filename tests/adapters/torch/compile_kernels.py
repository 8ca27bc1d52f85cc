"""Compile what the device codec would launch on a GPU that is not here: every launch ends where it would begin.

A program of its own, since it tells Triton that there is such a GPU: ``BACKEND ARCH WARP_SIZE ELEMENT_BYTES ...``.
Prints a JSON object: for each kernel, how many bytes of machine code each of its launches has.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import KernelInterface

from perdure.adapters.torch import device_kernels

SIZES = (0, 1, 16, 2049)  # Triton makes another kernel where a size is 1, or a multiple of 16
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
FLOATS = {1: torch.int8, 2: torch.int16}
DIGESTS = ((0, 1, 0, 0), (128, 1, 0, 1), (8 * 128, 2, 3, 4), (32 * 128, 2, 16, 16))  # words, tiles, blocks, last blocks


class Absent:
    """The driver of a GPU on which nothing is launched."""

    def __init__(self, target: GPUTarget) -> None:
        self._target = target

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def compile_launches(target: GPUTarget, widths: list[int]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    code = {"cuda": "cubin", "hip": "hsaco"}[target.backend]

    def launcher(kernel: Any, grid: tuple[int, ...]) -> Callable[..., None]:
        def compile_only(*args: Any, **constants: Any) -> None:
            found.setdefault(kernel.__name__, []).append(len(kernel.warmup(*args, grid=grid, **constants).asm[code]))

        return compile_only

    driver.set_active(Absent(target))
    KernelInterface.__getitem__ = launcher
    for width in widths:
        for n in SIZES:
            elements = torch.zeros(n, dtype=INTEGERS[width])
            mask, counts = device_kernels.mask_and_counts(elements, elements, 2048)
            device_kernels.compacted(elements, mask, counts, n, 2048)
            device_kernels.restored(elements, mask, counts, elements, 2048)
            if width in FLOATS:
                bits = torch.zeros(n, dtype=FLOATS[width])
                device_kernels.from_distances(device_kernels.distances(bits, bits), bits)
    keys, first = torch.zeros(24, dtype=torch.int64), torch.zeros(8, dtype=torch.int64)
    for words, *sizes in DIGESTS:
        device_kernels.accumulated(torch.zeros(words, dtype=torch.int64), keys, first, *sizes, stride=16)
    return found


if __name__ == "__main__":
    backend, arch, warp_size, *widths = sys.argv[1:]
    target = GPUTarget(backend, int(arch) if arch.isdigit() else arch, int(warp_size))
    print(json.dumps(compile_launches(target, list(map(int, widths)))))
