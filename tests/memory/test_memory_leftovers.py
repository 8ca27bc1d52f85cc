"""What a killed backup or export leaves half-written is swept away, and a purge does not miss it."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from perdure.memory import Memory
from perdure.memory.whole_files import sweep, temporary_beside

SECRET = "My pin number is wobblyxalpha indeed."

KILLED = """
import os, signal, sys
from perdure.memory import Memory, backup, exporting
def die(*_, **__): os.kill(os.getpid(), signal.SIGKILL)
backup.publish = exporting.publish = backup.open_store = die
memory = Memory(sys.argv[1])
getattr(memory, sys.argv[2])(sys.argv[3])
"""


def holding(folder: Path) -> list[Path]:
    files = [each for each in folder.rglob("*") if each.is_file()]
    return [each for each in files if b"wobblyxalpha" in subprocess.check_output(["cat", each], timeout=30)]


@pytest.mark.parametrize("verb", ["backup", "export"])
@pytest.mark.parametrize("place", ["m/default/some.copy", "elsewhere/some.copy"])
def test_a_purge_removes_what_a_killed_copy_left(tmp_path: Path, verb: str, place: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    with Memory(tmp_path / "m") as memory:
        memory.observe(SECRET)
        command = [sys.executable, "-c", KILLED, str(tmp_path / "m"), verb, str(tmp_path / place)]
        assert subprocess.run(command, timeout=60, check=False).returncode == -signal.SIGKILL
        assert [each for each in holding(tmp_path) if each.name.startswith(".tmp-")]
        assert memory.forget(fact=1, mode="purge").clean
        assert holding(tmp_path) == []
        assert list(tmp_path.rglob(".tmp-*")) == []


def test_opening_sweeps_what_a_killed_backup_left_in_the_space(tmp_path: Path) -> None:
    with Memory(tmp_path) as memory:
        memory.observe(SECRET)
    for to in (str(tmp_path / "default" / "backups" / "b.db"), f"file://{tmp_path}/store"):
        subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), "backup", to], timeout=60, check=False)
    assert [each for each in holding(tmp_path) if each.name.startswith(".tmp-")]
    Memory(tmp_path).close()
    assert list(tmp_path.rglob(".tmp-*")) == []


def test_what_is_being_written_is_not_swept_and_is_waited_for(tmp_path: Path) -> None:
    with temporary_beside(tmp_path / "x") as temporary:
        temporary.write_bytes(b"x")
        assert sweep([tmp_path]) == [temporary]
        assert temporary.exists()
    assert list(tmp_path.iterdir()) == []
    done = threading.Event()

    def slow() -> None:
        with temporary_beside(tmp_path / "x"):
            done.wait(5.0)

    thread = threading.Thread(target=slow)
    thread.start()
    threading.Timer(0.2, done.set).start()
    while not list(tmp_path.iterdir()):
        pass
    assert sweep([tmp_path], wait_s=5.0) == []
    thread.join(5.0)


def test_a_purge_names_a_copy_that_is_being_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.memory.forget._BUSY_S", 0.1)
    with Memory(tmp_path) as memory:
        memory.observe(SECRET)
        with temporary_beside(memory.folder / "x"):
            receipt = memory.forget(fact=1, mode="purge")
            assert not receipt.clean
            assert "being made" in receipt.left[0]
