"""What the driver says of a node's GPUs, about once a second, from a thread of its own: a driver that hangs stops it.

A link counts as down only if it has been up since the watch began: boards without a bridge have links that never
are. NVML numbers processes as the machine does, so in a container with numbers of its own none can be told apart, and
none is called foreign.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable

from perdure.clock import SYSTEM, Clock
from perdure.process.nvml import Device, Nvml, slowed_by
from perdure.watcher.aside import Aside
from perdure.watcher.samples import GpuState, LogLine

__all__ = ["HUNG_S", "GpuWatch", "Reader"]

HUNG_S = 20.0
_EVERY_S = 1.0
_MOST_LINES = 256
_TRIES_S = 60.0
_FIRST_NAMESPACE = 0xEFFFFFFC


class Reader:
    """Reads all GPUs once a call. ``belongs`` says of a process whether it is of this job; one thread calls."""

    def __init__(self, nvml: Nvml, *, belongs: Callable[[int], bool]) -> None:
        self._nvml = nvml
        self._belongs = belongs
        self._up: dict[int, set[int]] = {}
        self._names: dict[int, tuple[str, str]] = {}
        self._known = 0

    def read(self) -> tuple[GpuState, ...]:
        """The state of each. A GPU that was counted before and is not any more stays, as lost."""
        devices = self._nvml.devices()
        states = [self._one(device) for device in devices]
        here = {state.index for state in states}
        for index in range(self._known):
            if index not in here:
                name, bus = self._names.get(index, ("", ""))
                states.append(GpuState(index=index, name=name, bus=bus, lost="the driver does not count it any more"))
        self._known = max(self._known, len(devices))
        return tuple(states)

    def xids(self) -> list[tuple[str, int]]:
        """PCI address and number of the Xid errors since the call before."""
        found = self._nvml.xids(self._nvml.devices())
        return [(self._names.get(index, ("", ""))[1] or f"GPU {index}", xid) for index, xid in found]

    def _one(self, device: Device) -> GpuState:
        if device.index not in self._names and not device.failed:
            self._names[device.index] = (device.name(), device.bus())
        name, bus = self._names.get(device.index, ("", ""))
        memory = device.memory()
        remapped = device.remapped()
        generation, generation_max, width, width_max = device.pcie()
        links = device.nvlinks()
        up = self._up.setdefault(device.index, set())
        up |= {link for link, is_up in links.items() if is_up}
        state = GpuState(
            index=device.index,
            name=name,
            bus=bus,
            temperature_c=device.temperature_c(),
            power_w=device.power_w(),
            sm_clock_mhz=device.sm_clock_mhz(),
            utilization=device.utilization(),
            memory_used_bytes=memory[0] if memory else None,
            memory_total_bytes=memory[1] if memory else None,
            throttled=slowed_by(device.slowed()),
            ecc_uncorrected=device.ecc_uncorrected(),
            remap_pending=bool(remapped and remapped[0]),
            remap_failed=bool(remapped and remapped[1]),
            pcie_generation=generation,
            pcie_generation_max=generation_max,
            pcie_width=width,
            pcie_width_max=width_max,
            nvlinks_down=sum(not links.get(link, False) for link in up) if links else None,
            foreign_pids=tuple(sorted(one.pid for one in device.holders() if not self._belongs(one.pid))),
        )
        return GpuState(index=device.index, name=name, bus=bus, lost=device.failed) if device.failed else state


class GpuWatch:
    """The GPUs of this node, as they were when they last answered.

    ``belongs`` says of a process whether it is of this job; it is called from the thread. ``same_numbers``: whether
    processes are numbered here as on the machine, None to find out. ``library`` is NVML's file.
    """

    def __init__(
        self,
        *,
        belongs: Callable[[int], bool],
        node: str = "",
        library: str = "libnvidia-ml.so.1",
        same_numbers: bool | None = None,
        every_s: float = _EVERY_S,
        clock: Clock = SYSTEM,
    ) -> None:
        self._belongs = belongs
        self._same_numbers = _in_first_namespace() if same_numbers is None else same_numbers
        self._node = node
        self._library = library
        self._clock = clock
        self._reader: Reader | None = None
        self._nvml: Nvml | None = None
        self._lock = threading.Lock()
        self._lines: deque[LogLine] = deque(maxlen=_MOST_LINES)
        self._next_try_s = float("-inf")
        self._aside: Aside[tuple[GpuState, ...]] = Aside(self._look, every_s=every_s, name="gpus", clock=clock)

    def latest(self) -> tuple[GpuState, ...]:
        """What was read last; empty without a driver. Never waits."""
        return self._aside.latest or ()

    def problem(self) -> str:
        """Why nothing is read though there is a driver; empty if nothing is wrong."""
        busy_s = self._aside.busy_s()
        if busy_s > HUNG_S:
            return f"the driver of the GPUs has not answered for {busy_s:.0f} s"
        return self._aside.problem

    def lines(self) -> list[LogLine]:
        """Xid errors since the call before, written as the kernel would: for where its log may not be read."""
        with self._lock:
            lines, self._lines = list(self._lines), deque(maxlen=_MOST_LINES)
        return lines

    def wait_first(self, timeout_s: float) -> bool:
        """Wait for the first answer."""
        return self._aside.wait_first(timeout_s)

    def close(self) -> None:
        """End the thread, and the library if it answers."""
        self._aside.close()
        if self._nvml is not None and self._aside.busy_s() == 0.0:
            self._nvml.close()
            self._nvml = None

    def _look(self) -> tuple[GpuState, ...]:
        now = self._clock.monotonic()
        if self._reader is None:
            if now < self._next_try_s:
                return ()
            self._next_try_s = now + _TRIES_S
            self._nvml = Nvml.open(self._library)
            if self._nvml is None:
                return ()
            self._reader = Reader(self._nvml, belongs=self._ours)
        states = self._reader.read()
        for bus, xid in self._reader.xids():
            text = f"NVRM: Xid (PCI:{bus}): {xid}, told by NVML"
            with self._lock:
                self._lines.append(LogLine(text=text, at_s=now, node=self._node, source="kernel"))
        return states

    def _ours(self, pid: int) -> bool:
        return not self._same_numbers or not os.path.exists(f"/proc/{pid}") or self._belongs(pid)


def _in_first_namespace() -> bool:
    """Whether processes have the machine's own numbers here: the kernel gives its first namespace a fixed inode."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino == _FIRST_NAMESPACE
    except OSError:
        return False
