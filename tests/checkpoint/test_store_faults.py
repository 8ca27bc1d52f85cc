"""A store that hangs or refuses under a real `Checkpointer`: every wait ends, by name, and no step is lost."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import perdure
from perdure.checkpoint.config import Deadlines
from perdure.checkpoint.stalls import unless_stalled
from perdure.clock import SystemClock
from perdure.errors import DeadlineExceeded, StorageError, StorageFull
from perdure.store.faults import Delay, Fail, Faults, Rule

SHORT = Deadlines(stall_s=1.0, commit_s=3.0, agent_s=2.0)
FULL = StorageFull("no space is left on the device")


class Gate(SystemClock):
    """Time that stands still until the test opens the gate."""

    def __init__(self) -> None:
        self.opened = threading.Event()

    def sleep(self, seconds: float) -> None:
        assert self.opened.wait(seconds), "the test forgot its gate"


@pytest.fixture
def gate() -> Iterator[Gate]:
    one = Gate()
    yield one
    one.opened.set()


def checkpointer(folder: Path, *rules: Rule, deadlines: Deadlines = SHORT) -> perdure.Checkpointer:
    ckpt = perdure.Checkpointer(folder, agent=False, deadlines=deadlines)
    ckpt._run._store = Faults(ckpt._run._store, rules)
    return ckpt


def state(seed: int) -> dict[str, Any]:
    return {"w": torch.rand(1000, generator=torch.Generator().manual_seed(seed))}


def saved_run(folder: Path) -> Path:
    """A run with step 1."""
    ckpt = checkpointer(folder)
    ckpt.save(1, state(1)).committed()
    ckpt.close()
    return folder


def check_holds(folder: Path, *steps: int) -> None:
    """What another process finds: these steps, and the newest one whole."""
    ckpt = checkpointer(folder)
    assert ckpt.steps() == list(steps)
    tree = state(0)
    assert ckpt.restore(tree) == steps[-1]
    assert torch.equal(tree["w"], state(steps[-1])["w"])
    ckpt.close()


@pytest.mark.parametrize(("verb", "match"), [("put", "packs/*"), ("create", "parts/*"), ("create", "slots/*")])
def test_a_commit_on_a_hung_store_is_given_up_by_name_and_gets_there_later(
    tmp_path: Path, gate: Gate, verb: Any, match: str
) -> None:
    saved_run(tmp_path / "run")
    ckpt = checkpointer(tmp_path / "run", Rule(verb, Delay(60.0, gate), match=match))
    ckpt.restore(state(1))
    saved = ckpt.save(2, state(2))
    saved.staged(5.0)
    began = time.monotonic()
    with pytest.raises(DeadlineExceeded, match=r"step 2 took longer than 0\.5 s to reach disk; it may still get there"):
        saved.committed(timeout_s=0.5)
    assert time.monotonic() - began < 2.0
    assert ckpt.latest() == 1
    gate.opened.set()
    saved.committed(10.0)
    ckpt.close()
    check_holds(tmp_path / "run", 1, 2)


def test_leaving_a_hung_store_ends(tmp_path: Path, gate: Gate) -> None:
    saved_run(tmp_path / "run")
    deadlines = Deadlines(stall_s=1.0, commit_s=0.5, agent_s=0.5)
    ckpt = checkpointer(tmp_path / "run", Rule("put", Delay(60.0, gate)), deadlines=deadlines)
    ckpt.restore(state(1))
    saved = ckpt.save(2, state(2))
    began = time.monotonic()
    ckpt.close()
    assert time.monotonic() - began < 5.0
    assert isinstance(saved.error, DeadlineExceeded)


@pytest.mark.parametrize(
    ("verb", "match", "what"),
    [
        ("size", "perdure.json", "opening the run"),
        ("names", "slots/", "the commits of the run"),
        ("read", "slots/*", "the commits of the run"),
        ("read", "parts/*", "the index of step 1"),
        ("read", "packs/*", "the headers of packs"),
    ],
)
def test_a_restore_from_a_hung_store_is_given_up_by_name(
    tmp_path: Path, gate: Gate, verb: Any, match: str, what: str
) -> None:
    saved_run(tmp_path / "run")
    ckpt = checkpointer(tmp_path / "run", Rule(verb, Delay(60.0, gate), match=match, times=None))
    began = time.monotonic()
    with pytest.raises(DeadlineExceeded, match=f"the store made no progress for 1 s with {what}"):
        ckpt.restore(state(0))
    assert time.monotonic() - began < 5.0
    gate.opened.set()
    check_holds(tmp_path / "run", 1)


def test_asking_a_hung_store_for_its_steps_ends(tmp_path: Path, gate: Gate) -> None:
    saved_run(tmp_path / "run")
    ckpt = checkpointer(tmp_path / "run", Rule("names", Delay(60.0, gate), times=None))
    with pytest.raises(DeadlineExceeded, match="the newest step"):
        ckpt.latest()
    with pytest.raises(DeadlineExceeded, match="the committed steps"):
        ckpt.steps()


def test_work_that_moves_may_take_longer_than_a_stall() -> None:
    def work(moved: Any) -> int:
        for _ in range(6):
            time.sleep(0.1)
            moved(1)
        return 7

    assert unless_stalled(work, stall_s=0.4, what="a test") == 7


def test_work_that_nobody_waits_for_ends_when_it_is_heard_of_again() -> None:
    go_on, ended = threading.Event(), threading.Event()

    def work(moved: Any) -> None:
        try:
            assert go_on.wait(10)
            moved(1)
            raise AssertionError("nobody has told it")
        finally:
            ended.set()

    with pytest.raises(DeadlineExceeded, match=r"no progress for 0\.1 s with a test"):
        unless_stalled(work, stall_s=0.1, what="a test")
    go_on.set()
    assert ended.wait(5)


def test_an_error_of_the_work_is_that_of_the_call() -> None:
    def work(moved: Any) -> None:
        raise FULL

    with pytest.raises(StorageFull, match="no space is left"):
        unless_stalled(work, stall_s=5.0, what="a test")


@pytest.mark.parametrize(("verb", "match"), [("put", "packs/*"), ("create", "parts/*"), ("create", "slots/*")])
@pytest.mark.parametrize("error", [FULL, StorageError("the device reports an input/output error")], ids=repr)
def test_a_store_that_refuses_once_costs_one_step(tmp_path: Path, verb: Any, match: str, error: StorageError) -> None:
    saved_run(tmp_path / "run")
    ckpt = checkpointer(tmp_path / "run", Rule(verb, Fail(error), match=match))
    assert ckpt.restore(state(1)) == 1
    saved = ckpt.save(2, state(2))
    with pytest.raises(type(error), match=re.escape(str(error))):
        saved.committed(10.0)
    assert ckpt.latest() == 1
    ckpt.save(3, state(3)).committed(10.0)
    ckpt.close()
    check_holds(tmp_path / "run", 1, 3)


@pytest.mark.parametrize("pattern", ["slots/*2.json", "parts/*/*0002-*", "packs/*/*0002-*"])
@pytest.mark.parametrize("left", [0, 1, 0.5, -1], ids=["empty", "a byte", "half", "all but a byte"])
def test_a_file_that_was_cut_short_costs_its_step_and_not_the_run(tmp_path: Path, pattern: str, left: float) -> None:
    ckpt = checkpointer(tmp_path / "run")
    for step in (1, 2):
        ckpt.save(step, state(step)).committed(10.0)
    ckpt.close()
    (victim,) = (tmp_path / "run").glob(pattern)
    nbytes = victim.stat().st_size
    os.truncate(victim, int(nbytes * left) if left == 0.5 else int(left) % nbytes)
    ckpt = checkpointer(tmp_path / "run")
    tree = state(0)
    assert ckpt.restore(tree) == 1
    assert torch.equal(tree["w"], state(1)["w"])
    ckpt.save(3, state(3)).committed(10.0)
    assert ckpt.restore(tree) == 3
    assert torch.equal(tree["w"], state(3)["w"])
    ckpt.close()


def test_what_cannot_be_pruned_fails_no_save(tmp_path: Path) -> None:
    ckpt = perdure.Checkpointer(tmp_path / "run", agent=False, keep="last=1")
    ckpt._run._store = Faults(ckpt._run._store, [Rule("delete", Fail(FULL), times=None)])
    for step in (1, 2, 3):
        ckpt.save(step, state(step)).committed(10.0)
    ckpt.close()
    check_holds(tmp_path / "run", 3)


def test_a_run_that_cannot_be_written_is_restored_from(tmp_path: Path) -> None:
    folder = saved_run(tmp_path / "run")
    mount = ["mount", "--bind", "-o", "ro", str(folder), str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True, timeout=10)
    if done.returncode != 0:
        pytest.skip(f"READ-ONLY MEDIA ARE NOT TESTED: no bind mount ({done.stderr.strip()})")
    try:
        ckpt = checkpointer(folder)
        tree = state(0)
        assert (ckpt.steps(), ckpt.latest(), ckpt.restore(tree)) == ([1], 1, 1)
        assert torch.equal(tree["w"], state(1)["w"])
        with pytest.raises(StorageError, match="read-only"):
            ckpt.save(2, state(2)).committed(10.0)
        ckpt.close()
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True, timeout=10)


# --- really ----------------------------------------------------------------------------------------------------------

THAW = "import subprocess, sys, time; time.sleep(float(sys.argv[1])); subprocess.run(['fsfreeze', '-u', sys.argv[2]])"
FROZEN_S = 15.0


@pytest.fixture
def loop_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0 or shutil.which("fsfreeze") is None or shutil.which("mkfs.ext4") is None:
        pytest.skip("A HUNG DISK IS NOT TESTED: that needs root, fsfreeze and mkfs.ext4")
    image, folder = tmp_path / "disk.img", tmp_path / "disk"
    folder.mkdir()
    with open(image, "wb") as file:
        file.truncate(64 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True, timeout=60)
    done = subprocess.run(["mount", "-o", "loop", str(image), str(folder)], capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        pytest.skip(f"A HUNG DISK IS NOT TESTED: no loop device can be mounted ({done.stderr.strip()})")
    try:
        yield folder
    finally:
        subprocess.run(["fsfreeze", "-u", str(folder)], capture_output=True, timeout=60)
        subprocess.run(["umount", "-l", str(folder)], check=True, timeout=60)


@pytest.mark.slow
def test_a_disk_that_really_hangs_is_waited_for_as_long_as_said(loop_disk: Path) -> None:
    folder = saved_run(loop_disk / "run")
    ckpt = checkpointer(folder, deadlines=Deadlines(stall_s=2.0, commit_s=60.0))
    assert ckpt.restore(state(1)) == 1
    ckpt.save(2, state(2)).committed(10.0)
    thaw = subprocess.Popen([sys.executable, "-c", THAW, str(FROZEN_S), str(loop_disk)])  # first of all
    try:
        subprocess.run(["fsfreeze", "-f", str(loop_disk)], check=True, timeout=10)
        frozen = time.monotonic()
        saved = ckpt.save(3, state(3))
        with pytest.raises(DeadlineExceeded, match="step 3 took longer than 2 s to reach disk; it may still get there"):
            saved.committed(timeout_s=2.0)
        assert ckpt.latest() == 2  # reading goes on
        assert time.monotonic() - frozen < FROZEN_S - 5
    finally:
        assert thaw.wait(FROZEN_S + 30) == 0
    saved.committed(20.0)
    ckpt.close()
    check_holds(folder, 1, 2, 3)
