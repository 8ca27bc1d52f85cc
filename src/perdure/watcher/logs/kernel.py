"""What the kernel's lines about GPUs mean: the numbers that NVIDIA's driver calls Xid.

An Xid seldom comes alone. Of those that one node writes within `BURST_S` seconds the first is the cause; 43 and 45
say only that a channel or an application was torn down, 154 only that the advice changed, and 63 and 92 that memory
was mended. 144 to 150 (NVLink of the fifth generation) say themselves whether they are fatal; when a link goes down,
the GPU that reports the link is the source, and others that lose traffic over it are its victims.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeVar

from perdure.watcher.labels import CLASSES, Action, Label, Owner
from perdure.watcher.logs.reading import Line

__all__ = ["BURST_S", "OTHER_XID", "XIDS", "Xid", "XidMeaning", "roots", "xid_of"]

BURST_S = 5.0

_XID = re.compile(
    r"\bXid(?: ?\((?P<device>[^)]*)\))?\s*(?:error|code)?\s*[:=]?\s*(?P<code>\d{1,3})\b(?P<rest>.*)", re.IGNORECASE
)
_CLOCK = re.compile(r"\[ *(?P<since>\d{1,9}\.\d{3,6})\]|(?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d(?:\.\d+)?)")
_CAUSED = re.compile(r"caused by previous Xid (\d{1,3})", re.IGNORECASE)
_DOWN = re.compile(r"link[ _-]?(?:is )?down|LINK_?DOWN|LINK_EVT|NETIR|link (?:lost|failure)", re.IGNORECASE)
_NONFATAL = re.compile(r"non-?fatal|correctable(?<!uncorrectable)|informational", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class XidMeaning:
    """What a number means. ``after``: it follows from something else and never is the cause."""

    label: Label
    means: str
    owner: Owner
    action: Action
    after: bool = False
    note: bool = False
    "Something was mended; the job may go on."


@dataclass(frozen=True, slots=True)
class Xid:
    """One Xid line."""

    code: int
    meaning: XidMeaning
    device: str
    "As the PCI address that the driver prints."
    line: Line
    since: float | None
    "Seconds by the line's own clock; differences within one node mean something, nothing else does."
    link_down: bool = False


def _of(
    label: Label,
    means: str,
    owner: Owner | None = None,
    action: Action | None = None,
    *,
    after: bool = False,
    note: bool = False,
) -> XidMeaning:
    usual = CLASSES[label]
    return XidMeaning(label, means, owner or usual.owner, action or usual.action, after, note)


def _table() -> dict[int, XidMeaning]:
    user = (Owner.USER, Action.RESTART)
    warn = (Owner.NODE, Action.WARN)
    found = {
        8: _of(Label.GPU_OTHER, "the GPU stopped processing"),
        13: _of(Label.USER_CODE, "a kernel of the program faulted in the graphics engine", *user),
        31: _of(Label.USER_CODE, "a kernel of the program reached for memory that is not mapped", *user),
        32: _of(Label.PCIE, "a push buffer came broken over PCIe"),
        38: _of(Label.DRIVER, "the firmware of the driver fails"),
        43: _of(Label.UNKNOWN, "a channel was reset", after=True),
        45: _of(Label.UNKNOWN, "an application was torn down", after=True),
        46: _of(Label.GPU_OTHER, "the GPU stopped processing"),
        48: _of(Label.GPU_ECC, "a double bit error in memory"),
        61: _of(Label.GPU_OTHER, "a breakpoint or warning of the internal microcontroller"),
        62: _of(Label.GPU_OTHER, "the internal microcontroller halted"),
        63: _of(Label.GPU_ECC_CONTAINED, "a row of memory was remapped", *warn, note=True),
        64: _of(Label.GPU_ECC, "a row of memory could not be remapped"),
        68: _of(Label.GPU_OTHER, "the video processor fails"),
        69: _of(Label.USER_CODE, "a kernel of the program faulted in the graphics engine", *user),
        74: _of(Label.NVLINK, "an NVLink fails"),
        78: _of(Label.DRIVER, "a virtual GPU did not start"),
        79: _of(Label.GPU_OFF_BUS, "the GPU has fallen off the bus"),
        80: _of(Label.PCIE, "corrupt data came over PCIe"),
        92: _of(Label.GPU_ECC_CONTAINED, "many single bit errors in memory", *warn, note=True),
        94: _of(Label.GPU_ECC_CONTAINED, "a memory error that was contained"),
        95: _of(Label.GPU_ECC, "a memory error that was not contained"),
        109: _of(Label.GPU_OTHER, "a context switch timed out"),
        110: _of(Label.GPU_OTHER, "a security fault"),
        119: _of(Label.GPU_GSP, "the GPU's system processor does not answer"),
        120: _of(Label.GPU_GSP, "the GPU's system processor failed"),
        121: _of(Label.NVLINK_NONFATAL, "a chip-to-chip link mended an error", note=True),
        136: _of(Label.GPU_OTHER, "an NVLink could not be trained"),
        137: _of(Label.USER_CODE, "a kernel of the program reached for a peer's memory that is not its own", *user),
        140: _of(Label.GPU_OTHER, "an error in the GPU's memory is not repaired"),
        143: _of(Label.GPU_OTHER, "the GPU did not start"),
        154: _of(Label.UNKNOWN, "the advised recovery changed", after=True),
        155: _of(Label.NVLINK_NONFATAL, "an NVLink is declared by software", after=True),
        156: _of(Label.GPU_ECC_CONTAINED, "a resource of the GPU was retired", *warn, note=True),
        157: _of(Label.GPU_ECC, "a resource of the GPU could not be retired"),
        158: _of(Label.GPU_OTHER, "a fatal time-out of the GPU"),
        160: _of(Label.GPU_ECC_CONTAINED, "a channel of memory was retired", *warn, note=True),
        161: _of(Label.GPU_ECC, "a channel of memory could not be retired"),
        167: _of(Label.PCIE, "a fatal time-out of PCIe"),
        171: _of(Label.GPU_ECC, "an uncorrectable error in DRAM"),
        172: _of(Label.GPU_ECC, "an uncorrectable error in SRAM"),
    }
    for code in range(144, 151):
        found[code] = _of(Label.NVLINK, "an NVLink of the fifth generation fails")
    return found


XIDS: Mapping[int, XidMeaning] = MappingProxyType(_table())
"The numbers whose meaning we know; another one is a GPU that fails, for its driver says so."

OTHER_XID = _of(Label.GPU_OTHER, "the driver reports an error of the GPU")
_MENDED = _of(Label.NVLINK_NONFATAL, "an NVLink of the fifth generation mended an error")


def xid_of(line: Line) -> Xid | None:
    """The Xid that a line reports, if it reports one.

    >>> from perdure.watcher.logs.reading import lines_of
    >>> xid_of(lines_of("[ 1.000] NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.")[0]).meaning.label
    <Label.GPU_OFF_BUS: 'hw.gpu_off_bus'>
    """
    match = _XID.search(line.text)
    if match is None or not (
        line.kernel or "nvrm" in line.raw.lower() or match["device"] or line.text.lstrip()[:3].lower() == "xid"
    ):
        return None
    code, rest = int(match["code"]), match["rest"]
    meaning = XIDS.get(code, OTHER_XID)
    if code == 45 and (cause := _CAUSED.search(rest)):  # the line of the cause itself may be lost
        meaning = XIDS.get(int(cause[1]), OTHER_XID)
    if 144 <= code <= 150 and _NONFATAL.search(rest):
        meaning = _MENDED
    device = (match["device"] or "").removeprefix("PCI:")
    return Xid(code, meaning, device, line, _clock(line), 144 <= code <= 150 and bool(_DOWN.search(rest)))


def _clock(line: Line) -> float | None:
    if line.at is not None:
        return line.at
    match = _CLOCK.search(line.raw)
    if match is None:
        return None
    if match["since"]:
        return float(match["since"])
    return int(match["h"]) * 3600 + int(match["m"]) * 60 + float(match["s"])


_Key = TypeVar("_Key")


def roots(found: Iterable[Xid]) -> list[Xid]:
    """Of all Xids those that are causes: one for each burst of a node, without what only follows.

    An Xid without a clock belongs to the burst of the one before it. Notes stay only where nothing else is in their
    burst. Of bursts with NVLinks of the fifth generation on several GPUs, those that report the link itself stay.
    """
    bursts: list[list[Xid]] = []
    open_of: dict[tuple[str, str], list[Xid]] = {}
    for each in found:
        key = (each.line.node, each.line.file)
        burst = open_of.get(key)
        if burst is None or not _within(burst[-1], each):
            burst = open_of[key] = []
            bursts.append(burst)
        burst.append(each)
    causes = [cause for burst in bursts if (cause := _first(burst)) is not None]
    links = [each for burst in bursts for each in burst if each.link_down and each.meaning.label is Label.NVLINK]
    if links and len({(x.line.node, x.device) for b in bursts for x in b if 144 <= x.code <= 150}) > 1:
        causes = [links[0], *(each for each in causes if not 144 <= each.code <= 150)]
    return causes


def _within(earlier: Xid, later: Xid) -> bool:
    if earlier.since is None or later.since is None:
        return True
    return 0 <= later.since - earlier.since <= BURST_S


def _first(burst: Sequence[Xid]) -> Xid | None:
    for keep in (lambda x: not (x.meaning.after or x.meaning.note), lambda x: x.meaning.note):
        for each in burst:
            if keep(each):
                return each
    return burst[0] if burst else None
