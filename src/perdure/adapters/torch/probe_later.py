"""Numbers that a device has yet to compute: asked for on the hot path, read by the probe's thread when they are there.

Nothing here waits for a device: a copy into pinned memory is queued with an event behind it, and the thread looks at
the event each second.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import torch

__all__ = ["Later"]

_MOST = 256


class Later:
    """Hands values to whoever wants them: at once where they are, later where a CUDA device computes them."""

    def __init__(self) -> None:
        self._coming: deque[tuple[torch.Tensor, torch.cuda.Event, Callable[[float], None]]] = deque(maxlen=_MOST)

    def give(self, value: torch.Tensor, to: Callable[[float], None]) -> None:
        """Call ``to`` with the one number in ``value``; values of devices that are not known go nowhere, and the
        oldest of more than 256 that are on their way.
        """
        if value.device.type == "cpu":
            to(float(value.item()))
        elif value.device.type == "cuda" and not torch.cuda.is_current_stream_capturing():
            here = torch.empty((), dtype=torch.float32, pin_memory=True)
            with torch.no_grad():
                here.copy_(value.detach().reshape(()), non_blocking=True)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(torch.cuda.current_stream(value.device))
            self._coming.append((here, event, to))

    def collect(self) -> None:
        """Hand over what has come, in order; called by the probe's thread."""
        while self._coming and self._coming[0][1].query():  # type: ignore[no-untyped-call]
            here, _, to = self._coming.popleft()
            to(float(here.item()))
