"""Checks: each probe finds its fault, and one that hangs or dies is named while the others are answered."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from perdure.clock import Deadline
from perdure.errors import CallError
from perdure.supervisor import checks
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
    says = results_of("deaf", deadline_s=1.0)["deaf"].says
    assert re.fullmatch(r"no answer within (1|0\.9\d*) s; given up", says)


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


def test_a_process_that_cannot_even_be_started_hangs_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    let_go = threading.Event()

    def hang(*_: object, **__: object) -> None:
        let_go.wait(100)
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(checks.subprocess, "Popen", hang)
    found = results_of("well", deadline_s=0.5)["well"]
    let_go.set()
    assert found.word == "problem"
    assert found.says.startswith("no process started for it within")
