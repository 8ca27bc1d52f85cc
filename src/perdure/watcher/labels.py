"""The kinds of faults, who must act, and what is done: the taxonomy that verdicts, rules and reports share.

A label's first word is where the cause lies: ``hw`` (a machine), ``infra`` (what the machines hang on), ``sw`` (a
program), ``train`` (the training itself), ``transient`` (it has passed).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

__all__ = ["CLASSES", "Action", "Class", "Label", "Owner"]


class Owner(enum.StrEnum):
    """Who must act. ``TRANSIENT``: nobody, it passes; ``NOBODY``: it is no fault, or it cannot be told whose."""

    NODE = "node"
    USER = "user"
    DATA = "data"
    INFRA = "infra"
    TRANSIENT = "transient"
    NOBODY = "nobody"


class Action(enum.StrEnum):
    """What is to be done. ``RESTART`` on the same nodes, ``EVICT`` a node and restart, ``ROLLBACK`` to an older
    checkpoint (and skip the batches since), ``STOP_USER``: stop and tell the user, ``WARN``: tell, and go on.
    """

    RESTART = "restart"
    EVICT = "evict"
    ROLLBACK = "rollback"
    STOP_USER = "stop_user"
    WARN = "warn"


class Label(enum.StrEnum):
    """What is wrong."""

    GPU_ECC = "hw.gpu_ecc"
    GPU_ECC_CONTAINED = "hw.gpu_ecc_contained"
    GPU_OFF_BUS = "hw.gpu_off_bus"
    GPU_GSP = "hw.gpu_gsp"
    NVLINK = "hw.nvlink"
    NVLINK_NONFATAL = "hw.nvlink_nonfatal"
    PCIE = "hw.pcie"
    GPU_OTHER = "hw.gpu_other"
    THERMAL = "hw.thermal"
    NIC_LINK = "hw.nic_link"
    HOST = "hw.host"
    STRAGGLER = "hw.straggler"
    SDC = "hw.sdc"
    SUSPECT = "hw.suspect"
    HOST_OOM = "infra.host_oom"
    SHM = "infra.shm"
    DISK_FULL = "infra.disk_full"
    NET_CONFIG = "infra.net_config"
    RDZV = "infra.rdzv"
    DRIVER = "infra.driver"
    STORAGE = "infra.storage"
    SCHED = "infra.sched"
    CLOCK = "infra.clock"
    USER_CODE = "sw.user_code"
    GPU_OOM = "sw.gpu_oom"
    STALE_PROCESS = "sw.stale_process"
    DESYNC = "sw.desync"
    RANK_SKEW = "sw.rank_skew"
    DATALOADER = "sw.dataloader"
    LIB_BUG = "sw.lib_bug"
    CONTENTION = "sw.contention"
    CKPT_CORRUPT = "sw.ckpt_corrupt"
    NAN = "train.nan"
    DIVERGENCE = "train.divergence"
    FP16_SCALE = "train.fp16_scale"
    SPIKE_RECOVERED = "train.spike_recovered"
    BAD_RESUME = "train.bad_resume"
    METRIC_LOST = "train.metric_lost"
    UNKNOWN = "transient.unknown"


@dataclass(frozen=True, slots=True)
class Class:
    """What is usual for a label; a verdict may say otherwise where evidence does."""

    owner: Owner
    action: Action
    means: str
    "A phrase for people: what it is."


CLASSES: Mapping[Label, Class] = MappingProxyType(
    {
        Label.GPU_ECC: Class(Owner.NODE, Action.EVICT, "memory of a GPU fails beyond repair"),
        Label.GPU_ECC_CONTAINED: Class(Owner.NODE, Action.RESTART, "a memory error of a GPU that was contained"),
        Label.GPU_OFF_BUS: Class(Owner.NODE, Action.EVICT, "a GPU has fallen off its bus"),
        Label.GPU_GSP: Class(Owner.NODE, Action.EVICT, "the system processor of a GPU does not answer"),
        Label.NVLINK: Class(Owner.NODE, Action.EVICT, "an NVLink is down"),
        Label.NVLINK_NONFATAL: Class(Owner.NODE, Action.WARN, "an NVLink reports errors that it has mended"),
        Label.PCIE: Class(Owner.NODE, Action.EVICT, "a PCIe link fails or is narrower than it should be"),
        Label.GPU_OTHER: Class(Owner.NODE, Action.EVICT, "a GPU fails"),
        Label.THERMAL: Class(Owner.NODE, Action.EVICT, "a GPU is throttled by its heat or power"),
        Label.NIC_LINK: Class(Owner.NODE, Action.EVICT, "a network link fails"),
        Label.HOST: Class(Owner.NODE, Action.EVICT, "a machine fails"),
        Label.STRAGGLER: Class(Owner.NODE, Action.WARN, "a rank computes slower than its peers"),
        Label.SDC: Class(Owner.NODE, Action.EVICT, "a machine computes wrong numbers"),
        Label.SUSPECT: Class(Owner.NODE, Action.EVICT, "a machine was there each time something failed"),
        Label.HOST_OOM: Class(Owner.USER, Action.STOP_USER, "a machine ran out of memory"),
        Label.SHM: Class(Owner.USER, Action.STOP_USER, "shared memory is too small"),
        Label.DISK_FULL: Class(Owner.USER, Action.STOP_USER, "a file system is full"),
        Label.NET_CONFIG: Class(Owner.USER, Action.STOP_USER, "the network is configured wrongly"),
        Label.RDZV: Class(Owner.INFRA, Action.RESTART, "the ranks did not meet"),
        Label.DRIVER: Class(Owner.INFRA, Action.EVICT, "a driver does not fit or does not start"),
        Label.STORAGE: Class(Owner.INFRA, Action.RESTART, "storage failed for a while"),
        Label.SCHED: Class(Owner.NOBODY, Action.RESTART, "the scheduler ended the job"),
        Label.CLOCK: Class(Owner.INFRA, Action.WARN, "a clock has jumped"),
        Label.USER_CODE: Class(Owner.USER, Action.STOP_USER, "the program fails"),
        Label.GPU_OOM: Class(Owner.USER, Action.STOP_USER, "the memory of a GPU is too small for the program"),
        Label.STALE_PROCESS: Class(Owner.INFRA, Action.RESTART, "a process of another job holds what this one needs"),
        Label.DESYNC: Class(Owner.USER, Action.STOP_USER, "ranks called different collectives"),
        Label.RANK_SKEW: Class(Owner.USER, Action.STOP_USER, "a rank is still in work of its own"),
        Label.DATALOADER: Class(Owner.USER, Action.RESTART, "a data loader stands still or has died"),
        Label.LIB_BUG: Class(Owner.NOBODY, Action.RESTART, "a library fails; no machine stands out"),
        Label.CONTENTION: Class(Owner.INFRA, Action.WARN, "another process takes what a rank needs"),
        Label.CKPT_CORRUPT: Class(Owner.INFRA, Action.ROLLBACK, "a checkpoint cannot be read"),
        Label.NAN: Class(Owner.DATA, Action.ROLLBACK, "numbers are not finite any more"),
        Label.DIVERGENCE: Class(Owner.USER, Action.STOP_USER, "the loss rises and stays"),
        Label.FP16_SCALE: Class(Owner.USER, Action.STOP_USER, "the loss scale of fp16 is used up"),
        Label.SPIKE_RECOVERED: Class(Owner.NOBODY, Action.WARN, "the loss rose and came back"),
        Label.BAD_RESUME: Class(Owner.USER, Action.ROLLBACK, "training went on from another state than it was left in"),
        Label.METRIC_LOST: Class(Owner.USER, Action.WARN, "a metric is not reported any more"),
        Label.UNKNOWN: Class(Owner.TRANSIENT, Action.RESTART, "something failed, and nothing says what"),
    }
)
