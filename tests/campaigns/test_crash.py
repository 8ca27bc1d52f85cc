"""A long campaign of crashes: `./dev campaign crash`. Goes on where it was stopped; the report counts.

Each round: a random life cut at every point (`tests/store/test_crash_points.py`), real savers killed by the kernel
(`test_syscalls.py`), real power cuts (`test_power_cut.py`). ``ROUNDS=n`` in the environment ends it after n rounds.
A change of what is tested, or of the store, begins the count anew.
"""

from __future__ import annotations

import hashlib
import os
import random
import re
import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "store"))

import test_crash_points  # noqa: E402
import test_power_cut  # noqa: E402
import test_syscalls  # noqa: E402
from lives import play_at_random  # noqa: E402

REPORT = ROOT / "docs" / "reports" / "crash.md"
ROWS = (
    "rounds",
    "crash points",
    "different disks opened",
    "processes killed",
    "power cuts",
    "saves reported before cuts",
)
bench = test_crash_points.bench
LIVES, KILLS, CUTS = 4, 20, 8  # of a round

pytestmark = pytest.mark.campaign


def fingerprint() -> str:
    """What the counts are about."""
    found = hashlib.sha256()
    folders = ("src/perdure/store", "src/perdure/checkpoint", "src/perdure/state", "tests/store")
    for path in sorted(path for folder in folders for path in (ROOT / folder).glob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()[:16]


def counts() -> dict[str, int]:
    """What the report says of this very code; zeros if it is of another."""
    text = REPORT.read_text() if REPORT.exists() else ""
    if f"`{fingerprint()}`" not in text:
        return dict.fromkeys(ROWS, 0)
    return {row: int(re.search(rf"^\| {row} \| ([\d,]+) \|$", text, re.M)[1].replace(",", "")) for row in ROWS}  # type: ignore[index]


def write(done: dict[str, int], notes: list[str]) -> None:
    """The report, whole or as it was."""
    lines = [
        "# Crashes",
        "",
        "Written by `./dev campaign crash`; [guarantees.md](../guarantees.md) says what is tried. No step that was",
        "reported as committed was lost, and none that was found was not whole: the campaign stops at the first.",
        "",
        f"Of the code `{fingerprint()}`.",
        "",
        "| what | how many |",
        "|---|---|",
        *(f"| {row} | {done[row]:,} |" for row in ROWS),
        "",
        *notes,
    ]
    new = REPORT.with_suffix(".new")
    new.parent.mkdir(parents=True, exist_ok=True)
    new.write_text("\n".join(lines).rstrip() + "\n")
    os.replace(new, REPORT)


def test_no_crash_loses_a_step(
    bench: test_crash_points.Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = counts()
    notes: list[str] = []
    if shutil.which("strace") is None:
        notes.append("No process was killed by the kernel here: strace is not installed.")
    if os.geteuid() != 0 or shutil.which("mkfs.ext4") is None:
        notes.append("No power was cut here: that needs root and mkfs.ext4.")
    last = done["rounds"] + int(os.environ.get("ROUNDS", "1000000"))
    while done["rounds"] < last:
        seed = done["rounds"]
        simulate(bench, seed, done)
        place = tmp_path / str(seed)
        place.mkdir()
        if shutil.which("strace") is not None:
            kill(place, seed, done)
        if os.geteuid() == 0 and shutil.which("mkfs.ext4") is not None:
            cut(place, seed, done)
        shutil.rmtree(place)
        done["rounds"] += 1
        write(done, notes)
        with capsys.disabled():
            print(", ".join(f"{done[row]:,} {row}" for row in ROWS), flush=True)


def simulate(bench: test_crash_points.Bench, seed: int, done: dict[str, int]) -> None:
    bench.points = bench.different = 0
    for number in range(LIVES):
        dice = random.Random(seed * LIVES + number)
        watched, life = bench.begin()
        with pytest.MonkeyPatch.context() as patch:
            if number % 2:
                test_crash_points.no_rename(patch)
            with watched.watching(patch):
                play_at_random(bench.starter(watched), life, dice, acts=dice.randint(3, 15))
        bench.check(watched, life, seed=seed, subsets=3)
    done["crash points"] += bench.points
    done["different disks opened"] += bench.different


def kill(place: Path, seed: int, done: dict[str, int]) -> None:
    sizes, io = test_syscalls.WAYS[seed % len(test_syscalls.WAYS)]
    calls = test_syscalls.calls_of(place / "counted", [sizes, io, "0", "0", "0"])
    chosen = random.Random(seed).sample(calls, KILLS)
    done["processes killed"] += test_syscalls.kill_at_each(place, sizes, io, chosen)


def cut(place: Path, seed: int, done: dict[str, int]) -> None:
    disk = test_power_cut.LoopDisk(place, size_bytes=256 << 20)
    try:
        disk.mount()
        sizes, io = test_syscalls.WAYS[seed % len(test_syscalls.WAYS)]
        life = test_power_cut.cut_off(disk, sizes, io, cuts=CUTS, seed=seed)
    finally:
        disk.end()
    done["power cuts"] += CUTS
    done["saves reported before cuts"] += len(life.reported)
