"""What a node's kernel tells, about once a second: memory, processors, disks, network links.

Each look reads a handful of files, however many processes there are (`perdure.watcher.neighbours` finds busy ones bit
by bit). Limits of cgroups, version 1 or 2, decide how much memory and how many processors there are. What may never
answer, a disk or an adapter, is looked at aside. No rights are needed; what cannot be read is not known.
"""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Final

from perdure.clock import SYSTEM, Clock
from perdure.process.memory import available_nbytes, total_nbytes
from perdure.watcher.aside import Aside
from perdure.watcher.gpus import GpuWatch
from perdure.watcher.neighbours import Belonging, Neighbours
from perdure.watcher.samples import DiskState, NodeSample

__all__ = ["Host", "disk_state", "links_up", "usable_cpus"]

_MOST_DISKS: Final = 16
_MOST_LINKS: Final = 256
_MOST_RANKS: Final = 64
_DISKS_EVERY_S: Final = 5.0
_LINKS_EVERY_S: Final = 2.0
_CPUS_EVERY_S: Final = 30.0
_SILENT_S: Final = 1.0
_APART_S: Final = 0.9
_SHORT_IDLE: Final = 0.1
_SHORT_WAIT: Final = 0.05
_REMOTE: Final = (
    "9p afs beegfs ceph cifs fuse.ceph fuse.gcsfuse fuse.glusterfs fuse.juicefs fuse.s3fs fuse.sshfs gpfs lustre ncpfs "
    "nfs nfs4 smb3 smbfs wekafs"
)


class Host:
    """Makes the `NodeSample` of this node; `close` ends its threads.

    ``own`` returns the processes of the ranks (it may be called from another thread), ``mark`` is what the job's
    processes carry in PERDURE_MARK, ``disks`` are folders that the job writes to. ``root`` is where ``proc`` and
    ``sys`` are.
    """

    def __init__(
        self,
        *,
        node: str,
        own: Callable[[], Collection[int]] = tuple,
        mark: str | None = None,
        disks: Sequence[str | Path] = (),
        gpus: GpuWatch | None = None,
        root: Path = Path("/"),
        clock: Clock = SYSTEM,
    ) -> None:
        self._node = node
        self._root = root
        self._clock = clock
        self._gpus = gpus
        self._belongs = Belonging(own, mark=mark, root=root)
        self._neighbours = Neighbours(self._belongs, root=root)
        self._disks: dict[str, Aside[DiskState]] = {
            path: Aside(_disk_looker(path, root), every_s=_DISKS_EVERY_S, name="disk", clock=clock)
            for path in dict.fromkeys(str(path) for path in disks[:_MOST_DISKS])
        }
        self._links = Aside(lambda: links_up(root), every_s=_LINKS_EVERY_S, name="links", clock=clock)
        self._links_seen: set[str] = set()
        self._cpus: int | None = None
        self._cpus_at_s = float("-inf")
        self._ticks: tuple[int, int] | None = None
        self._ticks_at_s = float("-inf")
        self._idle_share: float | None = None
        self._waited: dict[int, int] = {}
        self._waited_at_s = float("-inf")
        self._wait_share: float | None = None

    @property
    def belongs(self) -> Belonging:
        """Whether a process is of this job."""
        return self._belongs

    def sample(self) -> NodeSample:
        """Look once. Never waits for a disk, an adapter or a GPU."""
        now = self._clock.monotonic()
        if now - self._cpus_at_s >= _CPUS_EVERY_S:
            self._cpus, self._cpus_at_s = usable_cpus(self._root), now
        idle, wait = self._idle(now), self._wait(now)
        hurry = (idle is not None and idle < _SHORT_IDLE) or (wait is not None and wait > _SHORT_WAIT)
        total = total_nbytes(root=self._root)
        return NodeSample(
            node=self._node,
            at_s=now,
            wall_s=self._clock.wall(),
            cpus=self._cpus,
            load=_load(self._root),
            memory_total_bytes=total,
            memory_available_bytes=None if total is None else min(total, available_nbytes(root=self._root)),
            oom_kills=_oom_kills(self._root),
            disks=tuple(self._disk_states()),
            gpus=() if self._gpus is None else self._gpus.latest(),
            gpu_problem="" if self._gpus is None else self._gpus.problem(),
            links_down=self._links_down(),
            foreign_cpu=self._neighbours.look(now, hurry=hurry),
            cpu_idle=idle,
            cpu_wait=wait,
        )

    def wait_first(self, timeout_s: float) -> None:
        """Wait until disks and links have been seen once."""
        for disk in self._disks.values():
            disk.wait_first(timeout_s)
        self._links.wait_first(timeout_s)

    def close(self) -> None:
        """End the threads; those that hang are left behind."""
        for disk in self._disks.values():
            disk.close(timeout_s=0.2)
        self._links.close(timeout_s=0.2)

    def _disk_states(self) -> Iterator[DiskState]:
        for path, aside in self._disks.items():
            last, silent_s = aside.latest, aside.silent_s()
            if silent_s < _SILENT_S:
                silent_s = 0.0
            if last is not None:
                yield DiskState(
                    path=last.path,
                    total_bytes=last.total_bytes,
                    free_bytes=last.free_bytes,
                    free_inodes=last.free_inodes,
                    total_inodes=last.total_inodes,
                    read_only=last.read_only,
                    remote=last.remote,
                    silent_s=silent_s,
                )
            elif silent_s:
                yield DiskState(path=path, total_bytes=0, free_bytes=0, silent_s=silent_s)

    def _links_down(self) -> tuple[str, ...]:
        up = self._links.latest
        if up is None:
            return ()
        self._links_seen |= up
        return tuple(sorted(self._links_seen - up))

    def _idle(self, now: float) -> float | None:
        """Share of idle time in the last second or so."""
        line = _text(self._root / "proc/stat").partition("\n")[0].split()
        try:
            numbers = [int(word) for word in line[1:9]]
        except ValueError:
            return None
        if len(numbers) < 5:
            return None
        ticks = sum(numbers), numbers[3] + numbers[4]
        if self._ticks is None or now - self._ticks_at_s >= _APART_S:
            before, self._ticks, self._ticks_at_s = self._ticks, ticks, now
            passed = 0 if before is None else ticks[0] - before[0]
            self._idle_share = None
            if before is not None and passed > 0:
                self._idle_share = min(1.0, max(0.0, (ticks[1] - before[1]) / passed))
        return self._idle_share

    def _wait(self, now: float) -> float | None:
        """Largest share of the last second or so in which a rank's main thread waited for a processor."""
        waited = {}
        for pid in list(self._belongs.own())[:_MOST_RANKS]:
            words = _text(self._root / f"proc/{pid}/schedstat").split()
            if len(words) == 3 and words[1].isdecimal():
                waited[pid] = int(words[1])
        passed_s = now - self._waited_at_s
        if passed_s >= _APART_S:
            before, self._waited, self._waited_at_s = self._waited, waited, now
            shares = [(nanos - before[pid]) / 1e9 / passed_s for pid, nanos in waited.items() if pid in before]
            self._wait_share = min(1.0, max(0.0, *shares)) if shares else None
        return self._wait_share


def usable_cpus(root: Path = Path("/")) -> int | None:
    """Processors that this process may use: those it may run on, or what a quota of its cgroups allows, rounded up."""
    allowed = float(len(os.sched_getaffinity(0)))
    for folder, version in _cgroups(root, "cpu"):
        if version == 2:
            quota, _, period = _text(folder / "cpu.max").partition(" ")
        else:
            quota, period = _text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us")
        if quota.strip().isdecimal() and period.strip().isdecimal() and int(period) > 0:
            allowed = min(allowed, int(quota) / int(period))
    return max(1, math.ceil(allowed))


def disk_state(path: str, *, root: Path = Path("/")) -> DiskState:
    """The file system that ``path`` is on. Raises `OSError` if there is none."""
    found = os.statvfs(path)
    return DiskState(
        path=path,
        total_bytes=found.f_blocks * found.f_frsize,
        free_bytes=found.f_bavail * found.f_frsize,
        free_inodes=found.f_favail if found.f_files else None,
        total_inodes=found.f_files or None,
        read_only=bool(found.f_flag & os.ST_RDONLY),
        remote=_file_system(os.stat(path).st_dev, root) in _REMOTE.split(),
    )


def links_up(root: Path = Path("/")) -> set[str]:
    """Network interfaces with a carrier, and ports of InfiniBand and RoCE adapters that are active (``mlx5_0/1``).

    Of virtual interfaces only bonds count, and what is called eth0, the link of a container: others come and go.
    """
    up = set()
    for folder in _folders(root / "sys/class/net"):
        virtual = "/devices/virtual/" in os.path.realpath(folder)
        if virtual and folder.name != "eth0" and not (folder / "bonding").is_dir():
            continue
        state = _text(folder / "operstate").strip()
        if state == "up" or (state == "unknown" and _text(folder / "carrier").strip() == "1"):
            up.add(folder.name)
    for adapter in _folders(root / "sys/class/infiniband"):
        for port in _folders(adapter / "ports"):
            if _text(port / "state").strip().endswith("ACTIVE"):
                up.add(f"{adapter.name}/{port.name}")
    return up


def _disk_looker(path: str, root: Path) -> Callable[[], DiskState]:
    return lambda: disk_state(path, root=root)


def _file_system(device: int, root: Path) -> str:
    """The kind of the mounted file system with this device number; empty if it is not found."""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in _text(root / "proc/self/mountinfo", 1 << 20).splitlines():
        before, _, after = line.partition(" - ")
        words = before.split()
        if len(words) > 2 and words[2] == wanted:
            return after.split(" ")[0]
    return ""


def _cgroups(root: Path, kind: str) -> Iterator[tuple[Path, int]]:
    """The cgroups of this process that may limit ``kind``, its own and those above, with their version."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        parts = line.split(":", 2)
        if len(parts) != 3:
            continue
        if parts[1] == "":
            top, version = root / "sys/fs/cgroup", 2
        elif kind in parts[1].split(","):
            top, version = root / "sys/fs/cgroup" / kind, 1
        else:
            continue
        own = top / parts[2].lstrip("/")
        for folder in (own, *own.parents):
            if folder != top and top not in folder.parents:
                break
            yield folder, version


def _oom_kills(root: Path) -> int | None:
    """Kills in our memory cgroup; of the machine where that counts none of its own."""
    for folder, version in _cgroups(root, "memory"):
        counted = _counter(_text(folder / ("memory.events" if version == 2 else "memory.oom_control")))
        if counted is not None:
            return counted
    return _counter(_text(root / "proc/vmstat"))


def _counter(text: str) -> int | None:
    for line in text.splitlines():
        name, _, number = line.partition(" ")
        if name == "oom_kill" and number.strip().isdecimal():
            return int(number)
    return None


def _load(root: Path) -> float | None:
    word = _text(root / "proc/loadavg").partition(" ")[0]
    try:
        return float(word)
    except ValueError:
        return None


def _folders(path: Path) -> list[Path]:
    try:
        return [path / name for name in sorted(os.listdir(path))[:_MOST_LINKS] if _is_folder(path / name)]
    except OSError:
        return []


def _is_folder(path: Path) -> bool:
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except OSError:
        return False


def _text(path: Path, most: int = 1 << 16) -> str:
    """What is in a file of the kernel; empty if it cannot be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return ""
    chunks, length = [], 0
    try:
        while length < most:
            chunk = os.read(fd, min(most - length, 1 << 16))
            if not chunk:
                break
            chunks.append(chunk)
            length += len(chunk)
    except OSError:
        return ""
    finally:
        os.close(fd)
    return b"".join(chunks).decode(errors="replace")
