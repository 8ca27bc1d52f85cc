"""The transform of the codec `ulp` on the device: floats as signed distances to their base, and back."""

from __future__ import annotations

import torch

from perdure.adapters.torch.device_backend import Backend, flat_on, pair
from perdure.adapters.torch.tensors import dtype_name
from perdure.codec.ulp import KINDS
from perdure.errors import CallError

__all__ = ["distances", "from_distances"]


def distances(tensor: torch.Tensor, *, base: torch.Tensor, backend: Backend | None = None) -> torch.Tensor:
    """Signed distances from ``base`` to ``tensor`` in units of the last place, int16, on their device.

    For the dtypes of `ulp`: bfloat16, float16, complex32 (two distances an element: a last dim of 2) and the 8-bit
    floats. 16-bit distances are modulo 2^16; those of 8-bit floats are from -255 to 255. Every pattern has one, NaN
    too; -0 lies one below 0.

    Raises: `CallError` for another dtype, and as `mask_on_device`.
    """
    now, before, kernels, _ = pair(tensor, base, backend)
    _check_has_distances(tensor.dtype)
    pairs = (2,) if tensor.dtype is torch.complex32 else ()
    return kernels.distances(_halves(now), _halves(before)).view(*tensor.shape, *pairs)


def from_distances(distance: torch.Tensor, *, base: torch.Tensor, backend: Backend | None = None) -> torch.Tensor:
    """The tensor that lies at ``distance`` from ``base``, bit for bit: a new one, on their device (the CPU is one too).

    ``distance`` is what `distances` returned for this base; from another one the result is some other tensor.

    Raises: `CallError` if ``distance`` is not int16 of the base's shape and device, and as `distances`.
    """
    before, kernels, _ = flat_on(base, backend)
    _check_has_distances(base.dtype)
    pairs = (2,) if base.dtype is torch.complex32 else ()
    if (distance.dtype, distance.shape, distance.device) != (torch.int16, (*base.shape, *pairs), base.device):
        raise CallError(
            f"distances from this base are int16 {(*base.shape, *pairs)} on {base.device}, "
            f"not {dtype_name(distance.dtype)} {tuple(distance.shape)} on {distance.device}"
        )
    out = kernels.from_distances(distance.contiguous().view(-1), _halves(before))
    return out.view(base.dtype).view(base.shape)


def _halves(elements: torch.Tensor) -> torch.Tensor:
    """Elements as the kernels of distances want them: int16, or int8 for 8-bit floats."""
    return elements.view(torch.int8 if elements.element_size() == 1 else torch.int16)


def _check_has_distances(dtype: torch.dtype) -> None:
    name = dtype_name(dtype)
    if name not in KINDS:
        raise CallError(f"{name} has no distances; these have: {', '.join(KINDS)}", dtype=name)
