"""A real Slurm of several nodes on this machine, for tests: its daemons, ports and keys are its own.

with Slurm(folder, nodes=4) as slurm:
    job = slurm.submit("--nodes=4", "script.sh")
    slurm.kill_node(2)  # as if its plug had been pulled
    slurm.wait_job(job, {"COMPLETED"})

Each node is one ``slurmd`` with another name. Nothing of the machine's is used or changed: munge has its own key and
socket, so that several of these (and a real one) can run side by side. Needs the programs of Slurm and of munge
(Debian: ``apt install slurmctld slurmd slurm-client munge``); they are run as whoever runs the test.

When the test itself is killed, a guard ends the daemons and the jobs: they carry its mark (`perdure.process.marked`).
"""

from __future__ import annotations

import getpass
import os
import secrets
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from perdure.clock import SYSTEM, Deadline
from perdure.errors import CallError, StorageError
from perdure.process.environ import MARK
from perdure.process.ports import ReservedPort
from perdure.process.tree import Guard, kill_attempt

__all__ = ["PACKAGES", "Slurm", "missing_programs"]

PACKAGES = ("slurmctld", "slurmd", "slurm-client", "slurm-wlm-basic-plugins", "munge")
_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue", "sinfo", "scancel")
_PATH = "/usr/sbin:/sbin"
_POLL_S = 0.1


def missing_programs(path: str) -> list[str]:
    """Return the programs that a Slurm needs and that are not on ``path`` (nor where daemons are)."""
    return [name for name in _PROGRAMS if shutil.which(name, path=f"{path}:{_PATH}") is None]


class Slurm:
    """Nodes ``node1`` ... in ``folder``; a context manager. ``env`` is what its commands and their jobs need.

    ``proctrack`` says how it finds the processes of a step: ``linuxproc`` by their parents, ``cgroup`` for certain
    (which needs root and the freezer of cgroup v1, and one such Slurm a machine). A node that is gone is down after
    ``node_timeout_s``; ``kill_wait_s`` lie between SIGTERM and SIGKILL.
    """

    def __init__(
        self,
        folder: Path,
        *,
        env: Mapping[str, str],
        nodes: int = 4,
        cpus: int = 4,
        proctrack: str = "linuxproc",
        node_timeout_s: int = 10,
        kill_wait_s: int = 5,
    ) -> None:
        missing = missing_programs(env.get("PATH", os.defpath))
        if missing:
            raise CallError(f"no {', '.join(missing)} here; install {' '.join(PACKAGES)}", missing=missing)
        self.folder = folder.resolve()
        self.conf = self.folder / "slurm.conf"
        self.nodes = tuple(f"node{number}" for number in range(1, nodes + 1))
        self._mark = f"slurm-{secrets.token_hex(8)}"
        self.env = {name: value for name, value in env.items() if not name.startswith(("SLURM", "SBATCH", "PERDURE_"))}
        self.env |= {
            "SLURM_CONF": str(self.conf),
            "PATH": f"{env.get('PATH', os.defpath)}:{_PATH}",
            MARK: self._mark,
        }
        self._ports = [ReservedPort() for _ in range(nodes + 1)]
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._guard: Guard | None = None
        for name in ("log", "state", *(f"spool/{node}" for node in self.nodes)):
            (self.folder / name).mkdir(parents=True)
        key = self.folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(1024))
        if proctrack == "cgroup":
            (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupMountpoint=/sys/fs/cgroup\n")
        self.conf.write_text(self._configuration(cpus, proctrack, node_timeout_s, kill_wait_s))

    def __enter__(self) -> Slurm:
        try:
            self._guard = Guard(self._mark)
            files = {
                "socket": "munge.socket",
                "key-file": "munge.key",
                "seed-file": "munge.seed",
                "pid-file": "munge.pid",
            }
            files["log-file"] = "log/munged.log"
            options = [f"--{option}={self.folder / name}" for option, name in files.items()]
            self._start("munged", "--foreground", "--force", *options)
            self._await("munge to listen", (self.folder / "munge.socket").exists)
            self._start("slurmctld", "-D", "-f", str(self.conf))
            for node in self.nodes:
                self._start("slurmd", "-D", "-N", node, "-f", str(self.conf), name=node)
            self.wait_idle()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End all of it, also what jobs have left behind; raise `StorageError` if something cannot be killed."""
        for process in self._daemons.values():
            process.kill()
        for process in self._daemons.values():
            process.wait(10)
        self._daemons.clear()
        left = [*self._kill_all(self._own), *kill_attempt(self._mark, sessions=()).left]
        if self._guard is not None:
            self._guard.dismiss()
            self._guard = None
        for port in self._ports:
            port.close()
        if left:
            raise StorageError(f"processes {left} of a test's Slurm do not end; look at what they hang in", pids=left)

    # What a user does.

    def run(self, *words: str, timeout_s: float = 60.0) -> str:
        """Run a command of Slurm's as a user would; return what it printed, raise `CallError` if it failed."""
        done = subprocess.run(
            words, env=self.env, cwd=self.folder, capture_output=True, text=True, timeout=timeout_s, check=False
        )
        if done.returncode != 0:
            raise CallError(f"{words[0]} failed: {done.stderr.strip() or done.stdout.strip()}", code=done.returncode)
        return done.stdout

    def submit(self, *words: str) -> int:
        """Run ``sbatch`` with ``words``; return the number of the job."""
        return int(self.run("sbatch", "--parsable", *words).split(";")[0])

    def squeue(self) -> dict[int, str]:
        """Return the state of each job that is waiting, running or ending."""
        lines = self.run("squeue", "--noheader", "--format=%A %T").splitlines()
        return {int(job): state for job, state in map(_two, lines)}

    def job(self, job: int) -> dict[str, str]:
        """Return what ``scontrol show job`` says of a job: ``JobState``, ``Reason``, ``Restarts``, ``ExitCode`` ..."""
        return _fields(self.run("scontrol", "--oneliner", "show", "job", str(job)))

    def node_states(self) -> dict[str, str]:
        """Return the state of each node as Slurm writes it, such as ``idle`` or ``down*``."""
        lines = self.run("sinfo", "--Node", "--noheader", "--format=%N %t").splitlines()
        return dict(_two(line) for line in lines)

    def wait_job(self, job: int, states: Container[str], *, timeout_s: float = 90.0) -> dict[str, str]:
        """Wait until the job is in one of ``states``; return what is known of it then."""
        deadline = Deadline.after(timeout_s, f"job {job} to be in {states}")
        while (now := self.job(job))["JobState"] not in states:
            deadline.check(f"it is {now['JobState']} ({now.get('Reason')})")
            SYSTEM.sleep(_POLL_S)
        return now

    def wait_idle(self, *, timeout_s: float = 60.0) -> None:
        """Wait until every node is idle; ask for nodes that were drained or killed to be put back before."""
        self._await(
            "all nodes to be idle",
            lambda: all(state == "idle" for state in self.node_states().values()),
            missing=lambda: str({node: state for node, state in self.node_states().items() if state != "idle"}),
            timeout_s=timeout_s,
        )

    # What happens to a cluster.

    def kill_node(self, number: int) -> set[int]:
        """Kill all processes of ``node<number>`` at once, Slurm's too, as a power cut would; return their pids."""
        node = self.nodes[number - 1]
        daemon = self._daemons.pop(node)
        log = str(self._log(node))
        of_node = f"SLURMD_NODENAME={node}".encode()

        def belongs(pid: int) -> bool:
            entries = _environ(pid)
            return log in _open_files(pid) or (self._conf_entry in entries and of_node in entries)

        # Stopped first: one that still ran while another was dead already could tell the rest of the cluster.
        self._signal_all(belongs, signal.SIGSTOP)
        daemon.kill()
        killed: set[int] = {daemon.pid}
        left = self._kill_all(belongs, killed)
        daemon.wait(10)
        if left:
            raise StorageError(f"processes {left} of {node} do not end", pids=left)
        return killed

    def restore_node(self, number: int) -> None:
        """Start the ``slurmd`` of a killed node again, as after a reboot, and take the node back into use."""
        node = self.nodes[number - 1]
        self._start("slurmd", "-D", "-N", node, "-f", str(self.conf), name=node)
        self._await(
            f"{node} to be back",
            lambda: not self.node_states()[node].startswith(("down", "unk")) and "*" not in self.node_states()[node],
        )

    def reset(self) -> None:
        """End all jobs, start the nodes that were killed, undo drains; all nodes are idle afterwards."""
        for number, node in enumerate(self.nodes, 1):
            if node not in self._daemons:
                self.restore_node(number)
        self.run("scancel", "--state=PENDING", "--user", getpass.getuser())
        for job in self.squeue():
            self.run("scancel", "--full", "--signal=KILL", str(job))
            self.run("scancel", str(job))
        for node, state in self.node_states().items():
            if state.startswith("dr"):
                self.run("scontrol", "update", f"NodeName={node}", "State=RESUME")
        self.wait_idle()

    # How it is done.

    def _start(self, *words: str, name: str | None = None) -> None:
        name = name or words[0]
        program = shutil.which(words[0], path=self.env["PATH"])
        assert program is not None
        with (self.folder / "log" / f"{name}.out").open("ab") as out:
            self._daemons[name] = subprocess.Popen(
                [program, *words[1:]],
                env=self.env,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def _await(
        self,
        what: str,
        ready: Callable[[], bool],
        *,
        missing: Callable[[], str] = lambda: "",
        timeout_s: float = 60.0,
    ) -> None:
        """Wait until ``ready()``; a daemon that has ended meanwhile is an error with the end of its output."""
        deadline = Deadline.after(timeout_s, what)
        while True:
            for name, process in self._daemons.items():
                if process.poll() is not None:
                    tail = (self.folder / "log" / f"{name}.out").read_text(errors="replace")[-2000:]
                    raise StorageError(f"{name} of a test's Slurm ended with {process.returncode}: {tail}", daemon=name)
            try:
                if ready():
                    return
            except CallError:
                pass  # slurmctld does not listen yet
            if deadline.passed():
                deadline.check(missing())
            SYSTEM.sleep(_POLL_S)

    @property
    def _conf_entry(self) -> bytes:
        return f"SLURM_CONF={self.conf}".encode()

    def _log(self, node: str) -> Path:
        return self.folder / "log" / f"slurmd-{node}.log"

    def _own(self, pid: int) -> bool:
        """Whether a process is of this Slurm: it says so itself, or it writes to one of its logs (``slurmstepd``)."""
        if self._conf_entry in _environ(pid):
            return True
        files = _open_files(pid)
        return any(str(self._log(node)) in files for node in self.nodes)

    @staticmethod
    def _kill_all(belongs: Callable[[int], bool], killed: set[int] | None = None) -> list[int]:
        """Kill what ``belongs`` until nothing does twice in a row; return what SIGKILL has not ended in ten seconds."""
        give_up = SYSTEM.monotonic() + 10.0
        n_empty = 0
        while n_empty < 2:
            found = Slurm._signal_all(belongs, signal.SIGKILL)
            if killed is not None:
                killed.update(found)
            n_empty = 0 if found else n_empty + 1
            if SYSTEM.monotonic() > give_up:
                return found
            SYSTEM.sleep(0.01)
        return []

    @staticmethod
    def _signal_all(belongs: Callable[[int], bool], number: int) -> list[int]:
        """Send a signal to each process that ``belongs``; return their pids."""
        found = []
        for pid in _pids():
            try:
                handle = os.pidfd_open(pid)
            except OSError:
                continue  # gone
            try:
                if belongs(pid):
                    found.append(pid)
                    signal.pidfd_send_signal(handle, number)
            except ProcessLookupError:
                pass  # gone meanwhile
            finally:
                os.close(handle)
        return found

    def _configuration(self, cpus: int, proctrack: str, node_timeout_s: int, kill_wait_s: int) -> str:
        at, user, host = self.folder, getpass.getuser(), socket.gethostname().split(".")[0]
        lines: Sequence[str] = [
            f"ClusterName=perdure\nSlurmctldHost={host}(127.0.0.1)\nSlurmctldPort={self._ports[0].number}",
            f"SlurmUser={user}\nSlurmdUser={user}",
            f"AuthType=auth/munge\nCryptoType=crypto/munge\nAuthInfo=socket={at}/munge.socket",
            f"SlurmctldPidFile={at}/slurmctld.pid\nSlurmdPidFile={at}/slurmd-%n.pid",
            f"SlurmctldLogFile={at}/log/slurmctld.log\nSlurmdLogFile={at}/log/slurmd-%n.log",
            f"StateSaveLocation={at}/state\nSlurmdSpoolDir={at}/spool/%n",
            f"ProctrackType=proctrack/{proctrack}\nTaskPlugin=task/none\nJobAcctGatherType=jobacct_gather/none",
            "AccountingStorageType=accounting_storage/none\nJobCompType=jobcomp/none\nMpiDefault=none",
            "SelectType=select/cons_tres\nSelectTypeParameters=CR_CPU\nSchedulerType=sched/backfill",
            "SchedulerParameters=bf_interval=1,sched_min_interval=100000,batch_sched_delay=1",
            f"ReturnToService=2\nSlurmdTimeout={node_timeout_s}\nSlurmctldTimeout=10\nKillWait={kill_wait_s}",
            "JobRequeue=1\nMinJobAge=300\nSlurmdParameters=config_overrides",
        ]
        nodes = [
            f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port.number} CPUs={cpus} RealMemory=4000"
            for node, port in zip(self.nodes, self._ports[1:], strict=True)
        ]
        return "\n".join([*lines, *nodes, "PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP", ""])


def _fields(line: str) -> dict[str, str]:
    """Return the ``Name=value`` words of a line of ``scontrol``; values with blanks in them are cut short."""
    return dict(word.split("=", 1) for word in line.split() if "=" in word)


def _two(line: str) -> tuple[str, str]:
    first, second = line.split()
    return first, second


def _pids() -> Iterator[int]:
    own = os.getpid()
    return (int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != own)


def _environ(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []  # gone, or another user's


def _open_files(pid: int) -> set[str]:
    try:
        folder = f"/proc/{pid}/fd"
        return {os.readlink(f"{folder}/{name}") for name in os.listdir(folder)}
    except OSError:
        return set()  # gone, or another user's
