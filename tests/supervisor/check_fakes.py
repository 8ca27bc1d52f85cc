"""Probes that go wrong in each way that a real one can, for `perdure.supervisor.checks` to run."""

from __future__ import annotations

import os
import signal
import sys
import time

from perdure.errors import StorageFull
from perdure.supervisor.checks import Context, Result


def well(context: Context) -> Result:
    return Result(check="any", word="ok", says=f"told of {context.folder}", facts={"pid": os.getpid()})


def stopped(context: Context) -> Result:
    os.kill(os.getpid(), signal.SIGSTOP)
    raise AssertionError("it was woken")


def deaf(context: Context) -> Result:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(1000)
    raise AssertionError("it was left alone")


def killed(context: Context) -> Result:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("it lives")


def aborted(context: Context) -> Result:
    os.abort()


def raising(context: Context) -> Result:
    raise RuntimeError("the driver said 42")


def refused(context: Context) -> Result:
    raise StorageFull("no space is left on the device; make room", file="/x")


def silent(context: Context) -> Result:
    sys.stdout.write("hello\n")
    sys.stdout.flush()
    os._exit(0)


def talking(context: Context) -> Result:
    print("a library says something first")
    return Result(check="any", word="note", says="found", do="nothing")


def with_child(context: Context) -> Result:
    """Leave a process that keeps the pipes open, then hang."""
    if os.fork() == 0:
        time.sleep(1000)
        os._exit(0)
    time.sleep(1000)
    raise AssertionError("it was left alone")


def threads(context: Context) -> Result:
    """How many threads a product takes."""
    import numpy as np

    matrix = np.ones((512, 512))
    _ = matrix @ matrix
    return Result(check="any", word="ok", says="counted", facts={"threads": len(os.listdir("/proc/self/task"))})
