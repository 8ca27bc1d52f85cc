"""Checks: each probe finds its fault, and one that hangs or dies is named while the others are answered."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.clock import Deadline
from perdure.errors import CallError, StorageError
from perdure.supervisor import check_compute, check_disk, check_host, check_memory, checks
from perdure.supervisor.checks import PROBES, Context, Probe, Result, run, worst

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def _fakes_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(HERE))


def fake(name: str, deadline_s: float = 60.0) -> Probe:
    return Probe(f"check_fakes:{name}", deadline_s, "a fake")


def results_of(*names: str, deadline_s: float = 60.0, **own_s: float) -> dict[str, Result]:
    probes = {name: fake(name, own_s.get(name, 60.0)) for name in names}
    return {
        result.check: result for result in run(names, Context(), Deadline.after(deadline_s, "checks"), probes=probes)
    }


def gone(pid: int) -> bool:
    end = time.monotonic() + 30
    while os.path.exists(f"/proc/{pid}") and time.monotonic() < end:
        time.sleep(0.01)
    return not os.path.exists(f"/proc/{pid}")


# --- run --------------------------------------------------------------------------------------------------------------


def test_each_probe_has_a_process_of_its_own_and_is_told_the_context() -> None:
    probes = {"a": fake("well"), "b": fake("well")}
    found = list(run(["a", "b", "a"], Context(folder="/x"), Deadline.after(60, "checks"), probes=probes))
    assert sorted(result.check for result in found) == ["a", "b"]
    assert {result.says for result in found} == {"told of /x"}
    assert len({result.facts["pid"] for result in found} | {os.getpid()}) == 3
    assert all(result.facts["seconds"] > 0 for result in found)


def test_a_stopped_probe_is_given_up_at_its_deadline_and_killed_and_the_others_are_answered() -> None:
    found = results_of("well", "stopped", "deaf", stopped=3.0, deaf=3.0)
    assert found["well"].word == "ok"
    for name in ("stopped", "deaf"):
        assert found[name].word == "problem"
        assert found[name].says == "no answer within 3 s; given up"
        assert found[name].facts["killed"]
        assert gone(found[name].facts["pid"])
    assert found["stopped"].facts["state"] == "T"
    assert found["deaf"].facts["state"] == "S"


def test_the_deadline_of_all_bounds_each() -> None:
    assert results_of("deaf", deadline_s=1.0)["deaf"].says == "no answer within 1 s; given up"


def test_a_probe_whose_child_keeps_the_pipes_is_given_up_all_the_same() -> None:
    found = results_of("with_child", with_child=3.0)["with_child"]
    assert found.facts["killed"]
    assert gone(found.facts["pid"])


def test_a_probe_that_not_even_sigkill_ends_is_left_behind_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that waits in the kernel cannot be had in a test; one that is not sent the signal looks the same."""
    monkeypatch.setattr(subprocess.Popen, "kill", lambda process: None)
    found = results_of("deaf", deaf=2.0)["deaf"]
    pid = found.facts["pid"]
    try:
        assert not found.facts["killed"]
        assert f"process {pid} cannot be killed (state S)" in found.says
        assert [process.pid for process in checks._left_behind] == [pid]
    finally:
        os.kill(pid, signal.SIGKILL)
    assert checks._left_behind[0].wait(30) == -signal.SIGKILL
    results_of("well")
    assert checks._left_behind == []


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("killed", "its process was killed by SIGKILL"),
        ("aborted", "its process was killed by SIGABRT"),
        ("raising", "its process ended with 1: RuntimeError: the driver said 42"),
        ("silent", "its process ended without a result"),
        ("missing", "its process ended with 1: AttributeError"),
    ],
)
def test_a_probe_that_dies_is_a_problem(name: str, says: str) -> None:
    found = results_of(name)[name]
    assert found.word == "problem"
    assert found.says.startswith(says)
    assert f"--checks {name}" in found.do


def test_an_error_of_ours_is_a_problem_in_its_own_words() -> None:
    found = results_of("refused")["refused"]
    assert (found.word, found.says, found.do) == ("problem", "no space is left on the device", "make room")


def test_what_a_library_prints_is_no_result() -> None:
    assert results_of("talking")["talking"].says == "found"


def test_a_core_is_tested_by_one_thread() -> None:
    assert results_of("threads")["threads"].facts["threads"] == 1


def test_a_probe_dies_with_whoever_asked_for_it(tmp_path: Path) -> None:
    code = (
        "from perdure.clock import Deadline; from perdure.supervisor.checks import *;"
        "print(*run(['x'], Context(), Deadline.after(100, 'checks'), probes={'x': Probe('check_fakes:deaf', 100, '')}))"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL) as asker:
        (pid,) = wait_for_children(asker.pid)
        wait_until_deaf(pid)
        asker.kill()
    assert gone(pid)


def wait_for_children(pid: int) -> list[int]:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        found = [
            int(child)
            for task in Path(f"/proc/{pid}/task").iterdir()
            for child in (task / "children").read_text().split()
        ]
        if found:
            return found
        time.sleep(0.01)
    raise AssertionError("no probe was started")


def wait_until_deaf(pid: int) -> None:
    """Until the probe ignores SIGTERM, which it does after it has asked to die with its parent."""
    end = time.monotonic() + 60
    while True:
        status = Path(f"/proc/{pid}/status").read_text().splitlines()
        ignored = int(next(line.split()[1] for line in status if line.startswith("SigIgn")), 16)
        if ignored & (1 << (signal.SIGTERM - 1)):
            return
        assert time.monotonic() < end
        time.sleep(0.01)


def test_an_unknown_name_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(CallError, match=r"no check 'cup'; there are: cpu, memory"):
        list(run(["cup"], Context(), Deadline.after(1, "checks")))


def test_a_result_has_a_sentence_and_a_problem_says_what_to_do() -> None:
    with pytest.raises(CallError):
        Result(check="x", word="problem", says="bad")
    with pytest.raises(CallError):
        Result(check="x", word="ok", says="")
    assert worst([]) == "ok"
    notes = [Result(check="x", word="ok", says="a"), Result(check="x", word="note", says="b")]
    assert worst(notes) == "note"
    assert worst([*notes, Result(check="x", word="problem", says="c", do="d")]) == "problem"


def test_every_check_of_the_supervisor_is_there_and_does_well_here(tmp_path: Path) -> None:
    context = Context(
        folder=str(tmp_path), memory_bytes=8 << 20, disk_bytes=1 << 20, wall_s=time.time(), wall_seen_s=time.monotonic()
    )
    found = {result.check: result for result in run(list(PROBES), context, Deadline.after(100, "checks"))}
    assert found.keys() == PROBES.keys()
    assert {name: found[name].word for name in ("cpu", "memory", "disk", "clock")} == dict.fromkeys(
        ("cpu", "memory", "disk", "clock"), "ok"
    )
    assert list(tmp_path.iterdir()) == []


# --- cpu --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", list(check_compute.DIGESTS))
def test_the_known_digests_are_those_of_the_exact_products(kind: str) -> None:
    """Python's own whole numbers are the oracle; a product of int64 wraps."""
    a, b = (x.astype(object) for x in check_compute.operands(kind))
    exact = a @ b
    if kind != "int64":
        limit = {"float64": 2**53, "float32": 2**24, "small": 2**8}[kind]
        assert check_compute.SIZE * check_compute.LARGEST[kind] ** 2 <= limit
    wrapped = np.vectorize(lambda x: (int(x) + 2**63) % 2**64 - 2**63, otypes=[np.int64])(exact)
    assert check_compute.product_digest(wrapped) == check_compute.DIGESTS[kind]


def test_one_wrong_bit_of_one_element_changes_the_digest() -> None:
    a, b = check_compute.operands("float32")
    product = a @ b
    product[7, 100] ^= 1
    assert check_compute.product_digest(product) != check_compute.DIGESTS["float32"]


def test_a_core_that_computes_wrong_is_named_and_the_cores_are_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = os.sched_getaffinity(0)
    last = max(cores)
    monkeypatch.setattr(
        check_compute, "wrong_products", lambda: ["float32"] if os.sched_getaffinity(0) == {last} else []
    )
    found = check_compute.cpu(Context())
    assert found.word == "problem"
    assert found.says == f"it computes wrong, without an error: core {last} in float32"
    assert os.sched_getaffinity(0) == cores


def test_cores_that_there_was_no_time_for_are_told() -> None:
    found = check_compute.verdict({}, tried=3, cores=8)
    assert (found.word, found.says) == ("note", "3 of 8 cores compute right; time was over before the others")


# --- memory -----------------------------------------------------------------------------------------------------------


@given(st.integers(1, 3 << 20), st.data())
def test_a_flipped_bit_is_found_in_every_pattern(count: int, data: st.DataObject) -> None:
    name, first, step = data.draw(st.sampled_from(list(check_memory.patterns())))
    index, bit = data.draw(st.integers(0, count - 1)), data.draw(st.integers(0, 63))
    words = np.empty(count, dtype=np.uint64)
    check_memory.fill(words, first, step)
    assert check_memory.faults(words, first, step) == []
    words[index] ^= np.uint64(1 << bit)
    assert check_memory.faults(words, first, step) == [(index, 1 << bit)], name


def test_stuck_bits_and_stuck_address_lines_are_seen_by_some_pattern() -> None:
    def seen_by(spoil: object) -> set[str]:
        seen = set()
        for name, first, step in check_memory.patterns():
            words = np.empty(4096, dtype=np.uint64)
            check_memory.fill(words, first, step)
            spoil(words)  # type: ignore[operator]
            if check_memory.faults(words, first, step):
                seen.add(name)
        return seen

    def stuck_at_one(words: np.ndarray) -> None:  # type: ignore[type-arg]
        words |= np.uint64(1 << 17)

    def one_line_dead(words: np.ndarray) -> None:  # type: ignore[type-arg]
        words.reshape(-1, 2, 64)[:, 1] = words.reshape(-1, 2, 64)[:, 0]

    assert "zeros" in seen_by(stuck_at_one)
    assert seen_by(one_line_dead) == {"addresses", "complements"}


def test_memory_that_forgets_is_a_problem_that_names_the_bits() -> None:
    found = check_memory.verdict({"ones": [(5, 1 << 40)]}, nbytes=1 << 20, took_s=1.0)
    assert found.word == "problem"
    assert "pattern ones, bits 0000010000000000" in found.says


def test_too_little_memory_is_a_problem_for_a_job_that_needs_it() -> None:
    assert check_memory.free_memory(Context()).word in ("ok", "note")
    found = check_memory.free_memory(Context(need_memory_bytes=1 << 60))
    assert found.word == "problem"
    assert "are needed" in found.says


@pytest.mark.parametrize(
    ("free", "total", "word"), [(60 << 20, 64 << 20, "note"), (1 << 20, 8 << 30, "note"), (8 << 30, 8 << 30, "ok")]
)
def test_a_small_or_full_dev_shm_is_a_note(monkeypatch: pytest.MonkeyPatch, free: int, total: int, word: str) -> None:
    usage = type("usage", (), {"free": free, "total": total, "used": total - free})
    monkeypatch.setattr(check_memory.shutil, "disk_usage", lambda path: usage)
    monkeypatch.setattr(check_memory, "available_nbytes", lambda: 8 << 30)
    assert check_memory.free_memory(Context()).word == word


# --- disk -------------------------------------------------------------------------------------------------------------


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


# --- host -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("soft", "left", "word"),
    [
        (1 << 20, 1 << 20, "ok"),
        ((1 << 63) - 1, 1 << 40, "ok"),
        (1024, 1 << 20, "note"),
        (64, 1 << 20, "problem"),
        (1 << 20, 10, "problem"),
    ],
)
def test_few_descriptors_are_told(soft: int, left: int, word: str) -> None:
    assert check_host.descriptors_verdict(soft, soft, left).word == word


def test_the_limit_that_is_told_is_that_of_this_process() -> None:
    child = "perdure.supervisor.check_child descriptors perdure.supervisor.check_host:descriptors {}"
    command = f"ulimit -Sn 300; exec {sys.executable} -m {child}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert '"soft":300' in done.stdout
    assert '"word":"note"' in done.stdout


@pytest.mark.parametrize(
    ("offset_s", "error_s", "word"),
    [
        (None, 0.0, "ok"),
        (0.3, 0.0, "ok"),
        (-2.0, 0.0, "note"),
        (2.0, 1.5, "ok"),
        (400.0, 1.0, "problem"),
        (-400.0, 1.0, "problem"),
    ],
)
def test_an_offset_counts_beyond_what_it_is_known_to(offset_s: float | None, error_s: float, word: str) -> None:
    found = check_host.clock_verdict(offset_s, error_s, back_s=0.0, drift_s=0.0, wall_s=2e9)
    assert found.word == word


def test_clocks_that_cannot_be_right_are_told() -> None:
    assert check_host.clock_verdict(None, 0.0, back_s=1e-6, drift_s=0.0, wall_s=2e9).word == "problem"
    assert check_host.clock_verdict(None, 0.0, back_s=0.0, drift_s=0.0, wall_s=1e6).word == "problem"
    assert check_host.clock_verdict(None, 0.0, back_s=0.0, drift_s=-5.0, wall_s=2e9).word == "note"


def test_the_controllers_clock_is_carried_forward_to_now() -> None:
    context = Context(wall_s=time.time() - 100 - 7, wall_seen_s=time.monotonic() - 100, wall_error_s=0.1)
    found = check_host.clock(context)
    assert found.facts["offset_s"] == pytest.approx(7, abs=1)
    assert found.word == "note"
