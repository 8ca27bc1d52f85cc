"""A handle means one process, stopped or not, and never a later one of the same number."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from perdure.process.handle import Handle


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])


def test_a_stopped_process_is_seen_and_ended() -> None:
    with sleeper() as process:
        handle = Handle(process.pid)
        assert not handle.stopped()
        process.send_signal(signal.SIGSTOP)
        give_up = time.monotonic() + 10
        while not handle.stopped() and time.monotonic() < give_up:
            time.sleep(0.01)
        assert handle.stopped()
        assert handle.end(within_s=10)
        assert process.wait(10) == -signal.SIGKILL
        assert handle.end(within_s=10)  # again is no error


def test_one_that_is_gone_and_this_very_process_are_left_alone() -> None:
    with sleeper() as process:
        process.kill()
        process.wait(10)
        assert not Handle(process.pid).end(within_s=0.1)
    assert not Handle(os.getpid()).end(within_s=0.1)
    assert not Handle(0).stopped()
