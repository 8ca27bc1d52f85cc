"""The lock: one holder, whose death frees it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from perdure.clock import Deadline
from perdure.errors import DeadlineExceeded
from perdure.process.lock import FileLock

HOLDER = """
import sys, time
from perdure.process.lock import FileLock
lock = FileLock.try_acquire(sys.argv[1])
print("held", flush=True)
time.sleep(60)
"""


def test_only_one_holds_it_and_its_pid_is_known(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert FileLock.holder(path) is None
    with FileLock.acquire(path, deadline=Deadline.after(1, "the lock")):
        assert FileLock.holder(path) == os.getpid()
        assert FileLock.try_acquire(path) is None
        with pytest.raises(DeadlineExceeded, match=f"process {os.getpid()} holds"):
            FileLock.acquire(path, deadline=Deadline.after(0.03, "the lock"))
    lock = FileLock.try_acquire(path)
    assert lock is not None
    lock.release()
    lock.release()


def test_a_killed_holder_frees_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    src = str(Path(__file__).parents[2] / "src")
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": src}
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert FileLock.holder(path) == process.pid
        assert FileLock.try_acquire(path) is None
        process.send_signal(signal.SIGKILL)
    FileLock.acquire(path, deadline=Deadline.after(1, "the lock")).release()


def test_a_lock_whose_file_was_removed_under_a_waiter_is_not_held_twice(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    lock = FileLock.try_acquire(path)
    assert lock is not None
    waiting = os.open(path, os.O_RDWR)  # somebody has opened the file that is about to go
    lock.remove()
    assert not path.exists()
    again = FileLock.try_acquire(path)
    assert again is not None
    assert FileLock.holder(path) == os.getpid()
    assert not os.path.samestat(os.fstat(waiting), os.fstat(again.fd))
    assert FileLock.try_acquire(path) is None
    os.close(waiting)
    again.release()
