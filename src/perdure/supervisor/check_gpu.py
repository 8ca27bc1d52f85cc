"""What the driver says of the GPUs: errors, memory to be repaired, slowed clocks, and who holds their memory.

Through NVML, so no context is made and nothing is disturbed. What a GPU or a
driver does not support is left out. Past Xid errors are only in the kernel's log; those that happen while it is looked
at come from NVML. Which ones mean that the hardware must not be used on is NVIDIA's own catalogue of Xid errors.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field

from perdure.errors import NeedsPerson
from perdure.process.nvml import Device, Nvml
from perdure.supervisor.checks import Context, Result

__all__ = ["Gpu", "gpu", "gpu_memory", "kernel_log", "verdict", "xids_in"]

_HARDWARE_XIDS = {
    48: "an ECC error that could not be corrected",
    62: "its controller halted",
    64: "a row of memory could not be remapped",
    74: "an NVLink error",
    79: "it has fallen off the bus",
    95: "an ECC error that was not contained",
    119: "its system processor does not answer",
    120: "its system processor failed",
    140: "an ECC error that was not recovered",
    143: "it could not be initialised",
}
_THERMAL, _POWER_BRAKE, _SLOWDOWN, _SW_THERMAL = 0x40, 0x80, 0x08, 0x20
_REASONS = {_SLOWDOWN: "hardware slowdown", _THERMAL: "heat", _POWER_BRAKE: "power brake", _SW_THERMAL: "warmth"}
_XID_LINE = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): (\d+)")
_WAIT_MS = 100
_OTHERS_BYTES = 1 << 30


@dataclass(slots=True)
class Gpu:
    """What was read of one GPU; None is what it does not tell. Sizes in bytes, clocks in MHz."""

    index: int
    name: str = ""
    bus: str = ""
    lost: str = ""
    ecc_uncorrected: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    slowed: int = 0
    clock_mhz: int | None = None
    max_clock_mhz: int | None = None
    free_bytes: int | None = None
    used_bytes: int | None = None
    holders: dict[int, int | None] = field(default_factory=dict)
    xids: list[int] = field(default_factory=list)


def gpu(context: Context) -> Result:
    """Read each GPU's errors and clocks, and the Xid errors of the last while."""
    gpus, why = _read(events=True)
    if gpus is None:
        return _none("gpu", why, context.gpus)
    lines = kernel_log()
    for bus, xid in xids_in(lines, time.clock_gettime(time.CLOCK_MONOTONIC), context.xid_window_s):
        for one in gpus:
            if _same_bus(one.bus, bus):
                one.xids.append(xid)
    return verdict(gpus, expected=context.gpus, log_read=lines is not None)


def verdict(gpus: list[Gpu], *, expected: int | None, log_read: bool = True) -> Result:
    """The result for what was read of each GPU."""
    facts = {"gpus": [asdict(one) for one in gpus], "kernel_log_read": log_read}
    bad, notes = [], []
    if expected is not None and len(gpus) < expected:
        bad.append(f"{len(gpus)} GPUs are there, and {expected} should be")
    for one in gpus:
        bad += [f"GPU {one.index}: {what}" for what in _bad(one)]
        notes += [f"GPU {one.index}: {what}" for what in _noted(one)]
    if bad:
        do = "take the node out; reset its GPUs (nvidia-smi --gpu-reset) or restart it, and replace what fails again"
        return Result(check="gpu", word="problem", says="; ".join(bad), do=do, facts=facts)
    if notes:
        do = "nothing if the job was at fault; else watch this node"
        return Result(check="gpu", word="note", says="; ".join(notes), do=do, facts=facts)
    unread = "" if log_read else " (past Xid errors are not known: the kernel's log may not be read here)"
    return Result(check="gpu", word="ok", says=f"{len(gpus)} GPUs without errors{unread}", facts=facts)


def gpu_memory(context: Context) -> Result:
    """Whether processes that have been ended still hold memory of a GPU, and whether enough of it is free."""
    gpus, why = _read(events=False)
    if gpus is None:
        return _none("gpu-memory", why, context.gpus)
    facts = {
        "gpus": [
            {"index": one.index, "free_bytes": one.free_bytes, "holders": {str(k): v for k, v in one.holders.items()}}
            for one in gpus
        ]
    }
    bad, notes = [], []
    for one in gpus:
        held = sorted(set(one.holders) & set(context.gone))
        if held:
            size = _gb(sum(one.holders[pid] or 0 for pid in held))
            bad.append(f"GPU {one.index}: {size} are held by {_named(held)}, which should be gone")
        elif one.free_bytes is not None and one.free_bytes < context.need_gpu_bytes:
            by = f", held by {_named(sorted(one.holders))}" if one.holders else ""
            bad.append(
                f"GPU {one.index}: {_gb(one.free_bytes)} are free{by}, and {_gb(context.need_gpu_bytes)} are needed"
            )
        elif (one.used_bytes or 0) > _OTHERS_BYTES:
            by = _named(sorted(one.holders)) if one.holders else "processes that cannot be seen from here"
            notes.append(f"GPU {one.index}: {_gb(one.used_bytes or 0)} are used by {by}")
    if bad:
        do = "end those processes; if they cannot be ended, restart the node"
        return Result(check="gpu-memory", word="problem", says="; ".join(bad), do=do, facts=facts)
    if notes:
        return Result(
            check="gpu-memory", word="note", says="; ".join(notes), do="end what else runs there", facts=facts
        )
    return Result(check="gpu-memory", word="ok", says=f"the memory of {len(gpus)} GPUs is free", facts=facts)


def xids_in(lines: Iterable[str] | None, now_s: float, window_s: float) -> Iterator[tuple[str, int]]:
    """Bus address and number of each Xid error in records of /dev/kmsg, whose times are microseconds since boot.

    >>> line = "4,901,7000000,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus."
    >>> list(xids_in([line], 10.0, 5.0)), list(xids_in([line], 100.0, 5.0))
    ([('0000:3b:00', 79)], [])
    """
    for line in lines or ():
        head, _, text = line.partition(";")
        found = _XID_LINE.search(text)
        parts = head.split(",")
        if found is None or len(parts) < 3 or not parts[2].isdigit():
            continue
        if now_s - int(parts[2]) / 1e6 <= window_s:
            yield found[1], int(found[2])


def kernel_log(path: str = "/dev/kmsg") -> list[str] | None:
    """The records of the kernel's log; None if they may not be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # containers have none, and most users may not read it: the result says so
        return None
    records = []
    try:
        while True:
            try:
                record = os.read(fd, 8192)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno == errno.EPIPE:  # overwritten while it was read; the next read goes on after it
                    continue
                return None
            if not record:
                break
            records.append(record.decode(errors="replace"))
    finally:
        os.close(fd)
    return records


def _bad(one: Gpu) -> Iterator[str]:
    if one.lost:
        yield one.lost
    if one.ecc_uncorrected:
        yield f"{one.ecc_uncorrected} ECC errors that could not be corrected"
    if one.remap_failed:
        yield "a row of its memory could not be remapped"
    if one.remap_pending:
        yield "rows of its memory wait to be remapped"
    for xid in dict.fromkeys(one.xids):
        if xid in _HARDWARE_XIDS:
            yield f"Xid {xid}, {_HARDWARE_XIDS[xid]}"
    if one.slowed & (_THERMAL | _POWER_BRAKE):
        yield f"slowed down by its hardware ({_slowed_by(one)})"


def _noted(one: Gpu) -> Iterator[str]:
    others = [xid for xid in dict.fromkeys(one.xids) if xid not in _HARDWARE_XIDS]
    if others:
        yield "Xid " + ", ".join(map(str, others)) + " (most often the program's fault)"
    if one.slowed & (_SLOWDOWN | _SW_THERMAL) and not one.slowed & (_THERMAL | _POWER_BRAKE):
        yield f"slowed down ({_slowed_by(one)})"


def _slowed_by(one: Gpu) -> str:
    return ", ".join(name for bit, name in _REASONS.items() if one.slowed & bit)


def _read(*, events: bool) -> tuple[list[Gpu] | None, str]:
    """All GPUs; or None and why there are none."""
    try:
        nvml = Nvml.open()
        if nvml is None:
            return None, "no NVIDIA driver is loaded"
        with nvml:
            devices = nvml.devices()
            gpus = [_one(device) for device in devices]
            for index, xid in nvml.xids(devices, wait_ms=_WAIT_MS) if events else ():
                gpus[index].xids.append(xid)
            return gpus, ""
    except NeedsPerson as error:
        return None, f"the driver does not answer: {error.why}"


def _one(device: Device) -> Gpu:
    remapped, memory = device.remapped(), device.memory()
    one = Gpu(
        device.index,
        name=device.name(),
        bus=device.bus(),
        ecc_uncorrected=device.ecc_uncorrected(),
        remap_pending=remapped[0] if remapped else None,
        remap_failed=remapped[1] if remapped else None,
        slowed=device.slowed(),
        clock_mhz=device.sm_clock_mhz(),
        max_clock_mhz=device.max_sm_clock_mhz(),
        free_bytes=memory[1] - memory[0] if memory else None,
        used_bytes=memory[0] if memory else None,
        holders={holder.pid: holder.used_bytes for holder in device.holders()},
    )
    one.lost = device.failed
    return one


def _same_bus(one: str, other: str) -> bool:
    """Whether two ways of writing a PCI address (00000000:3B:00.0, 0000:3b:00) are the same device."""

    def parts(text: str) -> list[int] | None:
        try:
            return [int(part, 16) for part in text.partition(".")[0].split(":")]
        except ValueError:
            return None

    return parts(one) is not None and parts(one) == parts(other)


def _none(check: str, why: str, expected: int | None) -> Result:
    """The result for a node of which no GPU can be seen."""
    if expected:
        return Result(
            check=check,
            word="problem",
            says=f"{expected} GPUs should be there, but {why}",
            do="load the driver (nvidia-smi must work), or take the node out",
        )
    if why == "no NVIDIA driver is loaded":
        return Result(check=check, word="ok", says=f"no GPU to look at: {why}")
    return Result(
        check=check, word="note", says=f"GPUs cannot be looked at: {why}", do="see to it, or use another node"
    )


def _named(pids: list[int]) -> str:
    return ("process " if len(pids) == 1 else "processes ") + ", ".join(map(str, pids))


def _gb(nbytes: int) -> str:
    return f"{nbytes / 1e9:.1f} GB"
