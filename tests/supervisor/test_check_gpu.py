"""Facts of GPUs through NVML, on a library of our own that answers as a faulty GPU would."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from perdure.supervisor.check_gpu import Gpu, kernel_log, verdict, xids_in

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("c++")
    assert compiler is not None, "a C compiler is needed, as for perdure itself"
    folder = tmp_path_factory.mktemp("nvml")
    flags = ["-x", "c", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([compiler, *flags, str(HERE / "fake_nvml.c"), "-o", str(folder / "libnvidia-ml.so.1")], check=True)
    return folder


def ask(library: Path, says: str, command: list[str]) -> tuple[int, dict[str, Any]]:
    env = {**os.environ, "LD_LIBRARY_PATH": str(library), "FAKE_NVML": says}
    done = subprocess.run([sys.executable, "-m", *command], env=env, capture_output=True, text=True, timeout=100)
    (line,) = done.stdout.splitlines()
    return done.returncode, json.loads(line)


def checked(library: Path, says: str, name: str, **context: object) -> dict[str, Any]:
    """The result of the check ``name`` where the library ``says`` something, as its own process gives it."""
    where = f"perdure.supervisor.check_gpu:{name.replace('-', '_')}"
    code, found = ask(library, says, ["perdure.supervisor.check_child", name, where, json.dumps(context)])
    assert code == 0
    assert found["check"] == name
    return found


def test_healthy_gpus_are_ok_and_their_facts_are_told(library: Path) -> None:
    found = checked(library, "gpus=8", "gpu", gpus=8)
    assert found["word"] == "ok"
    assert found["says"].startswith("8 GPUs without errors")
    first = found["facts"]["gpus"][0]
    assert first["name"] == "Fake GPU"
    assert (first["clock_mhz"], first["max_clock_mhz"], first["ecc_uncorrected"]) == (1200, 1980, 0)


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("ecc:2=7", "GPU 2: 7 ECC errors that could not be corrected"),
        ("pending:3=1", "GPU 3: rows of its memory wait to be remapped"),
        ("failure:3=1", "GPU 3: a row of its memory could not be remapped"),
        ("xid:5=79", "GPU 5: Xid 79, it has fallen off the bus"),
        ("lost:1=1", "GPU 1: it has fallen off the bus"),
        ("slowed:0=64", "GPU 0: slowed down by its hardware (heat)"),
        ("slowed:0=136", "GPU 0: slowed down by its hardware (hardware slowdown, power brake)"),
    ],
)
def test_a_faulty_gpu_is_a_problem_that_names_it(library: Path, fault: str, says: str) -> None:
    found = checked(library, f"gpus=8 {fault}", "gpu")
    assert (found["word"], found["says"]) == ("problem", says)
    assert found["do"]


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("xid:4=13", "GPU 4: Xid 13 (most often the program's fault)"),
        ("slowed:4=32", "GPU 4: slowed down (warmth)"),
    ],
)
def test_what_may_pass_is_a_note(library: Path, fault: str, says: str) -> None:
    found = checked(library, f"gpus=8 {fault}", "gpu")
    assert (found["word"], found["says"]) == ("note", says)


def test_what_a_gpu_does_not_support_is_left_out(library: Path) -> None:
    found = checked(library, "gpus=1 ecc_unsupported=1", "gpu")
    assert found["word"] == "ok"
    assert found["facts"]["gpus"][0]["ecc_uncorrected"] is None


def test_gpus_that_are_missing_are_a_problem(library: Path) -> None:
    assert checked(library, "gpus=7", "gpu", gpus=8)["says"] == "7 GPUs are there, and 8 should be"


@pytest.mark.parametrize("name", ["gpu", "gpu-memory"])
def test_a_driver_that_does_not_answer_is_told(library: Path, name: str) -> None:
    found = checked(library, "gpus=8 broken=1", name, gpus=8)
    assert found["word"] == "problem"
    assert "8 GPUs should be there, but the driver does not answer" in found["says"]


def test_no_driver_is_fine_unless_gpus_should_be_there(tmp_path: Path) -> None:
    assert checked(tmp_path, "", "gpu")["word"] == "ok"
    assert "no NVIDIA driver is loaded" in checked(tmp_path, "", "gpu", gpus=8)["says"]


def test_a_driver_that_hangs_is_given_up_and_the_command_says_so(library: Path) -> None:
    command = ["perdure", "doctor", "--checks", "gpu", "--json", "--deadline", "5"]
    code, found = ask(library, "gpus=8 hang=1", command)
    assert code == 1
    assert (found["check"], found["word"]) == ("gpu", "problem")
    assert found["says"].endswith("s; given up")


def test_gpu_memory_that_is_free_is_ok(library: Path) -> None:
    assert checked(library, "gpus=2", "gpu-memory", gone=[4242])["word"] == "ok"


def test_memory_that_an_ended_process_holds_is_a_problem(library: Path) -> None:
    found = checked(library, "gpus=2 pid:1=4242", "gpu-memory", gone=[4241, 4242])
    assert (found["word"], found["says"]) == (
        "problem",
        "GPU 1: 2.1 GB are held by process 4242, which should be gone",
    )


def test_memory_that_somebody_else_holds_is_a_note_and_a_problem_if_it_is_needed(library: Path) -> None:
    assert checked(library, "gpus=2 pid:1=7", "gpu-memory", gone=[4242])["word"] == "note"
    unseen = checked(library, "gpus=1 used:0=4096", "gpu-memory")
    assert unseen["says"] == "GPU 0: 4.3 GB are used by processes that cannot be seen from here"
    found = checked(library, "gpus=2 pid:1=7", "gpu-memory", need_gpu_bytes=80 << 30)
    assert found["word"] == "problem"
    assert "held by process 7, and 85.9 GB are needed" in found["says"]


def test_xid_errors_of_the_kernel_log_count_while_they_are_new() -> None:
    lines = [
        "6,900,1000000,-;NVRM: Xid (PCI:0000:3b:00): 31, pid=12, name=python, Ch 00000008",
        "4,901,7000000,-;NVRM: Xid (PCI:0000:86:00.0): 79, pid='<unknown>', GPU has fallen off the bus.",
        "6,902,7000001,-;nvidia 0000:3b:00.0: enabling device",
        "Xid without a head NVRM: Xid (PCI:0000:3b:00): 79",
    ]
    assert list(xids_in(lines, 10.0, 5.0)) == [("0000:86:00.0", 79)]
    assert [xid for _, xid in xids_in(lines, 10.0, 50.0)] == [31, 79]
    assert list(xids_in(None, 10.0, 5.0)) == []


def test_a_kernel_log_that_may_not_be_read_is_said_to_be_unread(tmp_path: Path) -> None:
    assert kernel_log(str(tmp_path / "none")) is None
    assert "may not be read" in verdict([Gpu(0)], expected=None, log_read=False).says


def test_a_log_is_read_to_its_end(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "log")
    writer = os.open(tmp_path / "log", os.O_RDWR | os.O_NONBLOCK)
    try:
        os.write(writer, b"6,1,2,-;one")
        assert kernel_log(str(tmp_path / "log")) == ["6,1,2,-;one"]
    finally:
        os.close(writer)
