"""The kernel's log from a device of records, from files with any head, over gaps, rotation and storms."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure.watcher.kernel_log import KernelLog, headless, record_of

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data" / "watch" / "gpud"


@pytest.fixture
def device() -> Iterator[tuple[int, str]]:
    """A pipe of packets: what is written at once is read at once, as records of the device are."""
    read, write = os.pipe2(os.O_DIRECT | os.O_CLOEXEC)
    yield write, f"/proc/self/fd/{read}"
    os.close(read)
    os.close(write)


def texts(log: KernelLog, now_s: float) -> list[str]:
    return [line.text for line in log.read(now_s)]


def test_records_come_once_with_their_own_time(device: tuple[int, str]) -> None:
    write, path = device
    log = KernelLog(path, node="n1", past_s=10.0)
    assert log.read(100.0) == []
    os.write(write, b"4,901,99000000,-;NVRM: Xid (PCI:0000:3b:00): 79\n SUBSYSTEM=pci\n")
    os.write(write, b"6,902,500000,-;long ago\n")
    (line,) = log.read(101.0)
    assert (line.text, line.at_s, line.node, line.source, line.rank) == (
        "NVRM: Xid (PCI:0000:3b:00): 79", 99.0, "n1", "kernel", None,
    )  # fmt: skip
    assert log.read(102.0) == []
    assert (log.lost, log.problem) == (0, "")
    log.close()


def test_records_that_were_overwritten_are_counted(device: tuple[int, str]) -> None:
    write, path = device
    log = KernelLog(path)
    log.read(0.0)
    os.write(write, b"4,7,1000000,-;one")
    os.write(write, b"4,12,1000000,-;two")
    assert texts(log, 2.0) == ["one", "two"]
    assert log.lost == 4
    log.close()


def test_what_programs_write_to_the_log_is_left_out_unless_asked_for(device: tuple[int, str]) -> None:
    write, path = device
    log = KernelLog(path)
    log.read(0.0)
    os.write(write, b"12,7,1000000,-;NVRM: Xid (PCI:0000:3b:00): 79")
    assert texts(log, 2.0) == []
    log.close()
    injected = KernelLog(path, programs=True)
    injected.read(0.0)
    os.write(write, b"12,8,1000000,-;NVRM: Xid (PCI:0000:3b:00): 79")
    assert texts(injected, 2.0) == ["NVRM: Xid (PCI:0000:3b:00): 79"]
    injected.close()


@pytest.mark.parametrize(
    "data", [b"", b";", b"4,x,3,-;a", b"4;a", b"4,1,-3,-;a", b"\xff\xfe;a", b"4,1," + b"9" * 40 + b",-;a"]
)
def test_what_is_no_record_is_none(data: bytes) -> None:
    assert record_of(data) is None


def test_records_hold_no_control_characters_and_end() -> None:
    found = record_of(b"4,1,2,-;" + b"\x1b[31mred\x1b[0m \x00\xff" + b"x" * 100_000)
    assert found is not None
    assert found[2].startswith("red  \ufffdx")
    assert len(found[2]) <= 4096


@pytest.mark.parametrize(
    "head",
    [
        "",
        "[    1.234567] ",
        "[123456.789012][  T101] ",
        "<4>[    1.234567] ",
        "Feb 23 16:24:18 gpu-7 kernel: ",
        "Feb  3 16:24:18 gpu-7 kernel: [12345.678901] ",
        "2025-01-21T04:41:44.283302+00:00 gpu-7.dc kernel: ",
        "2025-01-21T04:41:44,283302+00:00 ",
        "kern  :warn  : 2025-01-21T04:41:44,283302+00:00 ",
        "kern  :err   : [   12.345678] ",
        "[Sun Feb 23 16:24:18 2025] ",
    ],
)
def test_whatever_wrote_a_line_its_text_is_the_same(head: str) -> None:
    text = "NVRM: Xid (PCI:0000:9b:00): 119, pid=2024380, name=nvidia-smi, Timeout after 6s"
    assert headless(head + text) == text


def test_a_file_that_is_rotated_is_followed(tmp_path: Path) -> None:
    path = tmp_path / "kern.log"
    path.write_text("Feb 23 16:24:18 n kernel: old\n")
    log = KernelLog(path)
    assert texts(log, 0.0) == []
    with path.open("a") as file:
        file.write("Feb 23 16:24:19 n kernel: one\n")
    assert texts(log, 1.0) == ["one"]
    with path.open("a") as file:
        file.write("Feb 23 16:24:20 n kernel: two\n")
    path.rename(tmp_path / "kern.log.1")
    path.write_text("Feb 23 16:24:21 n kernel: three\n")
    assert texts(log, 2.0) == ["two", "three"]
    log.close()


def test_a_storm_is_bounded_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "kern.log"
    path.touch()
    log = KernelLog(path)
    log.read(0.0)
    path.write_text("".join(f"[{i}.0] line {i}\n" for i in range(20_000)))
    found = texts(log, 1.0)
    assert len(found) <= 1000
    assert (found[0], found[-1]) == ("line 0", "line 19999")
    assert len(found) + log.lost == 20_000
    log.close()


def test_a_log_that_may_not_be_read_says_so_and_is_tried_again(tmp_path: Path) -> None:
    log = KernelLog(tmp_path / "none")
    assert log.read(0.0) == []
    assert "cannot be read" in log.problem
    (tmp_path / "none").touch()
    assert log.read(1.0) == []
    assert "cannot be read" in log.problem
    assert log.read(60.0) == []
    assert log.problem == ""
    log.close()


def test_the_log_of_this_machine_can_be_read() -> None:
    try:
        os.close(os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK))
    except OSError as error:
        pytest.skip(f"NOT TESTED: the real /dev/kmsg ({error.strerror})")
    log = KernelLog(past_s=1e9)
    lines = log.read(time.monotonic())
    assert log.problem == ""
    assert all(line.source == "kernel" and line.at_s <= time.monotonic() for line in lines)
    log.close()


@pytest.mark.skipif(not SHARED.is_dir(), reason="NOT TESTED: real kernel logs (shared data is not here)")
def test_real_logs_lose_their_heads_alone() -> None:
    for path in sorted(SHARED.glob("dmesg*")):
        log = KernelLog(path, past_s=1.0)
        lines = texts(log, 0.0)
        assert sum("Xid (PCI:" in text for text in lines) == path.read_text(errors="replace").count("Xid (PCI:")
        assert all(text.startswith("NVRM: Xid") for text in lines if "Xid (PCI:" in text)
        log.close()
