"""fio, the yardstick of disks: one job on one file, and the seconds it took, its last fsync included."""

from __future__ import annotations

import json
import pathlib
import shutil
import subprocess

from perdure.store.io_choice import Io

__all__ = ["fio_missing", "fio_s", "huge_pages", "settings"]


def fio_missing() -> str | None:
    """Why there is no fio; None if it is there."""
    return None if shutil.which("fio") else "NOT MEASURED: fio is not installed (on Debian: apt install fio)"


def settings(io: Io) -> list[str]:
    """The options of fio for the way ``io`` writes."""
    ring = io.engine == "uring"
    engine = "io_uring" if ring else "psync" if io.engine == "plain" else "libaio"
    depth = io.depth if io.engine != "plain" else 1
    return [f"--ioengine={engine}", f"--direct={int(io.direct)}", f"--bs={io.block_bytes}", f"--iodepth={depth}"]


def huge_pages(nbytes: int) -> bool:
    """Whether the system keeps reserved huge pages for ``nbytes`` of fio's buffers (vm.nr_hugepages)."""
    facts = dict(line.split(":") for line in pathlib.Path("/proc/meminfo").read_text().splitlines())
    return int(facts.get("HugePages_Free", "0")) * int(facts["Hugepagesize"].split()[0]) << 10 >= nbytes


def fio_s(file: pathlib.Path, nbytes: int, *options: str) -> float:
    """Run one job on ``file`` and return the seconds of the job itself, without those that fio needs to start."""
    command = ["fio", "--name=bench", f"--filename={file}", f"--size={nbytes}", "--output-format=json", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    job = json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]
    assert job["error"] == 0
    moved = job["read"]["io_bytes"] + job["write"]["io_bytes"]
    assert moved == nbytes, f"fio moved {moved} bytes of {nbytes}"
    return float(job["job_runtime"]) / 1000
