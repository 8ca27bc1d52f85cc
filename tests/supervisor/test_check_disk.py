"""A folder that lies, is full, slow, or frozen by its file system is told, and nothing is left in it."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from perdure.clock import Deadline
from perdure.errors import StorageError
from perdure.supervisor import check_disk
from perdure.supervisor.checks import PROBES, Context, run


def test_a_disk_that_gives_back_other_bytes_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.preadv

    def lying(fd: int, buffers: list[memoryview], offset: int) -> int:
        n = real(fd, buffers, offset)
        if offset >= 4 << 20:
            buffers[0][9] ^= 4
        return n

    monkeypatch.setattr(check_disk.os, "preadv", lying)
    found = check_disk.disk(Context(folder=str(tmp_path), disk_bytes=12 << 20))
    assert found.word == "problem"
    assert found.facts["wrong_blocks"] == [1, 2]
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "perdure-test", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if done.returncode:
        pytest.skip(f"A FULL DISK IS NOT TESTED: no tmpfs can be mounted ({done.stderr.strip()})")
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True, timeout=60)


def test_a_full_disk_is_a_problem_and_nothing_is_left_on_it(small_disk: Path) -> None:
    with pytest.raises(StorageError, match="no space is left"):
        check_disk.disk(Context(folder=str(small_disk), disk_bytes=4 << 20))
    assert list(small_disk.iterdir()) == []
    (found,) = run(["disk"], Context(folder=str(small_disk), disk_bytes=4 << 20), Deadline.after(60, "checks"))
    assert (found.check, found.word) == ("disk", "problem")
    assert found.says.startswith("no space is left on the device")


def test_a_slow_disk_is_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.fsync
    monkeypatch.setattr(check_disk.os, "fsync", lambda fd: (time.sleep(0.2), real(fd)))
    found = check_disk.disk(Context(folder=str(tmp_path), disk_bytes=1 << 20))
    assert found.word == "note"


def test_a_folder_that_is_not_there_is_a_problem_and_none_at_all_is_a_note(tmp_path: Path) -> None:
    (found,) = run(["disk"], Context(folder=str(tmp_path / "none")), Deadline.after(60, "checks"))
    assert found.word == "problem"
    assert check_disk.disk(Context()).word == "note"


_FREEZE, _THAW = 0xC0045877, 0xC0045878


@pytest.fixture
def frozen_disk(tmp_path: Path) -> Iterator[Path]:
    """An ext4 file system, of which every write waits in the kernel until the test is over (or 60 s)."""
    image, folder = Path("/dev/shm") / f"perdure-test-{os.getpid()}.img", tmp_path / "frozen"
    folder.mkdir()
    with image.open("wb") as file:
        file.truncate(16 << 20)
    try:
        for command in (["mkfs.ext4", "-q", str(image)], ["mount", "-o", "loop", str(image), str(folder)]):
            done = subprocess.run(command, capture_output=True, text=True, timeout=60)
            if done.returncode:
                pytest.skip(f"A DISK THAT HANGS IS NOT TESTED: {command[0]} is not possible ({done.stderr.strip()})")
        fd = os.open(folder, os.O_RDONLY)
        # First the thaw, in a process of its own: should this one die, its children would hang for ever.
        thaw = f"import fcntl, select, sys; select.select([sys.stdin], [], [], 60); fcntl.ioctl({fd}, {_THAW}, 0)"
        command = [sys.executable, "-c", thaw]
        keeper = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[fd])
        try:
            fcntl.ioctl(fd, _FREEZE, 0)
            yield folder
        finally:
            keeper.communicate(timeout=90)
            os.close(fd)
            subprocess.run(["umount", "-l", str(folder)], check=True, timeout=60)
    finally:
        image.unlink()


def test_a_disk_that_hangs_beyond_sigkill_is_named_and_the_answer_comes_all_the_same(frozen_disk: Path) -> None:
    probes = {"disk": replace(PROBES["disk"], deadline_s=5.0)}
    (found,) = run(["disk"], Context(folder=str(frozen_disk)), Deadline.after(60, "checks"), probes=probes)
    pid = found.facts["pid"]
    assert found.word == "problem"
    assert found.says == f"no answer within 5 s; given up, and process {pid} cannot be killed (state D)"
    assert not found.facts["killed"]
