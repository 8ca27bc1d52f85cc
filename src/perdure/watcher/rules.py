"""What a node's own numbers say for certain, without comparing it with others: samples in, evidence out. Pure.

A counter that grew is told once. A state that holds is told when it has lasted, and again each `AGAIN_S` while it
does, so that whoever listens can tell that it still holds. The conditions are those under which the number cannot be
innocent:

| evidence | innocent otherwise |
|---|---|
| `gpu-ecc` the count of uncorrected errors grew | what was counted before the watch began |
| `gpu-xid` a GPU's last Xid is another one | what a program did wrong, what follows from something else |
| `gpu-remap-failed`, `gpu-remap-pending` | |
| `gpu-lost`, `gpu-silent` the driver or a GPU does not answer any more | GPUs that were never there |
| `gpu-throttled` heat, warmth, slowdown or power brake, half a minute long | the power cap: busy GPUs are at it |
| `gpu-pcie` narrower, or slower while it computes | slower while it is idle: it saves power |
| `gpu-nvlink` fewer links than were up before | links that never were |
| `link-down` | links that never were, a flap of a second |
| `oom-kill` the count grew | |
| `gpu-foreign` another's process on a GPU | |
| `cpu-contention` another's process is busy, and ranks wait for processors | a busy process where some are idle |
| `disk-read-only`, `disk-full`, `disk-silent` | a file system that could not be written from the start |
| `kernel-hang` a kernel timer says that a kernel does not end | |
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from perdure.watcher.evidence import Evidence
from perdure.watcher.labels import Action, Label, Owner
from perdure.watcher.logs.kernel import OTHER_XID, XIDS
from perdure.watcher.samples import DiskState, GpuState, NodeSample, RankSample

__all__ = ["AGAIN_S", "NodeRules", "kernel_hangs"]

AGAIN_S: Final = 10.0
_THROTTLED_S: Final = 30.0
_PCIE_S: Final = 10.0
_LINK_S: Final = 3.0
_FAILS_S: Final = 3.0
_CONTENTION_S: Final = 3.0
_DISK_SILENT_S: Final = 30.0
_COMPUTES: Final = 0.5
_FOREIGN_SHARE: Final = 0.25
_WAITS: Final = 0.1
_NO_IDLE: Final = 0.05
_FULL_SHARE: Final = 0.001
_FULL_BYTES: Final = 1 << 30
_HARMLESS: Final = frozenset({"power cap"})
_MOST_NODES: Final = 16384


@dataclass(frozen=True, slots=True)
class _Holds:
    """A state that holds in a sample, and how long it must before it is told."""

    key: str
    kind: str
    sentence: str
    label: Label
    after_s: float = 0.0
    strength: float = 1.0
    raw: tuple[str, ...] = ()


@dataclass(slots=True)
class _Node:
    """What is remembered of a node."""

    at_s: float = float("-inf")
    ecc: dict[int, int] = field(default_factory=dict)
    xid: dict[int, int] = field(default_factory=dict)
    oom_kills: int | None = None
    writable: set[str] = field(default_factory=set)
    since_s: dict[str, float] = field(default_factory=dict)
    told_s: dict[str, float] = field(default_factory=dict)


class NodeRules:
    """Looks at the samples of any number of nodes, of each in the order of their times."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Node] = {}

    def look(self, sample: NodeSample, *, at_s: float | None = None) -> list[Evidence]:
        """What ``sample`` shows, accusing its node. ``at_s``: now, for whoever analyses; None: the time of the sample.

        A sample older than the one before is left out.
        """
        node = self._nodes.get(sample.node)
        if node is None:
            if len(self._nodes) >= _MOST_NODES:
                self._nodes.pop(next(iter(self._nodes)))
            node = self._nodes[sample.node] = _Node()
        if sample.at_s < node.at_s:
            return []
        node.at_s = sample.at_s
        at_s = sample.at_s if at_s is None else at_s
        found = [
            Evidence(
                kind=grew.kind,
                at_s=at_s,
                sentence=grew.sentence,
                nodes=(sample.node,),
                strength=grew.strength,
                label=grew.label,
                raw=grew.raw,
            )
            for grew in _grown(sample, node)
        ]
        held = {state.key: state for state in _held(sample, node)}
        for key in [key for key in node.since_s if key not in held]:
            del node.since_s[key]
            node.told_s.pop(key, None)
        for key, state in held.items():
            since = node.since_s.setdefault(key, sample.at_s)
            if sample.at_s - since < state.after_s or sample.at_s - node.told_s.get(key, float("-inf")) < AGAIN_S:
                continue
            node.told_s[key] = sample.at_s
            found.append(
                Evidence(
                    kind=state.kind,
                    at_s=at_s,
                    sentence=state.sentence,
                    nodes=(sample.node,),
                    strength=state.strength,
                    label=state.label,
                    raw=state.raw,
                )
            )
        return found

    def forget(self, node: str) -> None:
        """A node has left, or is begun anew."""
        self._nodes.pop(node, None)


def kernel_hangs(ranks: Iterable[RankSample], *, at_s: float) -> list[Evidence]:
    """What a timer of kernels says of hangs. It accuses nobody: who hangs waits, perhaps for one that does not."""
    told = [rank for rank in ranks if rank.kernel_hang is not None]
    hung = tuple(rank.rank for rank in told if rank.kernel_hang)
    if not hung:
        return []
    who = "all ranks" if len(hung) == len(told) else f"{len(hung)} of {len(told)} ranks ({_some(hung)})"
    return [
        Evidence(
            kind="kernel-hang",
            at_s=at_s,
            sentence=f"a kernel of {who} does not end, says their timer",
            strength=0.8,
            raw=tuple(f"rank {rank}: hang" for rank in hung[:32]),
        )
    ]


def _grown(sample: NodeSample, node: _Node) -> Iterator[_Holds]:
    """Counters that are higher than in the sample before; one that fell was begun anew."""
    for gpu in sample.gpus:
        yield from _new_xid(gpu, sample, node)
        if gpu.ecc_uncorrected is None:
            continue
        before, node.ecc[gpu.index] = node.ecc.get(gpu.index), gpu.ecc_uncorrected
        grew = 0 if before is None else gpu.ecc_uncorrected - (before if before <= gpu.ecc_uncorrected else 0)
        if grew > 0:
            yield _Holds(
                "",
                "gpu-ecc",
                f"{_gpu(gpu, sample)}: {grew} more ECC errors that could not be corrected, of {gpu.ecc_uncorrected}",
                Label.GPU_ECC,
                raw=(f"ecc_uncorrected {before} -> {gpu.ecc_uncorrected}",),
            )
    if sample.oom_kills is not None:
        kills, node.oom_kills = node.oom_kills, sample.oom_kills
        grew = 0 if kills is None else sample.oom_kills - (kills if kills <= sample.oom_kills else 0)
        if grew > 0:
            yield _Holds(
                "",
                "oom-kill",
                f"memory of {sample.node} ran out, and the kernel killed {_processes(grew)}",
                Label.HOST_OOM,
                raw=(f"oom_kills {kills} -> {sample.oom_kills}",),
            )


def _new_xid(gpu: GpuState, sample: NodeSample, node: _Node) -> Iterator[_Holds]:
    """A GPU whose last Xid is another one than in the sample before, if that is its fault."""
    if gpu.xid is None:
        return
    before, node.xid[gpu.index] = node.xid.get(gpu.index), gpu.xid
    if before is None or gpu.xid in (0, before):
        return
    meaning = XIDS.get(gpu.xid, OTHER_XID)
    if meaning.after or meaning.owner is Owner.USER:
        return
    mild = meaning.note or meaning.action is Action.WARN
    text = f"{_gpu(gpu, sample)}: {meaning.means} (Xid {gpu.xid})"
    yield _Holds("", "gpu-xid", text, meaning.label, strength=0.7 if mild else 1.0, raw=(f"xid {before} -> {gpu.xid}",))


def _held(sample: NodeSample, node: _Node) -> Iterator[_Holds]:
    for gpu in sample.gpus:
        yield from _of_gpu(gpu, sample)
    if sample.gpu_problem:
        yield _Holds(
            "gpu-silent", "gpu-silent", f"{sample.node}: {sample.gpu_problem}", Label.DRIVER, raw=(sample.gpu_problem,)
        )
    for link in sample.links_down:
        yield _Holds(
            f"link-down {link}",
            "link-down",
            f"{sample.node}: the network link {link} was up and is down",
            Label.NIC_LINK,
            after_s=_LINK_S,
            raw=(f"{link} down",),
        )
    for disk in sample.disks:
        yield from _of_disk(disk, sample, node)
    yield from _contention(sample)


def _of_gpu(gpu: GpuState, sample: NodeSample) -> Iterator[_Holds]:
    who = _gpu(gpu, sample)

    def holds(kind: str, what: str, label: Label, raw: str, *, after_s: float = 0.0, strength: float = 1.0) -> _Holds:
        return _Holds(f"{kind} {gpu.index}", kind, f"{who}: {what}", label, after_s, strength, (raw,))

    if gpu.lost:
        off = "bus" in gpu.lost
        label = Label.GPU_OFF_BUS if off else Label.GPU_OTHER
        yield holds("gpu-lost", gpu.lost, label, gpu.lost, after_s=0.0 if off else _FAILS_S)
        return
    if gpu.remap_failed:
        yield holds("gpu-remap-failed", "a row of its memory could not be remapped", Label.GPU_ECC, "remap_failed")
    elif gpu.remap_pending:
        what = "rows of its memory wait to be remapped, which a reset does"
        yield holds("gpu-remap-pending", what, Label.GPU_ECC_CONTAINED, "remap_pending", strength=0.8)
    harmful = [word for word in gpu.throttled if word not in _HARMLESS]
    if harmful:
        hot = "" if gpu.temperature_c is None else f" at {gpu.temperature_c:.0f} degrees C"
        yield holds(
            "gpu-throttled",
            f"its clocks are held down ({', '.join(harmful)}){hot}",
            Label.THERMAL,
            f"throttled {harmful}, clock {gpu.sm_clock_mhz} MHz, {gpu.temperature_c} degrees C",
            after_s=_THROTTLED_S,
            strength=0.9 if {"heat", "power brake"} & set(harmful) else 0.6,
        )
    if gpu.pcie_width and gpu.pcie_width_max and gpu.pcie_width < gpu.pcie_width_max:
        what = f"its PCIe link has {gpu.pcie_width} of {gpu.pcie_width_max} lanes"
        yield holds("gpu-pcie", what, Label.PCIE, f"width {gpu.pcie_width}/{gpu.pcie_width_max}", after_s=_PCIE_S)
    elif (
        gpu.pcie_generation
        and gpu.pcie_generation_max
        and gpu.pcie_generation < gpu.pcie_generation_max
        and (gpu.utilization or 0.0) >= _COMPUTES
    ):
        what = f"its PCIe link runs as generation {gpu.pcie_generation} of {gpu.pcie_generation_max} while it computes"
        raw = f"generation {gpu.pcie_generation}/{gpu.pcie_generation_max}"
        yield holds("gpu-pcie", what, Label.PCIE, raw, after_s=_PCIE_S)
    if gpu.nvlinks_down:
        what = f"{gpu.nvlinks_down} of its NVLinks were up and are down"
        yield holds("gpu-nvlink", what, Label.NVLINK, f"nvlinks_down {gpu.nvlinks_down}", after_s=_LINK_S)
    if gpu.foreign_pids:
        pids = _some(gpu.foreign_pids)
        what = f"{'process' if len(gpu.foreign_pids) == 1 else 'processes'} {pids} of another job on it"
        yield holds("gpu-foreign", what, Label.CONTENTION, f"pids {pids}", after_s=_CONTENTION_S, strength=0.8)


def _of_disk(disk: DiskState, sample: NodeSample, node: _Node) -> Iterator[_Holds]:
    where = f"{sample.node}: {disk.path}"
    if disk.silent_s >= _DISK_SILENT_S:
        label = Label.STORAGE if disk.remote else Label.HOST
        what = f"{where} has not answered for {disk.silent_s:.0f} s"
        strength = 0.9 if disk.total_bytes else 0.6
        yield _Holds(f"disk-silent {disk.path}", "disk-silent", what, label, strength=strength)
    if disk.total_bytes <= 0:
        return
    if not disk.read_only:
        if len(node.writable) < 256:
            node.writable.add(disk.path)
    elif disk.path in node.writable:
        label = Label.STORAGE if disk.remote else Label.HOST
        what = f"{where} could be written and is read-only now, as file systems are after an error"
        yield _Holds(f"disk-read-only {disk.path}", "disk-read-only", what, label, raw=("read_only",))
    if disk.free_bytes < min(_FULL_BYTES, _FULL_SHARE * disk.total_bytes) or disk.free_bytes == 0:
        what = f"{where} is full: {disk.free_bytes} of {disk.total_bytes} bytes are free"
        raw = (f"free {disk.free_bytes} of {disk.total_bytes}",)
        yield _Holds(f"disk-full {disk.path}", "disk-full", what, Label.DISK_FULL, raw=raw)
    elif disk.free_inodes == 0:
        what = f"{where} can hold no more files"
        yield _Holds(f"disk-full {disk.path}", "disk-full", what, Label.DISK_FULL, raw=("free_inodes 0",))


def _contention(sample: NodeSample) -> Iterator[_Holds]:
    foreign = sample.foreign_cpu
    in_all = sum(share for _, share in foreign)
    if in_all < _FOREIGN_SHARE:
        return
    waits = sample.cpu_wait is not None and sample.cpu_wait >= _WAITS
    full = sample.cpu_wait is None and sample.cpu_idle is not None and sample.cpu_idle <= _NO_IDLE
    if not (waits or full):
        return
    name = foreign[0][0]
    others = "" if len(foreign) == 1 else f" and {len(foreign) - 1} more"
    who = f"{name}{others}, not of this job, take" + ("s" if not others else "")
    why = (
        f"ranks wait {sample.cpu_wait:.0%} of the time for one"
        if waits and sample.cpu_wait is not None
        else "none is idle"
    )
    yield _Holds(
        "cpu-contention",
        "cpu-contention",
        f"{sample.node}: {who} {in_all:.1f} processors, and {why}",
        Label.CONTENTION,
        after_s=_CONTENTION_S,
        strength=min(1.0, 0.5 + in_all / (2 * (sample.cpus or 1))),
        raw=tuple(f"{each}: {share:.2f} processors" for each, share in foreign[:16]),
    )


def _processes(count: int) -> str:
    return "a process" if count == 1 else f"{count} processes"


def _gpu(gpu: GpuState, sample: NodeSample) -> str:
    return f"GPU {gpu.index} of {sample.node}"


def _some(numbers: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, numbers[:8]))
    return shown if len(numbers) <= 8 else f"{shown} and {len(numbers) - 8} more"
