"""Copy live tensors of the host and of CUDA devices into segments, beside the training.

Theory. On a device things happen in the order of a *stream*, some time after they were called for. So nobody on the
host need wait for a copy, as long as the streams do:

1. what may change as soon as ``save`` returns is copied on the stream that is current there: what the loop calls for
   after that comes after it;
2. the rest is copied on a *side stream*, which first waits for an event of the current one (the steps that made the
   tensors), and then runs beside the next forward and backward;
3. the fence lets the stream of the optimizer wait for an event behind the copies. The host goes on at once;
4. the copier's thread waits for that event, and only then is the save staged and handed over.

The copies are asynchronous only into memory that the device's driver knows as pinned, so each segment is registered
once, in place: the bytes go from the device into the agent's memory, and nowhere else. Where that is refused, they go
through a pinned buffer, on the copier's thread: then the fence is one of the host.

Tensors count their changes in place. What was changed between ``save`` and the fence, by something that is no optimizer
step, is found out that way and fails the save: half of it would be of another step. What is written through ``.data``,
or replayed from a CUDA graph, is not counted.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from perdure.adapters.torch.tensors import LocalBlock, as_integers, held_now
from perdure.checkpoint.copying import Block, Copying, copy_host
from perdure.errors import CallError, DeadlineExceeded
from perdure.shm import Segment
from perdure.state.items import Held, Memory

__all__ = ["Cuda", "Device", "TorchCopier", "held_for_saving"]

BOUNCE_BYTES = 32 << 20
_PORTABLE = 1  # cudaHostRegisterPortable: pinned for all devices


class Device(Protocol):
    """What is asked of `torch.cuda`. A stream has torch's ``wait_event``; events are only handed on."""

    def stream(self, device: str, *, side: bool) -> Any:
        """The side stream of ``device``, or the one on which this thread now calls for work."""
        ...

    def event(self, stream: Any) -> Any:
        """An event behind all that was called for on ``stream`` so far."""
        ...

    def wait(self, device: str, event: Any) -> None:
        """Return when the host sees what came before ``event``."""
        ...

    def copy(self, target: Tensor, source: Tensor, *, stream: Any) -> None:
        """Call for a copy of ``source``, on the device, to ``target``, on the host; both uint8[n]."""
        ...

    def pin(self, device: str, address: int, nbytes: int) -> str:
        """Make host memory such that a copy to it is fast and nobody waits. Return why it cannot be, or ``""``."""
        ...

    def unpin(self, address: int) -> None:
        """The memory is given up."""
        ...


class Cuda:
    """The real one."""

    def __init__(self) -> None:
        self._sides: dict[str, Any] = {}

    def stream(self, device: str, *, side: bool) -> Any:
        if not side:
            return torch.cuda.current_stream(device)
        if device not in self._sides:
            self._sides[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        return self._sides[device]

    def event(self, stream: Any) -> Any:
        event: Any = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]  # who waits sleeps
        return stream.record_event(event)

    def wait(self, device: str, event: Any) -> None:
        with torch.cuda.device(device):  # a thread that names no device makes a context on device 0
            event.synchronize()

    def copy(self, target: Tensor, source: Tensor, *, stream: Any) -> None:
        with torch.cuda.stream(stream):
            target.copy_(source, non_blocking=True)

    def pin(self, device: str, address: int, nbytes: int) -> str:
        with torch.cuda.device(device):
            runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
            code = runtime.cudaHostRegister(address, nbytes, _PORTABLE)
            if int(code) == 0:
                return ""
            try:  # the runtime remembers the error, and whoever asks next would be blamed for it
                torch.zeros(1, device=device)
            except RuntimeError:
                pass
            return str(runtime.cudaGetErrorString(code))

    def unpin(self, address: int) -> None:
        runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        runtime.cudaHostUnregister(address)


def held_for_saving(block: LocalBlock) -> tuple[Held, bool]:
    """The memory of ``block`` as the copier takes it, and whether it is live; `held_now` with devices.

    What lies on a CUDA device stays there; what is not contiguous is packed where it lies.
    """
    view = block.view
    if view.device.type != "cuda":
        return held_now(block)
    live = view.is_contiguous() and not (view.is_conj() or view.is_neg() or view._is_zerotensor())
    if not live:
        view = view.clone() if view._is_zerotensor() else view.resolve_conj().resolve_neg()
        view = as_integers(view).contiguous().view(view.dtype)
    nbytes = view.numel() * view.element_size()
    return Held(block.box, Memory(view.data_ptr() if nbytes else 0, nbytes, view, str(view.device))), live


class TorchCopier:
    """The `perdure.checkpoint.copying.Copier` of torch. ``tell`` hears that copies are slower than they could be."""

    def __init__(self, tell: Callable[[str], None], *, device: Device | None = None) -> None:
        self._device: Device = Cuda() if device is None else device
        self._pins = _Pins(self._device, tell)
        self._bounce: Tensor | None = None
        self._met: set[str] = set()

    def adopt(self, segment: Segment) -> None:
        """Pin it, if anything was saved from a device before."""
        for device in sorted(self._met)[:1]:
            self._pins.pinned(segment, device)

    def begin(self, now: Sequence[Block], later: Sequence[Block]) -> Copying:
        """Copy what is on the host and may change; call for copies of what is on devices."""
        there = {True: _by_device(later), False: _by_device(now)}
        self._met |= there[True].keys() | there[False].keys()
        direct = all(
            self._pins.pinned(block.segment, device)
            for of_device in there.values()
            for device, blocks in of_device.items()
            for block in blocks
        )
        copying = _Copying(self, _on_host(later), _versions(later), direct=direct, host_only=not any(there.values()))
        try:
            for side in (False, True):  # side: behind what was called for before the save, beside what comes after it
                for device, blocks in there[side].items():
                    current = self._device.stream(device, side=False)
                    stream = self._device.stream(device, side=side)
                    if side:
                        stream.wait_event(self._device.event(current))
                    if direct:
                        try:
                            self._call_for(blocks, stream)
                        finally:
                            copying.behind.append((device, self._device.event(stream)))
                    elif side:
                        copying.bounced.append((device, blocks))
                    else:
                        self.bounce(device, blocks, side=False)
            copy_host(_on_host(now))
        except BaseException:
            copying.wait_for_devices()
            raise
        return copying

    def _call_for(self, blocks: Sequence[Block], stream: Any) -> None:
        for block in blocks:
            self._device.copy(self._pins.target(block), _bytes_of(block.memory), stream=stream)

    def bounce(self, device: str, blocks: Sequence[Block], *, side: bool) -> None:
        """Copy through a pinned buffer, one half of it being filled while the other is emptied; waits."""
        if self._bounce is None:
            self._bounce = torch.empty(BOUNCE_BYTES, dtype=torch.uint8)
            self._device.pin(device, self._bounce.data_ptr(), BOUNCE_BYTES)  # if not even that: slower, and as right
        stream = self._device.stream(device, side=side)
        halves = self._bounce.chunk(2)
        under_way: list[tuple[Any, Tensor, Tensor]] = []
        at = 0
        for block in blocks:
            target, source = self._pins.target(block), _bytes_of(block.memory)
            for first in range(0, len(target), BOUNCE_BYTES // 2):
                if len(under_way) == 2:
                    self._arrive(device, *under_way.pop(0))
                to = target[first : first + BOUNCE_BYTES // 2]
                half = halves[at % 2][: len(to)]
                self._device.copy(half, source[first : first + len(to)], stream=stream)
                under_way.append((self._device.event(stream), to, half))
                at += 1
        for each in under_way:
            self._arrive(device, *each)

    def _arrive(self, device: str, event: Any, to: Tensor, half: Tensor) -> None:
        self._device.wait(device, event)
        to.copy_(half)

    def wait(self, device: str, event: Any) -> None:
        self._device.wait(device, event)

    def hold_back(self, device: str, event: Any) -> None:
        """Nothing that this thread calls for from here on comes before ``event``."""
        self._device.stream(device, side=False).wait_event(event)


class _Copying:
    """See `perdure.checkpoint.copying.Copying`. ``behind`` and ``bounced`` are filled by `TorchCopier.begin`."""

    def __init__(
        self,
        copier: TorchCopier,
        on_host: Sequence[Block],
        versions: list[tuple[str, Tensor, int]],
        *,
        direct: bool,
        host_only: bool,
    ) -> None:
        self.behind: list[tuple[str, Any]] = []
        self.bounced: list[tuple[str, list[Block]]] = []
        self._copier = copier
        self._on_host, self._versions = on_host, versions
        self._device_waits = direct and not host_only
        self._host_done = threading.Event()
        self._looking = threading.Lock()
        self._changed: str | None = None

    def fence(self, within_s: float) -> bool:
        if not self._device_waits:
            return False
        if not self._host_done.wait(within_s):
            raise DeadlineExceeded(f"the copier took longer than {within_s:g} s for what is on the host", what="copier")
        self._look()
        for device, event in self.behind:
            self._copier.hold_back(device, event)
        return True

    def finish(self) -> None:
        try:
            copy_host(self._on_host)
            for device, blocks in self.bounced:
                self._copier.bounce(device, blocks, side=True)
        finally:
            self._host_done.set()
            self.wait_for_devices()
        self._look()
        if self._changed is not None:
            raise CallError(
                f"{self._changed} was changed while it was being copied, by something that is no optimizer step of "
                "this process; call saved.staged() before you change parameters yourself",
                tensor=self._changed,
            )

    def wait_for_devices(self) -> None:
        """Nothing is written to the segments any more."""
        for device, event in self.behind:
            self._copier.wait(device, event)

    def _look(self) -> None:
        """See, once, whether anything has changed up to here: before the fence lets go, or when all is copied."""
        with self._looking:
            versions, self._versions = self._versions, []
            for name, tensor, version in versions:
                if tensor._version != version:
                    self._changed = name
                    return


class _Pins:
    """Segments as tensors; each is pinned once, and unpinned before its memory goes."""

    def __init__(self, device: Device, tell: Callable[[str], None]) -> None:
        self._device, self._tell = device, tell
        self._known: weakref.WeakKeyDictionary[Segment, tuple[Tensor, bool]] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()  # the copier's thread pins what the next save needs

    def pinned(self, segment: Segment, device: str) -> bool:
        """Pin ``segment``, if it is not; whether it is now."""
        with self._lock:
            if segment not in self._known:
                tensor = torch.frombuffer(segment.view, dtype=torch.uint8)
                why = self._device.pin(device, segment.address, segment.nbytes)
                self._known[segment] = (tensor, not why)
                if why:
                    self._tell(
                        f"tensors on {device} are copied through a buffer, which is slower, and the optimizer's step "
                        f"waits for it: the agent's memory cannot be pinned ({why}); see that memory can be locked "
                        "(ulimit -l)"
                    )
                else:
                    end = weakref.finalize(segment, _give_up, self._device, segment.address, tensor)
                    end.atexit = False
            return self._known[segment][1]

    def target(self, block: Block) -> Tensor:
        """The bytes of ``block`` in its segment, as uint8[n]."""
        return self._known[block.segment][0][block.start : block.start + block.memory.nbytes]


def _give_up(device: Device, address: int, tensor: Tensor) -> None:
    """``tensor`` keeps the memory mapped until here."""
    device.unpin(address)


def _by_device(blocks: Sequence[Block]) -> dict[str, list[Block]]:
    found: dict[str, list[Block]] = {}
    for block in blocks:
        if block.memory.device and block.memory.nbytes:
            found.setdefault(block.memory.device, []).append(block)
    return found


def _on_host(blocks: Sequence[Block]) -> list[Block]:
    return [block for block in blocks if not block.memory.device]


def _bytes_of(memory: Memory) -> Tensor:
    """The bytes on the device, as uint8[n]."""
    owner: Tensor = memory.owner
    first = memory.address - owner.data_ptr()
    return owner.reshape(-1).view(torch.uint8)[first : first + memory.nbytes]


def _versions(blocks: Sequence[Block]) -> list[tuple[str, Tensor, int]]:
    """How often each tensor has been changed in place so far; one made for inference alone does not count that."""
    owners = [(block.name, block.memory.owner) for block in blocks]
    return [(name, owner, owner._version) for name, owner in owners if not owner.is_inference()]
