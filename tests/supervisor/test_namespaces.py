"""Nodes in network namespaces, whose links are really cut: no RST, no FIN, nothing."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from storm_job import HERE, SRC
from storm_lives import all_steps, overlaps, read_lives

from perdure.events import JobSucceeded, NodeLost, PlaceTaken, read_log

T = TypeVar("T")
PORT = 29400
STEPS = 600

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ip") is None, reason="needs root and ip"),
]


def ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr}"


class Net:
    """``n`` hosts on one bridge, each a namespace with one interface. Addresses and names are this test's alone."""

    def __init__(self, n: int) -> None:
        tag = f"{os.getpid() % 46656:x}{random.randrange(16):x}"
        self._net = f"10.{random.randrange(64, 192)}.{random.randrange(256)}"
        self._bridge, self.hosts = f"pb{tag}", [f"pn{tag}x{i}" for i in range(n)]
        self._cables = [f"pv{tag}x{i}" for i in range(n)]

    def make(self) -> None:
        ip("link", "add", self._bridge, "type", "bridge")
        ip("link", "set", self._bridge, "up")
        for i, (host, cable) in enumerate(zip(self.hosts, self._cables, strict=True)):
            ip("netns", "add", host)
            ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", host)
            ip("link", "set", cable, "master", self._bridge, "up")
            ip("-n", host, "addr", "add", f"{self.address(i)}/24", "dev", "eth0")
            ip("-n", host, "link", "set", "eth0", "up")
            ip("-n", host, "link", "set", "lo", "up")

    def address(self, i: int) -> str:
        return f"{self._net}.{i + 1}"

    def cut(self, i: int) -> None:
        ip("link", "set", self._cables[i], "down")

    def mend(self, i: int) -> None:
        ip("link", "set", self._cables[i], "up")

    def remove(self) -> None:
        for host in self.hosts:
            subprocess.run(["ip", "netns", "del", host], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", self._bridge], capture_output=True, check=False)


@pytest.fixture
def net() -> Iterator[Net]:
    made = Net(3)
    try:
        made.make()
        yield made
    finally:
        made.remove()


class Nodes:
    """A launcher in each host; what each node has to itself lies in a folder of its own."""

    def __init__(self, net: Net, folder: Path, *, n_nodes: int, spares: int) -> None:
        self.folder = folder
        self.launchers: list[subprocess.Popen[bytes]] = []
        for i in range(n_nodes + spares):
            own = folder / f"n{i}"
            own.mkdir()
            runtime = Path("/tmp") / net.hosts[i]
            runtime.mkdir(mode=0o700)
            words = ["ip", "netns", "exec", net.hosts[i], sys.executable, "-m", "perdure", "run", "--job", "cut"]
            words += ["--nodes", str(n_nodes), "--spares", str(spares), "--nproc", "1", "--node-name", f"n{i}"]
            words += ["--controller", f"{net.address(0)}:{PORT}", "--node-index", str(i), "--"]
            words += [sys.executable, str(HERE / "storm_train.py"), str(folder), "--to", str(folder / "checkpoints")]
            words += ["--steps", str(STEPS), "--pace", "0.05"]
            env = os.environ | {
                "PYTHONPATH": SRC,
                "PERDURE_TOKEN": "a secret of this test",
                "PERDURE_STATE": str(own),
                "PERDURE_EVENTS": str(folder / "events"),
                "PERDURE_LEASE_S": "2",
                "XDG_RUNTIME_DIR": str(runtime),
                "GLOO_SOCKET_IFNAME": "eth0",
            }
            with (own / "log").open("wb") as log:
                self.launchers.append(
                    subprocess.Popen(words, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
                )

    def wait_for(self, what: str, ready: Callable[[], T | None], *, within_s: float = 60.0) -> T:
        until = time.monotonic() + within_s
        while time.monotonic() < until:
            if (found := ready()) is not None:
                return found
            time.sleep(0.05)
        logs = "\n".join(f"{path}:\n{path.read_text()[-2500:]}" for path in sorted(self.folder.glob("n*/log")))
        raise AssertionError(f"{what}: not within {within_s:g} s\n{logs}")

    def facts(self, kind: type[T]) -> list[T]:
        path = self.folder / "events"
        entries = read_log(path) if path.exists() else []
        return [entry.fact for entry in entries if isinstance(entry.fact, kind)]

    def step_beyond(self, step: int) -> Callable[[], int | None]:
        return lambda: found if (found := all_steps(read_lives(self.folder))) > step else None

    def pids(self, node: str) -> list[int]:
        """The ranks of ``node`` that live."""
        pids = [life.pid for life in read_lives(self.folder) if life.node == node]
        return [pid for pid in pids if Path(f"/proc/{pid}/environ").exists() and _is_rank(pid)]

    def end(self) -> None:
        for launcher in self.launchers:
            if launcher.poll() is None:
                launcher.send_signal(signal.SIGKILL)
            launcher.wait(10)


def _is_rank(pid: int) -> bool:
    try:
        return b"storm_train.py" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False  # gone


@pytest.fixture
def nodes(net: Net, tmp_path: Path) -> Iterator[Nodes]:
    (tmp_path / "job").mkdir()
    made = Nodes(net, tmp_path / "job", n_nodes=2, spares=1)
    try:
        yield made
    finally:
        made.end()
        for host in net.hosts:
            shutil.rmtree(Path("/tmp") / host, ignore_errors=True)


def test_a_node_whose_link_is_cut_is_replaced_and_comes_back_as_a_spare(net: Net, nodes: Nodes) -> None:
    nodes.wait_for("step 20", nodes.step_beyond(20))
    (rank,) = nodes.pids("n1")
    net.cut(1)
    nodes.wait_for("n1 to be lost", lambda: nodes.facts(NodeLost) or None)
    nodes.wait_for("its rank to end by itself", lambda: None if nodes.pids("n1") else True)
    assert nodes.launchers[1].poll() is None
    nodes.wait_for("a spare in its place", lambda: nodes.facts(PlaceTaken) or None)
    reached = all_steps(read_lives(nodes.folder))
    nodes.wait_for("training to go on", nodes.step_beyond(reached + 5))
    assert nodes.facts(PlaceTaken) == [PlaceTaken(place=1, node="n2", before="n1")]
    assert nodes.facts(NodeLost) == [NodeLost(node="n1", ranks=1)]

    net.mend(1)
    time.sleep(2)  # until it has found the controller
    nodes.launchers[2].kill()
    nodes.wait_for("n1 in the place of n2", lambda: len(nodes.facts(PlaceTaken)) == 2 or None)
    assert nodes.facts(PlaceTaken)[1] == PlaceTaken(place=1, node="n1", before="n2")
    assert rank not in nodes.pids("n1")
    nodes.wait_for("the end", lambda: nodes.facts(JobSucceeded) or None, within_s=150)
    assert overlaps(read_lives(nodes.folder)) == []
    for launcher in nodes.launchers[:2]:
        assert launcher.wait(20) == 0
