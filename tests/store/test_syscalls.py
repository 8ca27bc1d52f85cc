"""Real processes, stopped by the kernel at each call that they make of it, or refused one.

A saver (`saver.py`) lives the life of a run under ``strace``, which kills it at the n-th write, sync, rename, link ...
that it makes, or makes that call fail. What it left is opened, checked and gone on with.
"""

from __future__ import annotations

import collections
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from lives import LARGE, SMALL, Life

from perdure.store import Disk

HERE = Path(__file__).parent
CALLS = (
    "write,pwrite64,io_uring_enter,fsync,fdatasync,rename,renameat,renameat2,link,linkat,mkdir,mkdirat,unlink,unlinkat,"
    "ftruncate,fallocate"
)
MOST_KILLS, MOST_REFUSALS = 300, 30
WAYS = [("small", "-"), ("large", "-"), ("large", "threads:buffered:1MiB:4"), ("large", "plain:buffered:1MiB:1")]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        shutil.which("strace") is None, reason="STOPPED SYSTEM CALLS ARE NOT TESTED: strace is not installed"
    ),
]


@pytest.fixture(scope="module", autouse=True)
def strace_works() -> None:
    done = subprocess.run(["strace", "-f", "-e", "trace=none", "true"], capture_output=True, text=True, timeout=30)
    if done.returncode != 0:
        pytest.skip(f"STOPPED SYSTEM CALLS ARE NOT TESTED: strace may not trace here ({done.stderr.strip()[:200]})")


def lives(folder: Path, argv: Sequence[str], strace: Sequence[str]) -> tuple[int, list[str], str]:
    """Run a saver under strace; its exit code (of a signal: negative), what it said, and what it complained of."""
    command = ["strace", "-f", "-qq", *strace, sys.executable, str(HERE / "saver.py"), str(folder)]
    done = subprocess.run([*command, *argv], input=b"", capture_output=True, timeout=120, cwd=HERE)
    lines = done.stdout.decode().split("\n")[:-1]  # a line that was cut off counts for nothing
    return done.returncode, [line for line in lines if line != "ready"], done.stderr.decode()


def calls_of(folder: Path, argv: Sequence[str]) -> list[tuple[str, int]]:
    """Every call that can be stopped: its name, and the how manieth of its thread it is. From the first save on."""
    trace = folder.with_suffix(".trace")
    code, _, said = lives(folder, argv, ["-o", str(trace), "-e", f"trace={CALLS}"])
    assert code == 0, said
    counts: collections.Counter[tuple[str, str]] = collections.Counter()
    found: dict[tuple[str, int], None] = {}
    begun = False
    for line in trace.read_text().splitlines():
        match = re.match(r"(\d+) +(\w+)\(", line)
        if match:
            counts[match[1], match[2]] += 1
            begun = begun or 'write(1, "ready' in line
            if begun and 'write(1, "' not in line:  # what is said is said whole: a pipe takes it at once
                found[match[2], counts[match[1], match[2]]] = None
    return list(found)


@pytest.mark.parametrize(("sizes", "io"), WAYS)
def test_a_kill_at_any_call_loses_no_step_that_was_reported(
    tmp_path: Path, sizes: str, io: str, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = calls_of(tmp_path / "counted", [sizes, io, "0", "0", "0"])
    most = MOST_KILLS if sizes == "small" else MOST_KILLS // 4
    chosen = calls if len(calls) <= most else sorted(random.Random(0).sample(calls, most))
    killed = kill_at_each(tmp_path, sizes, io, chosen)
    with capsys.disabled():
        print(f"\n{sizes} by {io}: {len(calls)} calls, {killed} of {len(chosen)} savers killed by the kernel")
    assert killed >= 0.9 * len(chosen)  # threads may share their calls out otherwise in another run


def kill_at_each(folder: Path, sizes: str, io: str, calls: Sequence[tuple[str, int]]) -> int:
    """Kill a saver at each of ``calls`` and check what it leaves; how many were killed."""

    def kill(number: int, call: str, nth: int) -> bool:
        place = folder / f"kill-{number}"
        inject = f"inject={call}:signal=SIGKILL:when={nth}"
        code, lines, said = lives(place, [sizes, io, "0", "0", "0"], ["-e", f"trace={call}", "-e", inject])
        assert code in (0, -9, 137), said
        check_left(place, sizes, lines, f"killed at {call} number {nth}")
        return code != 0

    with ThreadPoolExecutor(2) as pool:
        return sum(pool.map(kill, range(len(calls)), *zip(*calls, strict=True)))


def check_left(place: Path, sizes: str, lines: Sequence[str], what: str) -> None:
    life = Life(sizes=LARGE if sizes == "large" else SMALL)
    life.hear(lines)
    try:
        life.check(Disk(place))
    except Exception as error:
        error.add_note(f"{what}; it said {lines}")
        raise
    shutil.rmtree(place, ignore_errors=True)


@pytest.mark.parametrize("error", ["EIO", "ENOSPC", "EDQUOT"])
@pytest.mark.parametrize("sizes", ["small", "large"])
def test_a_call_that_the_kernel_refuses_fails_the_save_by_name_and_loses_no_step(
    tmp_path: Path, sizes: str, error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    io = "threads:buffered:1MiB:4" if sizes == "large" else "-"
    refusable = {"write", "pwrite64", "fsync", "renameat2", "mkdir", "mkdirat"}
    argv = [sizes, io, "0", "0", "0"]
    calls = [each for each in calls_of(tmp_path / "counted", argv) if each[0] in refusable]
    chosen = sorted(random.Random(0).sample(calls, min(MOST_REFUSALS, len(calls))))
    says = {"EIO": "input/output error", "ENOSPC": "no space is left", "EDQUOT": "the quota is used up"}[error]

    def refuse(number: int, call: str, nth: int) -> bool:
        place = tmp_path / f"refused-{number}"
        inject = f"inject={call}:error={error}:when={nth}"
        code, lines, said = lives(place, argv, ["-e", f"trace={call}", "-e", inject])
        assert code in (0, 1), said
        if code:
            assert says in said, said
        check_left(place, sizes, lines, f"{error} of {call} number {nth}")
        return code != 0

    with ThreadPoolExecutor(2) as pool:
        refused = sum(pool.map(refuse, range(len(chosen)), *zip(*chosen, strict=True)))
    with capsys.disabled():
        print(f"\n{sizes}, {error}: {refused} of {len(chosen)} savers failed by name")
    assert refused >= 0.8 * len(chosen)
