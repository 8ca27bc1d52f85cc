"""What the metrics of known exporters mean: dcgm-exporter, node-exporter and xpu_timer, read into samples. Pure.

The names are those exporters' own. Whatever a page leaves out stays unknown; labels name at most `MOST_NODES` nodes,
`MOST_GPUS` GPUs a node and `MOST_RANKS` ranks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from perdure.process.nvml import slowed_by
from perdure.watcher.prometheus import Metric, Page
from perdure.watcher.samples import DiskState, GpuState, NodeSample, RankSample

__all__ = [
    "MOST_GPUS",
    "MOST_NODES",
    "MOST_RANKS",
    "Exported",
    "gpus_of_dcgm",
    "node_of_exporter",
    "ranks_of_xpu_timer",
]

MOST_NODES: Final = 4096
MOST_GPUS: Final = 64
MOST_RANKS: Final = 65536
_MIB: Final = 1 << 20
_MOST_DISKS: Final = 64

_DCGM: Final[Mapping[str, tuple[str, float]]] = {
    "DCGM_FI_DEV_GPU_TEMP": ("temperature_c", 1.0),
    "DCGM_FI_DEV_POWER_USAGE": ("power_w", 1.0),
    "DCGM_FI_DEV_SM_CLOCK": ("sm_clock_mhz", 1.0),
    "DCGM_FI_DEV_GPU_UTIL": ("utilization", 0.01),
    "DCGM_FI_DEV_FB_USED": ("memory_used_bytes", _MIB),
    "DCGM_FI_DEV_FB_TOTAL": ("memory_total_bytes", _MIB),
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": ("ecc_uncorrected", 1),
    "DCGM_FI_DEV_XID_ERRORS": ("xid", 1),
    "DCGM_FI_DEV_ROW_REMAP_PENDING": ("remap_pending", 1),
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": ("remap_failed", 1),
    "DCGM_FI_DEV_PCIE_LINK_GEN": ("pcie_generation", 1),
    "DCGM_FI_DEV_PCIE_MAX_LINK_GEN": ("pcie_generation_max", 1),
    "DCGM_FI_DEV_PCIE_LINK_WIDTH": ("pcie_width", 1),
    "DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH": ("pcie_width_max", 1),
}
_FREE: Final = "DCGM_FI_DEV_FB_FREE"
_RESERVED: Final = "DCGM_FI_DEV_FB_RESERVED"
_THROTTLED: Final = ("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "DCGM_FI_DEV_CLOCKS_EVENT_REASONS")
_BLANK: Final = 2147483632.0  # DCGM: values from here on say why there is none
_WHOLE: Final = (
    "memory_used_bytes",
    "memory_total_bytes",
    "ecc_uncorrected",
    "xid",
    "pcie_generation",
    "pcie_generation_max",
    "pcie_width",
    "pcie_width_max",
)


def gpus_of_dcgm(page: Page) -> dict[str, tuple[GpuState, ...]]:
    """The GPUs of each node on a page of dcgm-exporter, by its label ``Hostname``."""
    fields: dict[tuple[str, int], dict[str, Any]] = {}
    nodes: set[str] = set()

    def of(metric: Metric) -> dict[str, Any] | None:
        node, index = metric.labels.get("Hostname", ""), _index(metric.labels.get("gpu"), MOST_GPUS)
        if index is None or metric.labels.get("GPU_I_ID"):  # a slice of a GPU is not the GPU
            return None
        if node not in nodes and len(nodes) >= MOST_NODES:
            return None
        nodes.add(node)
        return fields.setdefault((node, index), {"name": metric.labels.get("modelName", "")[:96]})

    for name, (key, factor) in _DCGM.items():
        for metric in page.of(name):
            if math.isfinite(metric.value) and 0 <= metric.value < _BLANK and (found := of(metric)) is not None:
                value = metric.value * factor
                found[key] = bool(value) if key.startswith("remap_") else int(value) if key in _WHOLE else value
    for name in _THROTTLED:
        for metric in page.of(name):
            if 0 <= metric.value < _BLANK and (found := of(metric)) is not None:
                found["throttled"] = slowed_by(int(metric.value))
    free = {_who(metric): metric.value for metric in page.of(_FREE)}
    reserved = {_who(metric): metric.value for metric in page.of(_RESERVED)}
    states: dict[str, list[GpuState]] = {}
    for (node, index), known in sorted(fields.items()):
        rest = free.get((node, str(index)), math.nan) + reserved.get((node, str(index)), 0.0)
        if "memory_total_bytes" not in known and "memory_used_bytes" in known and 0 <= rest < _BLANK:
            known["memory_total_bytes"] = known["memory_used_bytes"] + int(rest * _MIB)
        states.setdefault(node, []).append(GpuState(index=index, **known))
    return {node: tuple(gpus) for node, gpus in states.items()}


class Exported:
    """Remembers of one node's node-exporter what only a difference tells: links that were up, processor time."""

    def __init__(self) -> None:
        self._links: set[str] = set()
        self._times: tuple[float, float] | None = None

    def links_down(self, up: set[str]) -> tuple[str, ...]:
        """Those of the links seen up before that are not in ``up``."""
        self._links |= set(sorted(up)[:256])
        return tuple(sorted(self._links - up))

    def idle(self, idle_s: float, all_s: float) -> float | None:
        """Share of idle time since the call before, from seconds summed over processors."""
        before, self._times = self._times, (idle_s, all_s)
        if before is None or all_s <= before[1]:
            return None
        return min(1.0, max(0.0, (idle_s - before[0]) / (all_s - before[1])))


def node_of_exporter(page: Page, *, node: str, at_s: float, seen: Exported) -> NodeSample:
    """The node that a page of node-exporter tells of; ``seen`` is kept from page to page."""
    cpu = [metric for metric in page.of("node_cpu_seconds_total") if math.isfinite(metric.value)]
    idle = sum(metric.value for metric in cpu if metric.labels.get("mode") in ("idle", "iowait"))
    names = {metric.labels.get("cpu", "") for metric in cpu}
    physical = {
        metric.labels.get("device", "")
        for metric in page.of("node_network_info")
        if not metric.labels.get("device", "").startswith(("veth", "docker", "br-", "cni", "cali", "lo"))
    }
    ups = {
        metric.labels.get("device", "")
        for metric in page.of("node_network_up")
        if metric.value == 1 and (not physical or metric.labels.get("device", "") in physical)
    }
    ups |= {
        f"{metric.labels.get('device', '')}/{metric.labels.get('port', '')}"
        for metric in page.of("node_infiniband_state_id")
        if metric.value == 4
    }
    knows_links = bool(page.of("node_network_up") or page.of("node_infiniband_state_id"))
    return NodeSample(
        node=node,
        at_s=at_s,
        wall_s=_value(page, "node_time_seconds"),
        cpus=len(names) or None,
        load=_value(page, "node_load1"),
        memory_total_bytes=_whole(page, "node_memory_MemTotal_bytes"),
        memory_available_bytes=_whole(page, "node_memory_MemAvailable_bytes"),
        oom_kills=_whole(page, "node_vmstat_oom_kill"),
        disks=_disks(page),
        links_down=seen.links_down(ups) if knows_links else (),
        cpu_idle=seen.idle(idle, sum(metric.value for metric in cpu)) if cpu else None,
    )


def ranks_of_xpu_timer(page: Page, *, at_s: float) -> list[RankSample]:
    """The ranks on a page of xpu_timer: whether a kernel of theirs hangs, and how long its matrix kernels take.

    A rank's mean is over the size classes that it has, unweighted, in seconds; compare it among ranks alone.
    """
    hangs: dict[int, bool] = {}
    nodes: dict[int, str] = {}
    means: dict[int, list[float]] = {}
    for name in ("XPU_TIMER_COMMON_HANG", "XPU_TIMER_MM_KERNEL_AVG_LATENCY"):
        for metric in page.of(name):
            rank = _index(metric.labels.get("rank"), MOST_RANKS)
            if rank is None or not math.isfinite(metric.value) or metric.value < 0:
                continue
            nodes.setdefault(rank, (metric.labels.get("pod_name") or metric.labels.get("ip", ""))[:256])
            if name.endswith("HANG"):
                hangs[rank] = metric.value != 0
            else:
                means.setdefault(rank, []).append(metric.value / 1e6)
    return [
        RankSample(
            rank=rank,
            node=nodes[rank],
            at_s=at_s,
            kernel_hang=hangs.get(rank),
            kernel_s=sum(means[rank]) / len(means[rank]) if rank in means else None,
        )
        for rank in sorted(nodes)
    ]


def _disks(page: Page) -> tuple[DiskState, ...]:
    sizes = page.of("node_filesystem_size_bytes")

    def by_path(name: str) -> dict[str, float]:
        return {metric.labels.get("mountpoint", ""): metric.value for metric in page.of(name)}

    free, inodes, files = (
        by_path(name) for name in ("node_filesystem_avail_bytes", "node_filesystem_files_free", "node_filesystem_files")
    )
    read_only = by_path("node_filesystem_readonly")
    disks = []
    for metric in sizes[:_MOST_DISKS]:
        path = metric.labels.get("mountpoint", "")[:512]
        room = free.get(path, math.nan)
        if not (0 < metric.value < 1e30 and 0 <= room < 1e30):
            continue
        left = inodes.get(path, math.nan)
        disks.append(
            DiskState(
                path=path,
                total_bytes=int(metric.value),
                free_bytes=int(room),
                free_inodes=int(left) if 0 <= left < 1e30 and files.get(path, 0) > 0 else None,
                read_only=read_only.get(path) == 1,
                remote=metric.labels.get("fstype", "") in ("nfs", "nfs4", "lustre", "ceph", "beegfs", "gpfs", "cifs"),
            )
        )
    return tuple(disks)


def _who(metric: Metric) -> tuple[str, str]:
    return metric.labels.get("Hostname", ""), metric.labels.get("gpu", "")


def _index(text: str | None, most: int) -> int | None:
    if text is None or not text.isascii() or not text.isdecimal() or len(text) > 9 or int(text) >= most:
        return None
    return int(text)


def _value(page: Page, name: str) -> float | None:
    found = page.of(name)
    return found[0].value if found and math.isfinite(found[0].value) else None


def _whole(page: Page, name: str) -> int | None:
    value = _value(page, name)
    return None if value is None or value < 0 else int(value)
