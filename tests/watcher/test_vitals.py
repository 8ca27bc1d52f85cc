"""The record of a rank: what is written is read, what is hostile is refused or harmless."""

from __future__ import annotations

import math
import os
import random
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from perdure.errors import CallError, ProtocolError
from perdure.process.environ import ProbeTold
from perdure.progress import vitals as vitals_module
from perdure.progress.probing import probe_env
from perdure.progress.stacks import ask_for_stacks, parse_stacks
from perdure.progress.vitals import MAX_GROUPS, NBYTES, GroupVitals, Vitals, VitalsFile, vitals_files
from perdure.watcher.reading import Reading, process_state, read_rank


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    return private


def a_record(folder: Path, *, rank: int = 3) -> VitalsFile:
    return VitalsFile(folder, rank=rank, world=8, stack_signal=0, main=threading.get_ident())


def test_what_is_written_is_read(folder: Path) -> None:
    file = a_record(folder)
    now = time.monotonic_ns()
    file.beat(7, phase="loading", phase_since_ns=now - 2_000_000_000, in_frames=False)
    file.step(41, (50_000_000, 40_000_000, 10_000_000), (40, 2_000_000_000, 1_600_000_000, 400_000_000))
    file.loss(42, 1.5, -1)
    file.local(42, 0.25, -1, 3)
    file.whole(42, math.inf, 42, 1)
    file.checksum(40, bytes(range(16)), "ddp 0 of 8")
    file.groups([GroupVitals(group="0", size=8, enqueued=12, completed=11, op="all_reduce", shape="[4, 3] float32")])
    read = Vitals.read(file.path)
    assert (read.rank, read.world, read.pid, read.beat, read.phase) == (3, 8, os.getpid(), 7, "loading")
    assert 2 <= read.phase_s < 60
    assert read.beat_age_s is not None
    assert read.beat_age_s < 60
    assert (read.step, read.step_s, read.compute_s, read.wait_s) == (41, 0.05, 0.04, 0.01)
    assert read.timed == (40, 2.0, 1.6, 0.4)
    assert (read.loss, read.loss_step, read.loss_bad_step) == (1.5, 42, None)
    assert (read.local_norm, read.local_finite, read.local_bad_step, read.local_every) == (0.25, True, None, 3)
    assert (read.global_norm, read.global_finite, read.global_bad_step) == (math.inf, False, 42)
    assert (read.checksum, read.checksum_step, read.replicas) == (bytes(range(16)).hex(), 40, "ddp 0 of 8")
    assert read.groups[0].shape == "[4, 3] float32"
    assert read.groups[0].enqueued == 12
    assert read.in_collective is False
    assert not read.finished


def test_the_time_that_a_rank_gave_its_phase_is_read(folder: Path) -> None:
    file = a_record(folder)
    now = time.monotonic_ns()
    file.beat(1, phase="saving", phase_since_ns=now, in_frames=False, deadline_ns=now + 90_000_000_000)
    assert Vitals.read(file.path).phase_allowed_s == 90.0
    assert read_rank(file.path, node="a").phase_allowed_s == 90.0
    file.beat(2, phase="forward", phase_since_ns=now, in_frames=False)
    assert Vitals.read(file.path).phase_allowed_s is None


def test_a_new_record_knows_nothing(folder: Path) -> None:
    read = Vitals.read(a_record(folder).path)
    assert (read.step, read.loss, read.local_finite, read.global_finite, read.checksum) == (None, None, None, None, "")
    assert (read.beat, read.beat_age_s, read.phase, read.groups, read.in_collective) == (0, None, "", (), None)


def test_a_wait_shows_at_once_and_is_over_at_once(folder: Path) -> None:
    file = a_record(folder)
    file.beat(1, phase="forward", phase_since_ns=0, in_frames=False)
    file.wait(time.monotonic_ns() - 3_000_000_000)
    waits = Vitals.read(file.path)
    assert waits.in_collective is True
    assert 3 <= waits.waiting_s < 60
    file.wait(0)
    assert Vitals.read(file.path).in_collective is False


def test_a_section_that_is_being_written_is_left_out_and_the_others_are_read(folder: Path) -> None:
    file = a_record(folder)
    file.step(5, (1, 1, 0), (1, 1, 1, 0))
    file.loss(6, 2.0, -1)
    with open(file.path, "r+b") as raw:  # as its writer leaves it that is stopped in the middle
        raw.seek(8 * 40)
        counter = int.from_bytes(raw.read(8), "little")
        raw.seek(8 * 40)
        raw.write((counter + 1).to_bytes(8, "little"))
    read = Vitals.read(file.path)
    assert read.step is None
    assert read.loss == 2.0


def test_what_belongs_together_is_never_torn(folder: Path) -> None:
    file = a_record(folder)
    over = threading.Event()

    def write() -> None:
        step = 0
        while not over.is_set():
            step += 1
            file.step(step, (step, step, step), (step, step, step, step))
            if step % 50 == 0:
                time.sleep(0.001)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        seen = [Vitals.read(file.path) for _ in range(300)]
    finally:
        over.set()
        writer.join()
    told = [each for each in seen if each.step is not None and each.step_s is not None]
    assert len(told) > 30
    for each in told:
        assert round(each.step_s * 1e9) == each.step == each.timed[0]  # type: ignore[operator]


def test_hostile_files_are_refused(folder: Path) -> None:
    path = folder / "rank-0.1"
    path.write_bytes(b"")
    with pytest.raises(ProtocolError):
        Vitals.read(path)
    path.write_bytes(bytes(NBYTES))
    with pytest.raises(ProtocolError):
        Vitals.read(path)
    whole = a_record(folder).path.read_bytes()
    path.write_bytes(whole + b"x")
    with pytest.raises(ProtocolError):
        Vitals.read(path)
    path.write_bytes(whole[:8] + struct.pack("@q", 99) + whole[16:])
    with pytest.raises(ProtocolError):
        Vitals.read(path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(ProtocolError):
        Vitals.read(path)
    path.unlink()
    path.symlink_to("/etc/passwd")
    with pytest.raises(OSError):  # noqa: PT011 - ELOOP, which has no class of its own
        Vitals.read(path)


def test_any_content_behind_a_good_head_is_read_within_bounds(folder: Path) -> None:
    head = a_record(folder).path.read_bytes()[:24]
    path = folder / "rank-0.1"
    dice = random.Random(5)
    for _ in range(200):
        body = bytearray(dice.randbytes(NBYTES - 24))
        for at in (16, 40, 56, 64, 72, 80, 96):
            body[8 * at - 24] &= 0xFE  # as if at rest
        path.write_bytes(head + bytes(body))
        read = Vitals.read(path)
        assert len(read.groups) <= MAX_GROUPS
        assert all(len(each.group) <= 48 and each.group.isprintable() for each in read.groups)
        assert read.beat_age_s is None or read.beat_age_s >= 0
        sample = read_rank(path, node="n")
        assert sample.state == "X"
        assert not ask_for_stacks(path, read)


def test_more_groups_than_fit_and_long_texts_are_cut(folder: Path) -> None:
    file = a_record(folder)
    file.groups([GroupVitals(group="ä" * 60, size=2, enqueued=i, completed=i) for i in range(50)])
    groups = Vitals.read(file.path).groups
    assert len(groups) == MAX_GROUPS
    assert len(groups[0].group) == 24


def test_a_folder_that_others_may_enter_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with pytest.raises(CallError, match="0700"):
        a_record(tmp_path)
    with pytest.raises(CallError, match="0700"):
        probe_env(tmp_path, base={})


def test_the_environment_heeds_who_does_not_want_to_be_watched(folder: Path) -> None:
    assert probe_env(folder, base={"PERDURE_PROBE": "off"}) == {}
    words = probe_env(folder, base={"PYTHONPATH": "/a"})
    assert words["PYTHONPATH"].split(os.pathsep) == [str(folder / "start"), "/a"]
    assert ProbeTold.read(words).folder == str(folder)
    assert ProbeTold.read({"PERDURE_PROBE": "off"}).folder is None
    assert ProbeTold.read({"PERDURE_PROBE": "/a", "PERDURE_PROBE_SIGNAL": "900"}).signal is None


def test_stacks_are_parsed_main_thread_first() -> None:
    text = (
        "Thread 0x00000000000000ff [pool] (most recent call first):\n"
        '  File "/x/pool.py", line 9 in work\n\n'
        "Current thread 0x00000000000000aa (most recent call first):\n"
        '  File "/x/c10d.py", line 12 in wait\n  File "/x/train.py", line 3 in <module>\n\nExtension modules: a, b\n'
    )
    stacks = parse_stacks(text, main_thread=0xAA)
    assert stacks == (("/x/c10d.py:12 wait", "/x/train.py:3 <module>"), ("/x/pool.py:9 work",))
    assert parse_stacks(text, main_thread=1)[0] == ()
    assert parse_stacks("\x00\xff garbage", main_thread=1) == ()


def test_a_reading_means_over_the_steps_since_the_last_look(folder: Path) -> None:
    file = a_record(folder)
    reading = Reading(folder, node="a")
    file.step(10, (9, 8, 1), (10, 10_000_000_000, 8_000_000_000, 2_000_000_000))
    first = reading.look()[0]
    assert first.step_s == 9e-9
    file.step(20, (9, 8, 1), (20, 30_000_000_000, 26_000_000_000, 4_000_000_000))
    second = reading.look()[0]
    assert (second.step_s, second.compute_s, second.wait_s) == (2.0, 1.8, 0.2)
    assert (second.node, second.rank, second.state in "RS") == ("a", 3, True)


def test_of_several_processes_of_a_rank_the_one_that_lives_is_read(folder: Path) -> None:
    script = (
        "import sys; from perdure.progress.vitals import VitalsFile\n"
        "VitalsFile(sys.argv[1], rank=3, world=8, stack_signal=0, main=1)\n"
    )
    subprocess.run([sys.executable, "-c", script, str(folder)], check=True, timeout=60)
    (folder / "rank-5.77").write_bytes(b"no record")
    (folder / "rank-x.1").write_bytes(b"")
    a_record(folder)
    assert len(vitals_files(folder)) == 3
    reading = Reading(folder, node="a")
    samples = reading.look()
    assert [(each.rank, each.pid) for each in samples] == [(3, os.getpid())]
    assert reading.strange == (folder / "rank-5.77",)


def test_a_process_that_is_gone_is_not_taken_for_another_of_its_number() -> None:
    ticks = vitals_module.start_ticks(os.getpid())
    assert process_state(os.getpid(), ticks).state in "RS"
    assert process_state(os.getpid(), ticks + 1).state == "X"
