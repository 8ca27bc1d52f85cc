"""Who works on a tensor on its device, Triton's kernels or plain torch, and the elements as both want them."""

from __future__ import annotations

import importlib.util
from typing import Literal, Protocol, TypeAlias

import torch

from perdure.adapters.torch.tensors import as_integers, dtype_name, without_bytes
from perdure.errors import CallError

__all__ = ["Backend", "Kernels", "backend_of", "flat_on", "pair"]

Backend: TypeAlias = Literal["triton", "torch"]
"""Kernels of our own, or plain torch operations."""


class Kernels(Protocol):
    """What a backend can do. Tensors lie on one device, are contiguous and flat; elements are signed or uint8."""

    def mask_and_counts(
        self, now: torch.Tensor, before: torch.Tensor, stretch: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The bits of elements that differ, uint8[ceil(n / 8)], and how many in each stretch, int64."""

    def compacted(
        self, now: torch.Tensor, mask: torch.Tensor, starts: torch.Tensor, total: int, stretch: int
    ) -> torch.Tensor:
        """The ``total`` elements whose bits are set, in order; ``starts`` is the exclusive scan over stretches."""

    def restored(
        self, before: torch.Tensor, mask: torch.Tensor, starts: torch.Tensor, values: torch.Tensor, stretch: int
    ) -> torch.Tensor:
        """``before`` with ``values`` where bits are set, which must be as many."""

    def distances(self, now: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
        """int16[n] from the bits, int16 or int8."""

    def from_distances(self, distance: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
        """The bits again."""

    def accumulated(
        self, words: torch.Tensor, keys: torch.Tensor, first: torch.Tensor, tiles: int, blocks: int, last_blocks: int,
        stride: int,
    ) -> torch.Tensor:  # fmt: skip
        """XXH3's accumulators of each tile after ``blocks`` blocks (the last tile: ``last_blocks``), int64[tiles, 8].

        ``words`` are int64, ``keys`` the secret; block b of tile t begins at word 128 * (t * ``stride`` + b).
        """


def backend_of(tensor: torch.Tensor) -> Backend:
    """Who works on ``tensor`` where the caller does not say: Triton on a GPU if it is installed, else torch.

    >>> backend_of(torch.zeros(3))
    'torch'
    """
    on_gpu = tensor.device.type == "cuda"
    return "triton" if on_gpu and importlib.util.find_spec("triton") is not None else "torch"


def pair(
    tensor: torch.Tensor, base: torch.Tensor, backend: Backend | None
) -> tuple[torch.Tensor, torch.Tensor, Kernels, Backend]:
    """The elements of both as integers, contiguous and flat, and who works on them."""
    if (tensor.dtype, tensor.shape, tensor.device) != (base.dtype, base.shape, base.device):
        raise CallError(
            f"the base is {dtype_name(base.dtype)} {tuple(base.shape)} on {base.device}, "
            f"the tensor {dtype_name(tensor.dtype)} {tuple(tensor.shape)} on {tensor.device}"
        )
    before, kernels, chosen = flat_on(base, backend)
    now, _, _ = flat_on(tensor, chosen)
    return now, before, kernels, chosen


def flat_on(tensor: torch.Tensor, backend: Backend | None) -> tuple[torch.Tensor, Kernels, Backend]:
    """The elements of ``tensor`` as integers, contiguous and flat, and who works on them.

    Copies a tensor that is not contiguous, or does not begin at a multiple of 8 bytes. Elements of 16 bytes are two.

    Raises: `CallError` if it has no plain bytes, or the backend is not there or cannot work on it.
    """
    chosen = backend_of(tensor) if backend is None else backend
    why = without_bytes(tensor)
    if why is not None:
        raise CallError(f"a tensor that {why}")
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    if plain._is_zerotensor() or plain.data_ptr() % 8 or plain.storage_offset() * plain.element_size() % 8:
        plain = plain.clone()  # digests read words of 8 bytes
    flat = plain.view(-1)
    return (flat.view(torch.int64) if flat.element_size() > 8 else as_integers(flat)), _kernels(tensor, chosen), chosen


def _kernels(tensor: torch.Tensor, backend: Backend) -> Kernels:
    """The kernels of ``backend``, if they can work on ``tensor``."""
    if backend == "torch":
        from perdure.adapters.torch import device_twin

        return device_twin
    if backend != "triton":
        raise CallError(f"unknown backend {backend!r}; there are: triton, torch", backend=backend)
    try:
        from perdure.adapters.torch import device_kernels
    except ModuleNotFoundError as error:
        if error.name != "triton":
            raise
        raise CallError("the backend triton needs Triton: pip install 'perdure[gpu]'", backend=backend) from error
    if tensor.device.type != "cuda" and not device_kernels.INTERPRETED:
        raise CallError(f"Triton's kernels do not run on {tensor.device}; pass backend='torch'", backend=backend)
    return device_kernels
