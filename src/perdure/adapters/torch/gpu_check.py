"""Checks that need a GPU to work: products on it against the digests of the CPU, and copies to it and back.

Probes as those of `perdure.supervisor.checks`, which runs them in processes of their own (a context on a lost GPU
hangs); `perdure.cli.doctor` introduces them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch

from perdure.codec.digest import digest
from perdure.supervisor.check_compute import DIGESTS, operands, product_digest
from perdure.supervisor.checks import Context, Result

__all__ = ["copy", "copy_is_exact", "matmul", "wrong_products"]

_KINDS = (
    ("float64", torch.float64, "float64"),
    ("float32", torch.float32, "float32"),
    ("bfloat16", torch.bfloat16, "small"),
    ("float16", torch.float16, "small"),
)
"""Name, type and operands: each is exact in its type, in split sums too."""

_REPEATS = 16
_COPY_BYTES = 64 << 20
_SLOW_BYTES_PER_S = 1e9


def matmul(context: Context) -> Result:
    """Compute products on each GPU."""
    devices = list(_devices())
    if not devices:
        return _none("gpu-matmul", context)
    wrong = {str(device): found for device in devices if (found := wrong_products(device))}
    facts = {"gpus": len(devices), "wrong": wrong}
    if wrong:
        named = "; ".join(f"{device} in {', '.join(kinds)}" for device, kinds in wrong.items())
        return Result(
            check="gpu-matmul",
            word="problem",
            says=f"it computes wrong, without an error: {named}",
            do="take the node out; what it computed lately may be wrong as well",
            facts=facts,
        )
    return Result(check="gpu-matmul", word="ok", says=f"{len(devices)} GPUs compute right", facts=facts)


def copy(context: Context) -> Result:
    """Copy bytes to each GPU, there, and back, and compare."""
    devices = list(_devices())
    if not devices:
        return _none("gpu-copy", context)
    rates = {}
    for device in devices:
        exact, bytes_per_s = copy_is_exact(device, _COPY_BYTES)
        rates[str(device)] = round(bytes_per_s)
        if not exact:
            return Result(
                check="gpu-copy",
                word="problem",
                says=f"bytes copied to {device} and back are not the same",
                do="take the node out; look for PCIe errors in the kernel log",
                facts={"bytes_per_s": rates},
            )
    slow = [f"{device} ({rate / 1e9:.2g} GB/s)" for device, rate in rates.items() if rate < _SLOW_BYTES_PER_S]
    if slow:
        says = f"copies are exact and slow: {', '.join(slow)}"
        do = "look at the width and speed of its PCIe link (nvidia-smi -q -d PCIE)"
        return Result(check="gpu-copy", word="note", says=says, do=do, facts={"bytes_per_s": rates})
    says = f"copies to {len(devices)} GPUs and back are exact"
    return Result(check="gpu-copy", word="ok", says=says, facts={"bytes_per_s": rates})


def wrong_products(device: torch.device, *, repeats: int = _REPEATS) -> list[str]:
    """The types in which ``device`` ever gave a product whose digest is not the known one."""
    wrong = []
    for name, dtype, kind in _KINDS:
        a, b = (torch.from_numpy(x.copy()).to(device, dtype) for x in operands(kind))
        for _ in range(repeats):
            if product_digest((a @ b).to("cpu", torch.float64).to(torch.int64).numpy()) != DIGESTS[kind]:
                wrong.append(name)
                break
    return wrong


def copy_is_exact(device: torch.device, nbytes: int) -> tuple[bool, float]:
    """Whether bytes come back from ``device`` as they went, and at how many bytes a second, there and back."""
    words = torch.arange(nbytes // 8, dtype=torch.int64) * -0x61C8864680B583EB  # all different, about half of bits set
    before = digest(words.numpy())
    if device.type == "cuda":
        words = words.pin_memory()
    there = torch.empty_like(words, device=device)
    back = torch.empty_like(words)
    there.copy_(words)  # the first touches the memory and is not timed
    _settle(device)
    began = time.monotonic()
    there.copy_(words)
    back.copy_(there.clone())
    _settle(device)
    took_s = time.monotonic() - began
    return digest(back.numpy()) == before, 2 * words.nbytes / max(took_s, 1e-9)


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _devices() -> Iterator[torch.device]:
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        yield torch.device("cuda", index)


def _none(check: str, context: Context) -> Result:
    if context.gpus:
        return Result(
            check=check,
            word="problem",
            says=f"{context.gpus} GPUs should be there, and torch sees none",
            do="look at the driver (nvidia-smi), and whether torch is built for it",
        )
    return Result(check=check, word="ok", says="no GPU to try: torch sees none")
