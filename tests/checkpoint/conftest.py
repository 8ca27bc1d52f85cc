"""Ranks, agents and launchers in processes of their own, for tests that kill them.

Every wait has a bound, and whatever a test started is dead when it ends.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from perdure.checkpoint.link import socket_prefix
from perdure.checkpoint.room import SEGMENTS_PER_RANK
from perdure.process.lock import FileLock
from perdure.store import Commit, Disk, Run, StoreUrl

HERE = Path(__file__).parent
SRC = str(HERE.parents[1] / "src")
TRAINER = str(HERE / "trainer.py")


class Forker:
    """The process that forks ranks; see `forker.py`."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "forker.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": SRC, "OMP_NUM_THREADS": "1"},
            text=True,
        )

    def ask(self, **what: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def end(self) -> None:
        self._process.kill()
        self._process.communicate(timeout=10)


class Ranks:
    """The ranks of one attempt."""

    def __init__(self, forker: Forker, pids: Sequence[int], outs: Sequence[Path]) -> None:
        self._forker = forker
        self.pids = list(pids)
        self._outs = outs
        self.codes: dict[int, int] = {}  # rank -> exit code, or minus the signal

    def poll(self) -> dict[int, int]:
        left = [pid for rank, pid in enumerate(self.pids) if rank not in self.codes]
        if left:
            ended = self._forker.ask(poll=left)["ended"]
            self.codes |= {self.pids.index(int(pid)): code for pid, code in ended.items()}
        return self.codes

    def wait(self, *, within_s: float = 30.0) -> list[int]:
        """The exit codes of all ranks, in order; a rank that takes longer is a failure of the test."""
        return self.wait_for(range(len(self.pids)), within_s=within_s)

    def wait_for(self, ranks: Sequence[int], *, within_s: float = 30.0) -> list[int]:
        give_up = time.monotonic() + within_s
        while not all(rank in self.poll() for rank in ranks):
            if time.monotonic() > give_up:
                stacks = self.stacks()
                self.kill_all()
                raise AssertionError(f"ranks hang; ended: {self.codes}\n{self.text()}\n{stacks}")
            time.sleep(0.01)
        return [self.codes[rank] for rank in ranks]

    def kill(self, rank: int, number: int = signal.SIGKILL) -> None:
        os.kill(self.pids[rank], number)

    def kill_all(self) -> None:
        """What a launcher does after one rank has died."""
        for rank, pid in enumerate(self.pids):
            if rank not in self.poll():
                os.kill(pid, signal.SIGKILL)
        give_up = time.monotonic() + 10
        while len(self.poll()) < len(self.pids) and time.monotonic() < give_up:
            time.sleep(0.005)

    def interrupt(self) -> None:
        """Ctrl-C in their terminal."""
        os.killpg(self.pids[0], signal.SIGINT)

    def aborted_at_exit(self, rank: int) -> bool:
        """Whether threads of gloo's aborted a rank that had failed, when it had said all and was on its way out."""
        return self.codes[rank] == -signal.SIGABRT and self.out(rank).endswith(
            "terminate called without an active exception\n"
        )

    def out(self, rank: int) -> str:
        """What the rank printed, on both streams."""
        return self._outs[rank].read_text()

    def said(self, rank: int) -> list[str]:
        """The sentences of perdure on this rank."""
        return re.findall(
            r"^(?:\[rank\d+\]: )?perdure:(?: rank \d+:)? (.*)$", self.out(rank), re.M
        )  # or in a traceback

    def text(self) -> str:
        return "\n".join(f"--- rank {rank}\n{self.out(rank)[-6000:]}" for rank in range(len(self.pids)))

    def digests(self) -> dict[tuple[int, int], str]:
        """``(rank, step)`` -> digest, of every step that a rank came to."""
        return {(rank, step): d for rank in range(len(self.pids)) for step, d in digests_in(self.out(rank)).items()}

    def began_at(self) -> list[int | None]:
        """The step that each rank went on from."""
        found = [re.search(r"^R (\d+)$", self.out(rank), re.M) for rank in range(len(self.pids))]
        return [int(each[1]) if each else None for each in found]

    def await_line(self, pattern: str, *, ranks: Sequence[int] = (0,), within_s: float = 20.0) -> None:
        """Wait until each of ``ranks`` has printed a line that matches."""
        give_up = time.monotonic() + within_s
        while not all(re.search(pattern, self.out(rank), re.M) for rank in ranks):
            late = time.monotonic() > give_up or len(self.poll()) == len(self.pids)
            assert not late, f"no {pattern}\n{self.text()}\n{self.stacks()}"
            time.sleep(0.005)

    def stacks(self) -> str:
        """Where threads of ranks wait in the kernel, for a test that hangs."""
        found = []
        for pid in self.pids:
            for task in Path(f"/proc/{pid}/task").glob("*"):
                try:
                    found.append(f"{pid} {(task / 'comm').read_text().strip()} {(task / 'wchan').read_text()}")
                except OSError:
                    continue
        return "\n".join(found)


def digests_in(text: str) -> dict[int, str]:
    """``step`` -> digest, from the lines ``D <step> <digest>`` of one rank."""
    return {int(step): found for step, found in re.findall(r"D (\d+) ([0-9a-f]+)$", text, re.M)}


class Place:
    """One test's folder: the run, the runtime folder with the agent's socket, and what is started on them."""

    def __init__(self, folder: Path, forker: Forker | None) -> None:
        self.folder = folder
        self.job = folder.name
        self.run_dir = folder / "run"
        self.runtime = folder / "runtime"
        self.runtime.mkdir(mode=0o700)
        self._forker = forker
        self._attempts: list[Ranks] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self._agents: set[int] = set()

    @property
    def url(self) -> str:
        return str(StoreUrl.parse(self.run_dir))

    def env(self, **more: str) -> dict[str, str]:
        """What processes of this test inherit."""
        own = {"PYTHONPATH": SRC, "OMP_NUM_THREADS": "1", "XDG_RUNTIME_DIR": str(self.runtime), "PERDURE_LEASE_S": "30"}
        return {name: value for name, value in os.environ.items() if not name.startswith("PERDURE_")} | own | more

    def start(
        self,
        *argv: str,
        world: int = 2,
        nodes: Sequence[str] = (),
        script: str = TRAINER,
        bare: bool = False,
        **more: str,
    ) -> Ranks:
        """Start an attempt: ``world`` ranks as a launcher would. ``bare`` sets no launcher's environment.

        ``nodes`` names the node of each rank, if there are several; the ranks of a node stand together.
        """
        assert self._forker is not None
        attempt = len(self._attempts)
        port = free_port()
        envs = []
        for rank in range(world):
            placed = {} if bare else {
                "RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(world),
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "False",
                "PERDURE_JOB": self.job, "PERDURE_ATTEMPT": str(attempt), "PERDURE_MARK": f"{self.job}.{attempt}",
            }  # fmt: skip
            if nodes:
                mine = [other for other in range(world) if nodes[other] == nodes[rank]]
                placed |= {
                    "PERDURE_NODE": nodes[rank], "GROUP_RANK": str(list(dict.fromkeys(nodes)).index(nodes[rank])),
                    "LOCAL_RANK": str(mine.index(rank)), "LOCAL_WORLD_SIZE": str(len(mine)),
                }  # fmt: skip
            envs.append(self.env(**placed, **more))
        outs = [self.folder / f"out-{attempt}-{rank}" for rank in range(world)]
        for out in outs:
            out.touch()
        pids = self._forker.ask(
            start=script, argv=["--to", str(self.run_dir), *argv], envs=envs, outs=[str(out) for out in outs]
        )["pids"]
        self._attempts.append(Ranks(self._forker, pids, outs))
        return self._attempts[-1]

    def train(self, *argv: str, world: int = 2, codes: Sequence[int] | None = None, **more: Any) -> Ranks:
        """Run an attempt to its end; its ranks must end with ``codes`` (0)."""
        ranks = self.start(*argv, world=world, **more)
        wanted = list(codes or [0] * world)
        found = [
            wanted[rank] if wanted[rank] and ranks.aborted_at_exit(rank) else code
            for rank, code in enumerate(ranks.wait())
        ]
        assert found == wanted, ranks.text()
        return ranks

    def popen(self, *command: str, **more: str) -> subprocess.Popen[bytes]:
        """Start another process of this test, in a session of its own."""
        self._processes.append(
            subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=self.env(**more), start_new_session=True
            )
        )
        return self._processes[-1]

    def start_agent(
        self, *rules: dict[str, Any], lease_s: float = 30.0, node: str | None = None, script: str = "gated_agent.py"
    ) -> int:
        """Start the agent of the job (on ``node``) behind a store with ``rules`` (of ``script``); return its pid."""
        job = self.job if node is None else f"{self.job}@{node}"
        argv = (job, self.url, str(lease_s), json.dumps(rules))
        process = self.popen(sys.executable, str(HERE / script), *argv)
        give_up = time.monotonic() + 10
        while not list((self.runtime / "perdure").glob(f"{socket_prefix(job)}*.sock")):
            late = time.monotonic() > give_up or process.poll() is not None
            assert not late, "the agent does not start"
            time.sleep(0.01)
        return process.pid

    def agent_pid(self, node: str | None = None) -> int | None:
        """The agent that holds the lock of this test's job (on ``node``), if it lives."""
        return next(iter(self.agent_pids(node)), None)

    def agent_pids(self, node: str | None = None) -> list[int]:
        """The agents of this test's job that live, of all nodes or of one."""
        prefix = "" if node is None else socket_prefix(f"{self.job}@{node}")
        pids = [FileLock.holder(lock) for lock in (self.runtime / "perdure").glob(f"{prefix}*.lock")]
        alive = [pid for pid in pids if pid is not None and is_alive(pid)]
        self._agents.update(alive)
        return alive

    def kill_agent(self, node: str | None = None) -> int:
        """``kill -9`` of the agent (of ``node``); return its pid once it is gone."""
        pid = self.agent_pid(node)
        assert pid is not None, "there is no agent"
        os.kill(pid, signal.SIGKILL)
        await_that(lambda: not is_alive(pid), "the agent to die")
        return pid

    def await_file(self, name: str, *, within_s: float = 20.0) -> None:
        """Wait until ``name`` is in the test's folder."""
        await_that((self.folder / name).exists, f"the file {name}", within_s=within_s)

    def open(self) -> Run:
        """The run, to look at what is committed."""
        return Run.open(Disk(self.run_dir), create=False, tell=lambda note: None)

    def commits(self) -> list[Commit]:
        """The branch that training is on, oldest first."""
        return list(self.open().chain())[::-1]

    def slots(self) -> int:
        """How many commits there are, on all branches."""
        return len(list((self.run_dir / "slots").glob("*.json")))

    def holders(self) -> list[int]:
        """The processes that hold checkpoint memory of this test's job."""
        label = f"/memfd:perdure:{self.job}."
        return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if label in maps_of(pid)]

    def steps(self) -> list[int]:
        """The committed steps of that branch."""
        return [commit.step for commit in self.commits()]

    def end(self) -> None:
        """Kill all that this test has started."""
        for ranks in self._attempts:
            ranks.kill_all()
        self.agent_pids()
        for process in self._processes:
            if process.poll() is None:
                try:
                    os.killpg(process.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass  # it ended just now
            process.communicate(timeout=10)
        self.agent_pids()
        for pid in self._agents:
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)
        await_that(lambda: not any(is_alive(pid) for pid in self._agents), "agents to die")


def flip(path: Path | str, *, at: float = 0.5) -> None:
    """Flip one bit of ``path``, at that part of its length."""
    with open(path, "r+b") as file:
        start = int(os.fstat(file.fileno()).st_size * at)
        byte = os.pread(file.fileno(), 1, start)
        os.pwrite(file.fileno(), bytes([byte[0] ^ 4]), start)


def flip_memory(place: Place, *, local_rank: int, node: str | None = None, at: float = 0.5) -> None:
    """Flip a bit in each segment that the agent (of ``node``) keeps for ``local_rank``, at that part of its length."""
    pid = place.agent_pid(node)
    job = place.job if node is None else f"{place.job}@{node}"
    segments: dict[int, str] = {}
    for fd in Path(f"/proc/{pid}/fd").iterdir():  # more than one for each
        found = re.match(rf"/memfd:perdure:{re.escape(job)}\.(\d+) ", os.readlink(fd))
        if found and int(found[1]) // SEGMENTS_PER_RANK == local_rank:
            segments[int(found[1])] = str(fd)
    assert segments, "the agent keeps nothing"
    for path in segments.values():
        flip(path, at=at)


def is_alive(pid: int) -> bool:
    """Whether ``pid`` runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def maps_of(pid: int) -> str:
    """What is mapped into ``pid``; nothing if it is gone."""
    try:
        return Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return ""


def await_that(done: Callable[[], bool], what: str, *, within_s: float = 10.0) -> None:
    """Wait until ``done``, within a bound."""
    give_up = time.monotonic() + within_s
    while not done():
        assert time.monotonic() < give_up, f"gave up waiting for {what}"
        time.sleep(0.005)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def forker() -> Iterator[Forker]:
    one = Forker()
    yield one
    one.end()


@pytest.fixture
def place(tmp_path: Path, forker: Forker) -> Iterator[Place]:
    one = Place(tmp_path, forker)
    try:
        yield one
    finally:
        one.end()


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, forker: Forker) -> dict[tuple[int, int], str]:
    """The digests of two ranks that nothing happened to and that saved nothing on the way: ``(rank, step)``."""
    return _digests_of(Place(tmp_path_factory.mktemp("undisturbed"), forker), world=2)


@pytest.fixture(scope="session")
def undisturbed_alone(tmp_path_factory: pytest.TempPathFactory, forker: Forker) -> dict[tuple[int, int], str]:
    """The same of a process without others."""
    return _digests_of(Place(tmp_path_factory.mktemp("undisturbed"), forker), world=1)


def _digests_of(place: Place, *, world: int) -> dict[tuple[int, int], str]:
    try:
        return place.train("--steps", "16", "--every", "1000", "--no-agent", world=world).digests()
    finally:
        place.end()
