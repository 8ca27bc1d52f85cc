"""Codecs that run where the tensors are: `mask` whole, and the transform of `ulp`, before anything goes to the host.

Theory. The link between device and host is many times slower than the memory of either, so what need not cross it is
left out on the device. `mask_on_device` makes all that a frame of `mask` holds there: the bits, the changed elements in
order, and the digests of both tensors (`perdure.adapters.torch.device_digest`). The host receives just these and puts a
header before them. The frame is, byte for byte, the one that `perdure.codec.encode(..., codec="mask")` makes, so

- the host needs no copy of the base to write it, and a base that it does have cannot go into it by mistake;
- its digests are those of the device's memory, not of something that was rebuilt on the host: whoever decodes it, here
  (`unmask_on_device`) or on the host (`perdure.codec.decode`), learns if its base, or the way there, was not the same.

Three steps: bits and their count for every stretch of elements; an exclusive scan of the counts; each stretch writes
its changed elements from its place on. A tile that coding would not make smaller counts as changed everywhere: then
its elements are all there, in order, which is the raw tile that a frame must hold.

`distances` is the map of `ulp` (docs/spec/codecs.md). Its entropy coder is on the host and takes the tensor and its
base, so a host that has the base rebuilds the tensor (``from_distances`` works there too) and calls
``encode(..., codec="ulp")``. Distances are as wide as 16-bit elements: they save nothing on the link by themselves;
they are what a coder on the device begins with.

Which code runs is `backend_of`'s answer, or what the caller says: ``"triton"`` or ``"torch"``. Both write the same
bytes, and nothing changes sides by itself once it runs.
"""

from perdure.adapters.torch.device_backend import Backend, backend_of
from perdure.adapters.torch.device_mask import Masked, mask_on_device, unmask_on_device
from perdure.adapters.torch.device_ulp import distances, from_distances

__all__ = [
    "Backend",
    "Masked",
    "backend_of",
    "distances",
    "from_distances",
    "mask_on_device",
    "unmask_on_device",
]
