"""Checksums of parameters that several ranks hold alike, each 500 steps: the ranks of a DDP must agree to the bit.

It is perdure's digest of the bytes of parameters that lie on the CPU; on a device there is none.
"""

from __future__ import annotations

import time
from typing import Any

import torch

from perdure.codec.digest import digest, digest_bytes
from perdure.progress.vitals import VitalsFile

__all__ = ["CHECKSUM_STEPS", "Replicas", "checksum"]

CHECKSUM_STEPS = 500
_SHARE = 0.001


class Replicas:
    """Tells the checksum of the replicated module. Called by `probe_steps` after each step, on the main thread."""

    def __init__(self, file: VitalsFile, *, every: int | None) -> None:
        self._every = CHECKSUM_STEPS if every is None else every
        self._file = file

    def due(self, step: int) -> bool:
        """Whether a checksum is to be taken after ``step``: the same answer on ranks that are equally fast."""
        return self._every > 0 and step % self._every == 0

    def after_step(self, step: int, module: Any, *, step_ns: int) -> None:
        """``step``, which took ``step_ns`` (0: not known), is complete; ``module`` is a DDP, or None.

        Where it costs more than 0.1 % of the time of steps it is done half as often, and again half as often: ranks
        that differ in this have every second checksum in common, or every fourth.
        """
        parameters = [] if module is None else list(module.parameters())
        if not parameters or any(not each.is_cpu for each in parameters):
            return
        began = time.monotonic_ns()
        group = f"ddp {module.process_group.group_name} of {module.process_group.size()}"
        self._file.checksum(step, checksum(parameters), group)
        if step_ns and time.monotonic_ns() - began > _SHARE * self._every * step_ns:
            self._every *= 2


def checksum(parameters: list[torch.Tensor]) -> bytes:
    """The digest of the bytes of ``parameters``, which lie on the CPU, in their order."""
    digests = []
    for each in parameters:
        flat = each.detach().contiguous().reshape(-1)
        digests.append(bytes.fromhex(digest(flat.view(torch.uint8).numpy())) if flat.numel() else b"")
    return digest_bytes(b"".join(digests))
