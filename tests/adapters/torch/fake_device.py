"""A device without a device: its streams are queues of work that nobody has done yet.

Real devices do things late and, between streams, in any order. This one does them at the worst moment: what was called
for on a stream happens only when a test runs that stream, or when somebody waits on the host for an event, and then the
streams that compute come first. Memory "on the device" is host memory that only the copier touches.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from perdure.adapters.torch.tensors import LocalBlock, held_now
from perdure.state.items import Held

__all__ = ["Event", "FakeDevice", "Stream", "on_fake_device"]


@dataclass(eq=False)
class Event:
    happened: bool = False


@dataclass(eq=False)
class Stream:
    """Work in order; an event in it stands for waiting until that has happened."""

    name: str
    lock: threading.RLock
    work: deque[Callable[[], object] | Event] = field(default_factory=deque)

    def call(self, job: Callable[[], object]) -> None:
        with self.lock:
            self.work.append(job)

    def wait_event(self, event: Event) -> None:
        with self.lock:
            self.work.append(event)

    def run(self) -> bool:
        """Do all that does not wait for another stream; whether that was anything."""
        did = False
        with self.lock:
            while self.work:
                first = self.work[0]
                if isinstance(first, Event):
                    if not first.happened:
                        break
                else:
                    first()
                self.work.popleft()
                did = True
        return did


class FakeDevice:
    """`perdure.adapters.torch.device_copy.Device`. ``refuses`` is why no memory can be pinned."""

    def __init__(self, *, refuses: str = "") -> None:
        self.refuses = refuses
        self.pinned: list[tuple[int, int]] = []
        self.unpinned: list[int] = []
        self.copies = 0
        self.fails_at_copy: int | None = None
        self._lock = threading.RLock()
        self._streams: dict[tuple[str, bool], Stream] = {}
        self._left: list[Stream] = []

    def stream(self, device: str, *, side: bool) -> Stream:
        with self._lock:
            name = f"{device} {'side' if side else 'current'}"
            return self._streams.setdefault((device, side), Stream(name, self._lock))

    def change_stream(self, device: str) -> None:
        """From here on another stream is the current one; what was called for on the one before is still to be done."""
        with self._lock:
            self._left.append(self._streams.pop((device, False)))

    def event(self, stream: Stream) -> Event:
        event = Event()
        stream.call(lambda: setattr(event, "happened", True))
        return event

    def wait(self, device: str, event: Event) -> None:
        self.run()
        assert event.happened, "the host would wait for ever"

    def copy(self, target: Tensor, source: Tensor, *, stream: Stream) -> None:
        assert target.dtype == source.dtype == torch.uint8
        assert target.shape == source.shape
        self.copies += 1
        if self.copies == self.fails_at_copy:
            raise RuntimeError("an illegal memory access was encountered")
        stream.call(lambda: target.copy_(source))

    def pin(self, device: str, address: int, nbytes: int) -> str:
        if not self.refuses:
            self.pinned.append((address, nbytes))
        return self.refuses

    def unpin(self, address: int) -> None:
        self.unpinned.append(address)

    def run(self) -> None:
        """Do all work that there is; the streams that compute first."""
        with self._lock:
            did = True
            while did:
                did = False
                known = sorted(self._streams.items(), key=lambda item: item[0][1])
                for stream in (*self._left, *(stream for _, stream in known)):
                    did = stream.run() or did


def on_fake_device(block: LocalBlock) -> tuple[Held, bool]:
    """`held_for_saving`, as if all tensors with dims lay on a device; an optimizer's counts lie on the host."""
    held, live = held_now(block)
    if block.view.dim():
        held = Held(held.box, replace(held.memory, device="fake:0"))
    return held, live
