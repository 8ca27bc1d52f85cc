"""The ledger by many processes: whoever is killed at whatever moment, what was acknowledged is there, each once."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from perdure.errors import CallError
from perdure.memory import Memory, forks
from perdure.memory.ledger import Ledger

TELLER = """
import sys, threading
from pathlib import Path
from perdure.memory import Memory
root, name, threads = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
say = threading.Lock()
def tell(thread):
    for number in range(int(sys.argv[4])):
        done = memory.observe(f"{name} {thread} {number} is told. And so on.", key=f"{name} {thread} {number}")
        with say:
            print(f"{name} {thread} {number}|{done.evidence}", flush=True)
with Memory(root) as memory:
    crowd = [threading.Thread(target=tell, args=(each,)) for each in range(threads)]
    [each.start() for each in crowd]
    [each.join() for each in crowd]
"""


def start(root: Path, name: str, *, threads: int, each: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", TELLER, str(root), name, str(threads), str(each)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def check_kept(root: Path, acknowledged: list[str]) -> int:
    """Every acknowledged line is there, once, whole; whatever else is there is whole as well."""
    with Memory(root) as memory:
        db = memory._ledger.connection()
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        rows = db.execute("SELECT id, identity, body FROM evidence").fetchall()
        have = {identity: (number, body) for number, identity, body in rows}
        assert len(have) == len(rows)
        for line in acknowledged:
            key, number = line.split("|")
            assert have[f"k:{key}"] == (int(number), f"{key} is told. And so on.")
        counts = dict(db.execute("SELECT evidence, count(*) FROM fact GROUP BY evidence"))
        assert counts == dict.fromkeys([row[0] for row in rows], 2)
        return len(rows)


def crowd_with_murders(root: Path, *, processes: int, threads: int, each: int, murders: int, seed: int) -> list[str]:
    """Let them tell; kill some at random moments, and start others in their place."""
    dice = random.Random(seed)
    crowd = [start(root, f"p{at}", threads=threads, each=each) for at in range(processes)]
    acknowledged: list[str] = []
    readers: list[threading.Thread] = []

    def listen(process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        # What a killed one was about to say was not said.
        acknowledged.extend(line.strip() for line in process.stdout if line.endswith("\n"))

    def hear(process: subprocess.Popen[str]) -> None:
        readers.append(threading.Thread(target=listen, args=(process,)))
        readers[-1].start()

    for process in crowd:
        hear(process)
    for murder in range(murders):
        said = len(acknowledged)
        until = time.monotonic() + 10
        while len(acknowledged) == said and time.monotonic() < until:
            time.sleep(0.001)
        time.sleep(dice.random() * 0.05)
        victim = dice.choice(crowd)
        victim.send_signal(signal.SIGKILL)
        crowd.append(start(root, f"again{murder}", threads=threads, each=each))
        hear(crowd[-1])
    for process in crowd:
        process.wait(120)
    for reader in readers:
        reader.join(10)
    return acknowledged


def test_eight_processes_of_which_some_are_killed_keep_every_acknowledged_write(tmp_path: Path) -> None:
    """MCP servers#1819: parallel calls corrupt memory.json for good; Infini Memory keeps 1 to 10 of 400."""
    said = crowd_with_murders(tmp_path, processes=8, threads=1, each=12, murders=3, seed=1)
    assert len(said) >= 5 * 12
    assert check_kept(tmp_path, said) >= len(said)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(5))
def test_eight_processes_of_eight_threads_under_many_murders(tmp_path: Path, seed: int) -> None:
    said = crowd_with_murders(tmp_path, processes=8, threads=8, each=40, murders=25, seed=seed)
    assert len(said) >= 1000
    assert check_kept(tmp_path, said) >= len(said)


def test_processes_that_begin_at_once_make_one_ledger(tmp_path: Path) -> None:
    crowd = [start(tmp_path, f"p{at}", threads=1, each=1) for at in range(6)]
    assert [each.wait(60) for each in crowd] == [0] * 6
    said = [line.strip() for each in crowd for line in each.stdout or []]
    assert check_kept(tmp_path, said) == 6
    assert not list(tmp_path.rglob(".new-*"))


CREATED = """
import sys
from pathlib import Path
from perdure.memory import Memory
Memory(Path(sys.argv[1])).observe("first")
"""


@pytest.mark.slow
def test_killed_while_a_memory_begins_it_begins_the_next_time(tmp_path: Path) -> None:
    for at in range(40):
        root = tmp_path / f"{at}"
        with subprocess.Popen([sys.executable, "-c", CREATED, str(root)]) as process:
            until = time.monotonic() + 20
            while not (root / "default").exists() and time.monotonic() < until and process.poll() is None:
                time.sleep(1e-4)
            time.sleep(at * 2e-4)
            process.kill()
        with Memory(root) as memory:
            memory.observe("second")
            assert memory.status().evidence in (1, 2)


def commits_in(wal: bytes) -> list[int]:
    """Where the commits of a WAL end (file format: 32 bytes of header, frames of 24 + page)."""
    page = int.from_bytes(wal[8:12], "big")
    frames = range(32, len(wal) - 24 - page + 1, 24 + page)
    return [at + 24 + page for at in frames if int.from_bytes(wal[at + 4 : at + 8], "big")]


def copy_of(path: Path) -> bytes:
    """Its bytes, read by another process: to close it here would drop the locks of SQLite."""
    return subprocess.run(["cat", str(path)], stdout=subprocess.PIPE, check=True, timeout=30).stdout


def test_cut_at_any_boundary_the_ledger_holds_exactly_the_commits_before_it(tmp_path: Path) -> None:
    with Memory(tmp_path / "whole") as memory:
        ends, folder = [], memory.folder
        for number in range(4):
            memory.observe(f"number {number} is told. " * (1 + 20 * (number % 3)), key=str(number))
            ends.append(len(copy_of(folder / "ledger.db-wal")))
        base, wal = copy_of(folder / "ledger.db"), copy_of(folder / "ledger.db-wal")
    boundaries = [0, 32, *commits_in(wal)]
    frames = range(32, len(wal) + 1, 24 + 4096)
    cuts = sorted({cut for at in frames for cut in (at - 1, at, at + 24) if 0 <= cut <= len(wal)})
    assert set(ends) <= set(boundaries)
    for at, cut in enumerate(cuts):
        place = tmp_path / f"cut{at}"
        place.mkdir()
        (place / "ledger.db").write_bytes(base)
        (place / "ledger.db-wal").write_bytes(wal[:cut])
        ledger = Ledger(place / "ledger.db")
        kept = sum(end <= cut for end in ends)
        rows = ledger.connection().execute("SELECT identity FROM evidence ORDER BY id").fetchall()
        assert rows == [(f"k:{number}",) for number in range(kept)]
        facts = ledger.connection().execute("SELECT count(*) FROM fact").fetchone()[0]
        assert facts == sum(1 + 20 * (number % 3) for number in range(kept))
        ledger.close()


def test_bytes_that_a_torn_write_left_behind_are_no_commit(tmp_path: Path) -> None:
    with Memory(tmp_path / "whole") as memory:
        folder = memory.folder
        memory.observe("number 0", key="0")
        end = len(copy_of(folder / "ledger.db-wal"))
        memory.observe("number 1", key="1")
        base, wal = copy_of(folder / "ledger.db"), copy_of(folder / "ledger.db-wal")
    for at in range(end, len(wal), 1999):
        place = tmp_path / f"torn{at}"
        place.mkdir()
        (place / "ledger.db").write_bytes(base)
        (place / "ledger.db-wal").write_bytes(wal[:at] + bytes([wal[at] ^ 0x5A]) + wal[at + 1 :])
        ledger = Ledger(place / "ledger.db")
        assert ledger.connection().execute("SELECT identity FROM evidence").fetchall() == [("k:0",)]
        ledger.close()


def forked(memory: Memory, name: str) -> None:
    for number in range(10):
        memory.observe(f"{name} {number}", key=f"{name} {number}")


def test_forked_children_write_beside_their_parent_and_outlive_it(tmp_path: Path) -> None:
    fork = multiprocessing.get_context("fork")
    memory = Memory(tmp_path)
    memory.observe("before", key="before")
    crowd = [fork.Process(target=forked, args=(memory, f"child{each}")) for each in range(3)]
    for each in crowd:
        each.start()
    forked(memory, "parent")
    memory.close()
    forked_later = [each for each in crowd if each.exitcode is None]
    for each in crowd:
        each.join(60)
    assert [each.exitcode for each in crowd] == [0, 0, 0], forked_later
    with Memory(tmp_path) as memory:
        assert memory.status().evidence == 41


@pytest.mark.parametrize(("late_s", "patience_s"), [(0.5, 5.0), (0.5, 0.1)], ids=["waited for", "too late"])
def test_a_child_that_is_late_does_not_write_old_pages_over_new_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late_s: float, patience_s: float
) -> None:
    leave = forks._leave

    def late(*, waited: bool) -> None:
        time.sleep(late_s)
        leave(waited=waited)

    monkeypatch.setattr(forks, "_CHILD_S", patience_s)
    memory = Memory(tmp_path)
    memory.observe("before")
    fork = multiprocessing.get_context("fork")
    if late_s > patience_s:
        write = os.write
        monkeypatch.setattr(forks.os, "write", lambda fd, data: time.sleep(late_s) or write(fd, data))
    else:
        monkeypatch.setattr(forks, "_leave", late)
    child = fork.Process(target=Memory.close, args=(memory,))
    child.start()
    memory.close()
    with Memory(tmp_path) as other:
        forked(other, "later")
    child.join(20)
    with Memory(tmp_path) as memory:
        assert memory.status().evidence == 11
        assert memory.doctor() == []


def test_a_child_holds_locks_of_its_own(tmp_path: Path) -> None:
    """Else its parent, on closing, would take the WAL away under it, and what it acknowledged with it."""
    memory = Memory(tmp_path)
    memory.observe("before")
    to_child, to_parent = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            memory.observe("by the child")
            os.write(to_parent[1], b"1")
            os.read(to_child[0], 1)
            memory.observe("by the child, later")
            os._exit(0)
        finally:
            os._exit(1)
    os.read(to_parent[0], 1)
    memory.close()  # the last but one: the WAL must stay
    stranger = sqlite3.connect(tmp_path / "default" / "ledger.db")
    stranger.execute("SELECT count(*) FROM evidence").fetchone()
    stranger.close()
    os.write(to_child[1], b"1")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    with Memory(tmp_path) as memory:
        assert memory.status().evidence == 3


def test_a_child_forked_within_a_change_is_refused(tmp_path: Path) -> None:
    memory = Memory(tmp_path)
    with memory._ledger.change() as db:
        db.execute("INSERT INTO space VALUES ('a', 'b')")
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                with pytest.raises(CallError, match="spawn"):
                    memory._ledger.facts([1])
                code = 0
            finally:
                os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    memory.observe("after")
    memory.close()
    with Memory(tmp_path) as memory:
        assert memory.status().evidence == 1
