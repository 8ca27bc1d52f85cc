"""What a node sees of its ranks: the records of their probes, and their processes in /proc, as `RankSample`.

`read_rank` looks once. `Reading` remembers the look before, and gives step times as means over the steps in between:
of steps of 50 ms a look each second would see one in twenty.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from perdure.errors import ProtocolError
from perdure.progress.vitals import Vitals, start_ticks, vitals_files
from perdure.watcher.samples import GroupState, RankSample

__all__ = ["ProcessState", "Reading", "process_state", "rank_sample", "read_rank"]

_EXIT_STATUS = 49  # of the fields of /proc/<pid>/stat after the name
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class ProcessState:
    """A process as the kernel has it. ``state`` is X if it is gone; one that nobody has reaped tells how it ended."""

    state: str
    wchan: str = ""
    cpu_s: float | None = None
    exit_code: int | None = None
    exit_signal: int | None = None


def process_state(pid: int, ticks: int) -> ProcessState:
    """Look at the process ``pid`` that was started at ``ticks`` (`start_ticks`); another one is not it."""
    if pid <= 0 or ticks <= 0 or start_ticks(pid) != ticks:
        return ProcessState("X")
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        state, cpu_s = fields[0].decode("ascii", "replace"), (int(fields[11]) + int(fields[12])) / _TICKS
        status = int(fields[_EXIT_STATUS]) if state == "Z" else 0
    except (OSError, IndexError, ValueError):
        return ProcessState("X")
    if state == "Z":
        number = status & 0x7F
        return ProcessState("Z", "", cpu_s, None if number else status >> 8, number or None)
    try:
        with open(f"/proc/{pid}/wchan", encoding="ascii", errors="replace") as file:
            wchan = file.read(64).strip()
    except OSError:  # only its owner may see it, and not everywhere
        wchan = ""
    return ProcessState(state, "" if wchan == "0" else wchan, cpu_s)


def rank_sample(vitals: Vitals, process: ProcessState, *, node: str, before: Vitals | None = None) -> RankSample:
    """Make the sample of ``vitals`` and ``process``; with the ``vitals`` of ``before``, step times are means since."""
    times = vitals.step_s, vitals.compute_s, vitals.wait_s
    if before is not None and before.pid == vitals.pid and vitals.timed[0] > before.timed[0]:
        steps = vitals.timed[0] - before.timed[0]
        means = [max(0.0, now - then) / steps for now, then in zip(vitals.timed[1:], before.timed[1:], strict=True)]
        times = means[0], means[1], means[2]
    return RankSample(
        rank=vitals.rank,
        node=node,
        at_s=vitals.at_s,
        pid=vitals.pid,
        beat=vitals.beat,
        beat_age_s=vitals.beat_age_s,
        step=vitals.step,
        own_steps=vitals.own_steps,
        phase=vitals.phase,
        phase_s=vitals.phase_s,
        phase_allowed_s=vitals.phase_allowed_s,
        in_collective=vitals.in_collective,
        step_s=times[0],
        compute_s=times[1],
        wait_s=times[2],
        groups=tuple(
            GroupState(
                group=each.group,
                size=each.size,
                enqueued=each.enqueued,
                completed=each.completed,
                op=each.op,
                shape=each.shape,
            )
            for each in vitals.groups
        ),
        loss=vitals.loss,
        loss_step=vitals.loss_step,
        loss_bad_step=vitals.loss_bad_step,
        local_norm=vitals.local_norm,
        local_finite=vitals.local_finite,
        local_bad_step=vitals.local_bad_step,
        local_every=vitals.local_every,
        global_norm=vitals.global_norm,
        global_finite=vitals.global_finite,
        global_bad_step=vitals.global_bad_step,
        checksum=vitals.checksum,
        checksum_step=vitals.checksum_step,
        replicas=vitals.replicas,
        state=process.state,
        wchan=process.wchan,
        cpu_s=process.cpu_s,
        exit_code=process.exit_code,
        exit_signal=process.exit_signal,
        finished=vitals.finished,
    )


def read_rank(path: str | os.PathLike[str], *, node: str, at_s: float | None = None) -> RankSample:
    """Look once at the record at ``path`` and its process. Raises `ProtocolError` if it is no record."""
    vitals = Vitals.read(path, at_s=at_s)
    return rank_sample(vitals, process_state(vitals.pid, vitals.start_ticks), node=node)


class Reading:
    """Looks at the ranks of a node again and again. ``strange`` are files of the last look that are no records."""

    def __init__(self, folder: str | os.PathLike[str], *, node: str) -> None:
        self.folder = Path(folder)
        self.node = node
        self.strange: tuple[Path, ...] = ()
        self._before: dict[int, Vitals] = {}
        self._ended: dict[tuple[int, int], ProcessState] = {}

    def _process(self, vitals: Vitals) -> ProcessState:
        """As it is; of one that was seen before it was reaped, how it ended."""
        key = vitals.pid, vitals.start_ticks
        process = process_state(*key)
        if process.state == "Z":
            self._ended[key] = process
        return self._ended.get(key, process) if process.state == "X" else process

    def record(self, rank: int) -> tuple[Path, Vitals] | None:
        """The file and the last known record of ``rank``, to ask it for its stacks."""
        vitals = self._before.get(rank)
        return None if vitals is None else (self.folder / f"rank-{rank}.{vitals.pid}", vitals)

    def look(self, *, at_s: float | None = None) -> tuple[RankSample, ...]:
        """One sample a rank, by rank: of several processes of a rank (attempts), the one that lives, or the newest."""
        now = time.monotonic() if at_s is None else at_s
        found: dict[int, tuple[tuple[bool, int], Vitals, ProcessState]] = {}
        strange = []
        for path in vitals_files(self.folder):
            try:
                vitals = Vitals.read(path, at_s=now)
            except FileNotFoundError:
                continue
            except (ProtocolError, OSError):
                strange.append(path)
                continue
            process = self._process(vitals)
            order = (process.state not in ("X", "Z"), vitals.start_ticks)
            if vitals.rank not in found or found[vitals.rank][0] < order:
                found[vitals.rank] = order, vitals, process
        self.strange = tuple(strange)
        samples = tuple(
            rank_sample(vitals, process, node=self.node, before=self._before.get(rank))
            for rank, (_, vitals, process) in sorted(found.items())
        )
        for rank, (_, vitals, _) in found.items():
            before = self._before.get(rank)
            if before is None or before.pid != vitals.pid or vitals.timed[0] > before.timed[0]:
                self._before[rank] = vitals
        return samples
