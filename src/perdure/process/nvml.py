"""NVIDIA's management library, called through ctypes: no package is needed, no context is made, nothing is disturbed.

A GPU, a driver or a right that lacks something is common, so a question has three answers: a value, None (it is not
supported or not allowed), or None with the reason in `Device.failed` (the GPU or its driver fails). Calls can hang for
ever in a driver that is broken: ask from a thread or a process that may be lost.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from perdure.errors import NeedsPerson

__all__ = ["IDLE", "SLOWED", "Device", "Holder", "Nvml", "slowed_by"]

_LIBRARY = "libnvidia-ml.so.1"
_OK, _TIMEOUT, _TOO_SMALL, _LOST = 0, 10, 7, 15
_NOT_TOLD = frozenset({2, 3, 4, 13})  # of this argument not valid, not supported, not allowed, no such function
_NO_DRIVER = 9
_MAX_GPUS, _MAX_LINKS, _MAX_HOLDERS, _MAX_EVENTS = 64, 18, 1024, 64
_XID_EVENT = 0x8
_SM_CLOCK, _CORE, _UNCORRECTED, _SINCE_BOOT = 1, 0, 1, 0
_UNKNOWN_BYTES = (1 << 64) - 1

IDLE = 0x1
SLOWED = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "warmth",
    0x40: "heat",
    0x80: "power brake",
}
"""Reasons for low clocks that somebody may want to know of, by NVML's bits."""


def slowed_by(bits: int) -> tuple[str, ...]:
    """The words for the reasons in ``bits``.

    >>> slowed_by(0x48 | IDLE)
    ('hardware slowdown', 'heat')
    """
    return tuple(word for bit, word in SLOWED.items() if bits & bit)


@dataclass(frozen=True, slots=True)
class Holder:
    """A process with memory of a GPU, in the numbers of NVML's own process namespace; bytes are None if not told."""

    pid: int
    used_bytes: int | None


class _Pci(ctypes.Structure):
    _fields_ = (
        ("legacy", ctypes.c_char * 16),
        ("domain", ctypes.c_uint),
        ("bus", ctypes.c_uint),
        ("device", ctypes.c_uint),
        ("device_id", ctypes.c_uint),
        ("subsystem_id", ctypes.c_uint),
        ("bus_id", ctypes.c_char * 32),
    )


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Process(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class _Event(ctypes.Structure):
    _fields_ = (
        ("device", ctypes.c_void_p),
        ("type", ctypes.c_ulonglong),
        ("data", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class Nvml:
    """The library, started. Use as ``with Nvml.open() as nvml``; None where there is no driver."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._events = ctypes.c_void_p()
        self._watched: dict[int, int] | None = None

    @classmethod
    def open(cls, library: str = _LIBRARY) -> Nvml | None:
        """Load and start it. None: no driver is loaded. Raises `NeedsPerson` if there is one that does not answer."""
        try:
            loaded = ctypes.CDLL(library)
        except OSError:
            return None
        nvml = cls(loaded)
        code = nvml.call("nvmlInitWithFlags", ctypes.c_uint(0))
        if code == _NO_DRIVER:
            return None
        if code != _OK:
            raise _silent(nvml, code)
        return nvml

    def __enter__(self) -> Nvml:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End it."""
        if self._events.value:
            self.call("nvmlEventSetFree", self._events)
            self._events, self._watched = ctypes.c_void_p(), None
        self.call("nvmlShutdown")

    def call(self, name: str, *arguments: Any) -> int:
        """The code that function ``name`` returns; that of "no such function" if the driver is too old to have it."""
        function: Callable[..., int] | None = getattr(self._library, name, None)
        return 13 if function is None else int(function(*arguments))

    def says(self, code: int) -> str:
        """NVML's words for ``code``."""
        function = getattr(self._library, "nvmlErrorString", None)
        if function is None:
            return f"error {code}"
        function.restype = ctypes.c_char_p
        return (function(code) or b"").decode(errors="replace") or f"error {code}"

    def devices(self) -> list[Device]:
        """All GPUs that the driver counts, those that it gives no access to as well."""
        count = ctypes.c_uint()
        code = self.call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        if code != _OK:
            raise _silent(self, code)
        return [Device(self, index) for index in range(min(count.value, _MAX_GPUS))]

    def xids(self, devices: list[Device], *, wait_ms: int = 0) -> Iterator[tuple[int, int]]:
        """Index and number of each Xid error since the call before, waiting ``wait_ms`` for each; the first call begins
        to watch.
        """
        if self._watched is None:
            self._watched = {}
            if self.call("nvmlEventSetCreate", ctypes.byref(self._events)) != _OK:
                return
            self._watched = {one.address: one.index for one in devices if one.watch_xids(self._events)}
        for _ in range(_MAX_EVENTS if self._watched else 0):
            event = _Event()
            waited = ctypes.c_uint(wait_ms)
            if self.call("nvmlEventSetWait_v2", self._events, ctypes.byref(event), waited) != _OK:
                return
            index = self._watched.get(int(event.device or 0))
            if index is not None and event.type & _XID_EVENT:
                yield index, int(event.data)


class Device:
    """A GPU. ``failed`` says why it could not be asked; empty while it could."""

    def __init__(self, nvml: Nvml, index: int) -> None:
        self._nvml = nvml
        self.index = index
        self.failed = ""
        self._handle = ctypes.c_void_p()
        self._note(nvml.call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(self._handle)))
        if not self.address:
            self.failed = self.failed or "the driver gives no access to it"

    @property
    def address(self) -> int:
        """What NVML calls it by; 0 if it gives no access."""
        return self._handle.value or 0

    def watch_xids(self, events: ctypes.c_void_p) -> bool:
        """Have its Xid errors reported to the event set ``events``; whether they will be."""
        return self._ask("nvmlDeviceRegisterEvents", ctypes.c_ulonglong(_XID_EVENT), events)

    def name(self) -> str:
        """Its product name; empty if not told."""
        text = ctypes.create_string_buffer(96)
        return text.value.decode(errors="replace") if self._ask("nvmlDeviceGetName", text, ctypes.c_uint(96)) else ""

    def bus(self) -> str:
        """Its PCI address, as 00000000:3B:00.0; empty if not told."""
        pci = _Pci()
        if not self._ask("nvmlDeviceGetPciInfo_v3", ctypes.byref(pci)):
            return ""
        return bytes(pci.bus_id).decode(errors="replace")

    def temperature_c(self) -> int | None:
        """Of its core."""
        return self._number("nvmlDeviceGetTemperature", ctypes.c_uint(_CORE))

    def power_w(self) -> float | None:
        """What it draws."""
        milliwatts = self._number("nvmlDeviceGetPowerUsage")
        return None if milliwatts is None else milliwatts / 1000

    def sm_clock_mhz(self) -> int | None:
        """Of its multiprocessors, now."""
        return self._number("nvmlDeviceGetClockInfo", ctypes.c_uint(_SM_CLOCK))

    def max_sm_clock_mhz(self) -> int | None:
        """Of its multiprocessors, at most."""
        return self._number("nvmlDeviceGetMaxClockInfo", ctypes.c_uint(_SM_CLOCK))

    def utilization(self) -> float | None:
        """Share of the last while in which a kernel ran, 0 to 1."""
        used = _Utilization()
        return min(used.gpu / 100, 1.0) if self._ask("nvmlDeviceGetUtilizationRates", ctypes.byref(used)) else None

    def memory(self) -> tuple[int, int] | None:
        """Bytes used and in all."""
        memory = _Memory()
        return (memory.used, memory.total) if self._ask("nvmlDeviceGetMemoryInfo", ctypes.byref(memory)) else None

    def slowed(self) -> int:
        """Bits of why its clocks are low."""
        return self._number("nvmlDeviceGetCurrentClocksThrottleReasons", kind=ctypes.c_ulonglong) or 0

    def ecc_uncorrected(self) -> int | None:
        """Errors of its memory since the driver was loaded that could not be corrected."""
        return self._number(
            "nvmlDeviceGetTotalEccErrors",
            ctypes.c_uint(_UNCORRECTED),
            ctypes.c_uint(_SINCE_BOOT),
            kind=ctypes.c_ulonglong,
        )

    def remapped(self) -> tuple[bool, bool] | None:
        """Whether rows of its memory wait to be remapped, and whether one could not be."""
        numbers = [ctypes.c_uint() for _ in range(4)]
        if not self._ask("nvmlDeviceGetRemappedRows", *map(ctypes.byref, numbers)):
            return None
        return bool(numbers[2].value), bool(numbers[3].value)

    def pcie(self) -> tuple[int | None, int | None, int | None, int | None]:
        """Generation now and at most, width now and at most."""
        return (
            self._number("nvmlDeviceGetCurrPcieLinkGeneration"),
            self._number("nvmlDeviceGetMaxPcieLinkGeneration"),
            self._number("nvmlDeviceGetCurrPcieLinkWidth"),
            self._number("nvmlDeviceGetMaxPcieLinkWidth"),
        )

    def nvlinks(self) -> dict[int, bool]:
        """Of each NVLink that it has, whether it is up."""
        links = {}
        for link in range(_MAX_LINKS):
            up = self._number("nvmlDeviceGetNvLinkState", ctypes.c_uint(link))
            if up is not None:
                links[link] = bool(up)
        return links

    def holders(self) -> list[Holder]:
        """Processes that compute on it."""
        room = 64 if self.address and not self.failed else _MAX_HOLDERS + 1
        while room <= _MAX_HOLDERS:
            count, found = ctypes.c_uint(room), (_Process * room)()
            code = self._nvml.call("nvmlDeviceGetComputeRunningProcesses_v3", self._handle, ctypes.byref(count), found)
            if code == _TOO_SMALL:
                room *= 4
                continue
            self._note(code)
            return [
                Holder(int(one.pid), None if one.used == _UNKNOWN_BYTES else int(one.used))
                for one in found[: min(count.value, room) if code == _OK else 0]
            ]
        return []

    def _number(self, name: str, *arguments: Any, kind: type[Any] = ctypes.c_uint) -> int | None:
        value = kind()
        return int(value.value) if self._ask(name, *arguments, ctypes.byref(value)) else None

    def _ask(self, name: str, *arguments: Any) -> bool:
        """Whether the answer has been written to the last of ``arguments``."""
        if not self.address or self.failed:
            return False
        code = self._nvml.call(name, self._handle, *arguments)
        self._note(code)
        return code == _OK

    def _note(self, code: int) -> None:
        if code in (_OK, _TIMEOUT) or code in _NOT_TOLD or self.failed:
            return
        self.failed = (
            "it has fallen off the bus" if code == _LOST else f"the driver fails on it: {self._nvml.says(code)}"
        )


def _silent(nvml: Nvml, code: int) -> NeedsPerson:
    why = nvml.says(code)
    words = f"the driver of the GPUs does not answer: {why}; load it again, until nvidia-smi works"
    return NeedsPerson(words, code=code, why=why)
