"""What is seen of ranks and nodes, about once a second. Times are CLOCK_MONOTONIC seconds of the node that looked,
durations are seconds; what is not known is None or empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

__all__ = ["DiskState", "GpuState", "GroupState", "LogLine", "Looks", "NodeLook", "NodeSample", "RankSample", "Stack"]


class GroupState(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank has done in one process group. ``group`` is the same word on all its ranks.

    A rank that has enqueued more than it has completed is in a collective, or has one under way beside its work.
    """

    group: str
    size: int
    enqueued: int
    completed: int
    op: str = ""
    "The last collective that was enqueued, as ``all_reduce``;"
    shape: str = ""
    "the shape and dtype that it was called with, as ``[1024, 4] float32``."


class RankSample(msgspec.Struct, frozen=True, kw_only=True):
    """A rank at one moment: its own record, and its process as the kernel has it."""

    rank: int
    node: str
    at_s: float
    pid: int = 0
    beat: int = 0
    "Grows each second while the rank's probe thread runs; 0 if it has none."
    beat_age_s: float | None = None
    step: int | None = None
    "Completed optimizer steps."
    own_steps: int | None = None
    "Those that this process has completed itself, whatever it has restored; None if it does not count them."
    phase: str = ""
    "A name of `perdure.progress.Phase` in lower case, or loading; empty if the rank tells none."
    phase_s: float = 0.0
    phase_allowed_s: float | None = None
    "How long the rank itself gave its phase, if it did."
    in_collective: bool | None = None
    "Whether its main thread waits in a collective."
    step_s: float | None = None
    "How long the last step took,"
    compute_s: float | None = None
    "of it the rank's own work,"
    wait_s: float | None = None
    "and the time that it waited for others."
    groups: tuple[GroupState, ...] = ()
    loss: float | None = None
    loss_step: int | None = None
    loss_bad_step: int | None = None
    "The step since which no loss was finite; None if the last was."
    local_norm: float | None = None
    "Norm of the gradient before it was reduced with that of others,"
    global_norm: float | None = None
    "and after."
    local_finite: bool | None = None
    global_finite: bool | None = None
    local_bad_step: int | None = None
    "The step since which the gradient was not finite before it was reduced: smallest on the rank where it began;"
    global_bad_step: int | None = None
    "and the same after."
    local_every: int | None = None
    "Steps from one look at the whole gradient before it is reduced to the next; a look in between is at a part."
    checksum: str = ""
    "Of the parameters after step ``checksum_step``; equal on the ranks of ``replicas`` if nothing went wrong."
    checksum_step: int | None = None
    replicas: str = ""
    state: str = ""
    "Of its process in /proc: R, S, D, T, Z; X if it is gone, empty if it was not looked at."
    wchan: str = ""
    "Where in the kernel its main thread sleeps."
    cpu_s: float | None = None
    "Processor time that its process has used so far."
    exit_code: int | None = None
    exit_signal: int | None = None
    finished: bool = False
    "Whether it had said that its work was done."
    kernel_hang: bool | None = None
    "Whether a timer of kernels (xpu_timer) says that one of its GPU does not end."
    kernel_s: float | None = None
    "Mean time of its matrix kernels, as that timer has it."

    @property
    def ended(self) -> bool:
        """Whether its process is gone."""
        return self.exit_code is not None or self.exit_signal is not None


class Stack(msgspec.Struct, frozen=True, kw_only=True):
    """The main thread of a rank, as it was asked: innermost frame first, each ``file:line function``."""

    rank: int
    node: str
    at_s: float
    frames: tuple[str, ...]
    how: Literal["faulthandler", "py-spy", "proc"] = "faulthandler"


class LogLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line that a rank, the kernel or a service has written."""

    text: str
    at_s: float
    node: str = ""
    rank: int | None = None
    source: Literal["rank", "kernel", "service"] = "rank"


class DiskState(msgspec.Struct, frozen=True, kw_only=True):
    """A file system that the job writes to."""

    path: str
    total_bytes: int
    free_bytes: int
    free_inodes: int | None = None
    total_inodes: int | None = None
    read_only: bool = False
    remote: bool = False
    "Whether it is on another machine."
    silent_s: float = 0.0
    "For how long it has not answered; the rest is what it said last."


class GpuState(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU as its driver tells it."""

    index: int
    name: str = ""
    temperature_c: float | None = None
    power_w: float | None = None
    sm_clock_mhz: float | None = None
    utilization: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    throttled: tuple[str, ...] = ()
    "Why its clocks are low, but for being idle."
    ecc_uncorrected: int | None = None
    remap_pending: bool = False
    remap_failed: bool = False
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    nvlinks_down: int | None = None
    xid: int | None = None
    "The last Xid that its driver has reported, where that is counted; 0: none."
    foreign_pids: tuple[int, ...] = ()
    "Processes on it that are not of this job."
    bus: str = ""
    "Its PCI address."
    lost: str = ""
    "Why it cannot be asked, though it was there."


class NodeSample(msgspec.Struct, frozen=True, kw_only=True):
    """A node at one moment."""

    node: str
    at_s: float
    wall_s: float | None = None
    "What its clock says, in seconds since 1970."
    cpus: int | None = None
    load: float | None = None
    memory_total_bytes: int | None = None
    memory_available_bytes: int | None = None
    oom_kills: int | None = None
    disks: tuple[DiskState, ...] = ()
    gpus: tuple[GpuState, ...] = ()
    links_down: tuple[str, ...] = ()
    "Network interfaces that were up and are not any more."
    foreign_cpu: tuple[tuple[str, float], ...] = ()
    "Processes that are not of this job, by the share of one processor that they take, the busiest first."
    cpu_idle: float | None = None
    "Share of the processors' time since the sample before that was idle, 0 to 1."
    cpu_wait: float | None = None
    "Share of that time in which the main thread of a rank waited for a processor; of the rank where it is most."
    gpu_problem: str = ""
    "Why the driver of the GPUs tells nothing, though there is one."


class NodeLook(msgspec.Struct, frozen=True, kw_only=True):
    """All that a node has seen since its look before: what goes from where the ranks are to whoever judges."""

    node: str
    attempt: int = 0
    "Of the ranks on it; each restart is one more."
    samples: tuple[RankSample, ...] = ()
    host: NodeSample | None = None
    lines: tuple[LogLine, ...] = ()
    stacks: tuple[Stack, ...] = ()


class Looks(msgspec.Struct, frozen=True, kw_only=True):
    """All that has been seen of a job since the last time, by whichever nodes: what detectors are given."""

    samples: Sequence[RankSample] = ()
    nodes: Sequence[NodeSample] = ()
    lines: Sequence[LogLine] = ()
    stacks: Sequence[Stack] = ()
