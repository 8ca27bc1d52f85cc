"""Signals that are sent to ``perdure watch -- COMMAND`` reach the command: once, and by force the second time."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from perdure.process.handle import is_running

pytestmark = pytest.mark.timeout(120)

COMMAND = """
import pathlib, signal, subprocess, sys, time
here, ends = pathlib.Path(sys.argv[1]), sys.argv[2] == "ends"
heard = []
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, _: heard.append(number))
below = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"], start_new_session=True)
(here / "new").write_text(f"{below.pid}")
(here / "new").rename(here / "ready")
while True:
    time.sleep(0.05)
    if heard:
        time.sleep(0.5)
        (here / "now").write_text(" ".join(str(int(number)) for number in heard))
        (here / "now").rename(here / "heard")
        if ends:
            below.kill()
            sys.exit(5)
"""


def start(folder: Path, how: str, **more: object) -> subprocess.Popen[bytes]:
    (folder / "command.py").write_text(COMMAND)
    words = [sys.executable, "-m", "perdure", "watch", "--", sys.executable, str(folder / "command.py")]
    process = subprocess.Popen([*words, str(folder), how], stdin=subprocess.DEVNULL, **more)  # type: ignore[call-overload]
    wait_for(folder / "ready")
    return process  # type: ignore[no-any-return]


def wait_for(path: Path) -> str:
    give_up = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < give_up, path
        time.sleep(0.05)
    return path.read_text()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_watcher_alone_reaches_the_command_once(tmp_path: Path, number: signal.Signals) -> None:
    with start(tmp_path, "ends", stderr=subprocess.DEVNULL) as process:
        time.sleep(0.5)
        os.kill(process.pid, number)
        os.kill(process.pid, number)  # as a batch system sends it to a process and to its group
        assert process.wait(60) == 5
    assert wait_for(tmp_path / "heard") == str(int(number))


def test_a_second_signal_ends_the_command_and_what_it_has_started(tmp_path: Path) -> None:
    with start(tmp_path, "stays", stderr=subprocess.DEVNULL) as process:
        below = int(wait_for(tmp_path / "ready"))
        os.kill(process.pid, signal.SIGINT)
        wait_for(tmp_path / "heard")
        time.sleep(1.2)
        assert process.poll() is None
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGKILL
    give_up = time.monotonic() + 10
    while is_running(below) and time.monotonic() < give_up:
        time.sleep(0.05)
    assert not is_running(below)


def test_a_terminal_reaches_the_command_by_itself(tmp_path: Path) -> None:
    (tmp_path / "command.py").write_text(COMMAND)
    words = [sys.executable, "-m", "perdure", "watch", "--", sys.executable, str(tmp_path / "command.py")]
    pid, master = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [*words, str(tmp_path), "ends"])
    try:
        wait_for(tmp_path / "ready")
        time.sleep(0.5)
        os.write(master, b"\x03")
        assert wait_for(tmp_path / "heard") == str(int(signal.SIGINT))
    finally:
        _, status = os.waitpid(pid, 0)
        os.close(master)
    assert os.waitstatus_to_exitcode(status) == 5
