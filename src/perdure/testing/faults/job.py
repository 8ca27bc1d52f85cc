"""One job of the suite: real ranks on real processes, in nodes that are process groups of this machine.

A *node* has a name, the ranks of one process group, a folder for their probes, a folder for their logs and a log of its
kernel. What a machine of its own would have beyond that is played here and read by whoever watches (`Node.shown`,
`Node.clock`, `Node.silent`), never by the ranks.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from perdure.clock import SYSTEM
from perdure.testing.faults.trouble import Plan
from perdure.watcher.samples import NodeSample

__all__ = ["Job", "Node", "WallClock"]

_KILL_S = 20.0
_NEIGHBOUR = "import ctypes\nctypes.CDLL(None).prctl(1, 9)  # ends with the suite\nwhile True: pass"


class WallClock:
    """The clock of a node, whose wall time can be set off."""

    def __init__(self) -> None:
        self.offset_s = 0.0

    def monotonic(self) -> float:
        """Seconds that only go forward."""
        return SYSTEM.monotonic()

    def wall(self) -> float:
        """Seconds since 1970, as the node has it."""
        return SYSTEM.wall() + self.offset_s

    def sleep(self, seconds: float) -> None:
        """Wait."""
        SYSTEM.sleep(seconds)


@dataclass
class Node:
    """One node: its ``ranks``, what is written on it, and what is played of it."""

    name: str
    ranks: tuple[int, ...]
    folder: Path
    cpu: int | None = None
    "The processor that all its ranks run on."
    clock: WallClock = field(default_factory=WallClock)
    silent: bool = False
    "Whether nothing is heard of it: a watcher is not to look at it then."
    neighbours: set[int] = field(default_factory=set)
    "Processes on it that are not of the job; what else runs on this machine is on no node."
    alters: Callable[[NodeSample], NodeSample] = lambda sample: sample
    "What is played of its signals."

    def shown(self, sample: NodeSample) -> NodeSample:
        """What a watcher is to see of this node, where ``sample`` is of the machine."""
        pids = tuple(f"(pid {pid})" for pid in self.neighbours)
        foreign = tuple(each for each in sample.foreign_cpu if each[0].endswith(pids)) if pids else ()
        return self.alters(msgspec.structs.replace(sample, foreign_cpu=foreign))

    @property
    def probes(self) -> Path:
        """A private folder for records of ranks."""
        return self.folder / "probes"

    @property
    def logs(self) -> Path:
        """``rank-RANK.log`` of each rank."""
        return self.folder / "logs"

    @property
    def kernel_log(self) -> Path:
        """A file of text that plays /dev/kmsg."""
        return self.folder / "kmsg"

    @property
    def disk(self) -> Path:
        """Where its ranks save."""
        return self.folder / "disk"

    def kernel_says(self, text: str) -> None:
        """Add a line to the log of the kernel."""
        with open(self.kernel_log, "a", encoding="utf-8") as file:
            file.write(f"[{time.monotonic():12.6f}] {text}\n")


class Job:
    """Ranks in ``nodes`` (the number of ranks of each) below ``folder``. Use as a context manager; `start` begins.

    ``base`` is the environment that ranks inherit. ``pinned``: node i runs on processor i alone.
    """

    def __init__(self, folder: Path, nodes: tuple[int, ...], *, base: Mapping[str, str], pinned: bool = False) -> None:
        self.folder, self._base = folder, dict(base)
        shutil.rmtree(folder, ignore_errors=True)
        cpus = sorted(os.sched_getaffinity(0))
        first, self.nodes = 0, list[Node]()
        for number, count in enumerate(nodes):
            node = Node(
                f"n{number}",
                tuple(range(first, first + count)),
                folder / f"n{number}",
                cpus[number % len(cpus)] if pinned else None,
            )
            for path in (node.probes, node.logs, node.disk):
                path.mkdir(parents=True, mode=0o700)
            node.kernel_log.touch()
            self.nodes.append(node)
            first += count
        self.world = first
        self.attempt = 0
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self.others: list[subprocess.Popen[bytes]] = []
        self._mounted: list[Path] = []
        self._pidfds: dict[int, int] = {}
        self._stdin = os.pipe()  # open, and nobody writes: as a terminal at which nobody sits

    def node_of(self, rank: int) -> Node:
        """The node on which ``rank`` runs."""
        return next(node for node in self.nodes if rank in node.ranks)

    @property
    def here(self) -> Path:
        """The folder of this attempt: plan, progress, when it was struck."""
        return self.folder / f"attempt{self.attempt}"

    def start(self, plan: Plan, words: Mapping[str, Mapping[str, str]]) -> None:
        """Start all ranks, the next attempt if there was one. ``words`` are added to the environment, by node."""
        self.attempt += 1
        self.here.mkdir()
        for node in self.nodes:
            own = msgspec.structs.replace(plan, folder=str(self.here), disk=str(node.disk))
            (self.here / f"plan-{node.name}.json").write_bytes(msgspec.json.encode(own))
        port = _free_port()
        for node in self.nodes:
            group = 0
            for local, rank in enumerate(node.ranks):
                env = {
                    **self._base,
                    "RANK": str(rank),
                    "WORLD_SIZE": str(self.world),
                    "LOCAL_RANK": str(local),
                    "LOCAL_WORLD_SIZE": str(len(node.ranks)),
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(port),
                    "OMP_NUM_THREADS": "1",
                    **words[node.name],
                }
                command = [sys.executable, "-m", "perdure.testing.faults.train"]
                command += [str(self.here / f"plan-{node.name}.json"), str(rank), str(self.world)]
                if node.cpu is not None:
                    command = ["taskset", "-c", str(node.cpu), *command]
                with open(node.logs / f"rank-{rank}.log", "ab") as log:
                    process = subprocess.Popen(
                        command, env=env, stdin=self._stdin[0], stdout=log, stderr=log, process_group=group
                    )
                group = group or process.pid
                self.processes[rank] = process
                self._pidfds[rank] = os.pidfd_open(process.pid)

    def ends(self) -> list[int]:
        """Descriptors that are readable once a rank has ended, of those that have not been reaped."""
        return [fd for rank, fd in self._pidfds.items() if self.processes[rank].returncode is None]

    def reap(self) -> None:
        """Take note of the ranks that have ended, as a launcher does."""
        for process in self.processes.values():
            process.poll()

    @property
    def over(self) -> bool:
        """Whether all ranks have ended and were reaped."""
        return all(process.returncode is not None for process in self.processes.values())

    def step(self) -> int:
        """The step that rank 0 was at last; -1 before the first."""
        try:
            return int((self.here / "progress").read_bytes() or -1)
        except (OSError, ValueError):
            return -1

    def struck(self) -> tuple[float, int] | None:
        """When and at which step a fault inside of a rank began."""
        try:
            at_s, step = msgspec.json.decode((self.here / "struck").read_bytes())
        except (OSError, msgspec.DecodeError):  # not yet, or not yet written
            return None
        return at_s, step

    def finish(self) -> None:
        """Let the ranks end after the step that they are in."""
        (self.here / "finish").touch()

    def signal(self, rank: int, number: int) -> None:
        """Send a signal to one rank."""
        self.processes[rank].send_signal(number)

    def signal_node(self, node: Node, number: int) -> None:
        """Send a signal to the process group that is ``node``."""
        with suppress(ProcessLookupError):  # all have ended
            os.killpg(self.processes[node.ranks[0]].pid, number)

    def neighbour(self, node: Node) -> None:
        """Start a process that is not of this job and takes the processor of ``node``."""
        command = [sys.executable, "-c", _NEIGHBOUR]
        if node.cpu is not None:
            command = ["taskset", "-c", str(node.cpu), *command]
        self.others.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True))
        node.neighbours.add(self.others[-1].pid)

    def mount(self, node: Node, *, size_bytes: int) -> None:
        """Give ``node`` a file system of its own to save to, in memory. Raises `CalledProcessError` without rights."""
        command = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "suite", str(node.disk)]
        subprocess.run(command, check=True, capture_output=True)
        self._mounted.append(node.disk)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.end()

    def end(self) -> None:
        """``kill -9`` all that was started, and put away what was mounted."""
        for process in (*self.processes.values(), *self.others):
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
        for process in (*self.processes.values(), *self.others):
            process.wait(_KILL_S)
        for fd in (*self._pidfds.values(), *self._stdin):
            os.close(fd)
        self._pidfds.clear()
        for path in self._mounted:
            subprocess.run(["umount", "-l", str(path)], check=True, capture_output=True)
        self._mounted.clear()


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
