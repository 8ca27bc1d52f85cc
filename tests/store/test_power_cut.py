"""A real power cut: the file system under a saver is shut down without its journal being written, and mounted again.

An ext4 in a file, by a loop device. ``FS_IOC_SHUTDOWN`` with "no log flush" is what the kernel's own file system tests
use for a power cut: what was not synced is gone, what the disk was told to keep is there.
"""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from lives import LARGE, SMALL, Life, Process

from perdure.store import Disk, Run

HERE = Path(__file__).parent
FS_IOC_SHUTDOWN, NO_LOG_FLUSH = 0x8004587D, 2
CUTS = 8

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


class LoopDisk:
    """An ext4 in a file."""

    def __init__(self, folder: Path, *, size_bytes: int) -> None:
        self.image, self.path = folder / "disk.img", folder / "disk"
        self.path.mkdir()
        with open(self.image, "wb") as file:
            file.truncate(size_bytes)
        _run("mkfs.ext4", "-q", "-F", str(self.image))

    def mount(self) -> None:
        _run("mount", "-o", "loop", str(self.image), str(self.path))

    def unmount(self) -> None:
        give_up = time.monotonic() + 10
        while subprocess.run(["umount", str(self.path)], capture_output=True, timeout=60).returncode != 0:
            assert time.monotonic() < give_up, f"{self.path} stays busy"
            time.sleep(0.05)

    def cut(self) -> None:
        """Take the power away."""
        fd = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, FS_IOC_SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
        finally:
            os.close(fd)

    def end(self) -> None:
        if os.path.ismount(self.path):
            subprocess.run(["umount", "-l", str(self.path)], check=False, timeout=60)  # the loop device goes with it


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")


@pytest.fixture
def loop_disk(tmp_path: Path) -> Iterator[LoopDisk]:
    if os.geteuid() != 0 or shutil.which("mkfs.ext4") is None:
        pytest.skip("A POWER CUT IS NOT TESTED: that needs root and mkfs.ext4")
    disk = LoopDisk(tmp_path, size_bytes=256 << 20)
    try:
        try:
            disk.mount()
        except OSError as error:
            pytest.skip(f"A POWER CUT IS NOT TESTED: no loop device can be mounted ({error})")
        yield disk
    finally:
        disk.end()


def test_what_was_not_synced_does_not_outlive_the_cut(loop_disk: LoopDisk) -> None:
    """Else the tests below show nothing."""
    for name, synced in (("synced", True), ("not", False)):
        with open(loop_disk.path / name, "wb") as file:
            file.write(b"x" * 100_000)
            file.flush()
            if synced:
                os.fsync(file.fileno())
    loop_disk.cut()
    loop_disk.unmount()
    loop_disk.mount()
    assert (loop_disk.path / "synced").read_bytes() == b"x" * 100_000
    assert not (loop_disk.path / "not").exists() or (loop_disk.path / "not").stat().st_size == 0


@pytest.mark.parametrize("io", ["-", "threads:buffered:1MiB:4", "plain:direct:1MiB:1"])
@pytest.mark.parametrize("sizes", ["small", "large"])
def test_no_power_cut_loses_a_step_that_was_reported(
    loop_disk: LoopDisk, sizes: str, io: str, capsys: pytest.CaptureFixture[str]
) -> None:
    life = cut_off(loop_disk, sizes, io, cuts=CUTS, seed=0)
    with capsys.disabled():
        print(f"\n{sizes} by {io}: {CUTS} power cuts, {len(life.reported)} of {len(life.tried)} saves were reported")
    assert life.reported


def cut_off(disk: LoopDisk, sizes: str, io: str, *, cuts: int, seed: int) -> Life:
    """Let savers live on ``disk``, one after the other, and cut each of them off; the life of the run until then."""
    dice = random.Random(f"{sizes} {io} {seed}")
    life = Life(sizes=LARGE if sizes == "large" else SMALL)
    folder = disk.path / "run"
    for cut in range(cuts):
        argv = [str(folder), sizes, io, str(dice.randrange(1 << 30)), "1000", str(len(life.contents))]
        saver = subprocess.Popen(
            [sys.executable, str(HERE / "saver.py"), *argv],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert saver.stdin is not None
        assert saver.stdout is not None
        try:
            assert saver.stdout.readline() == "ready\n"
            saver.stdin.close()
            saver.stdin = None
            time.sleep(dice.uniform(0.01, 1.0))
            disk.cut()
            said, complaint = saver.communicate(timeout=60)  # the disk refuses it, so it ends
        finally:
            saver.kill()
            saver.wait(60)
        assert saver.returncode != 0, "it was not cut off"
        assert "StorageError" in complaint, complaint
        life.hear(said.split("\n")[:-1])
        disk.unmount()
        disk.mount()
        life.check(Disk(folder), go_on=False)
        if cut % 2:  # every other time the next saver finds what the cut has left
            run = Run.open(Disk(folder), create=True)
            head = run.head()
            Process(life, run, head.slot if head else None).prune(keep=1)
            life.check(run.store, go_on=False)
    return life
