"""A node as the kernel tells it: real files and processes, and trees of files for what this machine has not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from perdure.process.memory import total_nbytes
from perdure.watcher import aside
from perdure.watcher.host import Host, disk_state, links_up, usable_cpus
from perdure.watcher.labels import Label
from perdure.watcher.neighbours import Belonging, Neighbours
from perdure.watcher.rules import NodeRules
from perdure.watcher.samples import NodeSample

GIB = 1 << 30


def put(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def until(condition: Callable[[], bool], what: str) -> None:
    give_up = time.monotonic() + 60.0
    while not condition():
        assert time.monotonic() < give_up, what
        time.sleep(0.05)


@pytest.fixture
def hog() -> Iterator[subprocess.Popen[bytes]]:
    """A process that takes a whole processor, in a session of its own as one of another job is."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True) as process:
        yield process
        process.kill()


def test_this_machine_is_told(tmp_path: Path) -> None:
    host = Host(node="here", own=lambda: [os.getpid()], disks=[tmp_path])
    try:
        host.wait_first(30.0)
        first = host.sample()
        time.sleep(1.0)
        second = host.sample()
    finally:
        host.close()
    assert second.node == "here"
    assert second.at_s > first.at_s
    assert second.wall_s == pytest.approx(time.time(), abs=60)
    assert second.cpus is not None
    assert 1 <= second.cpus <= (os.cpu_count() or 1)
    assert second.memory_total_bytes is not None
    assert second.memory_available_bytes is not None
    assert 0 < second.memory_available_bytes <= second.memory_total_bytes
    assert second.oom_kills is not None
    (disk,) = second.disks
    assert disk.path == str(tmp_path)
    assert disk.total_bytes == pytest.approx(shutil.disk_usage(tmp_path).total)
    assert not disk.read_only
    assert disk.silent_s == 0.0
    assert first.cpu_idle is None
    assert second.cpu_idle is not None
    assert 0.0 <= second.cpu_idle <= 1.0
    assert (second.links_down, second.gpus, second.gpu_problem) == ((), (), "")


def test_where_nothing_can_be_read_nothing_is_known(tmp_path: Path) -> None:
    host = Host(node="dark", root=tmp_path)
    host.wait_first(30.0)
    sample = host.sample()
    host.close()
    known = (sample.load, sample.memory_total_bytes, sample.memory_available_bytes, sample.oom_kills, sample.cpu_idle)
    assert known == (None,) * 5
    assert (sample.links_down, sample.foreign_cpu) == ((), ())


@pytest.mark.parametrize("junk", ["", "\0\xff", "cpu", "cpu a b c d e f g h", "9" * 500])
def test_files_of_junk_are_not_known_either(tmp_path: Path, junk: str) -> None:
    names = ("proc/stat", "proc/loadavg", "proc/vmstat", "proc/7/stat", "proc/7/schedstat", "proc/self/mountinfo")
    put(tmp_path, dict.fromkeys(names, junk))
    host = Host(node="a", own=lambda: [7], root=tmp_path)
    for _ in range(2):
        sample = host.sample()
    host.close()
    assert (sample.oom_kills, sample.cpu_idle, sample.cpu_wait, sample.foreign_cpu) == (None, None, None, ())


@pytest.mark.parametrize(
    ("files", "total"),
    [
        ({"proc/self/cgroup": "0::/\n"}, 8 * GIB),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/memory.max": f"{GIB}\n"}, GIB),
        ({"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "max\n"}, 8 * GIB),
        ({"proc/self/cgroup": "4:memory:/not/seen\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{GIB}\n"}, GIB),
        (
            {"proc/self/cgroup": "4:memory:/\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712"},
            8 * GIB,
        ),
    ],
)
def test_limits_of_cgroups_decide_how_much_memory_there_is(tmp_path: Path, files: dict[str, str], total: int) -> None:
    put(tmp_path, {"proc/meminfo": f"MemTotal: {8 << 20} kB\nMemAvailable: {4 << 20} kB\n", **files})
    for name in list(files):
        if name.endswith(("memory.max", "memory.limit_in_bytes")):
            used = "memory.current" if name.endswith("memory.max") else "memory.usage_in_bytes"
            put(tmp_path, {str(Path(name).with_name(used)): f"{GIB // 4}\n"})
    assert total_nbytes(root=tmp_path) == total
    host = Host(node="a", root=tmp_path)
    sample = host.sample()
    host.close()
    assert sample.memory_total_bytes == total
    assert sample.memory_available_bytes == min(4 * GIB, GIB - GIB // 4 if total == GIB else 4 * GIB)


@pytest.mark.parametrize(
    "files",
    [
        {"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/cpu.max": "50000 100000\n"},
        {
            "proc/self/cgroup": "3:cpu,cpuacct:/x\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "50000\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        },
    ],
)
def test_a_quota_decides_how_many_processors_there_are(tmp_path: Path, files: dict[str, str]) -> None:
    assert usable_cpus(tmp_path) == len(os.sched_getaffinity(0))
    put(tmp_path, files)
    assert usable_cpus(tmp_path) == 1


@pytest.mark.parametrize(
    "name", ["sys/fs/cgroup/a/memory.events", "sys/fs/cgroup/memory/a/memory.oom_control", "proc/vmstat"]
)
def test_kills_for_memory_are_counted(tmp_path: Path, name: str) -> None:
    cgroup = "4:memory:/a\n" if "oom_control" in name else "0::/a\n"
    put(tmp_path, {"proc/self/cgroup": cgroup, "proc/vmstat": "oom_kill 9\n"})
    put(tmp_path, {name: "oom 5\noom_kill 3\n"})
    host = Host(node="a", root=tmp_path)
    assert host.sample().oom_kills == 3
    put(tmp_path, {name: "oom 5\noom_kill 4\n"})
    assert host.sample().oom_kills == 4
    host.close()


def test_links_that_were_up_and_are_not_any_more_are_down(tmp_path: Path) -> None:
    net, ib = "sys/class/net", "sys/class/infiniband/mlx5_0/ports"
    states = {f"{net}/ens1/operstate": "up\n", f"{net}/ens2/operstate": "down\n", f"{net}/ens3/operstate": "up\n"}
    put(tmp_path, {**states, f"{ib}/1/state": "4: ACTIVE\n", f"{ib}/2/state": "1: DOWN\n"})
    veth = tmp_path / "sys/devices/virtual/net/veth7"
    put(tmp_path, {"sys/devices/virtual/net/veth7/operstate": "up\n"})
    (tmp_path / net / "veth7").symlink_to(veth)
    assert links_up(tmp_path) == {"ens1", "ens3", "mlx5_0/1"}
    put(tmp_path, {f"{net}/ens1/operstate": "down\n", f"{ib}/1/state": "2: INIT\n"})
    shutil.rmtree(tmp_path / net / "ens3")
    assert links_up(tmp_path) == set()


def test_a_link_that_goes_down_is_in_the_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.watcher.host._LINKS_EVERY_S", 0.01)
    put(tmp_path, {"sys/class/net/ens1/operstate": "up\n"})
    host = Host(node="a", root=tmp_path)
    host.wait_first(30.0)
    assert host.sample().links_down == ()
    put(tmp_path, {"sys/class/net/ens1/operstate": "down\n"})
    until(lambda: host.sample().links_down == ("ens1",), "the link was not seen to go down")
    put(tmp_path, {"sys/class/net/ens1/operstate": "up\n"})
    until(lambda: host.sample().links_down == (), "the link was not seen to come back")
    host.close()


def test_a_hog_of_another_job_is_named_and_one_of_ours_is_not(hog: subprocess.Popen[bytes]) -> None:
    foreign = Neighbours(Belonging(tuple), budget_s=0.5)
    ours = Neighbours(Belonging(lambda: [hog.pid]), budget_s=0.5)
    name = f"(pid {hog.pid})"

    def seen() -> bool:
        now = time.monotonic()
        mine = ours.look(now)
        assert not any(name in each for each, _ in mine)
        found = [(each, share) for each, share in foreign.look(now) if name in each]
        return bool(found) and found[0][1] > 0.05

    until(seen, "the hog was not found")


def test_children_and_marked_processes_belong_to_the_job() -> None:
    marked = {**os.environ, "PERDURE_MARK": "outer:run7.2"}
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    with subprocess.Popen(command, env=marked, start_new_session=True) as other:
        try:
            until(lambda: b"run7" in Path(f"/proc/{other.pid}/environ").read_bytes(), "it did not start")
            assert Belonging(lambda: [os.getpid()])(other.pid), "a child of a rank"
            assert Belonging(lambda: [other.pid])(other.pid)
            assert Belonging(tuple, mark="run7")(other.pid)
            assert Belonging(tuple, mark="run7.2")(other.pid)
            assert not Belonging(tuple, mark="run")(other.pid)
            assert not Belonging(tuple, mark="run7.21")(other.pid)
            assert not Belonging(tuple)(other.pid)
        finally:
            other.kill()


def test_a_hog_beside_ranks_that_wait_becomes_evidence_that_names_it(hog: subprocess.Popen[bytes]) -> None:
    """Two processes on one processor: the rank waits half of the time, and the kernel counts that."""
    cpu = min(os.sched_getaffinity(0))
    code = f"import os\nos.sched_setaffinity(0, [{cpu}])\nwhile True: pass"
    os.sched_setaffinity(hog.pid, {cpu})
    if not Path("/proc/self/schedstat").exists():
        pytest.skip("NOT TESTED: contention on this kernel, which counts no waiting")
    with subprocess.Popen([sys.executable, "-c", code], start_new_session=True) as rank:
        host = Host(node="n1", own=lambda: [rank.pid])
        rules = NodeRules()
        try:
            found = []

            def told() -> bool:
                found.extend(rules.look(host.sample()))
                return any(f"(pid {hog.pid})" in text for one in found for text in one.raw)

            until(told, "contention was not told")
        finally:
            host.close()
            rank.kill()
    one = next(one for one in found if one.kind == "cpu-contention")
    assert (one.label, one.nodes) == (Label.CONTENTION, ("n1",))
    assert not any(f"(pid {rank.pid})" in text for each in found for text in each.raw)


def test_a_look_costs_little_however_many_processes_there_are(tmp_path: Path) -> None:
    """Against walking all of /proc, measured in the same run."""
    stat = Path("/proc/self/stat").read_text().replace(str(os.getpid()), "7", 1)
    for pid in range(1, 3001):
        put(tmp_path, {f"proc/{pid}/stat": stat})
    neighbours = Neighbours(lambda pid: False, root=tmp_path)
    began = time.process_time()
    for pid in range(1, 3001):
        (tmp_path / f"proc/{pid}/stat").read_text()
    walk_s = time.process_time() - began
    began = time.process_time()
    for look in range(100):
        neighbours.look(float(look))
    look_s = (time.process_time() - began) / 100
    assert look_s < 0.01, "a hundredth of a processor at a look a second"
    assert look_s < walk_s / 2


def test_a_disk_that_hangs_does_not_hold_up_the_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, hangs = os.statvfs, []

    def statvfs(path: str) -> os.statvfs_result:
        if hangs:
            time.sleep(3.0)
        return real(path)

    monkeypatch.setattr("perdure.watcher.host._DISKS_EVERY_S", 0.01)
    monkeypatch.setattr("perdure.watcher.host.os.statvfs", statvfs)
    host = Host(node="a", disks=[tmp_path])
    host.wait_first(30.0)
    assert host.sample().disks[0].silent_s == 0.0
    hangs.append(True)
    time.sleep(1.5)
    began = time.monotonic()
    (disk,) = host.sample().disks
    assert time.monotonic() - began < 1.0
    assert disk.silent_s > 1.0
    assert disk.total_bytes > 0
    host.close()


def test_a_disk_that_is_gone_is_silent_with_what_was_known_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.watcher.host._DISKS_EVERY_S", 0.01)
    monkeypatch.setattr("perdure.watcher.host._SILENT_S", 0.05)
    (tmp_path / "mount").mkdir()
    host = Host(node="a", disks=[tmp_path / "mount"])
    host.wait_first(30.0)
    (tmp_path / "mount").rmdir()
    until(lambda: host.sample().disks[0].silent_s > 0.0, "the disk was not seen to be gone")
    assert host.sample().disks[0].total_bytes > 0
    host.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("NOT TESTED: full and read-only file systems (only root may mount one)")
    path = tmp_path / "small"
    path.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m,nr_inodes=64", "none", str(path)], capture_output=True
    )
    if done.returncode != 0:
        pytest.skip(f"NOT TESTED: full and read-only file systems ({done.stderr.decode().strip()})")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


def fill(path: Path) -> None:
    for i in range(100):
        (path / str(i)).touch()


def kinds(path: Path, rules: NodeRules, at_s: float) -> list[str]:
    return [one.kind for one in rules.look(NodeSample(node="a", at_s=at_s, disks=(disk_state(str(path)),)))]


def test_a_full_disk_is_found(small_disk: Path) -> None:
    rules = NodeRules()
    assert kinds(small_disk, rules, 0.0) == []
    with pytest.raises(OSError, match="No space"):
        (small_disk / "all").write_bytes(b"x" * (2 << 20))
    assert disk_state(str(small_disk)).free_bytes == 0
    assert kinds(small_disk, rules, 1.0) == ["disk-full"]
    (small_disk / "all").unlink()
    assert kinds(small_disk, rules, 20.0) == []


def test_a_disk_without_room_for_files_is_full(small_disk: Path) -> None:
    rules = NodeRules()
    with pytest.raises(OSError, match="No space"):
        fill(small_disk)
    assert kinds(small_disk, rules, 0.0) == ["disk-full"]


def test_a_disk_that_became_read_only_is_found(small_disk: Path) -> None:
    rules = NodeRules()
    assert kinds(small_disk, rules, 0.0) == []
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert kinds(small_disk, rules, 1.0) == ["disk-read-only"]
    assert kinds(small_disk, NodeRules(), 1.0) == [], "it was read-only from the start"


def test_what_is_looked_at_aside_fails_in_words() -> None:
    def look() -> int:
        raise FileNotFoundError(2, "it is not there")

    beside = aside.Aside(look, every_s=0.01, name="test")
    assert beside.wait_first(30.0)
    assert "it is not there" in beside.problem
    assert beside.latest is None
    beside.close()
