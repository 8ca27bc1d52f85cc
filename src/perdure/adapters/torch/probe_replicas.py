"""Checksums of parameters that several ranks hold alike, each 500 steps: the ranks of a DDP must agree to the bit.

It is perdure's digest of the bytes of parameters that lie on the CPU; on a device there is none.
"""

from __future__ import annotations

from typing import Any

import torch

from perdure.codec.digest import digest, digest_bytes
from perdure.progress.vitals import VitalsFile

__all__ = ["CHECKSUM_STEPS", "Replicas", "checksum"]

CHECKSUM_STEPS = 500


class Replicas:
    """Tells the checksum of the replicated module. Called by `probe_steps` after each step, on the main thread."""

    def __init__(self, file: VitalsFile, *, every: int | None) -> None:
        self._every = CHECKSUM_STEPS if every is None else every
        self._file = file

    def after_step(self, step: int, module: Any) -> None:
        """``step`` is complete; ``module`` is a DDP, or None."""
        if self._every and module is not None and step % self._every == 0:
            parameters = list(module.parameters())
            if parameters and all(each.device.type == "cpu" for each in parameters):
                group = f"ddp {module.process_group.group_name} of {module.process_group.size()}"
                self._file.checksum(step, checksum(parameters), group)


def checksum(parameters: list[torch.Tensor]) -> bytes:
    """The digest of the bytes of ``parameters``, which lie on the CPU, in their order."""
    digests = []
    for each in parameters:
        flat = each.detach().contiguous().reshape(-1)
        digests.append(bytes.fromhex(digest(flat.view(torch.uint8).numpy())) if flat.numel() else b"")
    return digest_bytes(b"".join(digests))
